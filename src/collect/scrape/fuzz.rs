//! Properties of generated metrics pages, complete and damaged.
//! `WVA_FUZZ_SECONDS=600 cargo test -p wva --lib collect -- fuzz --nocapture` takes ten minutes for each target.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use prometheus_scraper::TextFormat;
use proptest::prelude::*;

use super::history::PodHistory;
use super::parse::parse;
use crate::collect::limits::MAX_LABEL_BYTES;
use crate::collect::merge::merge;
use crate::engine::{Endpoint, MAX_ENGINES_OF_A_POD, MAX_SERIES_OF_A_POD};

#[allow(clippy::duplicate_mod, reason = "a test of one room uses no other room")]
#[path = "../../serve/fuzz/harness.rs"]
mod harness;

use harness::{damaged, fuzz};

const VLLM: &[u8] = include_bytes!("../../../tests/it/collect/pages/vllm-0.32.txt");
const SGLANG: &[u8] = include_bytes!("../../../tests/it/collect/pages/sglang-0.5.23.txt");
const TENSORRT_LLM: &[u8] = include_bytes!("../../../tests/it/collect/pages/tensorrt-llm.txt");
const TGI: &[u8] = include_bytes!("../../../tests/it/collect/pages/tgi.txt");
const OPEN: &[u8] = b"# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total 5 1800000000.25 # {trace_id=\"a\"} 1 1800000000\n{\"vllm:generation_tokens_total\",engine=\"0\"} 7\n# EOF\n";

#[test]
fn fuzz_no_page_breaks_the_parser_or_gives_an_invalid_sample() {
    let ip = Ipv4Addr::LOCALHOST.into();
    let endpoint = Endpoint { namespace: "llm".into(), pod: "p".into(), ip, port: Some(8000), path: None };
    let input = (damaged(&[VLLM, SGLANG, TENSORRT_LLM, TGI, OPEN]), any::<bool>());
    fuzz("exposition-text", input, |(bytes, is_open)| {
        let format = if is_open { TextFormat::OpenMetrics } else { TextFormat::Prometheus };
        let page = parse(&bytes, format);
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        for sample in &page.samples {
            let fits = |text: &Option<String>| {
                text.as_ref().is_none_or(|text| text.len() <= 2 * MAX_LABEL_BYTES + 1)
            };
            prop_assert!(fits(&sample.engine) && fits(&sample.model), "{sample:?}");
            prop_assert!(is_valid(sample.value), "{sample:?}");
        }
        // The first half of the page, in complete lines, has the first samples of the whole page.
        let half = bytes[..bytes.len() / 2].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let first_half = parse(&bytes[..half], format);
        prop_assert!(page.samples.starts_with(&first_half.samples));
        let mut history = PodHistory::default();
        for (second, samples) in [(0, first_half.samples), (5, page.samples)] {
            let now = Timestamp::from_second(1_800_000_000 + second).unwrap_or_default();
            history.add(samples, now);
        }
        let raw: Vec<_> = history.series(&endpoint).collect();
        prop_assert!(raw.len() <= MAX_SERIES_OF_A_POD);
        let merged = merge(vec![raw]);
        let engines = merged.series.iter().map(|series| &series.labels.engine);
        prop_assert!(engines.collect::<std::collections::BTreeSet<_>>().len() <= MAX_ENGINES_OF_A_POD + 1);
        prop_assert!(
            merged
                .series
                .iter()
                .flat_map(|series| series.samples.iter())
                .all(|sample| is_valid(sample.value))
        );
        Ok(())
    });
}
