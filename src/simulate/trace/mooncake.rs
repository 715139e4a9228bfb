//! Mooncake traces (kvcache-ai/Mooncake, Apache-2.0): JSON lines with `timestamp` (ms), `input_length`, `output_length`, and the
//! `hash_ids` of the prompt's blocks of 512 tokens. A block of an earlier prompt counts as found in the prefix cache: an upper
//! bound, as of a cache that all replicas share and that forgets nothing.

use std::collections::HashSet;
use std::io::BufRead;
use std::path::Path;

use serde::Deserialize;
use wva_sim::Arrival;

use super::super::input::{InputError, MAX_TOKENS, TextLines};
use super::load::{MAX_REQUESTS, sort_requests};

/// The latest time, seconds: 30 years. Milliseconds since the epoch are later, and would be no load at all.
const MAX_TIME_S: u32 = 1_000_000_000;
/// Tokens of one block, as the trace's authors say.
const BLOCK_TOKENS: u32 = 512;

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

pub(super) fn read(input: Box<dyn BufRead>, path: &Path) -> Result<Vec<Arrival>, InputError> {
    let mut blocks = HashSet::new();
    let mut lines = TextLines::new(input, path);
    lines.parse_all(MAX_REQUESTS, "requests", |text| request(text, &mut blocks)).map(sort_requests)
}

fn request(text: &str, blocks: &mut HashSet<u64>) -> Result<Arrival, String> {
    let line: Line = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let tokens = |name: &str, tokens: u32| {
        let wrong = || format!("{name} {tokens} is out of range: must be 0 to {MAX_TOKENS}");
        (tokens <= MAX_TOKENS).then_some(tokens.max(1)).ok_or_else(wrong)
    };
    if !(0.0..=f64::from(MAX_TIME_S) * 1000.0).contains(&line.timestamp) {
        let at = line.timestamp;
        return Err(format!("timestamp {at} is out of range: must be milliseconds, 0 to {MAX_TIME_S}000"));
    }
    let prompt = tokens("input_length", line.input_length)?;
    let found = line.hash_ids.iter().take_while(|id| blocks.contains(id)).count();
    let cached = wva_core::units::count(found).saturating_mul(BLOCK_TOKENS).min(prompt);
    blocks.extend(line.hash_ids);
    Ok(Arrival {
        at_s: line.timestamp / 1000.0,
        prompt,
        output: tokens("output_length", line.output_length)?,
        cached,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Arrival>, String> {
        let input = Box::new(std::io::Cursor::new(text.to_owned()));
        read(input, Path::new("m.jsonl")).map_err(|error| error.to_string())
    }

    #[test]
    fn requests_come_from_the_first_one_on_and_find_earlier_blocks_in_the_cache() {
        let text = "{\"timestamp\": 1000, \"input_length\": 1000, \"output_length\": 52, \"hash_ids\": [46, 47]}\n\
                    {\"timestamp\": 4000, \"input_length\": 1500, \"output_length\": 26, \"hash_ids\": [46, 48, 47]}\n";
        let expected = [
            Arrival { at_s: 0.0, prompt: 1000, output: 52, cached: 0 },
            Arrival { at_s: 3.0, prompt: 1500, output: 26, cached: 512 },
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn a_wrong_field_is_named_with_its_line() {
        let error = parse("{\"timestamp\": 1, \"input_length\": 1}\n").unwrap_err();
        assert!(error.starts_with("m.jsonl:1: missing field `output_length`"), "{error}");
        let text = "{\"timestamp\": 1, \"input_length\": 4000000000, \"output_length\": 1}\n";
        let error = parse(text).unwrap_err();
        assert!(
            error.starts_with("m.jsonl:1: input_length 4000000000 is out of range: must be 0 to"),
            "{error}"
        );
    }
}
