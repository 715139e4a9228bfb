//! Whether a query may be asked once for all values of a label. A query that requires `label="value"` has the same result as the part with
//! that value of the query without the requirement if every series it reads is required to have the value, and every operation makes each
//! element of elements that have one value of the label, and keeps it. Only operations that are known to do so are accepted. Pure.

use std::fmt;

use promql_parser::label::MatchOp;
use promql_parser::parser::{
    AggregateExpr, BinModifier, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality,
    VectorMatchFillValues, VectorSelector, parse, token,
};

/// The longest query that is parsed, in bytes. A parsed query is as deep as it is long in the worst case.
pub(super) const MAX_QUERY_BYTES: usize = 2 * 1024;
/// The label of the buckets of a histogram, which quantiles leave out.
const BUCKET_LABEL: &str = "le";
/// Functions that make an element of one element, or a sample of its range, and of numbers. They keep all labels but the name.
#[rustfmt::skip]
const ELEMENT_FUNCTIONS: &[&str] = &[
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "avg_over_time", "ceil", "changes", "clamp", "clamp_max", "clamp_min", "cos", "cosh",
    "count_over_time", "day_of_month", "day_of_week", "day_of_year", "days_in_month", "deg", "delta", "deriv", "exp", "floor", "hour", "idelta",
    "increase", "irate", "last_over_time", "ln", "log10", "log2", "max_over_time", "min_over_time", "minute", "month", "predict_linear",
    "present_over_time", "quantile_over_time", "rad", "rate", "resets", "round", "sgn", "sin", "sinh", "sort", "sort_desc", "sqrt",
    "stddev_over_time", "stdvar_over_time", "sum_over_time", "tan", "tanh", "timestamp", "year",
    // Of the buckets of one histogram, which differ in their own label only.
    "histogram_quantile",
];

/// A requirement of a query: that a label has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requirement<'a> {
    pub(super) label: &'a str,
    pub(super) value: &'a str,
}

/// As it stands in queries.
impl fmt::Display for Requirement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}", self.label, self.value)
    }
}

/// What a part of a query makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// A number that depends on no series.
    Number,
    /// Elements of which each has the required value.
    Elements,
}

/// The query without the requirement, if the part of its result with that value of the label is exactly the result of `query`.
pub(super) fn without_requirement(query: &str, requirement: Requirement<'_>) -> Option<String> {
    if query.len() > MAX_QUERY_BYTES || [BUCKET_LABEL, "__name__"].contains(&requirement.label) {
        return None;
    }
    let required = requirement.to_string();
    let mut parts = query.split(&required);
    let mut shared = parts.next()?.to_owned();
    for part in parts {
        shared += part.strip_prefix(',').unwrap_or(part);
    }
    let mut alone = parse(query).ok()?;
    let commutes = requirement.remove(&mut alone)? == Part::Elements;
    // The text may have had the requirement elsewhere too, in another label's name or in a string.
    (commutes && parse(&shared).ok()? == alone).then_some(shared)
}

