//! `wva migrate` on manifests as WVA's charts and samples print them. `WVA_UPDATE_GOLDEN=1` writes the texts in
//! `tests/it/golden/migrate` anew.

mod dangers;

use std::fs;
use std::path::PathBuf;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use wva::migrate::{Objects, Readiness, Report, Step, report};

use crate::record::material::{Folder, wva, wva_with};

/// The text of a manifest in `tests/it/migrate`.
fn manifest(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/migrate").join(name)
}

fn report_of(text: &str) -> Report {
    let mut objects = Objects::default();
    objects.add_text("f", text, "default");
    report(&objects)
}

/// The findings about an object: what happens, and the next step.
fn about(report: &Report, object: &str) -> Vec<(String, Option<String>)> {
    let findings = report.changes.iter().chain(&report.lost).filter(|finding| finding.object == object);
    findings.map(|finding| (finding.cause.clone(), finding.next_step.clone())).collect()
}

fn commands(report: &Report) -> String {
    commands_of(&report.commands)
}

fn commands_of(steps: &[Step]) -> String {
    steps.iter().flat_map(|step| &step.commands).cloned().collect::<Vec<_>>().join("\n")
}

/// Asserts that `text` is that of the golden file, or writes it.
#[expect(clippy::disallowed_methods, reason = "a switch of the tests")]
fn assert_golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/migrate").join(name);
    if std::env::var("WVA_UPDATE_GOLDEN").is_ok() {
        fs::write(&path, text).unwrap();
    }
    assert_eq!(text, fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}

/// A Secret in which Helm stores a release of WVA, with these objects.
fn release(revision: u64, objects: &[Value]) -> Value {
    let manifest: String = objects.iter().map(|object| format!("---\n{object}\n")).collect();
    release_of(revision, &manifest)
}

/// A Secret in which Helm stores a release of WVA with this manifest.
fn release_of(revision: u64, manifest: &str) -> Value {
    let stored = json!({
        "name": "workload-variant-autoscaler", "namespace": "workload-variant-autoscaler-system", "version": revision,
        "info": { "status": "deployed" }, "manifest": manifest,
        "chart": { "metadata": { "name": "workload-variant-autoscaler", "version": "0.5.0" } }
    });
    let inner = serde_json::to_value(ByteString(stored.to_string().into_bytes())).unwrap();
    let outer = ByteString(inner.as_str().unwrap().as_bytes().to_vec());
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1", "data": { "release": outer },
        "metadata": {
            "name": format!("sh.helm.release.v1.workload-variant-autoscaler.v{revision}"),
            "namespace": "workload-variant-autoscaler-system",
            "labels": { "owner": "helm", "name": "workload-variant-autoscaler", "version": revision.to_string() }
        }
    })
}

fn object(kind: &str, name: &str, annotations: &Value) -> Value {
    json!({ "apiVersion": "x/v1", "kind": kind, "metadata": { "name": name, "annotations": annotations } })
}

#[test]
fn an_installation_by_wvas_chart_and_prometheus_adapter_is_ready() {
    let output = wva(&["migrate", "-f", path("chart-0.5.yaml").to_str().unwrap()]);
    assert_golden("chart-0.5.txt", &output.out);
    assert_eq!((output.code, output.err.as_str()), (0, ""), "{}", output.out);
    let json = wva(&["migrate", "-o", "json", "-f", path("chart-0.5.yaml").to_str().unwrap()]).json();
    assert_eq!(json["unread"], json!([]));
    assert!(json["commands"][0]["commands"].is_array(), "{json}");
}

#[test]
fn what_people_stumble_over_is_named_with_cause_and_next_step() {
    let output = wva_with(&["migrate", "--filename", "-"], &manifest("trip-overs.yaml"));
    assert_golden("trip-overs.txt", &output.out);
    assert_eq!(output.code, 1, "{}", output.out);
}

#[test]
fn with_keda_as_the_owner_the_numbers_are_scraped_and_never_twice() {
    let output = wva_with(&["migrate", "-f", "-"], &manifest("keda.yaml"));
    assert_golden("keda.txt", &output.out);
    assert_eq!(output.code, 1, "{}", output.out);
    let report = report_of(&manifest("keda.yaml"));
    let commands = commands(&report);
    assert!(
        commands.find("--replicas=0") < commands.find("serviceMonitor"),
        "autoscalers would add up two series"
    );
    assert!(!commands.contains("apiService.enabled=true"), "KEDA stays the owner");
}

