//! The words of a command line of `wva serve`: also as WVA's controllers take them, and completed by settings from a file.

use std::error::Error;
use std::ffi::OsString;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::args::ServeArgs;
use super::legacy::{Unused, unused_variable, unused_variables};
use super::ranged::quote;
use super::resolve::Config;
use super::settings::{Settings, SettingsError};

/// The subcommand.
const SERVE: &str = "serve";
/// The first words of a command line that belongs to no subcommand.
const OF_NO_SUBCOMMAND: [&str; 4] = ["-h", "--help", "-V", "--version"];
/// Why a key has no effect that is needed earlier.
const TOO_LATE: &str = "it is needed before this is read: set the variable of this name";
/// Why a key has no effect that is not a setting at all.
pub const NOT_A_SETTING: &str = "it is no setting: check its spelling";

/// A command line of the program. If it is one of `serve`, settings from elsewhere may complete it.
#[derive(Clone)]
pub struct CommandLine {
    command: Command,
    words: Vec<OsString>,
    /// Whether the variables of this process count.
    has_environment: bool,
    /// The settings that were added: key, and flag with value.
    added: Vec<(String, OsString)>,
    /// The keys without effect, of all settings that were added.
    unused: Vec<Unused>,
}

impl CommandLine {
    /// The words of a process, of which the first is the program. WVA's controllers have no subcommand, so a command line that
    /// begins with a flag is one of `serve`; and as in Go, one dash suffices before the name of its flags.
    #[must_use]
    pub fn new(command: Command, words: impl IntoIterator<Item = OsString>) -> Self {
        let mut words: Vec<OsString> = words.into_iter().collect();
        let first = words.get(1).and_then(|word| word.to_str()).unwrap_or_default();
        if first.starts_with('-') && !OF_NO_SUBCOMMAND.contains(&first) {
            words.insert(1, SERVE.into());
        }
        if words.get(1).is_some_and(|word| word == SERVE)
            && let Some(serve) = command.find_subcommand(SERVE)
        {
            words.iter_mut().skip(2).for_each(|word| add_dash(serve, word));
        }
        Self { command, words, has_environment: true, added: Vec::new(), unused: Vec::new() }
    }

    /// The arguments of a container of WVA's controllers. The variables of this process do not count; those of the container can be
    /// added.
    #[must_use]
    pub fn of_container(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let command = Command::new("wva").subcommand(ServeArgs::augment_args(Command::new(SERVE)));
        let words = ["wva", SERVE].map(OsString::from).into_iter().chain(arguments);
        Self { has_environment: false, ..Self::new(command, words) }
    }

    /// The words.
    #[must_use]
    pub fn words(&self) -> &[OsString] {
        &self.words
    }

    /// Adds the settings that neither a flag nor the environment makes.
    ///
    /// # Errors
    /// Names the file, the key, its value and what is valid.
    pub fn add(&mut self, settings: &Settings) -> Result<(), SettingsError> {
        settings.iter().try_for_each(|(key, value)| self.add_setting(settings, key, value))
    }

    /// Adds those of the settings with which the configuration is valid, alone and together. Returns what is wrong with the others.
    pub fn add_valid(&mut self, settings: &Settings) -> Vec<SettingsError> {
        let before = self.added.len();
        let added = settings.iter().map(|(key, value)| self.add_setting(settings, key, value));
        let mut errors: Vec<SettingsError> = added.filter_map(Result::err).collect();
        let Err(contradiction) = self.check() else { return errors };
        let is_valid_without = |index: &usize| {
            let mut line = self.clone();
            line.added.remove(*index);
            line.check().is_ok()
        };
        errors.push(match (before..self.added.len()).find(is_valid_without) {
            Some(index) => settings.error(format!("{}: {contradiction}", self.added.remove(index).0)),
            None => {
                self.added.truncate(before);
                settings.error(format!("{contradiction}: none of its settings counts"))
            }
        });
        errors
    }

