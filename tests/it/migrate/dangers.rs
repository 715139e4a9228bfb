//! What somebody who follows the printed commands literally must not lose: replicas, other programs, metrics, credentials, the way back.

use serde_json::json;
use wva::migrate::{Objects, Readiness, Report, report};

use super::{about, assert_golden, commands, commands_of, manifest, object, release, release_of, report_of};
use crate::record::material::wva_with;

/// Asserts that these occur in a text, one after the other.
fn assert_in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        rest = rest.split_once(part).unwrap_or_else(|| panic!("no {part} there in:\n{text}")).1;
    }
}

#[test]
fn keda_is_paused_while_prometheus_has_no_series_which_it_takes_for_zero() {
    let report = report_of(&manifest("keda.yaml"));
    let pause = "annotate scaledobject chat autoscaling.keda.sh/paused=true";
    let resume = "annotate scaledobject chat autoscaling.keda.sh/paused- ";
    let wait = "wait scaledobject chat --for=condition=Paused --timeout=2m &&\n";
    assert_in_order(
        &commands(&report),
        &[pause, wait, "--replicas=0", "serviceMonitor", resume, "= 0 ] &&\n", "delete"],
    );
    assert_in_order(&commands_of(&report.back), &[pause, wait, "uninstall wva", "--replicas=1", resume]);
    let nulls = |text: &str| {
        let findings = about(&report_of(text), "ScaledObject llm/chat");
        findings.iter().filter(|(cause, _)| cause.contains("ignoreNullValues")).count()
    };
    assert_eq!(nulls(&manifest("keda.yaml")), 1);
    let with = |setting: &str| {
        manifest("keda.yaml").replace("threshold: \"1\"", &format!("threshold: \"1\"\n        {setting}"))
    };
    assert_eq!(nulls(&with("ignoreNullValues: \"true\"")), 1);
    let is_error = with("ignoreNullValues: \"false\"");
    assert_eq!(nulls(&is_error), 0);
    assert_eq!(nulls(&is_error.replace("metrics\"}\n", "metrics\"} or vector(0)\n")), 1);
}

#[test]
fn a_pause_of_somebody_else_is_not_ended() {
    let paused = |annotations: &str| {
        let text = manifest("keda.yaml");
        let named = "kind: ScaledObject\nmetadata: {name: chat, namespace: llm";
        assert!(text.contains(named));
        report_of(&text.replace(named, &format!("{named}, annotations: {{{annotations}}}")))
    };
    for theirs in ["autoscaling.keda.sh/paused: \"true\"", "autoscaling.keda.sh/paused-replicas: \"3\""] {
        let report = paused(theirs);
        assert!(!commands(&report).contains("annotate scaledobject"), "{}", commands(&report));
    }
    let ours = paused("autoscaling.keda.sh/paused: \"true\", wva-migration: paused");
    assert!(
        commands(&ours).contains("autoscaling.keda.sh/paused- "),
        "a second run ends the first one's pause"
    );
}

#[test]
fn the_release_of_keda_is_not_uninstalled_for_prometheus_adapter() {
    let output = wva_with(&["migrate", "-f", "-"], &manifest("patched-apiservice.yaml"));
    assert_golden("patched-apiservice.txt", &output.out);
    assert_eq!(output.code, 1, "{}", output.out);
    assert!(
        !output.out.contains("helm -n keda uninstall") && !output.out.contains("geheim"),
        "{}",
        output.out
    );
}

#[test]
fn an_adapter_that_serves_cpu_and_memory_is_not_uninstalled() {
    let api = manifest("chart-0.5.yaml");
    let api = api.split("---\n").find(|text| text.contains("kind: APIService")).unwrap();
    let metrics = api.replace("v1beta1.external.metrics.k8s.io", "v1beta1.metrics.k8s.io");
    let with_api = format!("{}\n---\n{metrics}", manifest("chart-0.5.yaml"));
    for text in [
        with_api,
        manifest("chart-0.5.yaml").replace("rules: []", "resourceRules: {cpu: {containerLabel: container}}"),
        manifest("chart-0.5.yaml").replace("rules: []", "rules: [{seriesQuery: up}]"),
    ] {
        let commands = commands(&report_of(&text));
        assert!(!commands.contains("uninstall") && !commands.contains("rules.external=null"), "{commands}");
        assert_in_order(
            &commands,
            &[
                "> prometheus-adapter-values.yaml.new",
                "! cmp -s prometheus-adapter-values.yaml prometheus-adapter-values-after.yaml &&\n",
                "--version 4.14.1 --reset-values -f prometheus-adapter-values-after.yaml &&\n",
                "apiService.enabled=true",
            ],
        );
    }
}

