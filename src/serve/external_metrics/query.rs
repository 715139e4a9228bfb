//! The query of a read: Kubernetes' list options, of which `labelSelector` and `fieldSelector` select variants. Pure.
//!
//! Field selectors are requirements of the two fields that every kind of Kubernetes object has:
//! ```text
//! selector = [ term { "," term } ]        (all must hold; an empty term is ignored)
//! term     = field ("=" | "==" | "!=") value        (in a value, a backslash escapes itself, "," and "=")
//! ```

use std::borrow::Cow;
use std::fmt;

use http::Uri;

use super::metric::Labels;
use super::selector::{LabelSelector, MAX_REQUIREMENTS, Operator, RequirementRef, SelectorError};
use crate::serve::encoding::{Reason, Status};

/// The labels that name a variant.
const NAME_LABELS: [&str; 2] = ["variant_name", "variant"];

/// The selectors of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub(crate) labels: LabelSelector,
    pub(crate) fields: Vec<FieldRequirement>,
}

impl ListOptions {
    /// Parses the query of a read in `group`; 405 for a watch, 400 for an invalid option.
    pub(crate) fn parse(group: &'static str, uri: &Uri) -> Result<Self, Status> {
        if is_watch(uri) {
            let message = format!("watch is not supported on resources of kind \"*.{group}\"");
            return Err(Status::new(Reason::MethodNotAllowed, message).about(group, "*", ""));
        }
        let bad_request = |message: String| Status::new(Reason::BadRequest, message);
        for option in ["limit", "timeoutSeconds"] {
            let value = first(uri, option);
            if !value.is_empty() && value.parse::<i64>().is_err() {
                let message = format!("strconv.ParseInt: parsing {value:?}: invalid syntax ({option})");
                return Err(bad_request(message));
            }
        }
        let fields = parse_field_selector(&first(uri, "fieldSelector"));
        let fields = fields.map_err(|error| bad_request(error.to_string()))?;
        let labels = LabelSelector::parse(&first(uri, "labelSelector"));
        let labels = labels.map_err(|error| bad_request(error.to_string()))?;
        Ok(Self { labels, fields })
    }
}

/// The selector of series in a read of the metrics of objects; 400 for an invalid one.
pub(crate) fn metric_label_selector(uri: &Uri) -> Result<LabelSelector, Status> {
    let bad_request =
        |error: SelectorError| Status::new(Reason::BadRequest, format!("metricLabelSelector: {error}"));
    LabelSelector::parse(&first(uri, "metricLabelSelector")).map_err(bad_request)
}

/// True for `?watch=1` and its other spellings.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    let is_true = |value: &str| value != "0" && !value.eq_ignore_ascii_case("false");
    values(uri, "watch").any(|value| is_true(&value))
}

/// The first value of `key`; empty when there is none.
fn first<'a>(uri: &'a Uri, key: &str) -> Cow<'a, str> {
    values(uri, key).next().unwrap_or_default()
}

/// The decoded values of `key`. An invalid escape stays as it is: in a selector it is then an error, where to drop it would
/// select everything.
fn values<'a>(uri: &'a Uri, key: &str) -> impl Iterator<Item = Cow<'a, str>> {
    let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.filter(move |(name, _)| name == key).map(|(_, value)| value)
}

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
pub(crate) struct FieldRequirement {
    pub(crate) field: Field,
    pub(crate) operator: Operator,
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

impl FieldRequirement {
    /// The same condition on a label of the variant.
    pub(super) fn requirement(&self) -> RequirementRef<'_> {
        let key = match self.field {
            Field::Name => "variant_name",
            Field::Namespace => "namespace",
        };
        RequirementRef { key, operator: &self.operator }
    }

    /// True for an object with this name and namespace.
    pub(crate) fn holds(&self, name: &str, namespace: &str) -> bool {
        let value = match self.field {
            Field::Name => name,
            Field::Namespace => namespace,
        };
        self.operator.holds(Some(value))
    }
}

