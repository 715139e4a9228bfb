//! Reads manifests from files. One that cannot be read is named, and the others are read.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::migrate::Objects;

/// The file that stands for standard input.
const STDIN: &str = "-";
/// The endings of files that are read in a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// The namespace of objects that name none, as for kubectl.
const DEFAULT_NAMESPACE: &str = "default";

/// The objects in `paths`. `namespace` is that of objects that name none.
pub(super) fn read(paths: &[PathBuf], namespace: Option<&str>) -> Objects {
    let mut objects = Objects::default();
    for path in paths {
        let files = if path.is_dir() { files_in(path, &mut objects) } else { vec![path.clone()] };
        for file in files {
            match text_of(&file) {
                Ok(text) => {
                    objects.add_text(
                        &file.display().to_string(),
                        &text,
                        namespace.unwrap_or(DEFAULT_NAMESPACE),
                    );
                }
                Err(error) => objects.add_unread(
                    None,
                    format!(
                        "{}: {error}; give a file that exists and that you may read, or - for standard input",
                        file.display()
                    ),
                ),
            }
        }
    }
    objects
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    if path == Path::new(STDIN) {
        io::stdin().read_to_string(&mut text)?;
    } else {
        text = fs::read_to_string(path)?;
    }
    Ok(text)
}

/// The manifests in a directory, in the order of their names.
fn files_in(directory: &Path, objects: &mut Objects) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            objects.add_unread(
                None,
                format!("{}: {error}; give a directory that you may read", directory.display()),
            );
            return Vec::new();
        }
    };
    let is_manifest = |path: &PathBuf| {
        path.extension().and_then(|ending| ending.to_str()).is_some_and(|ending| ENDINGS.contains(&ending))
    };
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_manifest).collect();
    files.sort();
    if files.is_empty() {
        objects.add_unread(
            None,
            format!("{}: no file in it ends in .yaml, .yml or .json; name the files", directory.display()),
        );
    }
    files
}