#[test]
fn an_adapter_without_a_release_can_get_its_apiservice_back() {
    let text = manifest("patched-apiservice.yaml").replace(
        "annotations: {meta.helm.sh/release-name: keda, meta.helm.sh/release-namespace: keda}",
        "annotations: {}",
    );
    let report = report_of(&text);
    let file = "external-metrics-apiservice.yaml";
    let saved = format!("-o yaml > {file}.new && mv {file}.new {file}");
    let delete = "delete apiservice v1beta1.external.metrics.k8s.io";
    assert_in_order(&commands(&report), &[&saved, "rollout status", &format!("[ -s {file} ] &&\n"), delete]);
    assert_in_order(&commands_of(&report.back), &["uninstall wva", &format!("kubectl apply -f {file}")]);
}

#[test]
fn the_way_back_starts_instances_although_wva_was_stopped_when_it_was_read() {
    let report = report_of(&manifest("chart-0.5.yaml").replace("replicas: 2", "replicas: 0"));
    let back = commands_of(&report.back);
    assert!(back.contains("--replicas=1") && !back.contains("--replicas=0"), "{back}");
}

#[test]
fn what_was_not_read_is_not_said_to_be_absent_and_nothing_is_switched() {
    let without = |kind: &str| {
        let text = manifest("chart-0.5.yaml");
        let documents = text.split("---\n").filter(|text| !text.contains(&format!("kind: {kind}\n")));
        documents.collect::<Vec<_>>().join("---\n")
    };
    for (kind, claim) in [
        ("APIService", "no APIService"),
        ("HorizontalPodAutoscaler", "0 HPAs"),
        ("Deployment", "no controller"),
    ] {
        let report = report_of(&without(kind));
        assert!(!report.found.iter().any(|found| found.contains(claim)), "{kind}: {:?}", report.found);
        assert!(report.unread.iter().any(|unread| unread.contains(kind)), "{kind}: {:?}", report.unread);
        assert_nothing_is_taken_away(&report);
    }
    let mut objects = Objects::of_cluster(Some("llm"));
    objects.add_text("f", &manifest("chart-0.5.yaml"), "default");
    assert_nothing_is_taken_away(&report(&objects));
    let rules = manifest("chart-0.5.yaml").replace("externalRules:", "externalRules: [");
    assert_nothing_is_taken_away(&report_of(&rules));
    let document = format!("{}\n---\nkind: [\n", manifest("chart-0.5.yaml"));
    assert_nothing_is_taken_away(&report_of(&document));
}

fn assert_nothing_is_taken_away(report: &Report) {
    assert_ne!(report.readiness(), Readiness::Ready);
    let commands = commands(report);
    for taken in ["uninstall", "delete", "--replicas=0", "apiService.enabled=true", "label secret"] {
        assert!(!commands.contains(taken), "{taken}: {commands}");
    }
    assert!(
        commands.contains("helm install")
            && report.commands.iter().any(|step| step.title.contains("withheld"))
    );
}

#[test]
fn no_credential_vanishes_or_is_printed() {
    let text = manifest("chart-0.5.yaml")
        .replace(
            "{name: PROMETHEUS_TOKEN_PATH, value: /var/run/secrets/kubernetes.io/serviceaccount/token}",
            "{name: PROMETHEUS_TOKEN_PATH, value: /tokens/token}\n            - {name: PROMETHEUS_CLIENT_CERT_PATH, value: /tls/c}\n            \
             - {name: PROMETHEUS_CLIENT_KEY_PATH, value: /tls/k}",
        )
        .replace("https://thanos", "https://wva:geheim@thanos")
        .replace("value: info", "value: debug")
        .replace("          configMap: {name: workload-variant-autoscaler-prometheus-ca, optional: true}", "          secret: {secretName: ca}")
        .replace("      volumes:\n", "      volumes:\n        - {name: tokens, secret: {secretName: bearer}}\n")
        .replace("          volumeMounts:\n", "          volumeMounts:\n            - {name: tokens, mountPath: /tokens}\n");
    let report = report_of(&text);
    let object =
        "Deployment workload-variant-autoscaler-system/workload-variant-autoscaler-controller-manager";
    let causes: Vec<String> = about(&report, object).into_iter().map(|(cause, _)| cause).collect();
    for (what, value) in [
        ("a user and password", "prometheus.url"),
        ("/tokens/token of Secret bearer", "prometheus.token.secret"),
        ("client certificate", "prometheus.clientCertificateSecret"),
        ("prometheus-ca.crt of Secret ca", "prometheus.ca"),
    ] {
        assert!(
            causes.iter().any(|cause| cause.contains(what) && cause.ends_with(value)),
            "{what}: {causes:?}"
        );
    }
    assert!(!serde_json::to_string(&report).unwrap().contains("geheim"), "{report:?}");
    assert!(commands(&report).contains("log:\n  level: debug\n"), "{}", commands(&report));
    let literal = manifest("keda.yaml")
        .replace("valueFrom: {secretKeyRef: {name: prometheus, key: token}}", "value: geheim");
    let report = report_of(&literal);
    assert!(about(&report, object).iter().any(|(cause, _)| cause.contains("the bearer token")), "{report:?}");
    assert!(!serde_json::to_string(&report).unwrap().contains("geheim"), "{report:?}");
}

