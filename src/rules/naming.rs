//! Which metrics the names of series make. Pure.

use regex::bytes::{Regex, RegexBuilder};

use super::config::{DiscoveryRule, RegexFilter};

/// Most bytes of the compiled form of a regular expression.
const MAX_REGEX_BYTES: usize = 1024 * 1024;
/// The longest name of a metric, in bytes. No read can have a longer one, and discovery lists each name several times.
const MAX_NAME_BYTES: usize = 253;

/// The part of a rule that selects series and names their metrics.
#[derive(Debug)]
pub(super) struct SeriesNaming {
    /// Selects the series.
    pub(super) series_query: String,
    /// With whether a name must match.
    filters: Vec<(Regex, bool)>,
    matches: Regex,
    becomes: String,
}

impl SeriesNaming {
    /// # Errors
    /// Says which field is wrong, and why.
    pub(super) fn new(rule: &DiscoveryRule) -> Result<Self, String> {
        let DiscoveryRule { series_query, series_filters, name, .. } = rule;
        if series_query.is_empty() {
            return Err("seriesQuery is not set".to_owned());
        }
        let mut filters = series_filters
            .iter()
            .enumerate()
            .map(|(index, own)| filter(own).map_err(|error| format!("seriesFilters[{index}]: {error}")))
            .collect::<Result<Vec<_>, _>>()?;
        let pattern = if name.matches.is_empty() { ".*" } else { &name.matches };
        let matches = regex(pattern).map_err(|error| format!("name.matches: {error}"))?;
        if !name.matches.is_empty() {
            filters.push((matches.clone(), true));
        }
        let becomes = match (name.as_.as_str(), matches.captures_len()) {
            ("", 1) => "$0",
            ("", 2) => "$1",
            ("", groups) => {
                let groups = groups - 1;
                return Err(format!(
                    "name.as is not set, and name.matches has {groups} groups to choose from"
                ));
            }
            (becomes, _) => becomes,
        };
        Ok(Self { series_query: series_query.clone(), filters, matches, becomes: becomes.to_owned() })
    }

    /// The name of the metric that a series makes, if it makes one.
    pub(super) fn metric(&self, series: &str) -> Option<String> {
        if !self.filters.iter().all(|(regex, matches)| regex.is_match(series.as_bytes()) == *matches) {
            return None;
        }
        let mut name = Vec::new();
        self.matches.captures(series.as_bytes())?.expand(self.becomes.as_bytes(), &mut name);
        String::from_utf8(name).ok().filter(|name| (1..=MAX_NAME_BYTES).contains(&name.len()))
    }
}

fn filter(filter: &RegexFilter) -> Result<(Regex, bool), String> {
    match (filter.is.as_str(), filter.is_not.as_str()) {
        ("", "") => Err("it has neither is nor isNot".to_owned()),
        (is, "") => Ok((regex(is)?, true)),
        ("", is_not) => Ok((regex(is_not)?, false)),
        _ => Err("it has both is and isNot: make two filters of them".to_owned()),
    }
}

/// # Errors
/// Says what is wrong in it.
pub(super) fn regex(text: &str) -> Result<Regex, String> {
    let error = |error: regex::Error| format!("{text:?} is no regular expression: {error}");
    // As in Go, classes such as \w are those of ASCII.
    RegexBuilder::new(text).unicode(false).size_limit(MAX_REGEX_BYTES).build().map_err(error)
}
