//! Templates beside what Go makes of them.

use super::*;

/// The fields of a query.
fn fields() -> BTreeMap<&'static str, Value> {
    let by_name = [("namespace", "llm"), ("queue", "a|b")];
    let by_name = by_name.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    BTreeMap::from([
        ("Series", "jobs".into()),
        ("LabelMatchers", r#"queue=~"a|b",namespace="llm""#.into()),
        ("LabelValuesByName", Value::Map(by_name)),
        ("GroupBy", "".into()),
        ("GroupBySlice", Value::List(Vec::new())),
    ])
}

fn render(template: &str) -> Result<String, String> {
    Template::parse(template)
        .and_then(|template| template.render(fields()))
        .map_err(|error| error.to_string())
}

/// What Go's text/template makes of each with these fields.
#[test]
fn templates_make_what_go_makes_of_them() {
    for (template, expected) in [
        ("sum(<<.Series>>{<<.LabelMatchers>>})", r#"sum(jobs{queue=~"a|b",namespace="llm"})"#),
        ("max(<< .Series >>)", "max(jobs)"),
        (r#"x{q="<<index .LabelValuesByName "queue">>"}"#, r#"x{q="a|b"}"#),
        (
            r#"<<index .LabelValuesByName "none">>|<<.LabelValuesByName.none>>|<<.LabelValuesByName.queue>>"#,
            "|<no value>|a|b",
        ),
        (
            r#"x{<<range $key, $value := .LabelValuesByName>><<if ne $key "namespace">><<$key>>=~"<<$value>>.+",<<end>><<end>>job="b"}"#,
            r#"x{queue=~"a|b.+",job="b"}"#,
        ),
        ("<<if .GroupBy>>by (<<.GroupBy>>)<<else if .Series>>all<<else>>none<<end>>", "all"),
        ("<<range .GroupBySlice>>x<<else>>empty<<end>>", "empty"),
        ("<<with .GroupBy>>x<<else>>no<<end>> <<with .Series>><<.>> <<$.Series>><<end>>", "no jobs jobs"),
        ("a  <<- .Series ->>  b", "ajobsb"),
        ("a <<- /* comment */ ->> b", "ab"),
        (r#"<<printf "%s{%s} %q %d%%" .Series .GroupBy .Series 3>>"#, r#"jobs{} "jobs" 3%"#),
        (r#"<<.Series | printf "%s_total">>"#, "jobs_total"),
        ("<<len .LabelValuesByName>> <<len .Series>> <<len .GroupBySlice>>", "2 4 0"),
        (r#"<<if and (eq .Series "jobs" "tasks") (not .GroupBy)>>yes<<end>>"#, "yes"),
        (r#"<<or .GroupBy "none">> <<and .Series .GroupBy>>."#, "none ."),
        (
            "<<$x := .Series>><<$x>> <<if true>><<$x = \"inner\">><<$x := 1>><<$x>><<end>> <<$x>>",
            "jobs 1 inner",
        ),
        ("<<print .Series `raw\\n` 1 false>>", "jobsraw\\n1 false"),
        (r#"<<(index .LabelValuesByName "queue") | len>>"#, "3"),
        ("<<if and .GroupBySlice (index .GroupBySlice 0)>>x<<else>>none<<end>>", "none"),
        (r#"<<.GroupBy | or "" | and .Series>>."#, "."),
        ("<<.LabelValuesByName>> <<.GroupBySlice>>", "map[namespace:llm queue:a|b] []"),
        ("a < b > c {{.Series}}", "a < b > c {{.Series}}"),
        ("", ""),
    ] {
        assert_eq!(render(template).as_deref(), Ok(expected), "{template}");
    }
}

#[test]
fn what_is_wrong_in_a_template_is_named() {
    for (template, expected) in [
        ("<<.Series", "is not closed by >>"),
        ("<<if .Series>>x", "if without end"),
        ("x<<end>>", "end without a block"),
        ("<<else>>", "else without a block"),
        ("<<.Seires>>", "there is no field .Seires; the fields are .GroupBy, "),
        ("<<.Series.x>>", "a text has no field .x"),
        ("<<$x>>", "there is no variable $x"),
        ("<<upper .Series>>", "there is no function upper here; there are and, eq, index"),
        ("<<index .GroupBySlice 0>>", "index 0 of a list of 0"),
        ("<<index .Series 0>>", "a text has no entry by a number"),
        ("<<range .Series>><<end>>", "range needs a list or a map, not a text"),
        ("<<.Series .GroupBy>>", "only a function has arguments"),
        ("<<.Series | .GroupBy>>", "a function follows |"),
        ("<<(.Series>>", "( is not closed by )"),
        (r#"<<"x>>"#, "is not closed by a quote"),
        ("<<len>>", "len does not take nothing"),
        (r#"<<printf "%s">>"#, "has too few values"),
        (r#"<<printf "%x" 1>>"#, "a verb that is not %s, %q, %v or %d"),
        (r#"<<printf "%d" .Series>>"#, "%d does not take a text"),
        (r#"<<printf "%s" .Series 1>>"#, "has too many values"),
        ("<<print (.).Series>>", "give it to a variable"),
        ("<<if $a, $b := .Series>><<end>>", "only range has two variables"),
        ("<<break>>", "there is no function break here"),
        ("<<and>>", "and and or need a value"),
        ("<<&>>", "unexpected '&' between << and >>"),
        ("<<$a, $b, $c := .Series>>", "one or two variables"),
        ("<<99999999999999999999>>", "is not a whole number"),
    ] {
        let error = render(template).unwrap_err();
        assert!(error.contains(expected), "{template}: {error}");
    }
}

/// Who reads a metric can mend nothing: these are found when the rule is.
#[test]
fn a_function_or_a_variable_that_is_not_there_is_found_when_the_template_is_read() {
    for template in [
        "<<if .None>><<slice .Series 0 3>><<end>>",
        "<<if true>><<$x := 1>><<end>><<$x>>",
        "<<$x = 1>>",
        "<<define \"a\">>",
    ] {
        assert!(Template::parse(template).is_err(), "{template}");
    }
}

#[test]
fn no_template_takes_much_memory_or_overflows_the_stack() {
    let doubled = "<<range .LabelValuesByName>>".repeat(20) + &"x".repeat(100) + &"<<end>>".repeat(20);
    assert!(render(&doubled).is_err());
    let nested = "<<if .Series>>".repeat(10_000) + &"<<end>>".repeat(10_000);
    assert_eq!(render(&nested).unwrap_err(), "more than 32 blocks in each other");
    let parentheses = format!("<<{}.Series{}>>", "(".repeat(10_000), ")".repeat(10_000));
    assert_eq!(render(&parentheses).unwrap_err(), "more than 32 blocks in each other");
    let else_ifs = "<<if .GroupBy>>".to_owned() + &"<<else if .GroupBy>>".repeat(10_000) + "<<end>>";
    assert!(render(&else_ifs).is_err());
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_text_is_a_template_or_an_error(text in r#"(<<|>>|[-.$"`()|:=,/*%a-z0-9 ]|if |range |end|else |index |\.Series){0,24}"#) {
            let _ = render(&text);
        }

        #[test]
        fn text_without_actions_stays_as_it_is(text in "[^<]*") {
            prop_assert_eq!(render(&text), Ok(text));
        }
    }
}
