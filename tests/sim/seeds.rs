//! Seeds that the constants of the policy have never seen: they follow from the hashes of the trees that hold these constants in git. A
//! change of a constant changes all of them; a commit elsewhere changes none.

use std::process::Command;

use wva_sim::Rng;

/// The trees that hold the constants of the rate policy: what it learns, and how it decides.
const TREES: [&str; 2] = ["src/core/learn", "src/core/analyze/rate"];

/// Where the seeds come from.
#[derive(Debug, Clone)]
pub(crate) struct Seeds {
    /// The hash of both trees, or what `--seed-of` gave.
    pub(crate) hash: String,
    /// The commit that was checked out; empty if git does not know.
    pub(crate) commit: String,
    base: u64,
}

impl Seeds {
    /// The seeds of the tree in git, or of `given` if that is set.
    pub(crate) fn new(given: Option<&str>) -> Result<Self, String> {
        let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
        let hash = match given {
            Some(hash) => hash.to_owned(),
            None => {
                tree_hash().ok_or("git does not know the trees of src/core: give a hash with --seed-of")?
            }
        };
        let base = hash.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let base = base.ok_or_else(|| format!("{hash:?} does not begin with 16 hexadecimal digits"))?;
        if given.is_none()
            && git(&["status", "--porcelain", "--", TREES[0], TREES[1]])
                .is_some_and(|changed| !changed.is_empty())
        {
            eprintln!(
                "{} have changes that are not committed: the seeds are those of the last commit",
                TREES.join(" and ")
            );
        }
        Ok(Self { hash, commit, base })
    }

    /// `count` seeds in sequence for one of many purposes, below 2^40.
    pub(crate) fn of(&self, purpose: u64, count: u64) -> Vec<u64> {
        let first = Rng::stream(self.base, purpose).bits() >> 24;
        (first..first + count).collect()
    }
}

/// The first halves of the hashes of both trees.
fn tree_hash() -> Option<String> {
    let hashes = TREES.map(|tree| git(&["rev-parse", &format!("HEAD:{tree}")]));
    hashes.into_iter().map(|hash| hash?.get(..8).map(str::to_owned)).collect()
}

fn git(arguments: &[&str]) -> Option<String> {
    // A hook sets it to another repository.
    let output = Command::new("git").args(arguments).env_remove("GIT_DIR").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_follow_from_the_hash_and_no_two_purposes_share_any() {
        let seeds = Seeds::new(Some("0123456789abcdef0123")).unwrap();
        assert_eq!(seeds.of(3, 80), Seeds::new(Some("0123456789abcdef")).unwrap().of(3, 80));
        assert_ne!(seeds.of(3, 80), Seeds::new(Some("1123456789abcdef")).unwrap().of(3, 80));
        let mut all: Vec<u64> = (0..300).flat_map(|purpose| seeds.of(purpose, 80)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 300 * 80);
        assert!(Seeds::new(Some("main")).is_err());
    }
}
