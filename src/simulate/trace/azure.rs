//! Azure LLM inference traces (Azure/AzurePublicDataset, CC-BY-4.0): `TIMESTAMP,ContextTokens,GeneratedTokens`, one request a
//! line. The trace of 2023 has times without a zone, the trace of 2024 with one.

use std::io::BufRead;
use std::path::Path;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use wva_sim::Arrival;

use super::super::input::{CsvRow, InputError, TextLines};
use super::load::{MAX_REQUESTS, sort_requests};

/// How a file begins.
pub(super) const HEADER: &[u8] = b"TIMESTAMP,ContextTokens,GeneratedTokens";

pub(super) fn read(input: Box<dyn BufRead>, path: &Path) -> Result<Vec<Arrival>, InputError> {
    let mut lines = TextLines::new(input, path);
    let names = lines.header()?;
    let requests = lines.parse_all(MAX_REQUESTS, "requests", |line| request(&names, line))?;
    let first = requests.iter().map(|(at, ..)| *at).min().unwrap_or_default();
    let arrival = |(at, prompt, output): (Timestamp, u32, u32)| {
        let at_s = at.duration_since(first).as_secs_f64();
        Arrival { at_s, prompt, output, cached: 0 }
    };
    Ok(sort_requests(requests.into_iter().map(arrival).collect()))
}

fn request(names: &[String], line: &str) -> Result<(Timestamp, u32, u32), String> {
    let row = CsvRow::new(names, line)?;
    let at = time(row.text(0)).ok_or_else(|| row.out_of_range(0, "a time as 2023-11-16 18:17:03.9799600"))?;
    Ok((at, row.tokens(1)?, row.tokens(2)?))
}

fn time(text: &str) -> Option<Timestamp> {
    let with_zone = text.parse::<Timestamp>().ok();
    with_zone.or_else(|| text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|at| at.timestamp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Arrival>, String> {
        let input = Box::new(std::io::Cursor::new(text.to_owned()));
        read(input, Path::new("a.csv")).map_err(|error| error.to_string())
    }

    #[test]
    fn both_years_are_read_in_order_from_the_first_request_on() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    2023-11-16 18:17:04.0000000,110,27\r\n\
                    2023-11-16 18:17:03.5000000,4808,0\r\n";
        let expected = [
            Arrival { at_s: 0.0, prompt: 4808, output: 1, cached: 0 },
            Arrival { at_s: 0.5, prompt: 110, output: 27, cached: 0 },
        ];
        assert_eq!(parse(text).unwrap(), expected);
        let zoned = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n";
        assert_eq!(parse(zoned).unwrap().len(), 1);
    }

    #[test]
    fn a_wrong_field_is_named_with_its_line() {
        let head = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        for (line, says) in [
            ("yesterday,1,1", "a.csv:2: TIMESTAMP \"yesterday\" is out of range: must be a time"),
            ("2023-11-16 18:17:03,-1,1", "a.csv:2: ContextTokens \"-1\" is out of range"),
            ("2023-11-16 18:17:03,1", "a.csv:2: 2 fields, and the header has 3"),
        ] {
            let error = parse(&format!("{head}{line}\n")).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
    }
}
