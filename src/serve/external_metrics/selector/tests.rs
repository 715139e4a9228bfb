//! The meaning of selectors. Arbitrary texts: `serve::fuzz::selectors`.

use super::*;

fn parse(text: &str) -> LabelSelector {
    LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn matches(text: &str, labels: &[(&'static str, &'static str)]) -> bool {
    parse(text).matches(|key| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| *value))
}

fn error(text: &str) -> String {
    LabelSelector::parse(text).expect_err(text).to_string()
}

#[test]
fn every_form_that_kubernetes_knows_means_the_same_here() {
    let labels = [("a", "1"), ("b", "x"), ("e", ""), ("p.q/r", "y")];
    let matching = ";  ;a;!c;a=1;a==1;a = 1 ;a!=2;c!=1;b in (x);b in (y, x);b in(,x);c notin (x);b notin (y,z);a>0;a<2;e=;e;\
                    p.q/r=y;a=1,b=x,!c;in!=1;!notin;e in (,);c notin (,);e in ();a notin ()";
    for text in matching.split(';') {
        assert!(matches(text, &labels), "{text:?} must match");
    }
    for text in "c;!a;a=2;a!=1;b in (y);c in (x);b notin (x,y);a>1;a<1;b>0;c=;a=1,c".split(';') {
        assert!(!matches(text, &labels), "{text:?} must not match");
    }
}

#[test]
fn errors_say_what_was_found_and_what_was_expected() {
    assert_eq!(error("a=b=c"), "found '=', expected: ',' or 'end of string'");
    assert_eq!(error("=a"), "found '=', expected: !, identifier, or 'end of string'");
    assert_eq!(error("a,"), "found '', expected: !, identifier, or 'end of string'");
    assert_eq!(error("a in x"), "found 'x', expected: '('");
    assert_eq!(error("a like x"), "found 'like', expected: in, notin, =, ==, !=, >, <");
    assert!(
        error("model=meta-llama/Llama-3.1-8B").starts_with("values[0][model]: Invalid value: \"meta-llama/")
    );
    assert!(error("a>b").contains("must be an integer"));
    assert!(error("-a").starts_with("key: Invalid value: \"-a\""));
    assert!(error("A/b").starts_with("key:"), "a prefix is lower case");
    assert!(error(&format!("a={}", "x".repeat(64))).contains("at most 63"));
    assert!(error(&"a,".repeat(MAX_SELECTOR_BYTES)).contains("at most 65536"));
}

#[test]
fn a_selector_of_thousands_of_requirements_is_rejected_before_any_is_checked() {
    let longest = vec!["!a"; MAX_REQUIREMENTS].join(",");
    assert_eq!(parse(&longest).requirements().count(), MAX_REQUIREMENTS);
    let started = tokio::time::Instant::now();
    assert!(error(&"!a,".repeat(21_000)).contains("more than 256 requirements"));
    assert!(error(&format!("{longest},b")).contains("variant_name in (a,b)"));
    // The largest selector, on existing labels, for every variant of a large fleet.
    let different: Vec<_> = (0..MAX_REQUIREMENTS).map(|number| format!("variant_name!=v-{number}")).collect();
    let selector = parse(&different.join(","));
    let names: Vec<_> = (1_000..3_500).map(|number| format!("v-{number}")).collect();
    let matching =
        names.iter().filter(|name| selector.matches(|key| (key == "variant_name").then_some(name)));
    assert_eq!(matching.count(), 2_500);
    assert!(started.elapsed() < std::time::Duration::from_secs(2), "{:?}", started.elapsed());
}

#[test]
fn a_selector_prints_as_the_hpa_sends_it() {
    assert_eq!(
        parse("q,m in (y, x),z==1 , a=2,!b,c notin (v)").to_string(),
        "a=2,!b,c notin (v),m in (x,y),q,z=1"
    );
}

/// The results of Kubernetes' own parser for several hundred texts, written by `tests/conformance/corpus`.
#[test]
fn every_text_of_the_corpus_means_what_it_means_to_kubernetes() {
    #[derive(serde::Deserialize)]
    struct Case {
        selector: String,
        error: Option<String>,
        #[serde(default)]
        canonical: String,
        #[serde(default)]
        matches: String,
    }
    let corpus = include_str!("../../../../tests/it/golden/corpus/selectors.json");
    let lines: Vec<serde_json::Value> = serde_json::from_str(corpus).unwrap();
    let (cases, sets): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line["selector"].is_string());
    let wrong: Vec<_> = cases
        .into_iter()
        .map(|case| serde_json::from_value::<Case>(case).unwrap())
        .filter_map(|Case { selector: text, error, canonical, matches }| {
            let parsed = LabelSelector::parse(&text);
            let kubernetes = error.map_or_else(|| Ok((canonical, matches)), Err);
            match (&parsed, &kubernetes) {
                (Err(_), Err(_)) => None,
                (Ok(selector), Ok((canonical, matches))) => {
                    let selects = |set: &serde_json::Value| selector.matches(|key| set[key].as_str());
                    let selected: String =
                        sets.iter().map(|set| if selects(set) { 'y' } else { 'n' }).collect();
                    // Both spellings of equality parse to the same operator here.
                    let same = selector.to_string() == canonical.replace("==", "=") && selected == *matches;
                    (!same)
                        .then(|| format!("{text:?}: {selector} {selected}, expected {canonical} {matches}"))
                }
                _ => Some(format!("{text:?}: {parsed:?}, expected {kubernetes:?}")),
            }
        })
        .collect();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(sets.len(), 5);
}

#[test]
fn only_an_operator_that_needs_the_label_fails_without_it() {
    for (text, needs_label) in [
        ("a", true),
        ("!a", false),
        ("a=1", true),
        ("a!=1", false),
        ("a in (1,2)", true),
        ("a notin (1,2)", false),
        ("a>1", true),
        ("a<1", true),
    ] {
        let selector = parse(text);
        let operator = selector.requirements().next().unwrap().operator;
        assert_eq!((operator.needs_label(), operator.holds(None)), (needs_label, !needs_label), "{text}");
    }
}