    /// Whether the configuration is valid.
    fn check(&self) -> Result<(), String> {
        let args = self.args().map_err(|error| error.to_string())?;
        Config::try_from(args).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Adds a setting unless a flag or the environment makes it.
    fn add_setting(&mut self, settings: &Settings, key: &str, value: &str) -> Result<(), SettingsError> {
        let origin = settings.origin();
        if settings.is_too_late(key) {
            self.unused.push(Unused { name: key.into(), origin: origin.into(), why: TOO_LATE });
            return Ok(());
        }
        let reads_key = |arg: &&Arg| arg.get_env().is_some_and(|name| name == key);
        let arg = self.serve_arguments().find(reads_key);
        let Some((id, long)) = arg.and_then(|arg| Some((arg.get_id().clone(), arg.get_long()?.to_owned())))
        else {
            let unknown = || Unused { name: key.into(), origin: origin.into(), why: NOT_A_SETTING };
            self.unused.push(unused_variable(key, origin).unwrap_or_else(unknown));
            return Ok(());
        };
        let matches = self.matches().map_err(|error| settings.error(error.to_string()))?;
        if matches.subcommand_matches(SERVE).is_none_or(|made| is_made(made, id.as_str())) {
            return Ok(());
        }
        let word = format!("--{long}={value}");
        self.added.push((key.to_owned(), word.into()));
        self.matches().map(|_| ()).map_err(|error| {
            self.added.pop();
            settings.error(format!("{key} {}: {}", quote(value), cause(&error)))
        })
    }

    /// The arguments of `serve`.
    ///
    /// # Errors
    /// When the words are not a valid command line of `serve`.
    pub fn args(&self) -> Result<ServeArgs, clap::Error> {
        let matches = self.matches()?;
        ServeArgs::from_arg_matches(matches.subcommand_matches(SERVE).unwrap_or(&matches))
    }

    /// The settings without effect in `args`, in the environment and in what was added, each once.
    #[must_use]
    pub fn unused(&self, args: &ServeArgs) -> Vec<Unused> {
        let variables = self.has_environment.then(unused_variables).into_iter().flatten();
        let main = args.config_maps.main_config_map.as_ref().filter(|name| !name.is_empty());
        let main =
            main.filter(|_| args.config_file.as_ref().is_some_and(|path| !path.as_os_str().is_empty()));
        let main = main.map(|_| Unused {
            name: "CONFIG_MAP_NAME".into(),
            origin: "the command line, the environment or a file".into(),
            why: "the file of --config-file replaces the main ConfigMap",
        });
        let mut unused: Vec<Unused> =
            args.legacy.unused().chain(variables).chain(main).chain(self.unused.iter().cloned()).collect();
        // A stable sort: of one name, the first counts.
        unused.sort_by(|left, right| left.name.cmp(&right.name));
        unused.dedup_by(|later, earlier| later.name == earlier.name);
        unused
    }

    fn matches(&self) -> Result<ArgMatches, clap::Error> {
        let mut serve = self.command.clone();
        if !self.has_environment {
            let without_variable = |arg: Arg| arg.env(Resettable::Reset);
            serve = serve.mut_subcommand(SERVE, |serve| serve.mut_args(without_variable));
        }
        // Before the words of the user, of which the last may be anything.
        let (program, words) = self.words.split_at(self.words.len().min(2));
        let added = self.added.iter().map(|(_, word)| word);
        serve.try_get_matches_from(program.iter().chain(added).chain(words))
    }

    fn serve_arguments(&self) -> impl Iterator<Item = &Arg> {
        self.command.find_subcommand(SERVE).into_iter().flat_map(Command::get_arguments)
    }
}

/// Whether a flag or a variable makes the setting. A variable that is set to the empty text counts as unset.
fn is_made(made: &ArgMatches, id: &str) -> bool {
    match made.value_source(id) {
        Some(ValueSource::CommandLine) => true,
        Some(ValueSource::EnvVariable) => {
            made.get_raw(id).is_some_and(|mut values| values.any(|value| !value.is_empty()))
        }
        _ => false,
    }
}

/// Adds the second dash to `-flag` or `-flag=value`.
fn add_dash(serve: &Command, word: &mut OsString) {
    let Some(text) = word.to_str().filter(|text| !text.starts_with("--")) else { return };
    let Some(name) = text.strip_prefix('-').and_then(|rest| rest.split('=').next()) else { return };
    let has_name = |arg: &Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|names| names.contains(&name))
    };
    if name.len() > 1 && serve.get_arguments().any(has_name) {
        *word = format!("-{text}").into();
    }
}

