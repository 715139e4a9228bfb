//! Requests that a server refuses, in front of one engine or several.

use super::*;

/// A server's counter of refused requests, by reason.
fn refused(port: u16, reasons: [f64; 2]) -> [RawSeries; 2] {
    let reasons = ["max_num_queued_reqs", "max_num_queued_tokens"].into_iter().zip(reasons);
    let series = reasons.map(|(reason, value)| {
        let counted = raw("vllm:admission_rejections_total", None, Some(port), &[(0, value)]);
        counted.relabelled(|labels| labels.part = Part::default().split_by("reason", Some(reason)))
    });
    series.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn each_request_that_a_server_refuses_counts_once_however_many_engines_it_has() {
    let engine = |name, port| raw("vllm:num_requests_running", name, Some(port), &[(0, 1.0)]);
    let found = |engines: Vec<RawSeries>| {
        let merged = merged(engines.into_iter().chain(refused(8000, [9.0, 3.0])).collect());
        let engines: BTreeSet<_> = merged.iter().map(|series| series.labels.engine.to_string()).collect();
        (values(&merged, Signal::RefusedRequests), engines.into_iter().collect::<Vec<_>>())
    };
    let expected = |values: &[f64], engines: &[&str]| {
        (values.to_vec(), engines.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(found(vec![engine(Some("0"), 8000)]), expected(&[12.0], &["0"]));
    let several = ["0", "1", "2"].map(|name| engine(Some(name), 8000)).to_vec();
    assert_eq!(found(several), expected(&[4.0, 4.0, 4.0], &["0", "1", "2"]));
    let ports = vec![engine(Some("0"), 8000), engine(Some("0"), 8001)];
    assert_eq!(
        found(ports),
        expected(&[12.0], &["8000/0", "8001/0"]),
        "the other server has not refused any"
    );
    assert_eq!(found(vec![engine(None, 8000)]), expected(&[12.0], &["8000"]));
    assert_eq!(
        found(vec![engine(Some("0"), 8001)]),
        expected(&[], &["0"]),
        "a server without engines is none"
    );
}

#[test]
fn a_page_with_many_engines_and_reasons_makes_no_copy_for_each_pair() {
    let engine =
        |index: usize| raw("vllm:num_requests_running", Some(&index.to_string()), Some(8000), &[(0, 1.0)]);
    let found = |engines: usize| {
        let merged = merged((0..engines).map(engine).chain(refused(8000, [9.0, 3.0])).collect());
        values(&merged, Signal::RefusedRequests).len()
    };
    assert_eq!((found(MAX_ENGINES_OF_A_POD), found(MAX_ENGINES_OF_A_POD + 1)), (MAX_ENGINES_OF_A_POD, 0));
}

#[test]
fn refusals_of_an_answer_that_was_cut_off_are_unknown() {
    let cut = refused(8000, [9.0, 3.0]).map(|series| RawSeries { is_truncated: true, ..series });
    let running = raw("vllm:num_requests_running", Some("0"), Some(8000), &[(0, 1.0)]);
    let found = merged(cut.into_iter().chain([running]).collect());
    assert_eq!(
        (values(&found, Signal::Running), values(&found, Signal::RefusedRequests)),
        (vec![1.0], vec![])
    );
}