impl Requirement<'_> {
    /// Removes the requirement from every selector. `None` if a selector lacks it, or an operation is not known to commute with it.
    fn remove(self, expression: &mut Expr) -> Option<Part> {
        match expression {
            Expr::NumberLiteral(_) => Some(Part::Number),
            Expr::Paren(inner) => self.remove(&mut inner.expr),
            Expr::Unary(inner) => self.remove(&mut inner.expr),
            Expr::Subquery(inner) => self.remove(&mut inner.expr),
            Expr::VectorSelector(selector) => self.remove_from_selector(selector),
            Expr::MatrixSelector(selector) => self.remove_from_selector(&mut selector.vs),
            Expr::Aggregate(aggregation) => self.remove_from_aggregation(aggregation),
            Expr::Binary(operation) => self.remove_from_operation(operation),
            Expr::Call(call) => self.remove_from_call(call),
            Expr::StringLiteral(_) | Expr::Extension(_) => None,
        }
    }

    fn remove_from_selector(self, selector: &mut VectorSelector) -> Option<Part> {
        let matchers = &mut selector.matchers;
        let mut own = matchers.matchers.extract_if(.., |matcher| matcher.name == self.label);
        let matcher = own.next()?;
        let is_required = matcher.op == MatchOp::Equal && matcher.value == self.value;
        (is_required && own.next().is_none() && matchers.or_matchers.is_empty()).then_some(Part::Elements)
    }

    fn remove_from_aggregation(self, aggregation: &mut AggregateExpr) -> Option<Part> {
        let AggregateExpr { op, expr, param, modifier } = aggregation;
        let has_parameter = match op.id() {
            token::T_AVG
            | token::T_COUNT
            | token::T_GROUP
            | token::T_MAX
            | token::T_MIN
            | token::T_STDDEV
            | token::T_STDVAR
            | token::T_SUM => false,
            token::T_QUANTILE => true,
            _ => return None,
        };
        let is_constant = match param {
            None => !has_parameter,
            Some(number) => has_parameter && self.remove(number)? == Part::Number,
        };
        let keeps_label = modifier.as_ref().is_some_and(|labels| self.is_kept(labels));
        if is_constant && keeps_label { self.remove(expr) } else { None }
    }

    fn remove_from_operation(self, operation: &mut BinaryExpr) -> Option<Part> {
        let BinaryExpr { lhs, rhs, modifier, .. } = operation;
        match (self.remove(lhs)?, self.remove(rhs)?) {
            (Part::Number, Part::Number) => Some(Part::Number),
            (Part::Elements, Part::Elements) => {
                let matches_in_label = modifier.as_ref().is_none_or(|modifier| self.is_matched(modifier));
                matches_in_label.then_some(Part::Elements)
            }
            _ => Some(Part::Elements),
        }
    }

    fn remove_from_call(self, call: &mut Call) -> Option<Part> {
        let mut arguments = call.args.args.iter_mut().map(AsMut::as_mut);
        match call.func.name {
            "pi" | "time" => Some(Part::Number),
            "label_replace" | "label_join" => {
                let elements = self.remove(arguments.next()?)?;
                let writes =
                    |target: &Expr| matches!(target, Expr::StringLiteral(text) if text.val != self.label);
                (writes(arguments.next()?) && arguments.all(|text| matches!(text, Expr::StringLiteral(_))))
                    .then_some(elements)
            }
            name if ELEMENT_FUNCTIONS.contains(&name) => {
                let parts = arguments.map(|argument| self.remove(argument)).collect::<Option<Vec<_>>>()?;
                let elements = parts.iter().filter(|part| **part == Part::Elements).count();
                (elements == 1).then_some(Part::Elements)
            }
            _ => None,
        }
    }

    /// Whether elements of both sides match only if they have the same value of the label, and the result has it.
    fn is_matched(self, modifier: &BinModifier) -> bool {
        let BinModifier { card, matching, return_bool: _, fill_values } = modifier;
        let is_single = matches!(card, VectorMatchCardinality::OneToOne | VectorMatchCardinality::ManyToMany);
        let keeps_label = matching.as_ref().is_none_or(|labels| self.is_kept(labels));
        is_single && keeps_label && *fill_values == VectorMatchFillValues::default()
    }

    fn is_kept(self, labels: &LabelModifier) -> bool {
        let is_named = labels.labels().labels.iter().any(|label| label == self.label);
        is_named == labels.is_include()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: Requirement<'_> = Requirement { label: "pod", value: "a" };

    fn shared(query: &str) -> Option<String> {
        without_requirement(query, POD)
    }

    #[test]
    fn queries_whose_operations_keep_the_label_are_asked_without_the_requirement() {
        for (query, expected) in [
            (r#"s{pod="a"}"#, "s{}"),
            (r#"s{pod="a",namespace="llm"}"#, r#"s{namespace="llm"}"#),
            (r#"s{code="200",pod="a",namespace="llm"}"#, r#"s{code="200",namespace="llm"}"#),
            (r#"s{namespace="llm",pod="a"}"#, r#"s{namespace="llm",}"#),
            (r#"s{pod="a", code!="500"}"#, r#"s{ code!="500"}"#),
            (r#"sum(s{pod="a"}) by (pod)"#, "sum(s{}) by (pod)"),
            (r#"sum(s{my_pod="b",pod="a"}) by (pod)"#, r#"sum(s{my_pod="b",}) by (pod)"#),
            (
                r#"label_replace(s{pod="a"}, "x", "$1", "pod", "(.*)")"#,
                r#"label_replace(s{}, "x", "$1", "pod", "(.*)")"#,
            ),
        ] {
            assert_eq!(shared(query).as_deref(), Some(expected), "{query}");
        }
        for query in [
            "sum by (pod, code) (rate(s{M}[2m]))",
            "sum without (instance) (s{M})",
            "avg(s{M}) by (pod) / count(s{M}) by (pod)",
            "max by (pod) (s{M}) + min by (pod) (s{M}) * stddev by (pod) (s{M}) - stdvar by (pod) (s{M})",
            "group by (pod) (s{M})",
            "quantile(0.9, s{M}) by (pod)",
            "a{M} / on (pod) b{M}",
            "a{M} / ignoring (code) b{M}",
            "a{M} and on (pod) b{M}",
            "a{M} or b{M} unless b{M}",
            "a{M} > bool b{M}",
            "a{M} > 2",
            "100 * (1 - -s{M}) ^ 2 % 7",
            "time() - timestamp(s{M})",
            "sum(s{M} * pi()) by (pod)",
            "round(sum(rate(s{M}[1m])) by (pod), 0.5)",
            "clamp(s{M}, 0, 1) + clamp_min(s{M}, 3)",
            "max_over_time(rate(s{M}[1m])[10m:30s])",
            "increase(s{M}[5m] offset 1w)",
            "last_over_time(s{M}[1m] @ 1764000000)",
            "predict_linear(s{M}[1h], 4 * 3600)",
            "quantile_over_time(0.5, s{M}[1m])",
            "histogram_quantile(0.99, sum by (le, pod) (rate(s_bucket{M}[5m])))",
            "label_join(s{M}, \"x\", \"-\", \"pod\", \"code\")",
            "sort_desc(sum by (pod) (s{M}))",
            "sum by (pod) (s{M}) # and a comment",
            "hour(s{M}) + day_of_week(s{M})",
        ] {
            let alone = query.replace('M', r#"pod="a",namespace="llm""#);
            let expected = query.replace('M', r#"namespace="llm""#);
            assert_eq!(shared(&alone), Some(expected), "{query}");
        }
    }

    #[test]
    fn queries_that_are_not_known_to_commute_are_asked_one_by_one() {
        for query in [
            // What lacks the label, or makes an element of several values of it.
            "sum(s{M})",
            "sum(s{M}) by (code)",
            "sum(s{M}) without (pod)",
            "sum by () (s{M})",
            "avg(sum by (pod) (s{M}))",
            "max by (pod) (sum by (code) (s{M}))",
            "topk(3, s{M}) by (pod)",
            "bottomk(3, s{M}) by (pod)",
            "limitk(3, s{M}) by (pod)",
            "limit_ratio(0.5, s{M}) by (pod)",
            r#"count_values("pod", s{M}) by (pod)"#,
            r#"count_values("x", s{M}) by (pod)"#,
            "quantile(scalar(s{M}), s{M}) by (pod)",
            "scalar(s{M})",
            "absent(s{M})",
            "absent_over_time(s{M}[1m])",
            "vector(scalar(s{M}))",
            "vector(1)",
            "sum by (pod) (s{M}) or vector(0)",
            "s{M} + scalar(s{M})",
            r#"label_replace(s{M}, "pod", "x", "code", ".*")"#,
            r#"label_join(s{M}, "pod", "-", "code")"#,
            "info(s{M})",
            "hour()",
            "1 + 1",
            r#""a""#,
            "",
            // Matching that ignores the label, or has several elements of a side.
            "a{M} / ignoring (pod) b{M}",
            "a{M} / on (code) b{M}",
            "a{M} / on () b{M}",
            "a{M} and on (code) b{M}",
            "a{M} * on (pod) group_left b{M}",
            "a{M} * on (pod) group_right (code) b{M}",
            "a{M} + fill (0) b{M}",
            // Series of all values, or of others.
            "s{M} / on (pod) t",
            r#"s{M} / on (pod) t{pod="b"}"#,
            r#"s{M} / on (pod) t{pod=~"a"}"#,
            r#"s{M,pod!="b"}"#,
            r#"s{M,pod="a"}"#,
            r#"s{pod!="a"}"#,
            r#"s{pod=~"a"}"#,
            r#"s{my_pod="a"}"#,
            r#"s{M or code="200"}"#,
            "{M}",
            // Text that only looks like the requirement.
            r#"s{code='pod="a"'}"#,
            r#"label_replace(s{M}, "x", 'pod="a"', "code", ".*")"#,
            r#"label_replace(s{pod='a'}, "x", 'pod="a"', "code", ".*")"#,
            r#"s{pod='a'} # pod="a""#,
            r#"s{M,my_pod="a"}"#,
            // What other servers understand, and this parser does not.
            "sum(s{M}) by (pod) limit 5",
            "s{M} default 0",
            "sum(s{M}) by (pod",
        ] {
            assert_eq!(shared(&query.replace('M', r#"pod="a""#)), None, "{query}");
        }
        let buckets = r#"histogram_quantile(0.9, s{le="1"})"#;
        assert_eq!(without_requirement(buckets, Requirement { label: "le", value: "1" }), None);
        assert_eq!(
            without_requirement(r#"{__name__="s"}"#, Requirement { label: "__name__", value: "s" }),
            None
        );
    }

    #[test]
    fn the_longest_and_deepest_queries_are_parsed_within_the_stack() {
        for (open, close) in [("(", ")"), ("-", ""), ("abs(", ")"), ("1+", ""), ("(1+", ")")] {
            let pairs = (MAX_QUERY_BYTES - 10) / (open.len() + close.len());
            let query = format!("{}s{{pod=\"a\"}}{}", open.repeat(pairs - 1), close.repeat(pairs - 1));
            let worker = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
            let is_shared = worker.spawn(move || shared(&query).is_some()).unwrap().join().unwrap();
            assert!(is_shared, "{open}");
        }
        assert_eq!(shared(&format!("{}s{{pod=\"a\"}}", "-".repeat(MAX_QUERY_BYTES))), None);
    }

    mod properties {
        use proptest::prelude::*;

        use super::*;

        /// Queries of operations that commute.
        fn commuting() -> impl Strategy<Value = String> {
            let selector = prop_oneof![
                Just(r#"s{pod="a"}"#),
                Just(r#"rate(s{code="200",pod="a",namespace="llm"}[2m])"#),
                Just(r#"s{namespace="llm",pod="a"} offset 1m"#),
            ];
            let one_of = |forms: &'static [&'static str]| prop::sample::select(forms);
            let unary = one_of(&[
                "abs(Q)",
                "(Q)",
                "-Q",
                "2 * (Q)",
                "sum by (pod) (Q)",
                "max(Q) without (code)",
                "max_over_time((Q)[5m:1m])",
                "sort(Q)",
            ]);
            let binary = one_of(&[
                "(Q) / (R)",
                "(Q) - on (pod) (R)",
                "(Q) and (R)",
                "(Q) or on (pod, code) (R)",
                "(Q) > bool ignoring (code) (R)",
            ]);
            selector.prop_map(str::to_owned).prop_recursive(5, 12, 2, move |inner| {
                prop_oneof![
                    (unary.clone(), inner.clone()).prop_map(|(form, query)| form.replace('Q', &query)),
                    (binary.clone(), inner.clone(), inner)
                        .prop_map(|(form, left, right)| form.replace('Q', &left).replace('R', &right)),
                ]
            })
        }

        proptest! {
            #[test]
            fn what_commutes_does_so_until_one_operation_does_not(
                query in commuting(),
                operation in prop::sample::select(&["sum(Q)", "topk(1, Q)", "(Q) / on () (Q)", "absent(Q)", "(Q) / t", "scalar(Q)", "label_join(Q, \"pod\", \"\")"][..]),
                outer in commuting(),
            ) {
                prop_assume!(query.len() < 500);
                let text = shared(&query);
                prop_assert!(text.as_ref().is_some_and(|text| !text.contains("pod=")), "{query} {text:?}");
                let wrong = operation.replace('Q', &query);
                prop_assert_eq!(shared(&wrong), None);
                prop_assert_eq!(shared(&format!("({outer}) - ({wrong})")), None);
            }

            #[test]
            fn every_text_is_a_query_or_none(text in r#"(s|\{|\}|pod="a"|,|\(|\)|\[|\]|sum|by|rate|on|group_left|5m|:|@|offset|-|1e9|\+|/|and|"|'|`|\\x|#|[ -~]|ä){0,24}"#) {
                let _ = shared(&text);
                let _ = shared(&format!("sum(s{{pod=\"a\"{text}}}) by (pod)"));
            }
        }
    }
}
