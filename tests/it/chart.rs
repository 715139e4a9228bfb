//! The chart and the program agree: every flag and variable that a template sets exists, and RBAC grants what the program uses.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use wva::cluster::leadership::{installation_name, object_names};
use wva::cluster::pki::apiservice::{EXPLANATIONS_NAME, NAMES};
use wva::cluster::rights::{Right, RightNames, RightScope, rights};
use wva::config::LEASE_NAME;

fn read(path: &str) -> String {
    fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn help() -> String {
    let shown = Command::new(env!("CARGO_BIN_EXE_wva")).args(["serve", "--help"]).output().unwrap();
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn every_flag_and_variable_of_the_chart_exists() {
    let (template, help) = (read("charts/wva/templates/deployment.yaml"), help());
    let hidden = ["POD_IP", "MIMALLOC_PURGE_DELAY"]; // for the chart and the allocator only, so not in the help
    let lines = || template.lines().map(str::trim);
    let word = |text: &str| text.split(['=', ',', ' ']).next().unwrap_or_default().to_owned();
    let flags: Vec<String> = lines().filter_map(|line| line.strip_prefix("- --")).map(word).collect();
    let variables: Vec<String> =
        lines().filter_map(|line| line.strip_prefix("- {name: ")).map(word).collect();
    let variables: Vec<_> = variables
        .into_iter()
        .filter(|name| name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_'))
        .collect();
    assert!(flags.len() >= 8 && variables.len() >= 15, "{flags:?} {variables:?}");
    for flag in flags {
        assert!(
            help.contains(&format!("--{flag}")),
            "the chart sets --{flag}, which `wva serve` does not have"
        );
    }
    for name in variables.iter().filter(|name| !hidden.contains(&name.as_str())) {
        // The values of secrets are not shown.
        let is_read = ["=", "]"].iter().any(|end| help.contains(&format!("[env: {name}{end}")));
        assert!(is_read, "the chart sets {name}, which `wva serve` does not read");
    }
}

#[test]
fn the_chart_grants_every_state_object_by_name() {
    let manifest = read("manifests/wva.yaml");
    for name in object_names("wva") {
        assert!(manifest.contains(&name), "{name} is not granted");
    }
}

/// `manifests/render --check` renders the same name with Helm.
#[test]
fn a_controller_instance_of_upper_case_letters_made_names_that_no_object_can_have() {
    let name = installation_name(Some("Team_A"));
    assert!(read("manifests/render").contains(&format!("{name}-state-decisions-0")), "{name}");
    let pattern = r#"regexMatch "^[a-z0-9]([-a-z0-9]{0,57}[a-z0-9])?$""#;
    assert!(read("charts/wva/templates/rbac.yaml").contains(pattern));
    for instance in ["blue", "a-1", &"a".repeat(59)] {
        assert_eq!(installation_name(Some(instance)), format!("wva-{instance}"), "as before");
    }
    assert_eq!(installation_name(None), "wva");
    for instance in ["team_a", "a.b", "Blue", &"a".repeat(60), "-a", "a-"] {
        let name = installation_name(Some(instance));
        let is_digest = name.len() == "wva-".len() + 16
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        assert!(is_digest && name != installation_name(Some("Team_A")), "{instance}: {name}");
    }
}

/// `manifests/render --check` renders both with Helm, and shows that they are refused without cluster rights.
#[test]
fn a_service_monitor_and_its_reader_fit_what_the_program_serves() {
    let manifest = read("manifests/wva.yaml");
    let role = document(&manifest, &["kind: ClusterRole\n", "own-metrics"]);
    assert!(role.contains("nonResourceURLs: [/metrics, /metrics/decisions]\n    verbs: [get]"), "{role}");
    assert_eq!(role.matches("verbs:").count(), 1, "nothing more is granted");
    let is_bound = manifest.contains("kind: ClusterRole, name: wva-system:wva-own-metrics");
    assert!(
        !is_bound && !manifest.contains("kind: ServiceMonitor"),
        "only for metrics.readers, and if enabled"
    );
    let template = read("charts/wva/templates/metrics.yaml");
    let (_, monitor) = template.split_once("kind: ServiceMonitor").unwrap();
    let service = document(&manifest, &["kind: Service\n"]);
    assert!(service.contains(&format!("name: {}", after(monitor, "- port: "))), "{service}");
    assert!(
        monitor.contains("secret: {name: {{ default \"wva-tls\" $.Values.tls.secretName }}, key: ca.crt}"),
        "{monitor}"
    );
    assert!(!monitor.contains("insecureSkipVerify"), "the certificate is checked");
}

#[test]
fn an_image_of_the_dockerfile_had_no_command_for_deployments_of_wva() {
    assert!(read(".ci/image").contains("ln --symbolic wva \"$layer/manager\""));
    assert!(read("Dockerfile").contains("ln --symbolic wva /image/manager"));
}

#[test]
fn the_chart_grants_tenant_configmaps_by_name_and_nodes_only_with_limits_inventory() {
    let (manifest, help) = (read("manifests/wva.yaml"), help());
    let rule = after_line(&manifest, "    resources: [configmaps]\n    resourceNames:\n");
    for name in
        ["wva-saturation-scaling-config", "wva-model-scale-to-zero-config", "wva-queueing-model-config"]
    {
        assert!(rule.contains(name) && help.contains(&format!("[default: {name}]")), "{name}: {rule}");
    }
    assert!(rule.contains("verbs: [list, watch]"), "{rule}");
    assert!(!manifest.contains("resources: [nodes]"), "the default install needs no nodes");
    assert!(read("charts/wva/templates/rbac.yaml").contains("{{- if .Values.limits.inventory }}"));
}

#[test]
fn the_chart_grants_patching_pods_only_with_pod_deletion_cost() {
    assert_eq!(
        read("manifests/wva.yaml").matches("resources: [pods]").count(),
        1,
        "the default install only reads pods"
    );
    let template = read("charts/wva/templates/rbac.yaml");
    let rule = "  - apiGroups: [\"\"]\n    resources: [pods]\n    verbs: [patch]\n  {{- end }}\n";
    let (before, _) = template.split_once(rule).unwrap();
    let conditions: Vec<_> =
        before.lines().filter(|line| line.contains("{{- if ") || line.contains("{{- end")).collect();
    assert_eq!(conditions.last(), Some(&"  {{- if $.Values.podDeletionCost }}"));
    assert!(read("charts/wva/values.yaml").contains("\npodDeletionCost: false\n"));
}

#[test]
fn the_chart_grants_writing_scales_only_with_wake_directly() {
    assert!(!read("manifests/wva.yaml").contains("/scale"), "the default install scales nothing");
    let template = read("charts/wva/templates/rbac.yaml");
    let (before, _) =
        template.split_once("    resources: [deployments/scale, statefulsets/scale]\n").unwrap();
    let conditions: Vec<_> =
        before.lines().filter(|line| line.contains("{{- if ") || line.contains("{{- end")).collect();
    assert_eq!(conditions.last(), Some(&"  {{- if $.Values.wakeDirectly }}"));
    assert!(read("charts/wva/values.yaml").contains("\nwakeDirectly: false\n"));
}

#[test]
fn the_chart_grants_listing_autoscalers_only_where_their_annotations_count() {
    let template = read("charts/wva/templates/rbac.yaml");
    let (_, rest) = template.split_once("{{- if $.Values.annotatedAutoscalers }}").unwrap();
    let (rules, _) = rest.split_once("{{- end }}").unwrap();
    let manifest = read("manifests/wva.yaml");
    for resource in ["horizontalpodautoscalers", "scaledobjects", "verticalpodautoscalers"] {
        let rule = format!("resources: [{resource}]\n    verbs: [list, watch]\n");
        assert!(rules.contains(&rule), "{rules}");
        assert!(manifest.contains(&rule), "the default install reads {resource}");
        // Getting them, where KEDA's calls make variants.
        let others = usize::from(resource == "scaledobjects");
        assert_eq!(template.matches(resource).count(), 1 + others, "nothing more is granted");
    }
    assert!(read("charts/wva/values.yaml").contains("\nannotatedAutoscalers: true\n"));
}

#[test]
fn the_chart_grants_listing_namespaces_only_where_all_are_watched() {
    let rule = "  - apiGroups: [\"\"]\n    resources: [namespaces]\n    verbs: [list, watch]\n";
    assert!(read("manifests/wva.yaml").contains(rule));
    let template = read("charts/wva/templates/rbac.yaml");
    let (before, _) = template.split_once(rule).unwrap();
    let conditions: Vec<_> =
        before.lines().filter(|line| line.contains("{{- if ") || line.contains("{{- end")).collect();
    assert_eq!(conditions.last(), Some(&"  {{- if not $watch }}"));
}

/// The rest of the rule after `line`.
fn after_line<'a>(text: &'a str, line: &str) -> &'a str {
    let (_, rest) = text.split_once(line).unwrap_or_else(|| panic!("no {line:?}"));
    rest.split("  - apiGroups:").next().unwrap()
}

#[test]
fn the_chart_grants_every_apiservice_by_name_and_patching_only_its_own() {
    let manifest = read("manifests/wva.yaml");
    let rules = manifest.split("  - apiGroups: [apiregistration.k8s.io]").skip(1);
    let rules: Vec<_> = rules.map(|rule| rule.split("  - apiGroups:").next().unwrap()).collect();
    let [reading, writing] = rules[..] else { panic!("{rules:?}") };
    assert!(writing.contains(EXPLANATIONS_NAME), "{writing}");
    for name in NAMES {
        assert!(reading.contains(name), "{name} is not granted");
    }
    assert!(reading.contains("[list, watch]") && writing.contains("verbs: [patch]"), "{rules:?}");
    assert!(!writing.contains("custom"), "the default install owns no custom metrics: {writing}");
}

#[test]
fn whoever_may_view_a_namespace_may_read_why_its_variants_have_their_numbers() {
    let manifest = read("manifests/wva.yaml");
    let role = document(&manifest, &["kind: ClusterRole\n", "-explanations-reader\n"]);
    let role: Value = serde_saphyr::from_str(role).unwrap();
    assert_eq!(role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"], "true");
    let rules = serde_json::json!([{
        "apiGroups": ["decisions.wva.llmd.ai"], "resources": ["explanations"], "verbs": ["get", "list"]
    }]);
    assert_eq!(role["rules"], rules, "nothing can be written, and nobody else's resource is granted");
    let service = document(&manifest, &["kind: APIService\n", &format!("name: {EXPLANATIONS_NAME}\n")]);
    let service: Value = serde_saphyr::from_str(service).unwrap();
    assert_eq!(service["spec"]["group"], "decisions.wva.llmd.ai");
}

#[test]
fn a_second_installation_without_the_external_metrics_leaves_explanations_to_the_first() {
    let helpers = read("charts/wva/templates/_helpers.tpl");
    let condition =
        "if and (.Values.apiService.explanations | default dict).enabled .Values.apiService.enabled";
    assert!(helpers.contains(condition), "an APIService of one name would be in two releases");
}

#[test]
fn the_manifest_of_the_plugin_parses_once_a_release_has_filled_it_in() {
    let template = read("manifests/krew/wva.yaml");
    let filled = template.lines().map(|line| match line.trim_start().starts_with("{{addURIAndSha ") {
        // The bot puts this in place of the call, and always indents the second line by four.
        true => "    uri: https://example.com/kubectl-wva.tar.gz\n    sha256: \"0\"".to_owned(),
        false => line.replace("{{ .TagName }}", "v0.1.0"),
    });
    let manifest: Value = serde_saphyr::from_str(&filled.collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "wva");
    let platform = &manifest["spec"]["platforms"][0];
    assert_eq!(platform["sha256"], "0");
    assert_eq!(platform["bin"], "kubectl-wva", "kubectl finds the plugin `wva` by this name");
    assert_eq!(platform["files"][0], serde_json::json!({"from": "wva", "to": "kubectl-wva"}));
}

/// The YAML document of `text` that contains all of `parts`.
fn document<'a>(text: &'a str, parts: &[&str]) -> &'a str {
    let has_all = |document: &&str| parts.iter().all(|part| document.contains(part));
    text.split("\n---\n").find(has_all).unwrap_or_else(|| panic!("no document with {parts:?}"))
}

