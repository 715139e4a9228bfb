//! What a template of a query is filled in with. Pure.

use std::collections::BTreeMap;

use super::template::{Template, Value};
use crate::serve::{LabelOperator, LabelRequirement};

/// The fields of a query.
pub(super) struct QueryFields<'a> {
    series: &'a str,
    matchers: Vec<String>,
    values: BTreeMap<String, Value>,
}

impl<'a> QueryFields<'a> {
    /// Those of a selector.
    pub(super) fn new(series: &'a str, requirements: &[LabelRequirement<'_>]) -> Self {
        let mut fields = Self { series, matchers: Vec::new(), values: BTreeMap::new() };
        for LabelRequirement { key, operator, values } in requirements {
            // Of several values, none of their letters is escaped: users of the adapter write regular expressions there.
            fields.require(key, sign(*operator), values.join("|"));
        }
        fields
    }

    /// Adds a condition on a label.
    pub(super) fn require(&mut self, label: &str, sign: &str, value: String) {
        self.matchers.push(format!("{label}{sign}{value:?}"));
        self.values.insert(label.to_owned(), Value::Text(value));
    }

    /// The query, whose result has a value for each group of these labels. `field` is where the template stands.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn render(
        self,
        template: &Template,
        field: &str,
        group_by: &[&str],
    ) -> Result<String, String> {
        let fields = BTreeMap::from([
            ("Series", self.series.into()),
            ("LabelMatchers", Value::Text(self.matchers.join(","))),
            ("LabelValuesByName", Value::Map(self.values)),
            ("GroupBy", Value::Text(group_by.join(","))),
            ("GroupBySlice", Value::List(group_by.iter().map(|label| (*label).into()).collect())),
        ]);
        let query = template.render(fields).map_err(|error| format!("{field}: {error}"))?;
        if query.is_empty() { Err(format!("{field} makes an empty query")) } else { Ok(query) }
    }
}

/// How a requirement is written in PromQL.
const fn sign(operator: LabelOperator) -> &'static str {
    match operator {
        LabelOperator::Equals | LabelOperator::DoesNotExist => "=",
        LabelOperator::NotEquals | LabelOperator::Exists => "!=",
        LabelOperator::In => "=~",
        LabelOperator::NotIn => "!~",
    }
}
