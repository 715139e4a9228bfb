//! `wva check` of rules of prometheus-adapter: in files, and with a cluster and a Prometheus.

use super::cluster::Cluster;
use super::found_in;
use crate::record::material::wva_with;

const SOUND: &str = "externalRules:
- seriesQuery: queue_total
  resources: {overrides: {namespace: {resource: namespace}}}
  name: {matches: ^(.*)_total$}
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>})
";

#[test]
fn rules_in_files_are_checked_before_they_are_applied() {
    assert_eq!(found_in(SOUND), (vec![], 0));
    let misspelt = SOUND.replace("metricsQuery", "metricQuery");
    assert_eq!(found_in(&misspelt), (vec!["error RulesInvalid".into()], 1));
    let said = wva_with(&["check", "--config", "-"], &misspelt);
    assert!(said.out.contains("metricQuery") && said.out.contains("line 5"), "{}", said.out);
    assert_eq!(found_in(&SOUND.replace("^(.*)_total$", "'('")).0, ["error RuleInvalid"]);
    assert_eq!(found_in(&SOUND.replace("resource: namespace", "resource: pod")).0, ["error RuleQueryFails"]);
    let indented: String = SOUND.lines().map(|line| format!("    {line}\n")).collect();
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: adapter-rules}}\ndata:\n  config.yaml: |\n{indented}"
    );
    assert_eq!(found_in(&map), (vec![], 0));
    let said = wva_with(&["check", "--config", "-"], &map.replace("<<.Series>>", "<<.Serie>>"));
    assert!(
        said.code == 1
            && said.out.contains("externalRules[0] (queue_total) of ConfigMap adapter-rules, config.yaml"),
        "{}",
        said.out
    );
}

#[tokio::test]
async fn rules_are_compared_with_the_series_and_the_kinds_that_there_are() {
    let cluster = Cluster::start("rules").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let rule =
        |query: &str, rest: &str| format!("- {{seriesQuery: {query}, metricsQuery: '{query}', {rest}}}\n");
    let sound = "resources: {template: <<.Resource>>}";
    std::fs::write(path, format!("rules:\n{}", rule("requests_total", sound))).unwrap();
    let flags = ["--adapter-config", path];
    let found = cluster.found(&flags).await;
    assert_eq!(found, (vec!["note NotChecked".into()], 0), "without a Prometheus");
    let url = format!("http://{}", cluster.address);
    let flags = ["--adapter-config", path, "--prometheus-url", &url];
    // Of the variant, there are no series here.
    assert_eq!(cluster.found(&flags).await.0, ["error NoSeries"]);
    cluster.behavior.lock().denied.insert("list pods");
    let said = cluster.check(&flags).await;
    assert!(said.out.contains("it may not list pods, of which rules make metrics"), "{}", said.out);
    cluster.behavior.lock().denied.clear();
    let unknown = rule("requests_total", "resources: {overrides: {brand: {resource: brand}}}");
    let named = rule(
        "requests_total",
        "resources: {overrides: {pod: {resource: pod}, namespace: {resource: namespace}}}, name: {as: wva_desired_replicas}",
    );
    std::fs::write(path, format!("rules:\n{unknown}{named}")).unwrap();
    let expected =
        ["error NoSeries", "warning MetricReserved", "warning ResourceUnknown", "warning RuleWithoutObjects"];
    let mut found = cluster.found(&flags).await.0;
    found.sort();
    assert_eq!(found, expected);
    let missing = cluster.found(&["--adapter-config", "/nonexistent.yaml"]).await;
    assert_eq!(missing, (vec!["warning NotChecked".into()], 2));
}
