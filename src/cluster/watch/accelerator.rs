//! Short names of accelerators, so that node labels, node selectors and labels of variants agree. Vendors' labels are longer
//! than what a user writes (`NVIDIA-H100-80GB-HBM3` for `H100`). Upstream shortens only the names of nodes, so that they
//! never match the node selector of a pod.

/// Product families between the vendor and the name.
const FAMILIES: [&str; 5] = ["tesla", "geforce", "quadro", "instinct", "radeon"];
/// Words that mean little without the next one.
const PREFIXES: [&str; 2] = ["rtx", "gaudi"];

/// The short name. A name that does not begin with a vendor is short already.
pub(crate) fn short_name(name: &str) -> String {
    let mut words = name.split(['-', '_', ' ']).filter(|word| !word.is_empty()).peekable();
    let is_in = |word: &str, list: &[&str]| list.iter().any(|known| word.eq_ignore_ascii_case(known));
    let vendor = words.next_if(|word| is_in(word, &["nvidia", "amd", "intel"]));
    let family = words.next_if(|word| is_in(word, &FAMILIES));
    if vendor.is_none() && !family.is_some_and(|family| is_in(family, &["tesla"])) {
        return name.to_owned();
    }
    let Some(first) = words.next() else { return name.to_owned() };
    // GKE writes in lower case what the vendors' own labels write in upper case.
    let first = if first.chars().any(char::is_uppercase) { first.to_owned() } else { first.to_uppercase() };
    match words.next().filter(|_| is_in(&first, &PREFIXES)) {
        Some(second) => format!("{first}-{second}"),
        None => first,
    }
}

#[cfg(test)]
mod tests {
    use super::short_name;

    #[test]
    fn names_of_vendors_clouds_and_users_have_one_short_form() {
        for (long, expected) in [
            ("NVIDIA-H100-80GB-HBM3", "H100"),
            ("NVIDIA-A100-PCIE-80GB", "A100"),
            ("NVIDIA-A100-SXM4-40GB", "A100"),
            ("NVIDIA-L40S", "L40S"),
            ("Tesla-T4", "T4"),
            ("NVIDIA-Tesla-V100-SXM2-16GB", "V100"),
            ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
            ("NVIDIA-RTX-A6000", "RTX-A6000"),
            ("nvidia-h100-80gb", "H100"),
            ("nvidia-tesla-t4", "T4"),
            ("nvidia-l4", "L4"),
            ("AMD-MI300X-192GB", "MI300X"),
            ("AMD_Instinct_MI300X_OAM", "MI300X"),
            ("Intel-Gaudi-2-96GB", "Gaudi-2"),
            ("Intel-Gaudi3", "Gaudi3"),
            ("H100", "H100"),
            ("Gaudi-2", "Gaudi-2"),
            ("my-own-name", "my-own-name"),
            ("NVIDIA", "NVIDIA"),
            ("NVIDIA-", "NVIDIA-"),
            ("", ""),
        ] {
            assert_eq!(short_name(long), expected, "{long}");
        }
    }

    #[test]
    fn a_short_name_stays() {
        for name in ["H100", "RTX-4090", "Gaudi-2", "MI300X", "T4", "tpu-v5-lite-podslice"] {
            assert_eq!(short_name(&short_name(name)), name);
        }
    }
}