/// The text between `before` and the next white space, comma or brace.
fn after<'a>(text: &'a str, before: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}"));
    rest.split([' ', '\n', ',', '}', ']']).next().unwrap()
}

#[test]
fn the_values_for_cert_manager_fit_the_certificate_of_its_example() {
    let (example, manifest) = (read("certs/cert-manager.yaml"), read("manifests/wva.yaml"));
    let (secret, inject) =
        (after(&example, "--set tls.secretName="), after(&example, "--set tls.injectCaFrom="));
    let (namespace, certificate) = inject.split_once('/').expect("NAMESPACE/CERTIFICATE");
    assert_eq!(after(&example, "helm upgrade --install wva charts/wva -n "), namespace);
    let metadata = format!("metadata: {{name: {certificate}, namespace: {namespace}}}");
    let certificate_document = document(&example, &["kind: Certificate", &metadata]);
    assert_eq!(
        after(certificate_document, "secretName: "),
        secret,
        "the Secret that is mounted is the one that cert-manager writes"
    );
    let service = after(document(&manifest, &["kind: Service\n"]), "  name: ");
    assert_eq!(
        after(certificate_document, "dnsNames: ["),
        format!("{service}.{namespace}.svc"),
        "what the API server verifies"
    );
    assert!(
        after(certificate_document, "usages: ") == "[digital" && certificate_document.contains("server auth"),
        "{certificate_document}"
    );
    let issuer = after(certificate_document, "issuerRef: {kind: Issuer, name: ");
    let issuer_document = document(&example, &["kind: Issuer\n", &format!("metadata: {{name: {issuer}, ")]);
    let authority = after(issuer_document, "ca: {secretName: ");
    document(&example, &["isCA: true", &format!("secretName: {authority}\n")]);
}