/// Why clap refuses a value.
fn cause(error: &clap::Error) -> String {
    error.source().map_or_else(|| error.kind().to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, Parser, Subcommand};

    use super::*;
    use crate::config::{LEASE_NAME, LeaseTimes, Source};

    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        command: Subcommands,
    }

    #[derive(Subcommand)]
    enum Subcommands {
        Serve(Box<ServeArgs>),
        Demo,
    }

    /// The configuration file of the chart of WVA 0.6, with a value that is not its default.
    const CONFIG_YAML: &str = "PROMETHEUS_BASE_URL: \"https://thanos-querier:9091\"\n\
                               PROMETHEUS_CA_CERT_PATH: \"/etc/ssl/certs/prometheus-ca.crt\"\n\
                               PROMETHEUS_TLS_INSECURE_SKIP_VERIFY: \"true\"\n\
                               EPP_METRIC_READER_BEARER_TOKEN: \"\"\n\
                               GLOBAL_OPT_INTERVAL: \"60s\"\n\
                               WVA_SCALE_TO_ZERO: \"true\"\n\
                               PROMETHEUS_METRICS_CACHE_TTL: \"30s\"\n";

    fn line(words: &str) -> CommandLine {
        let words = std::iter::once("wva").chain(words.split_whitespace());
        CommandLine::new(Cli::command(), words.map(OsString::from))
    }

    /// The configuration of a command line, and the names of its settings without effect.
    fn resolved(line: &CommandLine) -> (Config, Vec<String>) {
        let args = line.args().unwrap();
        let unused = line.unused(&args).into_iter().filter(|unused| unused.origin != "the environment");
        let unused = unused.map(|unused| unused.name).collect();
        (Config::try_from(args).unwrap(), unused)
    }

    fn settings(text: &str) -> Settings {
        Settings::parse("--config-file /etc/wva/config.yaml".into(), text).unwrap()
    }

    #[test]
    fn the_arguments_of_wva_0_4_start_this_program() {
        let chart = "--leader-elect=true --health-probe-bind-address=:8081 --metrics-bind-address=:9443 \
                     --metrics-secure=true";
        let (config, unused) = resolved(&line(chart));
        assert_eq!(config.listen.port(), 9443, "where the Service of its metrics points");
        assert_eq!((config.watch_namespace, config.lease.as_str()), (None, LEASE_NAME));
        assert_eq!(unused, ["--health-probe-bind-address", "--leader-elect", "--metrics-secure"]);
        let kustomize = "--leader-elect --health-probe-bind-address=:8081 --metrics-bind-address=0";
        assert_eq!(resolved(&line(kustomize)).0.listen.port(), 8443, "0 switches metrics off there");
    }

    #[test]
    fn the_arguments_of_wva_0_5_start_this_program() {
        let chart = "--leader-elect=true --health-probe-bind-address=:8081 --watch-namespace=llm \
                     --leader-election-lease-duration=60s --leader-election-renew-deadline=50s \
                     --leader-election-retry-period=10s --rest-client-timeout=60s \
                     --metrics-bind-address=:8443 --metrics-secure=false -v=4";
        let line = line(chart);
        let (config, unused) = resolved(&line);
        assert_eq!(config.watch_namespace.as_deref(), Some("llm"));
        let seconds = Duration::from_secs;
        let times =
            LeaseTimes { duration: seconds(60), renew_deadline: seconds(50), retry_period: seconds(10) };
        assert_eq!(config.lease_times, times);
        assert_eq!(line.args().unwrap().log.filter(), "debug");
        let expected =
            ["--health-probe-bind-address", "--leader-elect", "--metrics-secure", "--rest-client-timeout"];
        assert_eq!(unused, expected);
    }

    #[test]
    fn the_arguments_of_wva_0_6_to_0_9_start_this_program_with_their_configuration_file() {
        let chart = "--leader-elect=true --health-probe-bind-address=:8081 --config-file=/etc/wva/config.yaml \
                     --watch-namespace=llm --metrics-bind-address=:8443 --metrics-secure=true \
                     --metrics-cert-path=/tmp/metrics-certs --limiter-type=inventory";
        let mut line = line(chart);
        assert!(line.args().unwrap().config_file.is_some_and(|path| path.ends_with("config.yaml")));
        line.add(&settings(CONFIG_YAML)).unwrap();
        let (config, unused) = resolved(&line);
        let Source::Prometheus(prometheus) = config.source else { panic!("{:?}", config.source) };
        assert_eq!(prometheus.url.as_str(), "https://thanos-querier:9091");
        assert!(prometheus.insecure_skip_verify && prometheus.ca_file.is_some());
        assert!(config.policy.global.default.scale_to_zero.unwrap().enabled);
        let expected = [
            "--health-probe-bind-address",
            "--leader-elect",
            "--limiter-type",
            "--metrics-cert-path",
            "--metrics-secure",
            "GLOBAL_OPT_INTERVAL",
            "PROMETHEUS_METRICS_CACHE_TTL",
        ];
        assert_eq!(unused, expected);
    }

    #[test]
    fn flags_of_go_may_have_one_dash_and_need_no_subcommand() {
        let line = line("-zap-log-level=debug -leader-election-id lease -zap-encoder json -zap-devel -v 5");
        let args = line.args().unwrap();
        assert_eq!((args.log.filter(), args.log.is_json()), ("trace", true), "-v counts, as in WVA");
        assert_eq!(args.cluster.lease_name, "lease");
        assert_eq!(line.unused(&args).iter().filter(|unused| unused.name == "--zap-devel").count(), 1);
    }

    #[test]
    fn an_unknown_flag_and_another_subcommand_stay_what_they_are() {
        for (words, kind) in [
            ("--leader-elects", clap::error::ErrorKind::UnknownArgument),
            ("serve --pool-group=x", clap::error::ErrorKind::UnknownArgument),
            ("serve -leader-elects", clap::error::ErrorKind::UnknownArgument),
            ("--help", clap::error::ErrorKind::DisplayHelp),
        ] {
            assert_eq!(Cli::try_parse_from(line(words).words()).err().map(|error| error.kind()), Some(kind));
        }
        assert!(matches!(Cli::parse_from(line("demo").words()).command, Subcommands::Demo));
    }

    #[test]
    fn a_flag_takes_precedence_over_the_file_and_the_file_over_the_default() {
        let mut line = line("serve --lease-name flag");
        line.add(&settings("LEADER_ELECTION_ID: file\nCONTROLLER_INSTANCE: file\n")).unwrap();
        let (config, _) = resolved(&line);
        assert_eq!((config.lease.as_str(), config.controller_instance.as_deref()), ("flag", Some("file")));
    }

    #[test]
    fn of_a_container_only_its_own_variables_count_and_before_its_file() {
        let mut line = CommandLine::of_container(["--leader-elect", "-v=4"].map(OsString::from));
        let variables = [("LEADER_ELECTION_ID", "variable"), ("GLOBAL_OPT_INTERVAL", "60s"), ("EMPTY", "")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        line.add(&Settings::of_variables("its environment".into(), variables)).unwrap();
        line.add(&settings("LEADER_ELECTION_ID: file\nCONTROLLER_INSTANCE: file\n")).unwrap();
        let args = line.args().unwrap();
        let unused: Vec<_> = line.unused(&args).into_iter().map(|unused| unused.name).collect();
        assert_eq!(unused, ["--leader-elect", "GLOBAL_OPT_INTERVAL"]);
        let config = Config::try_from(args).unwrap();
        assert_eq!(
            (config.lease.as_str(), config.controller_instance.as_deref()),
            ("variable", Some("file"))
        );
        let unknown = CommandLine::of_container(["--pool-group=x".into()]).args().unwrap_err();
        assert_eq!(unknown.kind(), clap::error::ErrorKind::UnknownArgument);
    }

    #[test]
    fn a_bad_value_in_the_file_is_refused_with_file_key_value_and_range() {
        let refused = |text: &str| line("serve").add(&settings(text)).unwrap_err().to_string();
        let file = "--config-file /etc/wva/config.yaml";
        let expected = format!("{file}: WVA_SCALE_TO_ZERO \"maybe\": must be true or false");
        assert_eq!(refused("WVA_SCALE_TO_ZERO: maybe"), expected);
        let lease = refused("LEADER_ELECTION_LEASE_DURATION: 7s");
        let expected = format!("{file}: LEADER_ELECTION_LEASE_DURATION \"7s\": must be 8s to 1h");
        assert!(lease.starts_with(&expected), "{lease}");
    }

    /// The configuration with these settings of the main ConfigMap, and what is wrong with those that do not count.
    fn with_main_config_map(words: &str, entries: &[(&str, &str)]) -> (Config, Vec<String>) {
        let entries = entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let mut line = line(words);
        let errors = line.add_valid(&Settings::of_config_map("wva", "main", &entries).unwrap());
        (resolved(&line).0, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_bad_value_in_the_main_configmap_does_not_stop_the_start_and_the_others_count() {
        let url = ("PROMETHEUS_BASE_URL", "https://p");
        let (config, errors) = with_main_config_map("serve", &[url, ("WVA_SCALE_TO_ZERO", "maybe")]);
        assert!(matches!(config.source, Source::Prometheus(_)));
        assert_eq!(errors, ["ConfigMap wva/main: WVA_SCALE_TO_ZERO \"maybe\": must be true or false"]);
    }

    #[test]
    fn a_value_in_the_main_configmap_that_contradicts_a_flag_is_left_out_alone() {
        let entries = [
            ("LEADER_ELECTION_LEASE_DURATION", "2m"),
            ("PROMETHEUS_CLIENT_CERT_PATH", "/c"),
            ("PROMETHEUS_CLIENT_KEY_PATH", "/k"),
            ("PROMETHEUS_BASE_URL", "https://p"),
        ];
        let (config, errors) = with_main_config_map("serve --max-stale 5m", &entries);
        let Source::Prometheus(prometheus) = config.source else { panic!("{:?}", config.source) };
        assert!(prometheus.client.is_some());
        assert_eq!(config.lease_times.duration, Duration::from_secs(15), "the default");
        assert!(
            errors.len() == 1 && errors[0].contains("LEADER_ELECTION_LEASE_DURATION: --max-stale"),
            "{errors:?}"
        );
        let contradictory = [
            ("LEADER_ELECTION_LEASE_DURATION", "2m"),
            ("PROMETHEUS_CLIENT_CERT_PATH", "/c"),
            ("PROMETHEUS_BASE_URL", "https://p"),
        ];
        let (config, errors) = with_main_config_map("serve", &contradictory);
        assert!(matches!(config.source, Source::Scrape(_)));
        assert!(errors.len() == 1 && errors[0].ends_with("none of its settings counts"), "{errors:?}");
    }

    #[test]
    fn an_unknown_key_of_the_file_is_named_and_the_others_count() {
        let mut line = line("serve");
        line.add(&settings("PROMETHEUS_BASE_URI: https://p\nWATCH_NAMESPACE: llm\n")).unwrap();
        let (config, unused) = resolved(&line);
        assert_eq!(
            (config.watch_namespace.as_deref(), unused.as_slice()),
            (Some("llm"), &["PROMETHEUS_BASE_URI".into()][..])
        );
    }

    #[test]
    fn times_of_a_lease_that_contradict_each_other_are_refused() {
        let refused = |words: &str| Config::try_from(line(words).args().unwrap()).unwrap_err().to_string();
        let error = refused("serve --lease-duration 10s");
        assert!(
            error.contains("--lease-duration 10s must be more than --lease-renew-deadline 10s"),
            "{error}"
        );
        let error = refused("serve --lease-retry-period 9s");
        assert!(error.contains("1.2 times --lease-retry-period 9s"), "{error}");
        let error = refused("serve --lease-duration 2m");
        assert!(error.contains("--max-stale 5m is too short: must be at least 6m"), "{error}");
    }
}
