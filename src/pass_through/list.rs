//! The names in an `APIResourceList`.

use serde::Deserialize;
use smol_str::SmolStr;

use crate::serve::is_segment;

/// Most names that are listed on. What is not listed is read all the same.
const MAX_NAMES: usize = 10_000;

#[derive(Deserialize)]
struct ResourceList {
    kind: String,
    resources: Option<Vec<Resource>>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

/// The valid names in the list, sorted, at most 10,000.
///
/// # Errors
/// When it is no list of resources.
pub(super) fn names(body: &[u8]) -> Result<Vec<SmolStr>, String> {
    let list: ResourceList = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if list.kind != "APIResourceList" {
        return Err(format!("its kind is {:?}", list.kind));
    }
    let names = list.resources.unwrap_or_default().into_iter().map(|resource| resource.name);
    let mut names: Vec<SmolStr> = names.filter(|name| is_segment(name)).map(SmolStr::from).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(MAX_NAMES);
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_metric_is_left_out() {
        let body =
            br#"{"kind":"APIResourceList","resources":[{"name":"b"},{"name":"a/b"},{"name":""},{"name":"datadogmetric@ns:x"},{"name":"b"}]}"#;
        assert_eq!(names(body).unwrap(), ["b", "datadogmetric@ns:x"]);
        assert!(names(br#"{"kind":"APIResourceList","resources":null}"#).unwrap().is_empty());
        assert!(names(br#"{"kind":"Status"}"#).unwrap_err().contains("Status"));
        assert!(names(b"<html>").is_err());
    }
}
