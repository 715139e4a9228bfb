//! The documents of a YAML or JSON text. A document that cannot be read does not affect the others.

use serde_json::Value;

use wva_core::text::shortened;

/// The deepest document: a schema in a CustomResourceDefinition has about 40 levels.
const MAX_DEPTH: usize = 100;
/// Most values in a YAML document; an alias counts each time it is used. A list of 10,000 objects has more, and is read as JSON.
const MAX_NODES: usize = 1_000_000;
/// Bytes of the parser's error that are shown.
const MAX_ERROR_BYTES: usize = 200;

/// The objects of a text, each with the number of its document, from 1. The items of a List are objects.
pub(crate) fn objects(text: &str) -> Vec<(usize, Result<Value, String>)> {
    let documents = match serde_json::from_str(text) {
        Ok(document) => vec![Ok(document)],
        Err(_) => split(text).into_iter().map(|document| parse(&document)).collect(),
    };
    let numbered = documents.into_iter().enumerate().map(|(index, document)| (index + 1, document));
    numbered
        .flat_map(|(number, document)| items(document).into_iter().map(move |item| (number, item)))
        .collect()
}

/// Parses one YAML document.
///
/// # Errors
/// The place and cause of a syntax error.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let budget = serde_saphyr::budget! {
        max_depth: MAX_DEPTH,
        max_nodes: MAX_NODES,
        max_events: 4 * MAX_NODES,
        max_documents: 1,
    };
    let options = serde_saphyr::options! { budget: budget, with_snippet: false, strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| shortened(&error.to_string(), MAX_ERROR_BYTES).to_owned())
}

/// The texts between the lines that begin with three dashes, which end a document even within a block of text. Those without
/// content are left out.
fn split(text: &str) -> Vec<String> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        let rest =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']));
        if rest.is_some() {
            documents.push(String::new());
        }
        if let Some(document) = documents.last_mut() {
            document.push_str(rest.unwrap_or(line));
            document.push('\n');
        }
    }
    let has_content = |document: &String| {
        let mut lines = document.lines().map(str::trim_start);
        lines.any(|line| !(line.is_empty() || line.starts_with('#') || line == "..."))
    };
    documents.retain(has_content);
    documents
}

/// The items of a List, or the object itself.
fn items(document: Result<Value, String>) -> Vec<Result<Value, String>> {
    let Ok(Value::Object(mut object)) = document else { return vec![document] };
    let is_list = object.get("kind").and_then(Value::as_str).is_some_and(|kind| kind.ends_with("List"));
    match object.remove("items") {
        Some(Value::Array(items)) if is_list => items.into_iter().map(Ok).collect(),
        Some(items) => {
            object.insert("items".into(), items);
            vec![Ok(Value::Object(object))]
        }
        None => vec![Ok(Value::Object(object))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, Option<String>)> {
        let name = |value: Value| value.get("name").and_then(Value::as_str).map(str::to_owned);
        objects(text).into_iter().map(|(number, object)| (number, object.ok().and_then(name))).collect()
    }

    fn named(number: usize, name: &str) -> (usize, Option<String>) {
        (number, Some(name.into()))
    }

    #[test]
    fn a_document_that_cannot_be_read_is_numbered_and_the_others_are_read() {
        let text =
            "# a comment\n---\nname: a\n---\n{{ if .Values.x }}\nname: b\n--- # the last one\nname: c\n";
        assert_eq!(read(text), [named(1, "a"), (2, None), named(3, "c")]);
        let failed = objects(text).remove(1).1.unwrap_err();
        assert!(failed.len() <= MAX_ERROR_BYTES && !failed.is_empty(), "{failed}");
    }

    #[test]
    fn three_dashes_within_a_text_belong_to_it() {
        let text = "name: a\ndata: |\n  ---\n  x: 1\n---\nname: b\n";
        assert_eq!(read(text), [named(1, "a"), named(2, "b")]);
    }

    #[test]
    fn the_items_of_a_list_are_objects_in_yaml_and_in_json() {
        let items = "[{name: a}, {name: b}]";
        assert_eq!(read(&format!("kind: List\nitems: {items}\n")), [named(1, "a"), named(1, "b")]);
        let json = r#"{"kind": "PodList", "items": [{"name": "a"}]}"#;
        assert_eq!(read(json), [named(1, "a")]);
        assert_eq!(read(r#"{"kind": "Odd", "name": "a", "items": []}"#), [named(1, "a")]);
        assert_eq!(read("---\n# nothing\n"), []);
    }

    #[test]
    fn a_document_that_grows_by_its_aliases_is_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let aliases = [format!("*a{}", level - 1); 1].concat();
            bomb += &format!("a{level}: &a{level} [{}]\n", vec![aliases; 10].join(", "));
        }
        assert!(parse(&bomb).is_err());
    }
}
