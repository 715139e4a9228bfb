//! Field selectors, from text to terms on the two fields that Kubernetes knows for every kind. Pure.
//!
//! ```text
//! selector = [ term { "," term } ]        (all must hold; an empty term says nothing)
//! term     = field ("=" | "==" | "!=") value        (in a value, a backslash stands before itself, "," and "=")
//! ```

use super::selector::{MAX_REQUIREMENTS, Rule, Selector};

/// A field that every object has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// `metadata.name`
    Name,
    /// `metadata.namespace`
    Namespace,
}

/// What is asked of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) field: Field,
    /// True for the objects that have the value, false for all others.
    pub(crate) has: bool,
    pub(crate) value: String,
}

/// A field selector that cannot be understood; the texts are those of other API servers.
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
    #[error("the field selector has more than {MAX_REQUIREMENTS} terms, and no more are read")]
    TooMany,
}

impl Field {
    fn named(name: &str) -> Result<Self, FieldError> {
        match name {
            "metadata.name" => Ok(Self::Name),
            "metadata.namespace" => Ok(Self::Namespace),
            other => Err(FieldError::Unknown(other.into())),
        }
    }
}

impl Term {
    /// The same of a variant's labels.
    pub(crate) fn of_variants(&self) -> Selector {
        let label = match self.field {
            Field::Name => "variant_name",
            Field::Namespace => "namespace",
        };
        let value = self.value.clone();
        Selector::requiring(label, if self.has { Rule::Equals(value) } else { Rule::Differs(value) })
    }
}

/// Reads a field selector. What cannot be read is told before what is not known, as in Kubernetes.
pub(crate) fn parse(text: &str) -> Result<Vec<Term>, FieldError> {
    let mut escaped = false;
    let terms = text.split(|letter: char| {
        let ends = letter == ',' && !escaped;
        escaped = letter == '\\' && !escaped;
        ends
    });
    let terms: Vec<_> = terms.filter(|term| !term.is_empty()).take(MAX_REQUIREMENTS + 1).collect();
    if terms.len() > MAX_REQUIREMENTS {
        return Err(FieldError::TooMany);
    }
    let read = terms.into_iter().map(|term| parts(term, text));
    let read = read.collect::<Result<Vec<_>, FieldError>>()?;
    read.into_iter().map(|(field, has, value)| Ok(Term { field: Field::named(field)?, has, value })).collect()
}

/// The field of a term, whether its objects have the value, and the value.
fn parts<'a>(term: &'a str, selector: &str) -> Result<(&'a str, bool, String), FieldError> {
    let unclear = || FieldError::NoOperator { selector: selector.into(), term: term.into() };
    let (left, right) = term.split_once('=').ok_or_else(unclear)?;
    let (field, has, value) = match left.strip_suffix('!') {
        Some(field) => (field, false, right),
        None => (left, true, right.strip_prefix('=').unwrap_or(right)),
    };
    Ok((field, has, unescaped(value)?))
}

fn unescaped(value: &str) -> Result<String, FieldError> {
    let (mut plain, mut letters) = (String::with_capacity(value.len()), value.chars());
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => escaped,
                other => return Err(FieldError::Escape(['\\'].into_iter().chain(other).collect())),
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

    use super::*;

    fn read(text: &str) -> Result<String, String> {
        let terms = parse(text).map_err(|error| error.to_string())?;
        let all = terms.iter().fold(Selector::default(), |all, term| all.and(&term.of_variants()));
        Ok(all.to_string())
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
    fn what_is_wrong_with_a_term_is_said_in_the_words_of_kubernetes() {
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
        fn no_text_harms(text: String) {
            let _ = parse(&text);
        }

        #[test]
        fn every_value_reads_back_when_it_is_escaped(value: String, has: bool) {
            let escaped: String = value
                .chars()
                .flat_map(|letter| ['\\'].into_iter().filter(move |_| "\\,=".contains(letter)).chain([letter]))
                .collect();
            let text = format!("metadata.name{}{escaped}", if has { "==" } else { "!=" });
            prop_assert_eq!(parse(&text), Ok(vec![Term { field: Field::Name, has, value }]));
        }
    }
}
