//! Properties of generated answers of the query API, complete and damaged.
//! `WVA_FUZZ_SECONDS=600 cargo test -p wva --lib collect -- fuzz --nocapture` takes ten minutes for each target.

use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use wva_core::snapshot::Sample;

use super::response::{Envelope, ResponseParser};
use super::scope_index::{IdentifiedSeries, LabelInterner, ScopeIndex};
use super::trusted_collectors::TrustedCollectors;
use crate::collect::limits::MAX_LABEL_BYTES;
use crate::collect::merge::{RawSeries, merge};
use crate::engine::{Endpoint, MAX_ENGINES_OF_A_POD, Scope};

#[allow(clippy::duplicate_mod, reason = "a test of one room uses no other room")]
#[path = "../../serve/fuzz/harness.rs"]
mod harness;

use harness::{damaged, fuzz};

const WHOLE: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
{"metric":{"__name__":"vllm:num_requests_waiting","namespace":"llm","pod":"vllm-0","engine":"0","instance":"10.0.0.1:8000","job":"llm/vllm"},"values":[[1800000000,"3"],[1800000015.25,"4"]]},
{"metric":{"__name__":"vllm:kv_cache_usage_perc","namespace":"llm","pod":"vllm-0","engine":"0","model_name":"m\"\\\u0041"},"values":[[1800000000,"NaN"],[1800000015,"1.0000001"],[1e300,"-Inf"]]},
{"metric":{"__name__":"vllm:cache_config_info","namespace":"llm","pod":"vllm-0","num_gpu_blocks":"1024","block_size":"128","kv_cache_size_tokens":"131072"},"values":[[1800000000,"1"]]}]},"warnings":["store gone"],"infos":["PromQL info: hm"],"isPartial":false}"#;
const SGLANG: &str = r#"{"status":"success","isPartial":true,"data":{"resultType":"matrix","result":[
{"metric":{"__name__":"sglang:num_running_reqs","namespace":"llm","pod":"vllm-0","dp_rank":"0","tp_rank":"1","priority":""},"values":[[1800000000,"3"]]},
{"metric":{"__name__":"sglang:num_running_reqs","namespace":"llm","pod":"vllm-0","dp_rank":"1","priority":"2"},"values":[[1800000000,"3"]]},
{"metric":{"__name__":"sglang:time_to_first_token_seconds_count","namespace":"llm","pod":"vllm-0","is_streaming":"true","tenant":"a"},"values":[[1800000000,"10"],[1800000015,"12"]]},
{"metric":{"__name__":"sglang:time_to_first_token_seconds_count","namespace":"monitoring","pod":"x","exported_namespace":"llm","exported_pod":"vllm-0","is_streaming":"false"},"values":[[1800000000,"10"]]},
{"metric":{"__name__":"llm_d_epp_scheduler_attempts_total","namespace":"llm","pod":"epp","pod_name":"vllm-0","port":"8000","status":"success","model_name":"m"},"value":[1800000000,"7"]}]}}"#;
const REFUSED: &str =
    r#"{"status":"error","errorType":"execution","error":"too many samples","data":null,"infos":null}"#;

/// Parses an answer that is received in chunks split at `cuts`: the series in scope, the number of all series, and the envelope.
fn read(bytes: &[u8], cuts: &[usize]) -> (Vec<RawSeries>, usize, Envelope) {
    let ip = Ipv4Addr::LOCALHOST.into();
    let endpoint = Endpoint { namespace: "llm".into(), pod: "vllm-0".into(), ip, port: None, path: None };
    let scope =
        Scope { namespaces: ["llm".to_owned()].into(), endpoints: vec![endpoint], ..Scope::default() };
    let index = ScopeIndex::new(&scope, Arc::new(TrustedCollectors::new(&["monitoring".to_owned()])));
    let (mut parser, mut interner) = (ResponseParser::default(), LabelInterner::default());
    let (mut raw, mut count) = (Vec::new(), 0);
    let mut start = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        let continues = parser.push(&bytes[start..end], &mut |series| {
            count += 1;
            let identified = index.identify(series, &mut interner).ok();
            raw.extend(identified.map(|IdentifiedSeries { name, labels, samples, .. }| RawSeries {
                name,
                labels: labels.into(),
                is_truncated: false,
                samples,
            }));
        });
        if !continues {
            break;
        }
        start = end;
    }
    (raw, count, parser.finish())
}

#[test]
fn fuzz_no_answer_breaks_the_parser_or_gives_an_invalid_sample() {
    let input = (damaged(&[WHOLE, SGLANG, REFUSED]), vec(any::<Index>(), 0..4));
    fuzz("prometheus-json", input, |(bytes, cuts)| {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (raw, count, envelope) = read(&bytes, &cuts);
        let (_, count_of_whole, of_whole) = read(&bytes, &[]);
        prop_assert_eq!(count, count_of_whole, "the chunks must not matter");
        prop_assert_eq!((envelope.status, envelope.parse_error), (of_whole.status, of_whole.parse_error));
        prop_assert!(envelope.warnings.len() <= 8);
        let is_valid = |sample: &Sample| sample.value.is_finite() && sample.value >= 0.0;
        for series in &raw {
            let fits = |text: &Option<Arc<str>>| {
                text.as_deref().is_none_or(|text| text.len() <= 2 * MAX_LABEL_BYTES + 1)
            };
            prop_assert!(fits(&series.labels.engine) && fits(&series.labels.model));
            prop_assert!(series.samples.iter().all(|sample| is_valid(&sample)));
        }
        let merged = merge(vec![raw]);
        let engines = merged.series.iter().map(|series| &series.labels.engine);
        prop_assert!(engines.collect::<std::collections::BTreeSet<_>>().len() <= MAX_ENGINES_OF_A_POD + 1);
        for series in &merged.series {
            prop_assert!(!series.samples.is_empty() && &*series.labels.namespace == "llm");
            prop_assert!(series.samples.iter().all(|sample| is_valid(&sample)));
        }
        Ok(())
    });
}
