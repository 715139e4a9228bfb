//! Reads a scenario file. Errors name the file, line, column, field, and what is allowed.

use std::path::{Path, PathBuf};

use schemars::schema_for;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::super::input::InputError;
use super::locate::locate;
use super::types::{File, ScenarioFile, SetFile};

/// The longest scenario file, bytes. A longer file is of another kind.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// An error about a field, or about several fields together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The path of the field, as `load.rate[1].for`; empty for the whole file.
    path: String,
    cause: String,
}

impl Problem {
    pub(crate) fn new(path: &str, cause: impl Into<String>) -> Self {
        Self { path: path.into(), cause: cause.into() }
    }

    /// The same error with a path that begins at `outer`.
    pub(crate) fn inside(self, outer: &str) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        Self { path: format!("{outer}{dot}{}", self.path), ..self }
    }
}

/// A scenario file and its text.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    text: String,
}

/// The keys that distinguish the kinds of files.
#[derive(Default, Deserialize)]
struct Keys {
    of: Option<IgnoredAny>,
    random: Option<IgnoredAny>,
}

/// Reads `path`.
pub(crate) fn read(path: &Path) -> Result<(Source, File), InputError> {
    let unreadable = |error| InputError::unreadable(path, &error);
    if std::fs::metadata(path).map_err(unreadable)?.len() > MAX_FILE_BYTES {
        let cause =
            format!("longer than {MAX_FILE_BYTES} bytes, so not a scenario; give a trace with --trace");
        return Err(InputError::new(path.display(), cause));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let source = Source { path: path.into(), text };
    let file = source.parse()?;
    Ok((source, file))
}

impl Source {
    fn parse(&self) -> Result<File, InputError> {
        // A text that is not a mapping is read as a scenario, whose error says so.
        let keys = serde_saphyr::from_str::<Keys>(&self.text).unwrap_or_default();
        Ok(match (keys.of, keys.random) {
            (Some(_), _) => File::Set(self.typed::<SetFile>()?),
            (None, Some(_)) => File::Random(Box::new(self.typed()?)),
            (None, None) => File::Scenario(Box::new(self.typed::<ScenarioFile>()?)),
        })
    }

    fn typed<T: DeserializeOwned>(&self) -> Result<T, InputError> {
        let options = serde_saphyr::options! { with_snippet: false };
        let mut path = String::new();
        let read = serde_saphyr::with_deserializer_from_str_with_options(&self.text, options, |yaml| {
            serde_path_to_error::deserialize(yaml).map_err(|error| {
                path = error.path().to_string();
                error.into_inner()
            })
        });
        read.map_err(|error| {
            // The path of the whole file is a dot.
            let path = path.trim_start_matches('.');
            let location = error.location().map(|location| (location.line(), location.column()));
            self.error(location.or_else(|| locate(&self.text, path)), path, &cause(&error))
        })
    }

    /// The path of a file that this one names.
    pub(crate) fn beside(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// The error of `problem`, with its line.
    pub(crate) fn problem(&self, problem: &Problem) -> InputError {
        self.error(locate(&self.text, &problem.path), &problem.path, &problem.cause)
    }

    fn error(&self, location: Option<(u64, u64)>, path: &str, cause: &str) -> InputError {
        let file = self.path.display();
        let location =
            location.map_or_else(|| file.to_string(), |(line, column)| format!("{file}:{line}:{column}"));
        let cause = if path.is_empty() { cause.to_owned() } else { format!("{path}: {cause}") };
        InputError::new(location, cause)
    }
}

/// The cause without the location, which comes first in the message.
fn cause(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let end = text.rfind(" at line ").or_else(|| text.rfind("\n at line ")).unwrap_or(text.len());
    text.get(..end).unwrap_or(&text).trim_end_matches(':').to_owned()
}

/// The JSON schema of scenario files.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_for!(File).to_value()
}
