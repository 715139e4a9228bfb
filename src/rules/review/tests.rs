//! Reviews of files with each kind of mistake.

use serde_json::{Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::super::kinds::tests::kind;
use super::super::ports::tests::FakeKinds;
use super::*;
use crate::collect::PrometheusSettings;

/// The kinds of an API server with pods, nodes and namespaces.
fn kinds() -> Result<Vec<ObjectKind>, String> {
    Ok(vec![
        kind("", "Pod", "pods", true),
        kind("", "Node", "nodes", false),
        kind("", "Namespace", "namespaces", false),
    ])
}

/// A Prometheus with the series `jobs_total`, `Jobs_total` and `hits_total`, of which the last has the labels `pod` and `namespace`. It
/// refuses what has `refused` in it.
fn answer(request: &Request) -> ResponseTemplate {
    let form: HashMap<String, String> = form_urlencoded::parse(&request.body).into_owned().collect();
    let query = form.get("query").map(String::as_str).unwrap_or_default();
    if query.contains("refused") {
        let error = json!({ "status": "error", "error": "parse error" });
        return ResponseTemplate::new(400).set_body_json(error);
    }
    if request.url.path() == "/api/v1/labels" {
        return ResponseTemplate::new(200)
            .set_body_json(json!({ "status": "success", "data": ["namespace", "pod"] }));
    }
    let named = |names: &[&str], has: bool| -> Value {
        let series = |name: &&str| {
            let metric =
                if has { json!({ "__name__": name, "__has": "1" }) } else { json!({ "__name__": name }) };
            json!({ "metric": metric, "value": [1, "1"] })
        };
        names.iter().map(series).collect()
    };
    let result = match query {
        _ if query.contains("jobs") && query.starts_with("group") => {
            named(&["Jobs_total", "jobs_total"], false)
        }
        _ if query.contains("hits") && query.starts_with("group") => {
            named(&["hits_total"], query.contains("__has"))
        }
        _ => json!([]),
    };
    let data = json!({ "resultType": "vector", "result": result });
    ResponseTemplate::new(200).set_body_json(json!({ "status": "success", "data": data }))
}

async fn found(text: &str, objects: &dyn ObjectApi) -> (Vec<(String, RuleProblem)>, Vec<String>) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    let api = PrometheusApi::new(&PrometheusSettings::new(server.uri())).unwrap();
    let sources = ReviewSources {
        prometheus: Some((&api, Duration::from_secs(60), Timestamp::UNIX_EPOCH)),
        objects: Some(objects),
        serves_usage: true,
        is_reserved: |name| name == "wva_desired_replicas",
    };
    let Review { findings, kinds } = review(text, sources).await.unwrap();
    (findings, kinds.iter().map(|kind| kind.resource().to_string()).collect())
}

/// The problems of the external rules.
async fn external(rules: &str) -> Vec<RuleProblem> {
    let (found, _) = found(&format!("externalRules: [{rules}]"), &FakeKinds(kinds)).await;
    found.into_iter().map(|(_, problem)| problem).collect()
}

