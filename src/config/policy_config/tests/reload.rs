//! ConfigMaps that change while the program runs.

use std::collections::BTreeSet;

use super::{RELEASE, load, loader, map, maps, messages};
use crate::config::policy_config::ConfigMapKind::{Saturation, ScaleToZero};
use crate::config::policy_config::{ConfigMapTexts, EntryTexts, changes};

fn with_default(text: &str) -> ConfigMapTexts {
    maps(&[(RELEASE, Saturation, &[("default", text), ("a", "{model_id: m, namespace: llm, priority: 3}")])])
}

#[test]
fn an_entry_that_becomes_invalid_keeps_its_last_good_text_and_the_others_change() {
    let (mut loader, none) = (loader(), BTreeSet::new());
    let (good, _) = loader.load(&with_default("kvCacheThreshold: 0.6"), &none);
    let (kept, problems) = loader.load(&with_default("kvCacheThreshold: 6"), &none);
    assert_eq!(kept, good);
    let expected = "ConfigMap wva-system/saturation, entry default: kvCacheThreshold 6 is out of range: must be 0 to 1; \
                    its last good text stays in force";
    assert_eq!(messages(&problems), [expected]);
    let (_, again) = loader.load(&with_default("kvCacheThreshold: 6"), &none);
    assert_eq!(again, problems, "as long as it is wrong");
    let (other, problems) = loader.load(&with_default("kvCacheThreshold: 0.7"), &none);
    assert_eq!((other.global.default.saturation.kv_cache_threshold, messages(&problems).len()), (0.7, 0));
}

#[test]
fn an_entry_or_a_configmap_that_is_deleted_is_forgotten() {
    let (mut loader, none) = (loader(), BTreeSet::new());
    loader.load(&with_default("kvCacheThreshold: 0.6"), &none);
    let (without, _) =
        loader.load(&maps(&[(RELEASE, Saturation, &[("default", "kvCacheThreshold: 6")])]), &none);
    assert!(without.global.models.is_empty());
    assert_eq!(without.global.default.saturation.kv_cache_threshold, 0.6, "kept");
    let (nothing, problems) = loader.load(&ConfigMapTexts::new(), &none);
    assert_eq!((nothing, messages(&problems).len()), (load(&[]).0, 0), "the program's defaults");
}

#[test]
fn a_configmap_that_becomes_unreadable_keeps_its_last_entries() {
    let (mut loader, none) = (loader(), BTreeSet::new());
    let (good, _) = loader.load(&with_default("kvCacheThreshold: 0.6"), &none);
    let broken: EntryTexts = Err("it has 70000 bytes: at most 65536 are read".to_owned());
    let (kept, problems) =
        loader.load(&ConfigMapTexts::from([((RELEASE.to_owned(), Saturation), broken)]), &none);
    assert_eq!(kept, good);
    assert!(
        messages(&problems)[0].starts_with("ConfigMap wva-system/saturation: it has 70000 bytes"),
        "{problems:?}"
    );
}

#[test]
fn the_configmap_of_a_namespace_applies_from_its_first_variant_on() {
    let (mut loader, maps) = (loader(), maps(&[("llm", Saturation, &[("default", "priority: 5")])]));
    assert!(loader.load(&maps, &BTreeSet::new()).0.namespaces.is_empty());
    let (policy, _) = loader.load(&maps, &BTreeSet::from(["llm".to_owned()]));
    assert_eq!(policy.namespaces["llm"].default.priority, 5.0);
}

#[test]
fn changes_of_a_policy_are_listed() {
    let before = load(&[]).0;
    let now = load(&[(
        RELEASE,
        Saturation,
        &[("default", "kvCacheThreshold: 0.6\nenableLimiter: true"), ("a", "{model_id: m, namespace: llm}")],
    )]);
    let differences = changes(&before, &now.0);
    assert!(
        differences.contains(&"global.default.saturation.kvCacheThreshold: 0.8 → 0.6".to_owned()),
        "{differences:?}"
    );
    assert!(differences.contains(&"limits.inventory: false → true".to_owned()), "{differences:?}");
    assert!(differences.iter().any(|change| change.starts_with("global.models: none → ")), "{differences:?}");
    assert_eq!(changes(&before, &before), [""; 0]);
}

#[test]
fn the_problems_of_one_configmap_are_limited() {
    let entries: Vec<_> = (0..500).map(|number| (format!("e{number}"), "nonsense")).collect();
    let entries: Vec<_> = entries.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    let maps = ConfigMapTexts::from([((RELEASE.to_owned(), Saturation), map(&entries))]);
    let (_, problems) = loader().load(&maps, &BTreeSet::new());
    assert_eq!((problems.iter().count(), problems.left_out()), (100, 400));
}

#[test]
fn hundreds_of_invalid_entries_in_one_namespace_displace_no_other_problems() {
    let entries: Vec<_> = (0..200).map(|number| (format!("e{number}"), "nonsense")).collect();
    let entries: Vec<_> = entries.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    let entry: &[_] = &[("default", "kvCacheThreshold: 6")];
    let config_maps: &[_] = &[
        ("a", Saturation, &entries[..]),
        ("a", ScaleToZero, &entries[..]),
        ("z", Saturation, &[("default", "kvCacheThreshold: 6"), ("e1", "nonsense")]),
        (RELEASE, Saturation, entry),
    ];
    let namespaces = BTreeSet::from(["a", "z"].map(str::to_owned));
    let (_, problems) = loader().load(&maps(config_maps), &namespaces);
    let of = |namespace: &str, map: &str| {
        problems
            .iter()
            .filter(|entry| (entry.namespace.as_str(), entry.config_map.as_str()) == (namespace, map))
            .count()
    };
    assert_eq!((of(RELEASE, "saturation"), of("z", "saturation")), (1, 2));
    assert_eq!(of("a", "saturation") + of("a", "scale-to-zero"), 97);
    assert!(of("a", "saturation").abs_diff(of("a", "scale-to-zero")) <= 1);
    assert_eq!(problems.left_out(), 403 - 100);
    let first: BTreeSet<_> =
        problems.iter().take(4).map(|entry| (&entry.namespace, &entry.config_map)).collect();
    assert_eq!(first.len(), 4, "the first of each comes first");
}

#[test]
fn rejected_entries_come_before_notes() {
    let notes: Vec<_> =
        (0..150).map(|number| (format!("n{number:03}"), "{model_id: m, namespace: x, spend: 1}")).collect();
    let mut entries: Vec<_> = notes.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    entries.push(("z", "nonsense"));
    let (_, problems) = loader().load(&maps(&[(RELEASE, Saturation, &entries)]), &BTreeSet::new());
    let first = problems.iter().next().unwrap();
    assert!(first.is_rejected && first.key == "z", "{first}");
}
