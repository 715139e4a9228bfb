//! Settings of WVA's controllers (releases 0.4 to 0.9) under their own names: the flags and variables that mean something here set
//! the flag of this program, and the others are accepted without effect. The log names each of those that is set, once.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

/// A setting of WVA's controllers.
#[derive(Debug, PartialEq, Eq)]
struct LegacySetting {
    /// The flag without its dashes; empty if there is only a variable.
    flag: &'static str,
    /// The environment variable, and the key of WVA's configuration file; empty if there is only a flag. A `*` at its end stands
    /// for any text.
    variable: &'static str,
    effect: Effect,
}

#[derive(Debug, PartialEq, Eq)]
enum Effect {
    /// It sets this flag.
    Sets(&'static str),
    /// It has no effect, for this reason.
    None(&'static str),
}

const fn sets(flag: &'static str, variable: &'static str, of: &'static str) -> LegacySetting {
    LegacySetting { flag, variable, effect: Effect::Sets(of) }
}

const fn unused(flag: &'static str, variable: &'static str, why: &'static str) -> LegacySetting {
    LegacySetting { flag, variable, effect: Effect::None(why) }
}

/// Every setting whose name differs from that of this program, or that has no effect. docs/configuration.md has the same table.
const SETTINGS: &[LegacySetting] = &[
    sets("config-file", "", "--config-file"),
    sets("v", "", "--log-level"),
    sets("zap-log-level", "", "--log-level"),
    sets("zap-encoder", "", "--log-json"),
    sets("watch-namespace", "WATCH_NAMESPACE", "--watch-namespace"),
    sets("leader-election-id", "LEADER_ELECTION_ID", "--lease-name"),
    sets("leader-election-lease-duration", "LEADER_ELECTION_LEASE_DURATION", "--lease-duration"),
    sets("leader-election-renew-deadline", "LEADER_ELECTION_RENEW_DEADLINE", "--lease-renew-deadline"),
    sets("leader-election-retry-period", "LEADER_ELECTION_RETRY_PERIOD", "--lease-retry-period"),
    sets("metrics-bind-address", "", "--secure-port"),
    unused("leader-elect", "LEADER_ELECT", "one instance always decides, and all of them answer"),
    unused(
        "metrics-secure",
        "METRICS_SECURE",
        "/metrics is served over HTTPS, and only to authorised clients",
    ),
    unused("metrics-cert-path", "METRICS_CERT_PATH", "/metrics is on the secure port; see --cert-dir"),
    unused("metrics-cert-name", "METRICS_CERT_NAME", "/metrics is on the secure port; see --cert-dir"),
    unused("metrics-cert-key", "METRICS_CERT_KEY", "/metrics is on the secure port; see --cert-dir"),
    unused("webhook-cert-path", "WEBHOOK_CERT_PATH", "there is no webhook"),
    unused("webhook-cert-name", "WEBHOOK_CERT_NAME", "there is no webhook"),
    unused("webhook-cert-key", "WEBHOOK_CERT_KEY", "there is no webhook"),
    unused("health-probe-bind-address", "HEALTH_PROBE_BIND_ADDRESS", "health is on the secure port"),
    unused("enable-http2", "ENABLE_HTTP2", "HTTP/2 is always on"),
    unused("rest-client-timeout", "REST_CLIENT_TIMEOUT", "each kind of request has its own time-out"),
    unused("max-concurrent-reconciles", "MAX_CONCURRENT_RECONCILES", "one evaluation covers all variants"),
    unused("limiter-type", "LIMITER_TYPE", "see limiters in the saturation ConfigMap"),
    unused("quota-config-file", "QUOTA_CONFIG_FILE", "see limiters in the saturation ConfigMap"),
    unused("zap-devel", "", "see --log-level and --log-json"),
    unused("zap-stacktrace-level", "", "errors have no stack traces"),
    unused("zap-time-encoding", "", "times are in RFC 3339"),
    unused("", "METRICS_BIND_ADDRESS", "the Service and the probes know the port: see --secure-port"),
    unused("", "V", "see --log-level"),
    unused("", "GLOBAL_OPT_INTERVAL", "the number is computed when it is read; see --interval"),
    unused("", "PROMETHEUS_ALLOW_HTTP", "an http URL needs no permission"),
    unused("", "PROMETHEUS_METRICS_CACHE_ENABLED", "see --max-age"),
    unused("", "PROMETHEUS_METRICS_CACHE_TTL", "see --max-age"),
    unused("", "PROMETHEUS_METRICS_CACHE_CLEANUP_INTERVAL", "nothing needs cleaning up"),
    unused("", "PROMETHEUS_METRICS_CACHE_FETCH_INTERVAL", "see --interval"),
    unused("", "PROMETHEUS_METRICS_CACHE_FRESH_THRESHOLD", "freshness follows the observed scrape interval"),
    unused("", "PROMETHEUS_METRICS_CACHE_STALE_THRESHOLD", "staleness follows the observed scrape interval"),
    unused("", "PROMETHEUS_METRICS_CACHE_UNAVAILABLE_THRESHOLD", "see --max-stale"),
    unused("", "PROMETHEUS_METRICS_CACHE_MAX_SIZE", "the cache is bounded by itself"),
    unused("", "WVA_LIMITED_MODE", "see enableLimiter in the saturation ConfigMap"),
    unused("", "EXPERIMENTAL_HYBRID_OPTIMIZATION", "see analyzerName in the saturation ConfigMap"),
    unused("", "EXPERIMENTAL_COORDINATOR_ENABLED", "maxReplicas is never changed; see enableRescale"),
    unused("", "COORDINATOR_INTERVAL", "maxReplicas is never changed; see enableRescale"),
    unused("", "POOL_GROUP", "the scheduler's queue is read from its metrics"),
    unused("", "EPP_METRIC_READER_BEARER_TOKEN", "the scheduler's metrics are read through Prometheus"),
    unused("", "SCALE_FROM_ZERO_ENGINE_MAX_CONCURRENCY", "one evaluation covers all variants"),
    unused("", "OTEL_*", "no traces are exported"),
];

impl LegacySetting {
    /// Whether this is the name of its variable.
    fn has_variable(&self, name: &str) -> bool {
        match self.variable.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => !self.variable.is_empty() && self.variable == name,
        }
    }

    const fn reason(&self) -> Option<&'static str> {
        match self.effect {
            Effect::None(why) => Some(why),
            Effect::Sets(_) => None,
        }
    }
}

