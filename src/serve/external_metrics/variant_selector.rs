//! Which variants a read selects: by the labels of their items, and by their name and namespace.

use std::fmt;

use wva_core::VariantId;

use super::field_selector::FieldRule;
use super::metric::Labels;
use super::selector::{RequirementRef, Rule, Selector};

/// The labels that name a variant.
const NAME_LABELS: [&str; 2] = ["variant_name", "variant"];

/// Selects the variants for which every label selector and every field rule holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VariantSelector<'a> {
    pub(crate) labels: &'a [Selector],
    pub(crate) fields: &'a [FieldRule],
}

impl<'a> VariantSelector<'a> {
    /// True when the variant with these labels is selected.
    pub(super) fn matches(&self, id: &VariantId, labels: Labels<'_>) -> bool {
        self.fields.iter().all(|rule| rule.matches(id))
            && self.labels.iter().all(|selector| selector.matches(|key| labels.get(key)))
    }

    /// True when every variant is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.iter().all(Selector::is_empty)
    }

    /// All requirements, sorted by key; a rule for a field has the key of the label with the same value.
    pub(super) fn requirements(&self) -> Vec<RequirementRef<'a>> {
        let labels = self.labels.iter().flat_map(Selector::requirements);
        let mut requirements: Vec<_> = labels.chain(self.fields.iter().map(FieldRule::requirement)).collect();
        requirements.sort_by_key(|requirement| requirement.key);
        requirements
    }

    /// The variants that the requirements name, sorted, each once; empty when they name none.
    pub(super) fn names(&self) -> Vec<&'a str> {
        let labels = self.labels.iter().flat_map(Selector::requirements);
        let requirements = labels.chain(self.fields.iter().map(FieldRule::requirement));
        let mut names = Vec::new();
        for requirement in requirements.filter(|requirement| NAME_LABELS.contains(&requirement.key)) {
            match requirement.rule {
                Rule::Equals(value) => names.push(value.as_str()),
                Rule::In(values) => names.extend(values.iter().map(String::as_str)),
                _ => {}
            }
        }
        names.retain(|name| !name.is_empty());
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// As Kubernetes prints a label selector: sorted by key, no spaces after commas.
impl fmt::Display for VariantSelector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements().into_iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            requirement.fmt(f)?;
        }
        Ok(())
    }
}
