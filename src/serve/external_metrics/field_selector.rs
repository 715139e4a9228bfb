//! Field selectors: rules for the two fields that every kind of Kubernetes object has. Pure.
//!
//! ```text
//! selector = [ term { "," term } ]        (all must hold; an empty term is ignored)
//! term     = field ("=" | "==" | "!=") value        (in a value, a backslash escapes itself, "," and "=")
//! ```

use wva_core::VariantId;

use super::selector::{MAX_REQUIREMENTS, RequirementRef, Rule};

/// A field that every object has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// `metadata.name`
    Name,
    /// `metadata.namespace`
    Namespace,
}

/// A condition on one field of a variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldRule {
    pub(crate) field: Field,
    pub(crate) rule: Rule,
}

/// An invalid field selector; the messages are those of other API servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldError {
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    NoOperator { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(char),
    #[error("{0:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")]
    Unknown(String),
    #[error("the field selector has more than {MAX_REQUIREMENTS} terms, which is the limit")]
    TooMany,
}

impl Field {
    fn parse(name: &str) -> Result<Self, FieldError> {
        match name {
            "metadata.name" => Ok(Self::Name),
            "metadata.namespace" => Ok(Self::Namespace),
            unknown => Err(FieldError::Unknown(unknown.into())),
        }
    }
}

impl FieldRule {
    pub(super) fn matches(&self, id: &VariantId) -> bool {
        let value = match self.field {
            Field::Name => &id.name,
            Field::Namespace => &id.namespace,
        };
        self.rule.holds(Some(value))
    }

    /// The same condition on a label of the variant.
    pub(super) fn requirement(&self) -> RequirementRef<'_> {
        let key = match self.field {
            Field::Name => "variant_name",
            Field::Namespace => "namespace",
        };
        RequirementRef { key, rule: &self.rule }
    }
}

/// Parses a field selector. Syntax errors come before unknown fields, as in Kubernetes.
pub(crate) fn parse(text: &str) -> Result<Vec<FieldRule>, FieldError> {
    let mut is_escaped = false;
    let terms = text.split(|letter: char| {
        let ends_term = letter == ',' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends_term
    });
    let terms: Vec<_> = terms.filter(|term| !term.is_empty()).take(MAX_REQUIREMENTS + 1).collect();
    if terms.len() > MAX_REQUIREMENTS {
        return Err(FieldError::TooMany);
    }
    let terms = terms.into_iter().map(|term| split(term, text));
    let terms = terms.collect::<Result<Vec<_>, FieldError>>()?;
    terms.into_iter().map(|(field, rule)| Ok(FieldRule { field: Field::parse(field)?, rule })).collect()
}

/// The field and the rule of a term.
fn split<'a>(term: &'a str, selector: &str) -> Result<(&'a str, Rule), FieldError> {
    let no_operator = || FieldError::NoOperator { selector: selector.into(), term: term.into() };
    let (left, right) = term.split_once('=').ok_or_else(no_operator)?;
    Ok(match left.strip_suffix('!') {
        Some(field) => (field, Rule::Differs(unescape(right)?)),
        None => (left, Rule::Equals(unescape(right.strip_prefix('=').unwrap_or(right))?)),
    })
}

fn unescape(value: &str) -> Result<String, FieldError> {
    let mut plain = String::with_capacity(value.len());
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => escaped,
                invalid => return Err(FieldError::Escape(['\\'].into_iter().chain(invalid).collect())),
            },
            ',' | '=' => return Err(FieldError::Unescaped(letter)),
            plain => plain,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::variant_selector::VariantSelector;
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let fields = parse(text).map_err(|error| error.to_string())?;
        Ok(VariantSelector { labels: &[], fields: &fields }.to_string())
    }

    #[test]
    fn a_term_selects_by_the_name_or_the_namespace_of_a_variant() {
        for (text, want) in [
            ("", ""),
            (",,", ""),
            ("metadata.name=a", "variant_name=a"),
            ("metadata.name==a", "variant_name=a"),
            ("metadata.name!=a", "variant_name!=a"),
            ("metadata.name=", "variant_name="),
            ("metadata.namespace=b,metadata.name!=a", "namespace=b,variant_name!=a"),
            (r"metadata.name=a\,b\=c\\", r"variant_name=a,b=c\"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(want), "{text}");
        }
    }

    #[test]
    fn an_invalid_term_has_the_message_of_kubernetes() {
        let known = r#"is not a known field selector: only "metadata.name", "metadata.namespace""#;
        for (text, want) in [
            ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'".into()),
            ("metadata.name=a,x", "invalid selector: 'metadata.name=a,x'; can't understand 'x'".into()),
            ("spec.x=1,x", "invalid selector: 'spec.x=1,x'; can't understand 'x'".into()),
            ("spec.x=1", format!("\"spec.x\" {known}")),
            ("metadata.name =a", format!("\"metadata.name \" {known}")),
            ("=a", format!("\"\" {known}")),
            ("metadata.name=a=b", "invalid field selector: unescaped character in value: =".into()),
            (r"metadata.name=a\x", r"invalid field selector: invalid escape sequence: \x".into()),
            (r"metadata.name=a\", r"invalid field selector: invalid escape sequence: \".into()),
        ] {
            assert_eq!(read(text), Err::<String, String>(want), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = parse(&text);
        }

        #[test]
        fn every_value_reads_back_when_it_is_escaped(value: String, has: bool) {
            let escaped: String = value
                .chars()
                .flat_map(|letter| ['\\'].into_iter().filter(move |_| "\\,=".contains(letter)).chain([letter]))
                .collect();
            let text = format!("metadata.name{}{escaped}", if has { "==" } else { "!=" });
            let rule = if has { Rule::Equals(value) } else { Rule::Differs(value) };
            prop_assert_eq!(parse(&text), Ok(vec![FieldRule { field: Field::Name, rule }]));
        }
    }
}