/// Parses a field selector. Syntax errors come before unknown fields, as in Kubernetes.
fn parse_field_selector(text: &str) -> Result<Vec<FieldRequirement>, FieldError> {
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
    terms
        .into_iter()
        .map(|(field, operator)| Ok(FieldRequirement { field: Field::parse(field)?, operator }))
        .collect()
}

/// The field and the operator of a term.
fn split<'a>(term: &'a str, selector: &str) -> Result<(&'a str, Operator), FieldError> {
    let no_operator = || FieldError::NoOperator { selector: selector.into(), term: term.into() };
    let (left, right) = term.split_once('=').ok_or_else(no_operator)?;
    Ok(match left.strip_suffix('!') {
        Some(field) => (field, Operator::NotEquals(unescape(right)?)),
        None => (left, Operator::Equals(unescape(right.strip_prefix('=').unwrap_or(right))?)),
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

/// The label that names an installation's controller instance.
const INSTANCE_LABEL: &str = "controller_instance";

/// Selects the variants for which every label selector and every field requirement holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VariantSelector<'a> {
    pub(crate) labels: &'a [LabelSelector],
    pub(crate) fields: &'a [FieldRequirement],
}

impl<'a> VariantSelector<'a> {
    /// True when the variant with these labels is selected.
    pub(crate) fn matches(&self, labels: Labels<'_>) -> bool {
        let holds = |requirement: RequirementRef<'_>| requirement.operator.holds(labels.get(requirement.key));
        self.fields.iter().map(FieldRequirement::requirement).all(holds)
            && self.labels.iter().all(|selector| selector.matches(|key| labels.get(key)))
    }

    /// True when every variant is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.iter().all(LabelSelector::is_empty)
    }

    /// All requirements, sorted by key; that of a field has the key of the label with the same value.
    pub(super) fn requirements(&self) -> Vec<RequirementRef<'a>> {
        let labels = self.labels.iter().flat_map(LabelSelector::requirements);
        let mut requirements: Vec<_> =
            labels.chain(self.fields.iter().map(FieldRequirement::requirement)).collect();
        requirements.sort_by_key(|requirement| requirement.key);
        requirements
    }

    /// True when it may select variants of an installation with this label `controller_instance`; `None` without the label.
    pub(crate) fn allows_instance(&self, instance: Option<&str>) -> bool {
        let mut labels = self.labels.iter().flat_map(LabelSelector::requirements);
        labels.all(|requirement| requirement.key != INSTANCE_LABEL || requirement.operator.holds(instance))
    }

    /// The variants that the requirements name, sorted, each once; empty when they name none.
    pub(super) fn names(&self) -> Vec<&'a str> {
        let labels = self.labels.iter().flat_map(LabelSelector::requirements);
        let requirements = labels.chain(self.fields.iter().map(FieldRequirement::requirement));
        let mut names = Vec::new();
        for requirement in requirements.filter(|requirement| NAME_LABELS.contains(&requirement.key)) {
            match requirement.operator {
                Operator::Equals(value) => names.push(value.as_str()),
                Operator::In(values) => names.extend(values.iter().map(String::as_str)),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(query: &str) -> Result<String, String> {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let options = ListOptions::parse("external.metrics.k8s.io", &uri);
        let ListOptions { labels, fields } = options.map_err(|status| status.message().to_owned())?;
        Ok(VariantSelector { labels: &[labels], fields: &fields }.to_string())
    }

    #[test]
    fn selectors_arrive_in_every_encoding() {
        for query in [
            "labelSelector=a%3D2%2Cm+in+%28x%2Cy%29",
            "labelSelector=a=2,m%20in%20(x,y)",
            "labelSelector=%61%3d2%2cm%20in(y%2Cx)",
            "limit=500&labelSelector=a=2,m+in+(x,y)&unknown=%zz",
            "label%53elector=a%3D2%2Cm%09in%0A(x%2cy)",
            "labelSelector=m+in+(x,y),a=2&labelSelector=b",
            "&&labelSelector=a=2,m+in+(x,y)&=&",
        ] {
            assert_eq!(read(query).as_deref(), Ok("a=2,m in (x,y)"), "{query}");
        }
        assert_eq!(read("").as_deref(), Ok(""));
        assert_eq!(
            read("labelSelector=app.kubernetes.io%2Fname%3Dx").as_deref(),
            Ok("app.kubernetes.io/name=x")
        );
    }

    #[test]
    fn an_invalid_escape_is_an_error_and_not_dropped() {
        for query in ["labelSelector=a%zz", "labelSelector=a%3", "labelSelector=a%", "labelSelector=a%FF%FE"]
        {
            assert!(read(query).is_err(), "{query}");
        }
        assert!(read("labelSelector=a%2B1").is_err(), "an escaped plus sign is not a space");
        assert!(read("labelSelector=a=1;b=2").is_err());
    }

    #[test]
    fn a_field_selector_selects_beside_the_labels() {
        for query in [
            "fieldSelector=metadata.name%3Dx&labelSelector=a%3D2",
            "labelSelector=a=2&fieldSelector=metadata.name%3D%3Dx",
        ] {
            assert_eq!(read(query).as_deref(), Ok("a=2,variant_name=x"), "{query}");
        }
    }

    #[test]
    fn wrong_options_are_named() {
        assert_eq!(read("limit=x").unwrap_err(), "strconv.ParseInt: parsing \"x\": invalid syntax (limit)");
        assert!(
            read("fieldSelector=spec.x%3D1")
                .unwrap_err()
                .starts_with("\"spec.x\" is not a known field selector")
        );
        let terms = "metadata.name!=a,".repeat(257);
        assert!(read(&format!("fieldSelector={terms}")).unwrap_err().contains("more than 256 terms"));
        assert_eq!(
            read("fieldSelector=metadata.name").unwrap_err(),
            "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
        );
        assert!(read("watch=1").unwrap_err().starts_with("watch is not supported on resources of kind"));
        for (query, on) in
            [("w%61tch=true", true), ("watch", true), ("watch=False", false), ("watch=0", false)]
        {
            assert_eq!(read(query).is_err(), on, "{query}");
        }
    }

    fn fields(text: &str) -> Result<String, String> {
        let fields = parse_field_selector(text).map_err(|error| error.to_string())?;
        Ok(VariantSelector { labels: &[], fields: &fields }.to_string())
    }

    #[test]
    fn a_term_selects_by_the_name_or_the_namespace_of_a_variant() {
        for (text, expected) in [
            ("", ""),
            (",,", ""),
            ("metadata.name=a", "variant_name=a"),
            ("metadata.name==a", "variant_name=a"),
            ("metadata.name!=a", "variant_name!=a"),
            ("metadata.name=", "variant_name="),
            ("metadata.namespace=b,metadata.name!=a", "namespace=b,variant_name!=a"),
            (r"metadata.name=a\,b\=c\\", r"variant_name=a,b=c\"),
        ] {
            assert_eq!(fields(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_invalid_term_has_the_message_of_kubernetes() {
        let known = r#"is not a known field selector: only "metadata.name", "metadata.namespace""#;
        for (text, expected) in [
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
            assert_eq!(fields(text), Err::<String, String>(expected), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_value_reads_back_when_it_is_escaped(value: String, has: bool) {
            let escaped: String = value
                .chars()
                .flat_map(|letter| ['\\'].into_iter().filter(move |_| "\\,=".contains(letter)).chain([letter]))
                .collect();
            let text = format!("metadata.name{}{escaped}", if has { "==" } else { "!=" });
            let operator = if has { Operator::Equals(value) } else { Operator::NotEquals(value) };
            prop_assert_eq!(parse_field_selector(&text), Ok(vec![FieldRequirement { field: Field::Name, operator }]));
        }
    }
}
