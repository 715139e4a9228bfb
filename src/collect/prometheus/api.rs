//! What is read of Prometheus beside the collection: its configuration, names of series, and the answers to single queries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use http::{StatusCode, header};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::PrometheusSettings;
use super::client::{QueryClient, RequestLimits};
use crate::collect::http_client;
use crate::engine::SourceError;
use crate::telemetry::RuleMetricFamilies;

/// Longest answer. That to the query for a metric has some hundred bytes for each of its series.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// The media type of a form.
const FORM: &str = "application/x-www-form-urlencoded";
/// How the label is called that says whether a series has a label.
const PRESENCE: &str = "__has";
/// How the warnings begin that a query has earned itself, whatever the data.
const ABOUT_THE_QUERY: [&str; 2] = ["PromQL info:", "PromQL warning:"];

/// An answer of the API.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
    /// With the headers that were sent.
    limits: RequestLimits,
}

impl QueryClient {
    /// The answer to a request for `path` of the API, of at most `max_bytes`, or why there is none. With a form it is a POST, which has
    /// no limit on the length of a URL.
    pub(super) async fn request(
        &self,
        path: &str,
        form: Option<String>,
        max_bytes: usize,
    ) -> Result<Answer, String> {
        let limits = self.limits(self.timeout).await.map_err(|error| error.message)?;
        // As in the queries of an evaluation: what the URL says after `?`, such as a tenant, stays.
        let mut url = self.client.base_url().clone();
        url.set_path(&format!("{}/{path}", url.path().trim_end_matches('/')));
        let client = self.client.inner();
        let mut request = match form {
            None => client.get(url),
            Some(form) => client.post(url).header(header::CONTENT_TYPE, FORM).body(form),
        };
        for (name, value) in limits.headers.iter() {
            request = request.header(name.clone(), value.clone());
        }
        let sent = request.timeout(self.timeout).send().await;
        let mut response = sent.map_err(|error| http_client::root_cause(&error))?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| http_client::root_cause(&error))? {
            if chunk.len() > max_bytes - body.len() {
                return Err(format!("the answer is longer than {max_bytes} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status: response.status(), body, limits })
    }
}

/// A Prometheus for questions beside those of an evaluation.
pub struct PrometheusApi {
    client: QueryClient,
    metrics: RuleMetricFamilies,
}

/// The series of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesLabels {
    /// The name.
    pub name: String,
    /// Which of the labels that were asked about some of them have.
    pub labels: BTreeSet<String>,
}

/// A value of the answer to a query.
#[derive(Debug, Clone, PartialEq)]
pub struct QuerySample {
    /// Its labels; empty for a scalar.
    pub labels: BTreeMap<String, String>,
    /// When it was measured or computed.
    pub at: Timestamp,
    /// Also infinite or NaN.
    pub value: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<T> {
    status: String,
    #[serde(default)]
    error: String,
    data: Option<T>,
    #[serde(default)]
    warnings: Vec<String>,
    /// Of VictoriaMetrics.
    #[serde(default)]
    is_partial: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueryData<'a> {
    result_type: String,
    #[serde(borrow)]
    result: &'a RawValue,
}

#[derive(Deserialize)]
struct VectorSample {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    /// A histogram has none.
    value: Option<(f64, String)>,
}

impl PrometheusApi {
    /// # Errors
    /// When its URL, CA or client certificate cannot be used.
    pub fn new(settings: &PrometheusSettings) -> Result<Self, SourceError> {
        let client = QueryClient::new(settings)?;
        Ok(Self { client, metrics: RuleMetricFamilies::default() })
    }

    /// Counts its requests there.
    #[must_use]
    pub fn with_metrics(self, metrics: RuleMetricFamilies) -> Self {
        Self { metrics, ..self }
    }

    /// Its name in messages for administrators: the URL without user, password and query.
    pub fn name(&self) -> &str {
        self.client.name()
    }

    /// The names of the series that `selector` selects and that have had a sample in the last `max_age`, sorted. An answer has a few
    /// bytes for each name, where a list of all series has some hundred for each of these.
    ///
    /// # Errors
    /// When Prometheus cannot be reached, refuses the selector, or has only a part of the answer.
    pub async fn series_names(&self, selector: &str, max_age: Duration) -> Result<Vec<String>, SourceError> {
        let age = max_age.as_secs().max(1);
        let query = format!("group by (__name__) (last_over_time({selector}[{age}s]))");
        let samples = self.counted("list", self.samples(&query)).await?;
        let name = |mut sample: QuerySample| sample.labels.remove("__name__");
        let mut names: Vec<String> = samples.into_iter().filter_map(name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The names of the labels of the series that `selector` selects, and maybe of some that had their last sample a little earlier.
    ///
    /// # Errors
    /// As [`Self::series_names`].
    pub async fn label_names(
        &self,
        selector: &str,
        max_age: Duration,
        now: Timestamp,
    ) -> Result<Vec<String>, SourceError> {
        let end = now.as_second();
        let start = end.saturating_sub(max_age.as_secs().try_into().unwrap_or(i64::MAX));
        let times = [start.to_string(), end.to_string()];
        let body = form(&[("match[]", selector), ("start", &times[0]), ("end", &times[1])]);
        self.counted("list", async { data(&self.post("api/v1/labels", body).await?) }).await
    }

    /// The series that `selector` selects and that have had a sample in the last `max_age`, by their names, and which of `labels` they
    /// have. The answer to the query for each label is at most twice as long as that of [`Self::series_names`], whatever labels the series
    /// have besides.
    ///
    /// # Errors
    /// As [`Self::series_names`].
    pub async fn series_labels(
        &self,
        selector: &str,
        labels: &[String],
        max_age: Duration,
    ) -> Result<Vec<SeriesLabels>, SourceError> {
        let age = max_age.as_secs().max(1);
        let mut by_name: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for label in labels {
            // Grouped before: a series that has the label of the answer itself would make another one the same.
            let series = format!("group by (__name__, {label}) (last_over_time({selector}[{age}s]))");
            let series = format!("label_replace({series}, {PRESENCE:?}, \"1\", {label:?}, \".+\")");
            let query = format!("group by (__name__, {PRESENCE}) ({series})");
            for mut sample in self.counted("list", self.samples(&query)).await? {
                let Some(name) = sample.labels.remove("__name__") else { continue };
                let present = sample.labels.contains_key(PRESENCE).then(|| label.clone());
                by_name.entry(name).or_default().extend(present);
            }
        }
        Ok(by_name.into_iter().map(|(name, labels)| SeriesLabels { name, labels }).collect())
    }

    async fn post(&self, path: &str, body: String) -> Result<Answer, SourceError> {
        let answer = self.client.request(path, Some(body), MAX_ANSWER_BYTES).await;
        answer.map_err(|cause| {
            error("connect", format!("Prometheus cannot be read: {cause}"), "check that it is not overloaded")
        })
    }

    /// The values of a query now: of a vector, or of a scalar. What time it is Prometheus says: by a clock here that is an hour late, the
    /// values would be those of an hour ago.
    ///
    /// # Errors
    /// When Prometheus cannot be reached, refuses the query, has only a part of the answer, or answers with another type.
    pub async fn query(&self, promql: &str) -> Result<Vec<QuerySample>, SourceError> {
        self.counted("read", self.samples(promql)).await
    }

    async fn counted<T>(
        &self,
        purpose: &'static str,
        answer: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        let began = Instant::now();
        let answer = answer.await;
        self.metrics.requested(purpose, answer.is_ok(), began.elapsed());
        answer
    }

    async fn samples(&self, promql: &str) -> Result<Vec<QuerySample>, SourceError> {
        let body = form(&[("query", promql)]);
        let answer = self.post("api/v1/query", body).await?;
        let data: QueryData<'_> = data(&answer)?;
        let unreadable = |error: serde_json::Error| unreadable(&answer.limits, &error.to_string());
        let samples: Vec<VectorSample> = match data.result_type.as_str() {
            "vector" => serde_json::from_str(data.result.get()).map_err(unreadable)?,
            "scalar" => {
                let value = serde_json::from_str(data.result.get()).map_err(unreadable)?;
                vec![VectorSample { metric: BTreeMap::new(), value: Some(value) }]
            }
            kind => return Err(wrong_type(kind)),
        };
        samples.into_iter().map(sample).collect()
    }
}

/// An error for whoever may read the answer: it names no server.
fn error(kind: &'static str, what: impl Display, next: &str) -> SourceError {
    SourceError { kind, message: format!("{what}; {next}") }
}

fn wrong_type(kind: &str) -> SourceError {
    let what = format!("the query makes a {kind:.20}, and only a vector or a scalar has values");
    error("type", what, "correct the query of the rule")
}

/// `cause` may quote what the server sent. Secrets first: of one that is cut, the beginning would be shown.
fn unreadable(limits: &RequestLimits, cause: &str) -> SourceError {
    let what = format!("the answer of Prometheus cannot be read: {:.300}", limits.without_secrets(cause));
    error("decode", what, "check that the URL is that of a Prometheus API")
}

fn data<'a, T: Deserialize<'a>>(answer: &'a Answer) -> Result<T, SourceError> {
    let Answer { status, body, limits } = answer;
    let parsed: Result<Envelope<T>, _> = serde_json::from_slice(body);
    let envelope = match parsed {
        Ok(envelope) => envelope,
        Err(_) if !status.is_success() => {
            let what = format!("Prometheus answered {status}");
            return Err(error("status", what, "check the URL and the credentials"));
        }
        Err(cause) => return Err(unreadable(limits, &cause.to_string())),
    };
    if envelope.status != "success" {
        let what = format!("Prometheus answered {status} ({:.300})", limits.without_secrets(&envelope.error));
        return Err(error("status", what, "correct the query of the rule"));
    }
    let is_partial = |warning: &&String| !ABOUT_THE_QUERY.iter().any(|own| warning.starts_with(own));
    let missing = || envelope.is_partial.then_some("isPartial");
    if let Some(warning) = envelope.warnings.iter().find(is_partial).map(String::as_str).or_else(missing) {
        let what =
            format!("the answer of Prometheus may be incomplete: {:.300}", limits.without_secrets(warning));
        return Err(error("partial", what, "a part of a sum is no number"));
    }
    envelope.data.ok_or_else(|| unreadable(limits, "there is no data in it"))
}

fn sample(sample: VectorSample) -> Result<QuerySample, SourceError> {
    let VectorSample { metric: labels, value } = sample;
    let (seconds, value) = value.ok_or_else(|| wrong_type("histogram"))?;
    let at = jiff::SignedDuration::try_from_secs_f64(seconds).ok();
    let at = at.and_then(|since| Timestamp::from_duration(since).ok());
    match (at, value.parse()) {
        (Some(at), Ok(value)) => Ok(QuerySample { labels, at, value }),
        _ => Err(error(
            "decode",
            "a value of the answer is no sample",
            "check that the URL is that of a Prometheus API",
        )),
    }
}

fn form(pairs: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wiremock::matchers::{body_string, method, path, query_param};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::collect::token::Token;

    fn api(server: &MockServer) -> PrometheusApi {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        PrometheusApi::new(&PrometheusSettings::new(format!("{}/base/", server.uri()))).unwrap()
    }

    /// What a query makes of this answer.
    async fn query(status: u16, answer: Value) -> Result<Vec<QuerySample>, String> {
        let server = MockServer::start().await;
        let response = ResponseTemplate::new(status).set_body_json(answer);
        Mock::given(method("POST"))
            .and(path("/base/api/v1/query"))
            .respond_with(response)
            .mount(&server)
            .await;
        api(&server).query("up").await.map_err(|error| error.message)
    }

    #[tokio::test]
    async fn vectors_and_scalars_are_read_with_their_times() {
        let vector = json!([
            { "metric": { "__name__": "a", "x": "1" }, "value": [1_764_000_000.25, "1.5"] },
            { "metric": {}, "value": [1_764_000_000, "NaN"] }
        ]);
        let answer = json!({ "status": "success", "data": { "resultType": "vector", "result": vector } });
        let samples = query(200, answer).await.unwrap();
        assert_eq!(samples[0].labels["x"], "1");
        assert_eq!(samples[0].at, Timestamp::from_millisecond(1_764_000_000_250).unwrap());
        assert_eq!(samples[0].value.to_string(), "1.5");
        assert!(samples[1].value.is_nan());
        let data = json!({ "resultType": "scalar", "result": [1_764_000_000, "+Inf"] });
        let infos = json!(["PromQL info: metric might not be a counter"]);
        let scalar =
            query(200, json!({ "status": "success", "data": data, "warnings": infos })).await.unwrap();
        assert!(scalar[0].labels.is_empty() && scalar[0].value.is_infinite());
    }

    #[tokio::test]
    async fn what_is_no_answer_is_an_error_that_says_why() {
        let data = json!({ "resultType": "vector", "result": [] });
        for (status, answer, expected) in [
            (
                400,
                json!({ "status": "error", "error": "parse error" }),
                "answered 400 Bad Request (parse error); correct",
            ),
            (502, json!("<html>"), "Prometheus answered 502 Bad Gateway; check"),
            (200, json!("<html>"), "the answer of Prometheus cannot be read"),
            (200, json!({ "status": "success" }), "there is no data in it"),
            (
                200,
                json!({ "status": "success", "data": data, "warnings": ["a store is down"] }),
                "a store is down",
            ),
            (
                200,
                json!({ "status": "success", "data": { "resultType": "matrix", "result": [] } }),
                "makes a matrix",
            ),
            (
                200,
                json!({ "status": "success", "data": { "resultType": "scalar", "result": [1e300, "1"] } }),
                "is no sample",
            ),
        ] {
            let error = query(status, answer.clone()).await.unwrap_err();
            assert!(error.contains(expected), "{answer}: {error}");
        }
        let long = "x".repeat(MAX_ANSWER_BYTES);
        assert!(query(200, json!(long)).await.unwrap_err().contains("longer than"));
    }

    #[tokio::test]
    async fn an_answer_of_which_a_part_is_missing_is_an_error() {
        let data = json!({ "resultType": "vector", "result": [] });
        let partial = json!({ "status": "success", "isPartial": true, "data": data });
        assert!(query(200, partial).await.unwrap_err().contains("may be incomplete: isPartial"));
        let histogram = json!([{ "metric": {}, "histogram": [1, { "count": "2" }] }]);
        let data = json!({ "resultType": "vector", "result": histogram });
        let error = query(200, json!({ "status": "success", "data": data })).await.unwrap_err();
        assert!(error.contains("makes a histogram"), "{error}");
    }

    #[tokio::test]
    async fn an_error_shows_neither_the_server_nor_a_token_that_it_repeats() {
        let server = MockServer::start().await;
        let answer = json!({ "status": "success", "data": format!("secret-token {}", "x".repeat(1_000)) });
        Mock::given(method("POST"))
            .respond_with(ResponseTemplate::new(200).set_body_json(answer))
            .mount(&server)
            .await;
        let mut settings = PrometheusSettings::new(server.uri());
        settings.headers =
            vec![(http::HeaderName::from_static("x-scope-orgid"), Token::Inline("secret-token".into()))];
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let api = PrometheusApi::new(&settings).unwrap();
        let error = api.query("up").await.unwrap_err().message;
        assert!(!error.contains("secret-token") && !error.contains(&server.uri()), "{error}");
        assert!(error.len() < 500, "{error}");
    }

    #[tokio::test]
    async fn queries_are_sent_as_they_are_with_what_the_url_says_of_the_tenant() {
        let server = MockServer::start().await;
        let vector = |samples: Value| {
            let data = json!({ "resultType": "vector", "result": samples });
            ResponseTemplate::new(200).set_body_json(json!({ "status": "success", "data": data }))
        };
        let names = json!([{ "metric": { "__name__": "b" }, "value": [1, "1"] }, { "metric": { "__name__": "a" }, "value": [1, "1"] }]);
        let body = "query=group+by+%28__name__%29+%28last_over_time%28%7Bx%3D%22%2B%26%22%7D%5B60s%5D%29%29";
        Mock::given(method("POST"))
            .and(path("/base/api/v1/query"))
            .and(query_param("extra_label", "team=a"))
            .and(body_string(body))
            .respond_with(vector(names))
            .mount(&server)
            .await;
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let url = format!("{}/base/?extra_label=team%3Da", server.uri());
        let api = PrometheusApi::new(&PrometheusSettings::new(url)).unwrap();
        let names = api.series_names(r#"{x="+&"}"#, Duration::from_secs(60)).await;
        assert_eq!(names.map_err(|error| error.message), Ok(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[tokio::test]
    async fn series_with_flags_of_their_own_or_many_subsets_of_labels_broke_the_list_of_a_rule() {
        let server = MockServer::start().await;
        for (label, samples) in [
            ("pod", json!([{ "__name__": "b", "__has": "1" }, { "__name__": "b" }, { "__name__": "a" }])),
            ("node", json!([{ "__name__": "b", "__has": "1" }, { "__name__": "a" }])),
        ] {
            // A series may have the label __has itself: it is gone before the answer gets its own.
            let query = format!(
                r#"group by (__name__, __has) (label_replace(group by (__name__, {label}) (last_over_time(s[60s])), "__has", "1", "{label}", ".+"))"#
            );
            let sample = |metric: &Value| json!({ "metric": metric, "value": [1, "1"] });
            let samples: Vec<_> = samples.as_array().unwrap().iter().map(sample).collect();
            let data = json!({ "resultType": "vector", "result": samples });
            let answer = json!({ "status": "success", "data": data });
            Mock::given(path("/base/api/v1/query"))
                .and(body_string(form(&[("query", &query)])))
                .respond_with(ResponseTemplate::new(200).set_body_json(answer))
                .mount(&server)
                .await;
        }
        let names = json!({ "status": "success", "data": ["__name__", "pod"] });
        Mock::given(path("/base/api/v1/labels"))
            .and(body_string("match%5B%5D=s&start=1763999940&end=1764000000"))
            .respond_with(ResponseTemplate::new(200).set_body_json(names))
            .mount(&server)
            .await;
        let (age, at) = (Duration::from_secs(60), Timestamp::from_second(1_764_000_000).unwrap());
        let api = api(&server);
        let series = api.series_labels("s", &["pod".into(), "node".into()], age).await.unwrap();
        let series: Vec<_> = series
            .iter()
            .map(|SeriesLabels { name, labels }| {
                (name.as_str(), labels.iter().map(String::as_str).collect::<Vec<_>>())
            })
            .collect();
        assert_eq!(series, [("a", vec![]), ("b", vec!["node", "pod"])]);
        assert_eq!(api.label_names("s", age, at).await.unwrap(), ["__name__", "pod"]);
    }
}
