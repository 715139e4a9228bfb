//! A variant whose object names no model, in whole evaluations.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::sleep;
use wva::engine::{
    Clock, Cluster, ClusterView, Collected, Engine, Leadership, MetricSource, Published, Restored, Scope,
    SourceError,
};
use wva_core::decision::{Cause, Verdict};
use wva_core::{Policy, VariantId};

use crate::engine::{OneVariant, PausedClock, idle, leading_parts, term};

/// [`OneVariant`], whose object names no model.
struct Unnamed;

impl Cluster for Unnamed {
    fn view(&self) -> Arc<ClusterView> {
        let mut view = ClusterView::clone(&OneVariant.view());
        view.variants[0].variant.model = "".into();
        Arc::new(view)
    }
}

/// The metrics of its pod, after 100 ms.
struct Source(Arc<dyn Clock>);

impl MetricSource for Source {
    fn collect<'a>(&'a self, _: &'a Scope) -> BoxFuture<'a, Result<Collected, SourceError>> {
        Box::pin(async move {
            sleep(Duration::from_millis(100)).await;
            Ok(idle(self.0.now()))
        })
    }
}

fn engine() -> (Arc<Engine>, watch::Sender<Leadership>) {
    let clock = PausedClock::begin();
    let (parts, leadership) = leading_parts(Arc::new(Unnamed), Arc::new(Source(clock.clone())), clock);
    let engine = Arc::new(Engine::new(parts, Policy::default()));
    engine.take_over(Restored::default(), term(1));
    (engine, leadership)
}

fn is_model_unknown(published: &Published) -> bool {
    let verdict = &published.decisions[&VariantId::new("llm", "llama")].verdict;
    matches!(verdict, Verdict::Unknown(unknown) if unknown.cause == Cause::ModelUnknown)
}

#[tokio::test(start_paused = true)]
async fn a_decision_used_a_new_model_with_the_policy_from_before_it() {
    let (engine, _leadership) = engine();
    let published = engine.evaluate().await;
    assert!(is_model_unknown(&published));
    let learned = engine.models().learned().borrow().clone();
    assert_eq!(learned[&VariantId::new("llm", "llama")].name, "llama");
    let update = async {
        sleep(Duration::from_millis(50)).await;
        engine.set_policy(Policy::default());
        engine.models().put_in_force(learned);
    };
    let (published, ()) = tokio::join!(engine.evaluate(), update);
    assert!(is_model_unknown(&published), "its policy is from before");
    let published = engine.evaluate().await;
    let decision = &published.decisions[&VariantId::new("llm", "llama")];
    assert_eq!(decision.model, "llama");
    assert!(matches!(decision.verdict, Verdict::Target(_)), "{:?}", decision.verdict);
}