#[test]
fn of_two_installations_only_the_rights_of_the_one_that_is_removed_are_deleted() {
    let manifest_of = |name: &str| format!("workload-variant-autoscaler-{name}");
    let role = |kind: &str, name: &str, namespace: &str| json!({ "apiVersion": "x/v1", "kind": kind, "metadata": { "name": name, "namespace": namespace } });
    let namespace = "workload-variant-autoscaler-system";
    let secret = release(
        1,
        &[
            role("ServiceAccount", "manager", namespace),
            role("ServiceAccount", "default", "kube-system"),
            role("ClusterRole", &manifest_of("manager-role"), ""),
            role("ClusterRole", "cluster-admin", ""),
            role("ClusterRoleBinding", "x; reboot", ""),
        ],
    );
    let report = report_of(&format!("{}\n---\n{secret}\n", manifest("chart-0.5.yaml")));
    let commands = commands(&report);
    assert!(
        commands
            .contains(&format!("kubectl -n {namespace} delete serviceaccount manager --ignore-not-found")),
        "{commands}"
    );
    let role = "kubectl delete clusterrole workload-variant-autoscaler-manager-role --ignore-not-found";
    assert!(commands.contains(role), "{commands}");
    for others in
        ["cluster-admin", "kube-system", "reboot", "delete clusterrolebinding", "app.kubernetes.io/instance"]
    {
        assert!(!commands.contains(others), "{others}: {commands}");
    }
}

#[test]
fn one_bad_document_does_not_discard_a_revision_of_a_release() {
    let old = release(1, &[object("VariantAutoscaling", "old", &json!({}))]);
    let va = object("VariantAutoscaling", "va", &json!({}));
    let new = release_of(2, &format!("---\nkind: [\n---\n{va}\n"));
    let report = report_of(&format!("{}\n---\n{old}\n---\n{new}\n", manifest("chart-0.5.yaml")));
    let title = "Helm release workload-variant-autoscaler in workload-variant-autoscaler-system";
    assert!(about(&report, title)[0].0.contains("system/va"), "{report:?}");
    assert!(report.unread.iter().any(|unread| unread.contains("document 1 of its manifest")), "{report:?}");
}

#[test]
fn a_workload_whose_image_ends_like_wvas_is_none_of_its_controllers() {
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: fake, namespace: llm}, spec: {selector: {}, template: {spec: \
                {containers: [{name: m, image: evil/not-workload-variant-autoscaler}]}}}}";
    let named_so = report_of(text);
    assert!(named_so.found.iter().any(|found| found == "no controller of WVA"), "{named_so:?}");
    let with_argument = report_of(&text.replace("autoscaler}", "autoscaler, args: [--leader-elect]}"));
    assert!(
        with_argument.found.iter().any(|found| found.starts_with("WVA: Deployment llm/fake")),
        "{with_argument:?}"
    );
}

#[test]
fn a_release_without_secrets_is_forgotten_only_if_the_commands_did_it() {
    let title = "Helm release workload-variant-autoscaler in workload-variant-autoscaler-system";
    let listed = |more: &str| {
        let mut objects = Objects::default();
        objects.add_text("f", &format!("{}\n---\n{more}", manifest("chart-0.5.yaml")), "default");
        objects.note_listed_release("workload-variant-autoscaler-system", "workload-variant-autoscaler");
        report(&objects)
    };
    let elsewhere = listed("");
    let [(cause, Some(_))] = &about(&elsewhere, title)[..] else { panic!("{elsewhere:?}") };
    assert!(cause.contains("HELM_DRIVER"), "{cause}");
    let mut secret = release(1, &[]);
    secret["metadata"]["labels"]["owner"] = json!("wva-migration");
    let forgotten = listed(&secret.to_string());
    assert_eq!(about(&forgotten, title), []);
    assert!(
        forgotten.same.iter().any(|text| text.contains("`helm uninstall` finds nothing")),
        "{forgotten:?}"
    );
}
