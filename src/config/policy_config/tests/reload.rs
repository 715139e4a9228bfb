//! ConfigMaps that change while the program runs.

use std::collections::BTreeSet;

use super::{HOME, loader, made, map, maps, told};
use crate::config::policy_config::{Kind, Map, Maps, changes};

fn with_default(text: &str) -> Maps {
    maps(&[(
        HOME,
        Kind::Saturation,
        &[("default", text), ("a", "{model_id: m, namespace: llm, priority: 3}")],
    )])
}

#[test]
fn an_entry_that_goes_wrong_keeps_its_last_good_text_and_the_others_go_on() {
    let (mut loader, none) = (loader(), BTreeSet::new());
    let (good, _) = loader.load(&with_default("kvCacheThreshold: 0.6"), &none);
    let (kept, problems) = loader.load(&with_default("kvCacheThreshold: 6"), &none);
    assert_eq!(kept, good);
    let expected = "ConfigMap wva-system/saturation, entry default: kvCacheThreshold 6 is out of range: must be 0 to 1; \
                    its last good text stays in force";
    assert_eq!(told(&problems), [expected]);
    let (_, again) = loader.load(&with_default("kvCacheThreshold: 6"), &none);
    assert_eq!(again, problems, "as long as it is wrong");
    let (other, problems) = loader.load(&with_default("kvCacheThreshold: 0.7"), &none);
    assert_eq!((other.global.default.saturation.kv_cache_threshold, told(&problems).len()), (0.7, 0));
}

#[test]
fn an_entry_or_a_configmap_that_is_deleted_is_forgotten() {
    let (mut loader, none) = (loader(), BTreeSet::new());
    loader.load(&with_default("kvCacheThreshold: 0.6"), &none);
    let (without, _) =
        loader.load(&maps(&[(HOME, Kind::Saturation, &[("default", "kvCacheThreshold: 6")])]), &none);
    assert!(without.global.models.is_empty());
    assert_eq!(without.global.default.saturation.kv_cache_threshold, 0.6, "kept");
    let (nothing, problems) = loader.load(&Maps::new(), &none);
    assert_eq!((nothing, told(&problems).len()), (made(&[]).0, 0), "the program's defaults");
}

#[test]
fn a_configmap_that_cannot_be_read_keeps_what_it_said() {
    let (mut loader, none) = (loader(), BTreeSet::new());
    let (good, _) = loader.load(&with_default("kvCacheThreshold: 0.6"), &none);
    let broken: Map = Err("it has 70000 bytes: at most 65536 are read".to_owned());
    let (kept, problems) = loader.load(&Maps::from([((HOME.to_owned(), Kind::Saturation), broken)]), &none);
    assert_eq!(kept, good);
    assert!(
        told(&problems)[0].starts_with("ConfigMap wva-system/saturation: it has 70000 bytes"),
        "{problems:?}"
    );
}

#[test]
fn a_namespace_that_gets_its_first_variant_has_its_configmap_at_once() {
    let (mut loader, maps) = (loader(), maps(&[("llm", Kind::Saturation, &[("default", "priority: 5")])]));
    assert!(loader.load(&maps, &BTreeSet::new()).0.namespaces.is_empty());
    let (policy, _) = loader.load(&maps, &BTreeSet::from(["llm".to_owned()]));
    assert_eq!(policy.namespaces["llm"].default.priority, 5.0);
}

#[test]
fn the_log_says_what_a_new_policy_changes() {
    let before = made(&[]).0;
    let now = made(&[(
        HOME,
        Kind::Saturation,
        &[("default", "kvCacheThreshold: 0.6\nenableLimiter: true"), ("a", "{model_id: m, namespace: llm}")],
    )]);
    let told = changes(&before, &now.0);
    assert!(told.contains(&"global.default.saturation.kvCacheThreshold: 0.8 → 0.6".to_owned()), "{told:?}");
    assert!(told.contains(&"limits.inventory: false → true".to_owned()), "{told:?}");
    assert!(told.iter().any(|one| one.starts_with("global.models: none → ")), "{told:?}");
    assert_eq!(changes(&before, &before), [""; 0]);
}

#[test]
fn one_wrong_configmap_cannot_fill_the_log() {
    let entries: Vec<_> = (0..500).map(|number| (format!("e{number}"), "nonsense")).collect();
    let entries: Vec<_> = entries.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    let maps = Maps::from([((HOME.to_owned(), Kind::Saturation), map(&entries))]);
    let (_, problems) = loader().load(&maps, &BTreeSet::new());
    assert_eq!((problems.iter().count(), problems.left_out()), (100, 400));
}

#[test]
fn a_namespace_with_hundreds_of_wrong_entries_takes_nobody_elses_place() {
    let entries: Vec<_> = (0..200).map(|number| (format!("e{number}"), "nonsense")).collect();
    let entries: Vec<_> = entries.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    let one: &[_] = &[("default", "kvCacheThreshold: 6")];
    let given: &[_] = &[
        ("a", Kind::Saturation, &entries[..]),
        ("a", Kind::ScaleToZero, &entries[..]),
        ("z", Kind::Saturation, &[("default", "kvCacheThreshold: 6"), ("e1", "nonsense")]),
        (HOME, Kind::Saturation, one),
    ];
    let namespaces = BTreeSet::from(["a", "z"].map(str::to_owned));
    let (_, problems) = loader().load(&maps(given), &namespaces);
    let of = |namespace: &str, map: &str| {
        problems
            .iter()
            .filter(|one| (one.namespace.as_str(), one.config_map.as_str()) == (namespace, map))
            .count()
    };
    assert_eq!((of(HOME, "saturation"), of("z", "saturation")), (1, 2));
    assert_eq!(of("a", "saturation") + of("a", "scale-to-zero"), 97);
    assert!(of("a", "saturation").abs_diff(of("a", "scale-to-zero")) <= 1);
    assert_eq!(problems.left_out(), 403 - 100);
    let first: BTreeSet<_> = problems.iter().take(4).map(|one| (&one.namespace, &one.config_map)).collect();
    assert_eq!(first.len(), 4, "the first of each is told first");
}

#[test]
fn what_is_refused_is_told_before_what_is_only_noted() {
    let notes: Vec<_> =
        (0..150).map(|number| (format!("n{number:03}"), "{model_id: m, namespace: x, spend: 1}")).collect();
    let mut entries: Vec<_> = notes.iter().map(|(key, text)| (key.as_str(), *text)).collect();
    entries.push(("z", "nonsense"));
    let (_, problems) = loader().load(&maps(&[(HOME, Kind::Saturation, &entries)]), &BTreeSet::new());
    let first = problems.iter().next().unwrap();
    assert!(first.is_rejected && first.key == "z", "{first}");
}
