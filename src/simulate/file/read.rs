//! Reads a scenario file. Errors name the file, line, column, field, and what is allowed.

use std::path::{Path, PathBuf};

use schemars::schema_for;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_path_to_error::Segment;

use super::locate::{FieldPath, Step, locate};
use super::{File, RandomFile, ScenarioFile, SetFile};

/// The longest scenario file, bytes. A longer file is of another kind.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A scenario file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{path}: {source}; give a file that exists and that you may read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It is invalid.
    #[error("{location}: {cause}")]
    Invalid {
        /// File, line and column.
        location: String,
        /// The field, and what is allowed.
        cause: String,
    },
}

/// An error about a field, or about several fields together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::simulate) struct Problem {
    pub(in crate::simulate) path: FieldPath,
    pub(in crate::simulate) cause: String,
}

impl Problem {
    pub(in crate::simulate) fn at<const N: usize>(path: [Step; N], cause: impl Into<String>) -> Self {
        Self { path: FieldPath(path.into()), cause: cause.into() }
    }

    /// The same error with a path that begins at `outer`.
    pub(in crate::simulate) fn inside<const N: usize>(mut self, outer: [Step; N]) -> Self {
        self.path.0.splice(0..0, outer);
        self
    }
}

/// A scenario file and its text.
pub(in crate::simulate) struct Source {
    pub(in crate::simulate) path: PathBuf,
    text: String,
}

/// The keys that distinguish the kinds of files.
#[derive(Deserialize)]
struct Keys {
    of: Option<IgnoredAny>,
    random: Option<IgnoredAny>,
}

/// Reads `path`.
///
/// # Errors
/// Names the file, the line and the field.
pub(in crate::simulate) fn read(path: &Path) -> Result<(Source, File), FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.into(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if metadata.len() > MAX_FILE_BYTES {
        let cause =
            format!("longer than {MAX_FILE_BYTES} bytes, so not a scenario; give a trace with --trace");
        return Err(FileError::Invalid { location: path.display().to_string(), cause });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let source = Source { path: path.into(), text };
    let file = source.parse()?;
    Ok((source, file))
}

impl Source {
    pub(in crate::simulate) fn parse(&self) -> Result<File, FileError> {
        // A text that is not a mapping is read as a scenario, whose error says so.
        let keys = serde_saphyr::from_str::<Keys>(&self.text).unwrap_or(Keys { of: None, random: None });
        Ok(match (keys.of, keys.random) {
            (Some(_), _) => File::Set(self.typed::<SetFile>()?),
            (None, Some(_)) => File::Random(self.typed::<RandomFile>()?),
            (None, None) => File::Scenario(Box::new(self.typed::<ScenarioFile>()?)),
        })
    }

    fn typed<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        let options = serde_saphyr::options! { with_snippet: false };
        let mut field_path = None;
        let read = serde_saphyr::with_deserializer_from_str_with_options(&self.text, options, |yaml| {
            serde_path_to_error::deserialize(yaml).map_err(|error| {
                field_path = Some(path_to(error.path()));
                error.into_inner()
            })
        });
        read.map_err(|error| {
            let path = field_path.unwrap_or_default();
            let location = error.location().map(|location| (location.line(), location.column()));
            self.error(location.or_else(|| locate(&self.text, &path)), &path, &cause(&error))
        })
    }

    /// The error of `problem`, with its line.
    pub(in crate::simulate) fn problem(&self, problem: &Problem) -> FileError {
        self.error(locate(&self.text, &problem.path), &problem.path, &problem.cause)
    }

    fn error(&self, location: Option<(u64, u64)>, path: &FieldPath, cause: &str) -> FileError {
        let file = self.path.display();
        let location =
            location.map_or_else(|| file.to_string(), |(line, column)| format!("{file}:{line}:{column}"));
        let cause = if path.0.is_empty() { cause.to_owned() } else { format!("{path}: {cause}") };
        FileError::Invalid { location, cause }
    }
}

fn path_to(path: &serde_path_to_error::Path) -> FieldPath {
    let steps = path.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(Step::Item(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { variant } => Some(Step::Key(variant.clone())),
        Segment::Unknown => None,
    });
    FieldPath(steps.collect())
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