#[test]
fn what_helm_uninstall_deletes_is_what_the_newest_stored_manifest_lists() {
    let keep = json!({ "helm.sh/resource-policy": "keep" });
    let old = release(1, &[object("VariantAutoscaling", "va", &json!({}))]);
    let new = release(
        2,
        &[
            object("VariantAutoscaling", "va", &json!({})),
            object("HorizontalPodAutoscaler", "kept", &keep),
            object("Service", "workload-variant-autoscaler-vllm", &json!({})),
            object("Service", "workload-variant-autoscaler-metrics", &json!({})),
            object("ClusterRole", "role", &json!({})),
        ],
    );
    let title = "Helm release workload-variant-autoscaler in workload-variant-autoscaler-system";
    let with = |secrets: &[&Value]| {
        let secrets: String = secrets.iter().map(|secret| format!("---\n{secret}\n")).collect();
        report_of(&format!("{}\n{secrets}", manifest("chart-0.5.yaml")))
    };
    let stored = with(&[&new, &old]);
    let [(cause, None)] = &about(&stored, title)[..] else { panic!("{stored:?}") };
    let namespace = "workload-variant-autoscaler-system";
    let expected = format!(
        "would delete Service {namespace}/workload-variant-autoscaler-vllm, VariantAutoscaling {namespace}/va: do not uninstall it"
    );
    assert!(cause.contains(&expected), "{cause}");
    let nothing = with(&[&release(3, &[object("ClusterRole", "role", &json!({}))]), &new]);
    assert_eq!(about(&nothing, title), []);
    assert!(nothing.same.iter().any(|text| text.contains("would delete no variant")), "{:?}", nothing.same);
    let unknown = report_of(&manifest("chart-0.5.yaml"));
    assert!(about(&unknown, title)[0].0.contains("its stored manifest was not read"), "{unknown:?}");
}

#[test]
fn a_release_that_cannot_be_decoded_is_named_without_its_content() {
    // Not base64 within base64, no text, and base64 of no JSON.
    for data in ["aGFsbG8h", "/w==", "aGFsbG8="] {
        let mut secret = release(1, &[]);
        secret["data"]["release"] = json!(data);
        let report = report_of(&secret.to_string());
        let unread = &report.unread[0];
        assert!(
            unread.starts_with("f, document 1: Secret workload-variant-autoscaler-system/sh.helm"),
            "{unread}"
        );
        assert!(!unread.contains("hallo"), "{unread}");
    }
}

#[test]
fn an_object_with_a_field_missing_is_named_and_the_others_are_read() {
    let text = "apiVersion: llmd.ai/v1alpha1\nkind: VariantAutoscaling\nmetadata: {name: old, namespace: llm}\nspec: {modelID: m, scaleTargetRef: {kind: Deployment}}\n\
                ---\napiVersion: llmd.ai/v1alpha1\nkind: VariantAutoscaling\nmetadata: {name: new, namespace: llm}\nspec: {modelID: m, scaleTargetRef: {kind: Deployment, name: new}}\n";
    let report = report_of(text);
    assert!(
        report.unread[0].starts_with("f, document 1: VariantAutoscaling llm/old: "),
        "{:?}",
        report.unread
    );
    assert!(report.unread[0].contains("name"), "{:?}", report.unread);
    assert!(report.same.iter().any(|same| same.starts_with("1 VariantAutoscaling:")), "{:?}", report.same);
}