#[test]
fn with_a_user_certificate_the_chart_mounts_it_and_does_not_write_the_ca_bundle() {
    let template = |name: &str| read(&format!("charts/wva/templates/{name}"));
    let (helpers, deployment) = (template("_helpers.tpl"), template("deployment.yaml"));
    let (annotation, value) =
        ("  cert-manager.io/inject-ca-from: {{ . | quote }}", "{{- with .Values.tls.injectCaFrom }}");
    assert!(helpers.contains(&format!("{value}\n{annotation}")), "the name that the cainjector looks for");
    assert!(
        template("apiservice.yaml").contains(r#"{{- include "wva.apiServiceAnnotations" $ | nindent 2 }}"#)
    );
    let mounted = r#"{{- with .Values.tls.secretName }}{{ $_ := set $mounts "tls" (dict "secret" (dict "secretName" .)) }}"#;
    assert!(deployment.contains(mounted));
    let directory = after(&deployment, "- --cert-dir=");
    assert_eq!(directory, "/etc/wva/tls", "where that volume is");
    assert!(help().contains("--cert-dir"));
    // Two writers of the same field would keep overwriting each other.
    let granted = "[{{ if not $.Values.tls.secretName }}apiservices, {{ end }}apiservices/status]";
    assert!(template("rbac.yaml").contains(granted));
}

/// Every rule of the roles in `text` with one of these names, as `SCOPE GROUP RESOURCE NAME VERB`.
fn granted(text: &str, roles: &[(&str, &str, RightScope)]) -> BTreeSet<String> {
    let mut granted = BTreeSet::new();
    for (kind, name, scope) in roles {
        let role = document(text, &[&format!("kind: {kind}\n"), &format!("\n  name: {name}\n")]);
        let role: Value = serde_saphyr::from_str(role).unwrap();
        let words = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned()).collect()
        };
        for rule in role["rules"].as_array().unwrap() {
            let mut names = words(&rule["resourceNames"]);
            names.extend(names.is_empty().then(String::new));
            for resource in words(&rule["resources"]) {
                for (name, verb) in names
                    .iter()
                    .flat_map(|name| words(&rule["verbs"]).into_iter().map(move |verb| (name, verb)))
                {
                    let groups = words(&rule["apiGroups"]);
                    // `events` are written in any namespace that is watched.
                    let is_watched = is_watched(&groups[0], &resource);
                    let scope = if *scope == RightScope::Cluster && is_watched {
                        RightScope::Watched
                    } else {
                        *scope
                    };
                    granted.extend(
                        groups.iter().map(|group| format!("{scope:?} {group} {resource} {name:?} {verb}")),
                    );
                }
            }
        }
    }
    granted
}

