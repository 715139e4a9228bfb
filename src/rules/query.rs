//! What a template of a query is filled in with. Pure.

use std::collections::BTreeMap;

use super::commute::Requirement;
use super::object_names::is_object_name;
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

/// The requirements of a selector that a label has a value. None if another part of the selector is more than the comparison with one plain
/// value: its text, which is the reader's, may be an expression that takes long to parse.
pub(super) fn plain_requirements<'a>(selector: &[LabelRequirement<'a>]) -> Vec<Requirement<'a>> {
    if !is_plain(selector) {
        return Vec::new();
    }
    let required = selector.iter().filter(|own| own.operator == LabelOperator::Equals);
    required.flat_map(|own| own.values.iter().map(|value| Requirement { label: own.key, value })).collect()
}

/// Whether each part of a selector is the comparison with one plain value, or with none.
pub(super) fn is_plain(selector: &[LabelRequirement<'_>]) -> bool {
    selector.iter().all(|LabelRequirement { key, operator, values }| {
        let is_comparison = !matches!(operator, LabelOperator::In | LabelOperator::NotIn);
        is_comparison && is_object_name(key) && values.iter().all(|value| is_object_name(value))
    })
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