#[test]
fn an_annotated_hpa_that_leaves_its_model_to_its_pods_is_not_called_invalid() {
    let text = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
                metadata: {name: a, namespace: llm, annotations: {llm-d.ai/managed: \"true\"}}\n\
                spec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: a}}\n";
    let report = report_of(text);
    assert_eq!(about(&report, "HorizontalPodAutoscaler llm/a"), []);
    assert!(report.same.iter().any(|same| same.starts_with("1 annotated autoscaler:")), "{:?}", report.same);
}

#[test]
fn unreadable_documents_and_files_are_named_and_the_rest_is_shown() {
    let folder = Folder::new();
    let file = folder.file("a.yaml", b"kind: [\n---\napiVersion: llmd.ai/v1alpha1\nkind: VariantAutoscaling\nmetadata: {name: a}\nspec: {modelID: m, scaleTargetRef: {kind: Deployment, name: a}}\n");
    folder.file("notes.txt", b"{{");
    let directory = file.parent().unwrap().to_str().unwrap();
    let output = wva(&["migrate", "-f", directory, "-f", "/nowhere/b.yaml"]);
    assert_eq!(output.code, 2, "{}", output.out);
    assert!(output.out.contains("a.yaml, document 1: not YAML or JSON: "), "{}", output.out);
    assert!(output.out.contains("/nowhere/b.yaml: No such file"), "{}", output.out);
    assert!(
        output.out.contains("- 1 VariantAutoscaling\n") && !output.out.contains("notes.txt"),
        "{}",
        output.out
    );
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named_on_one_line_without_its_token() {
    let missing = wva(&["migrate", "--kubeconfig", "/nowhere/config"]);
    assert_eq!(missing.code, 2);
    assert!(missing.err.contains("--kubeconfig /nowhere/config: "), "{}", missing.err);
    let folder = Folder::new();
    let text = b"clusters: [{name: c, cluster: {server: \"x\"\nusers: [{name: u, user: {token: geheim}}]\n";
    for text in [&text[..], b"users: [{name: u, user: geheim}]\n"] {
        let broken = wva(&["migrate", "--kubeconfig", folder.file("k", text).to_str().unwrap()]);
        assert_eq!((broken.code, broken.err.lines().count()), (2, 1), "{}", broken.err);
        assert!(!broken.err.contains("geheim"), "{}", broken.err);
    }
}

#[test]
fn numbers_of_scaling_policies_stay_numbers_beside_quantities_written_as_numbers() {
    let text = manifest("chart-0.5.yaml").replace("averageValue: \"1\"", "averageValue: 1").replace(
        "{stabilizationWindowSeconds: 240}",
        "{policies: [{type: Pods, value: 10, periodSeconds: 150}]}",
    );
    let report = report_of(&text);
    assert_eq!((report.unread.len(), report.readiness()), (0, Readiness::Ready), "{report:?}");
    assert!(report.same.iter().any(|same| same.starts_with("1 HPA: ")), "{report:?}");
}

#[test]
fn no_text_of_a_tenant_reaches_a_shell_or_a_terminal() {
    let attack = "x; rm -rf / #\u{1b}[2K";
    let text = format!(
        "{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: fake, namespace: llm, labels: {{control-plane: controller-manager}}, \
         annotations: {{meta.helm.sh/release-name: {attack:?}, meta.helm.sh/release-namespace: kube-system}}}}, spec: {{selector: {{}}, template: {{spec: {{containers: [{{name: \
         m, image: evil/workload-variant-autoscaler, env: [{{name: PROMETHEUS_BASE_URL, value: \
         \"https://x\\nEND_OF_VALUES\\nreboot\"}}, {{name: WATCH_NAMESPACE, value: {attack:?}}}]}}]}}}}}}}}\n---\n\
         {{apiVersion: llmd.ai/v1alpha1, kind: VariantAutoscaling, metadata: {{name: {attack:?}, namespace: llm}}, spec: {{}}}}\n"
    )
    .replace("\\u{1b}", "\\e");
    let report = report_of(&text);
    assert!(report.found.iter().any(|found| found.contains("Deployment llm/fake")), "{report:?}");
    let json = serde_json::to_value(&report).unwrap();
    let shown =
        serde_json::to_string(&json["found"]).unwrap() + &serde_json::to_string(&json["unread"]).unwrap();
    assert!(!shown.contains('\u{1b}') && !shown.contains("\\u001b"), "{shown}");
    let commands = commands(&report);
    assert!(!commands.contains('\u{1b}') && !commands.contains("kube-system"), "{commands}");
    let (before, document) = commands.split_once("<<'END_OF_VALUES'\n").unwrap();
    let (document, after) = document.split_once("\nEND_OF_VALUES\n").unwrap();
    assert!(
        document.contains(r"https://x\nEND_OF_VALUES\nreboot") && document.contains("rm -rf"),
        "{document}"
    );
    assert!(
        !after.contains("rm -rf") && !after.contains("reboot") && !before.contains("rm -rf"),
        "{commands}"
    );
}

#[test]
fn of_two_controllers_none_is_taken_for_the_other() {
    let second = manifest("chart-0.5.yaml")
        .replace("name: workload-variant-autoscaler-controller-manager", "name: second");
    let text = format!("{}\n---\n{second}", manifest("chart-0.5.yaml"));
    let mut objects = Objects::default();
    objects.add_text("f", &text, "default");
    let both = report(&objects);
    assert!(both.commands.is_empty() && both.readiness() != Readiness::Ready, "{both:?}");
    assert!(about(&both, "2 controllers of WVA")[0].1.as_ref().unwrap().contains("--controller"), "{both:?}");
    let error = objects.choose_controller("llm/third").unwrap_err();
    assert!(error.contains("workload-variant-autoscaler-system/second"), "{error}");
    objects.choose_controller("workload-variant-autoscaler-system/second").unwrap();
    assert!(commands(&report(&objects)).contains("delete deployment second"));
}

#[test]
fn thousands_of_findings_are_shortened_in_the_text_only() {
    let hpa = |index: u32| {
        format!(
            "---\n{{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {{name: h{index}, namespace: llm}}, spec: \
             {{maxReplicas: 2, scaleTargetRef: {{kind: Deployment, name: d{index}}}, metrics: [{{type: External, external: {{metric: \
             {{name: wva_desired_replicas}}, target: {{type: Value, value: 1}}}}}}]}}}}\n"
        )
    };
    let text: String = (0..2_000).map(hpa).collect();
    let output = wva_with(&["migrate", "-f", "-"], &text);
    assert!(
        output.out.contains("more; -o json has all of them") && output.out.lines().count() < 400,
        "{}",
        output.out
    );
    assert!(report_of(&text).changes.len() >= 2_000);
}
