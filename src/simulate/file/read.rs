//! Reads a scenario file. What is wrong is told with file, line, column, the field and what is allowed.

use std::path::{Path, PathBuf};

use schemars::schema_for;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_path_to_error::{Path as Trail, Segment};

use super::locate::{Step, Way, locate};
use super::{File, RandomFile, ScenarioFile, SetFile};

/// No scenario is longer: what is, is another kind of file.
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
    /// Something in it is wrong.
    #[error("{place}: {cause}")]
    Wrong {
        /// File, line and column.
        place: String,
        /// The field, and what is allowed.
        cause: String,
    },
}

/// What is wrong with a field, or with several together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::simulate) struct Problem {
    pub(in crate::simulate) way: Way,
    pub(in crate::simulate) cause: String,
}

impl Problem {
    pub(in crate::simulate) fn at<const N: usize>(way: [Step; N], cause: impl Into<String>) -> Self {
        Self { way: Way(way.into()), cause: cause.into() }
    }

    /// The same, seen from further outside.
    pub(in crate::simulate) fn inside<const N: usize>(mut self, outer: [Step; N]) -> Self {
        self.way.0.splice(0..0, outer);
        self
    }
}

/// A scenario file and its text.
pub(in crate::simulate) struct Source {
    pub(in crate::simulate) path: PathBuf,
    text: String,
}

/// Tells the kinds of files apart.
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
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if about.len() > MAX_FILE_BYTES {
        let cause =
            format!("longer than {MAX_FILE_BYTES} bytes, so not a scenario; give a trace with --trace");
        return Err(FileError::Wrong { place: path.display().to_string(), cause });
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    let source = Source { path: path.into(), text };
    let file = source.parse()?;
    Ok((source, file))
}

impl Source {
    pub(in crate::simulate) fn parse(&self) -> Result<File, FileError> {
        // A text that is no mapping at all is told by the kind that it would be.
        let keys = serde_saphyr::from_str::<Keys>(&self.text).unwrap_or(Keys { of: None, random: None });
        Ok(match (keys.of, keys.random) {
            (Some(_), _) => File::Set(self.typed::<SetFile>()?),
            (None, Some(_)) => File::Random(self.typed::<RandomFile>()?),
            (None, None) => File::Scenario(Box::new(self.typed::<ScenarioFile>()?)),
        })
    }

    fn typed<T: DeserializeOwned>(&self) -> Result<T, FileError> {
        let options = serde_saphyr::options! { with_snippet: false };
        let mut trail = None;
        let read = serde_saphyr::with_deserializer_from_str_with_options(&self.text, options, |yaml| {
            serde_path_to_error::deserialize(yaml).map_err(|error| {
                trail = Some(way(error.path()));
                error.into_inner()
            })
        });
        read.map_err(|error| {
            let (way, found) = (trail.unwrap_or_default(), error.location());
            let place =
                found.map(|place| (place.line(), place.column())).or_else(|| locate(&self.text, &way));
            self.wrong(place, &way, &plain(&error))
        })
    }

    /// The problem, with its line.
    pub(in crate::simulate) fn problem(&self, problem: &Problem) -> FileError {
        self.wrong(locate(&self.text, &problem.way), &problem.way, &problem.cause)
    }

    fn wrong(&self, place: Option<(u64, u64)>, way: &Way, cause: &str) -> FileError {
        let file = self.path.display();
        let place =
            place.map_or_else(|| file.to_string(), |(line, column)| format!("{file}:{line}:{column}"));
        let cause = if way.0.is_empty() { cause.to_owned() } else { format!("{way}: {cause}") };
        FileError::Wrong { place, cause }
    }
}

fn way(trail: &Trail) -> Way {
    let steps = trail.iter().filter_map(|segment| match segment {
        Segment::Seq { index } => Some(Step::Item(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { variant } => Some(Step::Key(variant.clone())),
        Segment::Unknown => None,
    });
    Way(steps.collect())
}

/// The cause alone: the place is told in front.
fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let cut = text.rfind(" at line ").or_else(|| text.rfind("\n at line ")).unwrap_or(text.len());
    text.get(..cut).unwrap_or(&text).trim_end_matches(':').to_owned()
}

/// The JSON schema of scenario files.
#[must_use]
pub fn schema() -> serde_json::Value {
    schema_for!(File).to_value()
}
