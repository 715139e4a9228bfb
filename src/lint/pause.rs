//! Annotations that pause a ScaledObject: KEDA does not follow the number, or only in one direction.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use wva_core::text::quoted;

/// Annotations that pause a ScaledObject, what KEDA does meanwhile, and what removing them allows. The first one that is set counts.
const PAUSES: [(&str, &str, &str); 4] = [
    (PAUSED_REPLICAS, NOT_APPLIED, "scale"),
    (PAUSED, NOT_APPLIED, "scale"),
    (PAUSED_SCALE_IN, "KEDA removes no replicas, whatever the number is,", "scale down"),
    (PAUSED_SCALE_OUT, "KEDA adds no replicas, whatever the number is,", "scale up"),
];
/// It sets the number of replicas that is its value. The others pause unless their value is a form of `false`.
const PAUSED_REPLICAS: &str = "autoscaling.keda.sh/paused-replicas";
const PAUSED: &str = "autoscaling.keda.sh/paused";
const PAUSED_SCALE_IN: &str = "autoscaling.keda.sh/paused-scale-in";
const PAUSED_SCALE_OUT: &str = "autoscaling.keda.sh/paused-scale-out";
const NOT_APPLIED: &str = "KEDA does not apply the number, which is still computed,";

/// Whether KEDA reads a text as false.
pub(super) fn is_false(text: &str) -> bool {
    matches!(text, "false" | "False" | "FALSE" | "f" | "F" | "0")
}

/// What the annotations of a ScaledObject pause, for people; `None` if nothing.
pub(crate) fn paused(metadata: &ObjectMeta) -> Option<String> {
    let mut in_force = in_force(metadata);
    let ((key, effect, again), value) = in_force.next()?;
    if key == PAUSED_SCALE_IN && in_force.next().is_some() {
        let both = format!("{PAUSED_SCALE_IN} and {PAUSED_SCALE_OUT}");
        return Some(format!(
            "{NOT_APPLIED} while the annotations {both} are set: remove both to scale again"
        ));
    }
    Some(format!("{effect} while the annotation {key} is {}: remove it to {again} again", quoted(value)))
}

/// Whether KEDA sets nothing at all meanwhile, and has deleted its HPA. In one direction alone, it keeps both.
pub(super) fn is_paused_whole(metadata: &ObjectMeta) -> bool {
    in_force(metadata).any(|((key, ..), _)| [PAUSED_REPLICAS, PAUSED].contains(&key))
}

/// The annotations that pause, with their values.
fn in_force(
    metadata: &ObjectMeta,
) -> impl Iterator<Item = ((&'static str, &'static str, &'static str), &str)> {
    let set = PAUSES.into_iter().filter_map(|pause| Some((pause, annotation(metadata, pause.0)?)));
    set.filter(|((key, ..), value)| *key == PAUSED_REPLICAS || !is_false(value))
}

fn annotation<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(annotations: &[(&str, &str)]) -> ObjectMeta {
        let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        ObjectMeta { annotations: Some(annotations.collect()), ..ObjectMeta::default() }
    }

    #[test]
    fn the_first_annotation_in_force_says_what_keda_does_not_do() {
        let [replicas, paused_whole, scale_in, scale_out] = PAUSES.map(|pause| pause.0);
        for (annotations, expected) in [
            (
                &[(paused_whole, "true")][..],
                Some("KEDA does not apply the number, which is still computed, while"),
            ),
            (
                &[(paused_whole, "soon")],
                Some("annotation autoscaling.keda.sh/paused is \"soon\": remove it to scale again"),
            ),
            (&[(replicas, "0")], Some("paused-replicas is \"0\"")),
            (&[(replicas, "2"), (paused_whole, "false")], Some("paused-replicas is \"2\"")),
            (&[(scale_in, "true"), (paused_whole, "true")], Some("/paused is ")),
            (
                &[(scale_in, "true"), (paused_whole, "false")],
                Some("KEDA removes no replicas, whatever the number is, while"),
            ),
            (&[(scale_out, "true")], Some("KEDA adds no replicas, whatever the number is, while")),
            (
                &[(scale_in, "true"), (scale_out, "true")],
                Some("KEDA does not apply the number, which is still computed, while the annotations"),
            ),
            (&[(paused_whole, "false"), (scale_in, "f"), (scale_out, "0")], None),
            (&[], None),
        ] {
            let text = paused(&metadata(annotations));
            let is_expected =
                expected.map_or(text.is_none(), |part| text.as_ref().is_some_and(|text| text.contains(part)));
            assert!(is_expected, "{annotations:?}: {text:?}");
            let is_whole = text
                .is_some_and(|text| text.contains("/paused is ") || text.contains("/paused-replicas is "));
            assert_eq!(is_paused_whole(&metadata(annotations)), is_whole, "{annotations:?}");
        }
        let value = "9\n".repeat(100_000);
        let long = paused(&metadata(&[(replicas, value.as_str())])).unwrap();
        assert!(long.len() < 400 && !long.contains('\n'), "{long}");
    }
}