/// Whether a rule of the ClusterRole is one for watched namespaces, which is a Role where only one is watched.
fn is_watched(group: &str, resource: &str) -> bool {
    let template = read("charts/wva/templates/rbac.yaml");
    let rules = template
        .split("define \"wva.watchRules\"")
        .nth(1)
        .unwrap()
        .split("{{- end }}\n{{- if .Values.clusterRights")
        .next()
        .unwrap();
    let group = if group.is_empty() { "\"\"" } else { group };
    rules.split("- apiGroups: [").any(|rule| {
        rule.starts_with(group)
            && rule.lines().nth(1).is_some_and(|line| {
                let listed = line.trim().trim_start_matches("resources: [").trim_end_matches(']');
                listed.split(", ").any(|name| name == resource)
            })
    })
}

#[test]
fn the_table_of_rights_is_what_the_chart_grants_and_nothing_more() {
    let maps =
        ["wva-saturation-scaling-config", "wva-model-scale-to-zero-config", "wva-queueing-model-config"];
    let maps = maps.map(String::from);
    let names = RightNames {
        annotated_autoscalers: true,
        wakes_directly: false,
        writes_deletion_costs: false,
        serves_external_scaler: false,
        passes_on: false,
        takes_over: false,
        is_of_namespace: false,
        lease: LEASE_NAME,
        controller_instance: None,
        config_maps: &maps,
    };
    let table = rights(names);
    let mut used = BTreeSet::new();
    for Right { scope, group, resource, names, verbs, .. } in table {
        // By roles of Kubernetes itself: system:auth-delegator, and extension-apiserver-authentication-reader.
        let is_built_in =
            group.starts_with("auth") && group.ends_with("k8s.io") || scope == RightScope::KubeSystem;
        let names = if names.is_empty() { vec![String::new()] } else { names };
        for (name, verb) in
            names.iter().flat_map(|name| verbs.iter().map(move |verb| (name, verb))).filter(|_| !is_built_in)
        {
            used.insert(format!("{scope:?} {group} {resource} {name:?} {verb}"));
        }
    }
    let manifest = read("manifests/wva.yaml");
    let roles =
        [("ClusterRole", "wva-system:wva", RightScope::Cluster), ("Role", "wva", RightScope::Release)];
    assert_eq!(used, granted(&manifest, &roles));
    let options = RightNames {
        wakes_directly: true,
        writes_deletion_costs: true,
        serves_external_scaler: true,
        ..names
    };
    let template = read("charts/wva/templates/rbac.yaml");
    let with = |value: &str| {
        let rest = template.split(&format!("{{{{- if {value} }}}}")).nth(1).unwrap();
        rest.split("{{- end }}").next().unwrap()
    };
    let granted = ["$.Values.wakeDirectly", "$.Values.podDeletionCost", "($.Values.externalScaler).enabled"]
        .map(with)
        .concat();
    let table = rights(names);
    let optional: Vec<Right> = rights(options).into_iter().filter(|right| !table.contains(right)).collect();
    assert_eq!(optional.len(), 5);
    for Right { group, resource, verbs, .. } in optional {
        let rules = granted.split("- apiGroups: [").map(|rule| rule.trim_start_matches('"'));
        let is_granted = |rule: &str| {
            rule.starts_with(group)
                && rule.contains(resource)
                && rule.contains(&format!("verbs: [{}]", verbs.join(", ")))
        };
        assert!(rules.into_iter().any(is_granted), "{group} {resource}");
    }
}