#[tokio::test]
async fn sound_rules_have_no_findings() {
    let text = "
externalRules: [{seriesQuery: jobs_total, name: {matches: ^(j.*)_total$}, resources: {namespaced: false}, metricsQuery: 'sum(<<.Series>>)'}]
rules: [{seriesQuery: hits_total, resources: {template: <<.Resource>>}, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'}]
";
    let (found, kinds) = found(text, &FakeKinds(kinds)).await;
    assert_eq!(found, []);
    assert_eq!(kinds, ["namespaces", "pods"], "the objects that a read by selector lists");
}

#[tokio::test]
async fn each_rule_that_makes_nothing_says_why() {
    let rule = |fields: &str| format!("{{resources: {{namespaced: false}}, metricsQuery: q, {fields}}}");
    for (fields, expected) in [
        ("seriesQuery: absent_total", RuleProblem::NoSeries(Duration::from_secs(60))),
        ("seriesQuery: jobs_total, name: {matches: ^x}", RuleProblem::NoName(2)),
        (
            "seriesQuery: jobs_total, name: {as: WVA_desired_replicas}",
            RuleProblem::Reserved("WVA_desired_replicas".into()),
        ),
        ("seriesQuery: jobs_total", RuleProblem::SameInLowerCase("Jobs_total".into(), "jobs_total".into())),
    ] {
        assert_eq!(external(&rule(fields)).await, [expected], "{fields}");
    }
    let problem = external(&rule("seriesQuery: jobs_total, name: {matches: '('}")).await;
    assert!(
        matches!(problem[..], [RuleProblem::Invalid(ref cause)] if cause.starts_with("name.matches")),
        "{problem:?}"
    );
    let problem = external(&rule("seriesQuery: 'refused('")).await;
    assert!(
        matches!(problem[..], [RuleProblem::SeriesQuery(ref cause)] if cause.contains("parse error")),
        "{problem:?}"
    );
}

#[tokio::test]
async fn a_query_that_no_read_gets_an_answer_to_is_found() {
    let rule = |rest: &str| format!("{{seriesQuery: jobs_total, name: {{as: jobs}}, {rest}}}");
    let refused =
        external(&rule("resources: {namespaced: false}, metricsQuery: 'refused(<<.Series>>'")).await;
    let [RuleProblem::Query(cause)] = &refused[..] else { panic!("{refused:?}") };
    assert!(
        cause.starts_with("refused(jobs_total: Prometheus answered 400 Bad Request (parse error)"),
        "{cause}"
    );
    let unnamed = external(&rule("metricsQuery: q")).await;
    assert!(
        matches!(unnamed[..], [RuleProblem::Query(ref cause)] if cause.contains("which label is the namespace")),
        "{unnamed:?}"
    );
}

#[tokio::test]
async fn of_two_rules_with_one_name_the_first_is_replaced() {
    let rule = "{seriesQuery: jobs_total, name: {as: jobs}, resources: {namespaced: false}, metricsQuery: q}";
    let (problems, _) = found(&format!("externalRules: [{rule}, {rule}]"), &FakeKinds(kinds)).await;
    let by = "externalRules[1] (jobs_total)".to_owned();
    let replaced = RuleProblem::Replaced { metric: "jobs".into(), count: 1, by };
    assert_eq!(problems, [("externalRules[0] (jobs_total)".to_owned(), replaced)]);
}

#[tokio::test]
async fn labels_that_name_no_objects_are_found() {
    let rule = |resources: &str| {
        format!("rules: [{{seriesQuery: hits_total, resources: {resources}, metricsQuery: q}}]")
    };
    let problems = async |resources: &str, objects: &dyn ObjectApi| {
        let (found, _) = found(&rule(resources), objects).await;
        found.into_iter().map(|(_, problem)| problem).collect::<Vec<_>>()
    };
    let unknown = "{overrides: {pod: {resource: brand}}}";
    let found = problems(unknown, &FakeKinds(kinds)).await;
    assert_eq!(found, [RuleProblem::UnknownResource("brand".into()), RuleProblem::NoObject(1)]);
    let found = problems(unknown, &FakeKinds(|| Err("refused".to_owned()))).await;
    assert!(
        matches!(found[..], [RuleProblem::Unchecked(ref cause)] if cause.ends_with("refused")),
        "{found:?}"
    );
}

#[tokio::test]
async fn resource_rules_are_asked_about_pods_and_nodes() {
    let half = |query: &str| {
        format!(
            "{{containerQuery: '{query}', nodeQuery: n, containerLabel: container, resources: {{template: <<.Resource>>}}}}"
        )
    };
    let text = format!("resourceRules: {{cpu: {}, memory: {}, window: 3m}}", half("refused("), half("m"));
    let (problems, _) = found(&text, &FakeKinds(kinds)).await;
    let [(place, RuleProblem::Query(_))] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(place, "resourceRules.cpu");
}

#[tokio::test]
async fn without_prometheus_and_the_api_server_the_text_is_reviewed() {
    let sources =
        ReviewSources { prometheus: None, objects: None, serves_usage: false, is_reserved: |_| false };
    let text = "
externalRules: [{seriesQuery: a, metricsQuery: <<.Series>>}, {seriesQuery: a, resources: {namespaced: false}, metricsQuery: <<.Kind>>}]
rules: [{seriesQuery: a, resources: {template: <<.Resource>>}, metricsQuery: <<.Kind>>}]
resourceRules: {cpu: {}, memory: {}}
";
    let found = review(text, sources).await.unwrap().findings;
    let places: Vec<_> = found.iter().map(|(place, _)| place.as_str()).collect();
    assert_eq!(places, ["resourceRules", "externalRules[0] (a)", "externalRules[1] (a)", "rules[0] (a)"]);
    assert_eq!(found[0].1, RuleProblem::Unused);
    assert!(found[1..].iter().all(|(_, problem)| matches!(problem, RuleProblem::Query(_))), "{found:?}");
    assert!(review("externalRule: []", sources).await.unwrap_err().contains("externalRule"));
}