/// The settings without effect that have a flag.
fn unused_flags() -> impl Iterator<Item = &'static LegacySetting> {
    SETTINGS.iter().filter(|setting| setting.reason().is_some() && !setting.flag.is_empty())
}

/// The flags without effect on a command line.
#[derive(Debug, Clone, Default)]
pub struct LegacyFlags(Vec<&'static LegacySetting>);

impl clap::Args for LegacyFlags {
    fn augment_args(command: Command) -> Command {
        // As in Go: a switch may stand alone, and the last one of several counts.
        let flag = |name: &'static str| {
            Arg::new(name).long(name).num_args(0..=1).action(ArgAction::Append).hide(true)
        };
        command.args(unused_flags().map(|setting| flag(setting.flag)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LegacyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let is_given =
            |setting: &&LegacySetting| matches.value_source(setting.flag) == Some(ValueSource::CommandLine);
        Ok(Self(unused_flags().filter(is_given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A setting that was made and has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// The flag, variable or key.
    pub name: String,
    /// Where it was made: the command line, the environment, or a file.
    pub origin: String,
    /// Why it has no effect.
    pub why: &'static str,
}

impl LegacyFlags {
    /// These flags.
    pub(super) fn unused(&self) -> impl Iterator<Item = Unused> {
        self.0.iter().filter_map(|setting| {
            let name = format!("--{}", setting.flag);
            Some(Unused { name, origin: "the command line".into(), why: setting.reason()? })
        })
    }
}

/// The variables without effect that are set.
pub(super) fn unused_variables() -> impl Iterator<Item = Unused> {
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    set.filter_map(|(name, _)| unused_variable(&name.to_string_lossy(), "the environment"))
}

/// The setting of this variable or key, if it is one without effect.
pub(super) fn unused_variable(name: &str, origin: &str) -> Option<Unused> {
    let setting = SETTINGS.iter().find(|setting| setting.has_variable(name))?;
    Some(Unused { name: setting.variable.into(), origin: origin.into(), why: setting.reason()? })
}

#[cfg(test)]
mod tests {
    use clap::{Args, Parser};

    use super::*;
    use crate::config::ServeArgs;

    const PAGE: &str = include_str!("../../docs/configuration.md");

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServeArgs,
    }

    /// Names in code font, where they are not empty.
    fn code(prefix: &str, name: &str) -> String {
        if name.is_empty() { String::new() } else { format!("`{prefix}{name}`") }
    }

    fn row(setting: &LegacySetting) -> String {
        let flag = code(if setting.flag == "v" { "-" } else { "--" }, setting.flag);
        let here = match setting.effect {
            Effect::Sets(flag) => format!("sets `{flag}`"),
            Effect::None(why) => format!("no effect: {why}"),
        };
        format!("| {flag} | {} | {here} |\n", code("", setting.variable))
    }

    #[test]
    fn the_page_has_the_table_of_wvas_settings() {
        let rows: String = SETTINGS.iter().map(row).collect();
        assert!(PAGE.contains(&rows), "docs/configuration.md must contain exactly:\n{rows}");
    }

    #[test]
    fn every_flag_is_accepted_and_sets_what_the_table_says() {
        let command = ServeArgs::augment_args(Command::new("wva"));
        let find = |flag: &str| {
            command.get_arguments().find(|arg| {
                arg.get_long() == Some(flag)
                    || arg.get_all_aliases().is_some_and(|names| names.contains(&flag))
            })
        };
        for setting in SETTINGS.iter().filter(|setting| !setting.flag.is_empty()) {
            assert!(find(setting.flag).is_some(), "--{} is not accepted", setting.flag);
        }
        for setting in SETTINGS {
            if let Effect::Sets(flag) = setting.effect {
                assert!(find(flag.trim_start_matches('-')).is_some(), "{flag} does not exist");
            }
            let reads = |arg: &&Arg| arg.get_env().is_some_and(|name| name == setting.variable);
            let is_read = command.get_arguments().any(|arg| reads(&arg));
            let is_expected = setting.reason().is_none() && !setting.variable.is_empty();
            assert_eq!(is_read, is_expected, "{}", setting.variable);
        }
    }

    #[test]
    fn switches_of_go_stand_alone_or_have_a_value() {
        for words in ["--leader-elect", "--leader-elect=true", "--leader-elect=false", "--leader-elect --v 2"]
        {
            let words = std::iter::once("wva").chain(words.split(' '));
            let flags = Cli::parse_from(words).args.legacy;
            let expected = Unused {
                name: "--leader-elect".into(),
                origin: "the command line".into(),
                why: "one instance always decides, and all of them answer",
            };
            assert_eq!(flags.unused().collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn a_variable_with_any_ending_is_named_by_its_pattern() {
        let unused = unused_variable("OTEL_EXPORTER_OTLP_ENDPOINT", "x").unwrap();
        assert_eq!((unused.name.as_str(), unused.why), ("OTEL_*", "no traces are exported"));
        assert_eq!(unused_variable("LEADER_ELECTION_ID", "x"), None, "it sets a flag");
        assert_eq!(unused_variable("", "x"), None);
    }
}
