//! The HPA of the demo: reads the metric over HTTPS like a real HPA, computes with the real controller's arithmetic, and
//! scales the Deployment.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Certificate, Client, Identity};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use wva_core::hpa::{AtZero, Behavior, Hpa, Kind, MetricTarget, SYNC_PERIOD, Settings, Tolerance, propose};
use wva_core::units::Seconds;

use super::clock::VirtualClock;
use super::fleet::DemoFleet;
use super::pki::Pki;
use super::scenario;
use crate::engine::Clock as _;

/// Wall time for one read. The server itself waits at most a second for a fresh number.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// `AverageValue: "1"`, as an HPA for this metric has it.
const TARGET: MetricTarget = MetricTarget { kind: Kind::AverageValue, milli: 1000 };

/// The path of the metric.
pub(super) fn path() -> String {
    let namespace = scenario::NAMESPACE;
    let variant = scenario::VARIANT;
    format!(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/wva_desired_replicas?labelSelector=variant_name%3D{variant}"
    )
}

/// `ExternalMetricValueList`, as far as an HPA reads it.
#[derive(Deserialize)]
struct MetricValueList {
    items: Vec<MetricValue>,
}

#[derive(Deserialize)]
struct MetricValue {
    value: String,
}

/// Reads and scales every 15 virtual seconds until `stop`.
pub(super) async fn run(
    fleet: DemoFleet,
    clock: VirtualClock,
    client: HpaClient,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut hpa = Hpa::new(settings());
    let period = Duration::from_secs_f64(SYNC_PERIOD.get());
    loop {
        tokio::select! {
            () = clock.sleep(period) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let answer = tokio::select! {
            answer = client.read() => answer,
            () = stop.cancelled() => return Ok(()),
        };
        if let Err(error) = &answer {
            tracing::warn!(error = format!("{error:#}"), "the HPA read no number and changes nothing");
        }
        let counts = fleet.counts();
        let proposal = answer.ok().and_then(|items| propose(&items, TARGET, counts, Tolerance::default()));
        let replicas = hpa.step(clock.now(), counts.spec, proposal);
        if replicas != counts.spec {
            fleet.scale(replicas);
        }
    }
}

fn settings() -> Settings {
    let mut behavior = Behavior::default();
    behavior.down.window = Seconds::whole(scenario::SCALE_DOWN_WINDOW_S);
    Settings {
        min: scenario::MIN_REPLICAS,
        max: scenario::MAX_REPLICAS,
        behavior: Some(behavior),
        at_zero: AtZero::default(),
    }
}

/// A client with the demo user's certificate that trusts the demo's CA and no other.
pub(super) struct HpaClient {
    client: Client,
    url: String,
}

impl HpaClient {
    pub(super) fn new(address: SocketAddr, pki: &Pki) -> anyhow::Result<Self> {
        let identity = format!("{}{}", pki.client.certificate, pki.client.key);
        let client = Client::builder()
            .tls_certs_only([Certificate::from_pem(pki.ca.as_bytes())?])
            .identity(Identity::from_pem(identity.as_bytes())?)
            .no_proxy()
            .timeout(READ_TIMEOUT)
            .build()?;
        Ok(Self { client, url: format!("https://{address}{}", path()) })
    }

    /// The values of all items, in thousandths.
    async fn read(&self) -> anyhow::Result<Vec<i64>> {
        let response = self.client.get(&self.url).send().await?.error_for_status()?;
        let answer: MetricValueList = response.json().await?;
        answer.items.iter().map(|item| thousandths(&item.value)).collect()
    }
}

/// A quantity of replicas: whole, or in thousandths.
fn thousandths(text: &str) -> anyhow::Result<i64> {
    let (digits, unit) = text.strip_suffix('m').map_or((text, 1000), |digits| (digits, 1));
    let number = digits.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
    number.with_context(|| format!("{text:?} is not a whole quantity"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wva_core::units::Replicas;

    #[test]
    fn quantities_are_read_in_thousandths() {
        assert_eq!(thousandths("3").unwrap(), 3000);
        assert_eq!(thousandths("2500m").unwrap(), 2500);
        assert!(thousandths("NaN").is_err() && thousandths("9223372036854775807").is_err());
    }

    #[test]
    fn the_demos_hpa_follows_a_number_through_its_bounds() {
        let mut hpa = Hpa::new(settings());
        let now = jiff::Timestamp::UNIX_EPOCH;
        assert_eq!(hpa.step(now, Replicas::new(2), Some(Replicas::new(3))), Replicas::new(3));
        assert_eq!(hpa.step(now, Replicas::new(3), None), Replicas::new(3), "no number, no change");
    }
}
