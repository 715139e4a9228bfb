//! Which model a variant serves whose object names none.

use jiff::{SignedDuration, Timestamp};
use wva_core::decision::{Cause, Decision, Unknown, Verdict};
use wva_core::memory::GroupMemory;
use wva_core::model::{Bounds, Role};
use wva_core::name_map::NameMap;
use wva_core::snapshot::{Sample, Signal, Template};
use wva_core::units::Cost;

use super::*;
use crate::engine::{Destination, Gap, Labels, Series};

fn now() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

fn id(name: &str) -> VariantId {
    VariantId::new("llm", name)
}

/// A variant in `llm` whose target has its name, with one Ready pod.
fn variant(name: &str, model: &str) -> VariantState {
    let pod = Pod {
        name: format!("{name}-0").into(),
        phase: Phase::Ready,
        created: now(),
        ready_since: Some(now()),
        engines: NameMap::default(),
    };
    let variant = Variant {
        id: id(name),
        model: model.into(),
        target: TargetRef::deployment(name),
        cost: Cost::new(10.0).unwrap(),
        bounds: Bounds::default(),
        accelerator: None,
        role: Role::Both,
        woken_by: None,
    };
    VariantState {
        variant,
        scale: None,
        target_problem: None,
        pods: vec![pod],
        last_status: None,
        unschedulable: None,
        template: Template::default(),
    }
}

fn view(variants: Vec<VariantState>) -> ClusterView {
    ClusterView { synced: true, variants, ..ClusterView::default() }
}

fn series(pod: &str, model: &str) -> Series {
    Series {
        labels: Arc::new(Labels {
            namespace: "llm".into(),
            pod: pod.into(),
            engine: "0".into(),
            port: Some(8000),
            model: Some(model.into()),
            destination: None,
        }),
        signal: Signal::KvUsage,
        samples: [Sample { at: now(), value: 0.5 }].into(),
    }
}

fn answer(series: &[Series]) -> Result<Collected, SourceError> {
    Ok(Collected { series: series.to_vec(), ..Collected::default() })
}

/// [`ModelNames`] whose policy knows every model at once, and what it makes of the variants of a view that name none.
struct Fixture {
    models: ModelNames,
    last: Published,
}

impl Default for Fixture {
    fn default() -> Self {
        Self { models: ModelNames::default(), last: Published::empty() }
    }
}

impl Fixture {
    /// One evaluation with the models that are in force.
    fn evaluate(&self, view: &ClusterView, answer: &Result<Collected, SourceError>) -> NamedModels {
        self.models.learn(view, answer, &self.last, &self.models.in_force())
    }

    fn put_in_force(&self) {
        let learned = self.models.learned().borrow().clone();
        self.models.put_in_force(learned);
    }

    fn learn(&self, view: &ClusterView, answer: &Result<Collected, SourceError>) -> NamedModels {
        self.evaluate(view, answer);
        self.put_in_force();
        self.evaluate(view, answer)
    }

    /// The model of `chat`.
    fn model_in(
        &self,
        view: &ClusterView,
        answer: &Result<Collected, SourceError>,
    ) -> Result<String, String> {
        let model = self.learn(view, answer).remove(&id("chat")).unwrap();
        model.map(Into::into).map_err(|invalid| invalid.problem)
    }

    /// The model of the only variant.
    fn model(&self, series: &[Series]) -> Result<String, String> {
        self.model_in(&view(vec![variant("chat", "")]), &answer(series))
    }
}

fn learned(series: &[Series]) -> Result<String, String> {
    Fixture::default().model(series)
}

#[test]
fn a_variant_serves_the_model_that_the_series_of_its_pods_name() {
    let named = Fixture::default().learn(
        &view(vec![variant("chat", ""), variant("code", "org/code")]),
        &answer(&[series("chat-0", "org/chat"), series("code-0", "alias")]),
    );
    assert_eq!(named, NamedModels::from([(id("chat"), Ok("org/chat".into()))]), "the other one has its own");
}

#[test]
fn a_model_counts_once_the_policy_knows_the_settings_of_its_variant() {
    let (fixture, view) = (Fixture::default(), view(vec![variant("chat", "")]));
    let served =
        |model: &str| fixture.evaluate(&view, &answer(&[series("chat-0", model)])).remove(&id("chat"));
    let before = served("m").unwrap().unwrap_err();
    assert!(before.is_model_unknown);
    assert_eq!(
        before.problem,
        "the pods of Deployment chat serve \"m\", which counts once the settings of this object do, in a few seconds"
    );
    let queried = || with_models(&view, &fixture.models.in_force())[0].model.clone();
    assert_eq!(queried(), "", "its signals are queried all the same");
    fixture.put_in_force();
    assert_eq!((served("m"), queried()), (Some(Ok("m".into())), "m".into()));
    for _ in 0..2 {
        assert_eq!(served("n"), Some(Ok("m".into())), "until that policy knows the new one");
    }
    fixture.put_in_force();
    assert_eq!(served("n"), Some(Ok("n".into())));
}

#[test]
fn nobody_moves_a_variant_to_another_model_with_series_that_are_not_of_its_ready_pods() {
    let foreign = series("chat-0", "m").relabelled(|labels| labels.namespace = "evil".into());
    let scheduler = Series { signal: Signal::SchedulerQueueSize, ..series("chat-0", "m") };
    let sent = Destination { pod: "chat-0".into(), port: None };
    let sent = Series { signal: Signal::SchedulerAttempts, ..series("epp", "m") }
        .relabelled(|labels| labels.destination = Some(sent));
    let nameless = series("chat-0", "m").relabelled(|labels| labels.model = None);
    let mut earlier = series("chat-0", "m");
    earlier.samples = [Sample { at: now() - SignedDuration::from_secs(1), value: 0.5 }].into();
    for strange in [foreign, scheduler, sent, nameless, earlier, series("chat-1", "m"), series("chat-0", "")]
    {
        let problem = learned(std::slice::from_ref(&strange)).unwrap_err();
        assert!(
            problem.contains("no Ready pod of Deployment chat has metrics that name a model"),
            "{strange:?}: {problem}"
        );
        assert!(problem.ends_with("or set spec.modelID"), "{problem}");
    }
    let mut starting = variant("chat", "");
    starting.pods[0].phase = Phase::Starting;
    let fixture = Fixture::default();
    fixture.model_in(&view(vec![starting]), &answer(&[series("chat-0", "m")])).unwrap_err();
}

#[test]
fn pods_that_serve_several_models_give_no_number_and_are_told_which() {
    let served: Vec<_> = ["base", "a", "b"].map(|model| series("chat-0", model)).into();
    assert_eq!(
        learned(&served).unwrap_err(),
        "spec.modelID is not set, and the pods of Deployment chat serve several models, \"a\", \"b\", \"base\": set \
         spec.modelID to one of them"
    );
    let many: Vec<_> =
        (0..1000).map(|index| series("chat-0", &format!("{}{index}", "é".repeat(128)))).collect();
    let problem = learned(&many).unwrap_err();
    assert!(problem.contains("and others") && problem.len() < 4 * 300 + 200, "{}: {problem}", problem.len());
}

#[test]
fn an_annotated_object_is_told_of_its_annotation_and_not_of_a_field_it_lacks() {
    let view = ClusterView { annotated: [id("chat")].into(), ..view(vec![variant("chat", "")]) };
    let problem = |series: &[Series]| Fixture::default().model_in(&view, &answer(series)).unwrap_err();
    let nothing = problem(&[]);
    assert!(
        nothing.starts_with("the annotation llm-d.ai/model-id is not set, and no Ready pod"),
        "{nothing}"
    );
    assert!(nothing.ends_with("or set the annotation llm-d.ai/model-id"), "{nothing}");
    let several = problem(&[series("chat-0", "a"), series("chat-0", "b")]);
    assert!(several.ends_with("set the annotation llm-d.ai/model-id to one of them"), "{several}");
    let strange = problem(&[series("chat-0", "a\nb")]);
    assert!(!strange.contains("spec.modelID"), "{strange}");
    assert_eq!(Fixture::default().model_in(&view, &answer(&[series("chat-0", "m")])).unwrap(), "m");
}

#[test]
fn a_name_that_no_object_could_have_is_refused_on_one_line() {
    for name in ["a\nb", "\u{1b}[2K", "\u{202e}", &"x".repeat(257)] {
        let problem = learned(&[series("chat-0", name)]).unwrap_err();
        assert!(problem.contains("at most 256 characters") && problem.chars().all(is_plain), "{problem}");
    }
    assert_eq!(learned(&[series("chat-0", &"é".repeat(256))]).unwrap(), "é".repeat(256));
}

#[test]
fn the_model_stays_in_an_outage_and_at_zero_and_changes_with_the_last_pod() {
    let fixture = Fixture::default();
    assert_eq!(fixture.model(&[series("chat-0", "m")]).unwrap(), "m");
    assert_eq!(fixture.model(&[]).unwrap(), "m", "nothing is measured");
    let down = Err(SourceError { kind: "timeout", message: "no answer".into() });
    assert_eq!(fixture.model_in(&view(vec![variant("chat", "")]), &down).unwrap(), "m");
    let at_zero = VariantState { pods: Vec::new(), ..variant("chat", "") };
    assert_eq!(fixture.model_in(&view(vec![at_zero]), &answer(&[])).unwrap(), "m");
    assert_eq!(fixture.model(&[series("chat-0", "n")]).unwrap(), "n");
    assert!(fixture.model(&[series("chat-0", "o"), series("chat-0", "p")]).is_err(), "neither is known");
}

#[test]
fn a_known_model_changed_on_a_partial_answer_or_while_a_pod_was_not_ready() {
    let pair = |phase| {
        let mut state = variant("chat", "");
        state.pods.push(Pod { name: "chat-1".into(), ..state.pods[0].clone() });
        state.pods[0].phase = phase;
        view(vec![state])
    };
    let fixture = Fixture::default();
    let old = || series("chat-0", "m");
    let new = || series("chat-1", "n");
    assert_eq!(fixture.model_in(&pair(Phase::Ready), &answer(&[old()])).unwrap(), "m");
    assert_eq!(fixture.model_in(&pair(Phase::Ready), &answer(&[old(), new()])).unwrap(), "m", "a roll-out");
    for phase in [Phase::Starting, Phase::Terminating] {
        assert_eq!(fixture.model_in(&pair(phase), &answer(&[old(), new()])).unwrap(), "m", "{phase:?}");
    }
    assert_eq!(fixture.model_in(&pair(Phase::Ready), &answer(&[new()])).unwrap(), "m", "one pod is silent");
    let gap = |namespace: Option<&str>| {
        let gap = Gap { namespace: namespace.map(Into::into), reason: "truncated".into() };
        let series = vec![new().relabelled(|labels| labels.pod = "chat-0".into()), new()];
        Ok(Collected { series, gaps: vec![gap], ..Collected::default() })
    };
    assert_eq!(fixture.model_in(&pair(Phase::Ready), &gap(None)).unwrap(), "m");
    assert_eq!(fixture.model_in(&pair(Phase::Ready), &gap(Some("llm"))).unwrap(), "m");
    assert_eq!(fixture.model_in(&pair(Phase::Ready), &gap(Some("another"))).unwrap(), "n");
}

#[test]
fn a_page_with_many_names_of_models_hid_the_known_one() {
    let fixture = Fixture::default();
    assert_eq!(fixture.model(&[series("chat-0", "z")]).unwrap(), "z");
    let mut many: Vec<_> = (0..100).map(|index| series("chat-0", &format!("a{index}"))).collect();
    many.push(series("chat-0", "z"));
    assert_eq!(fixture.model(&many).unwrap(), "z");
}

#[test]
fn an_object_that_is_invalid_for_a_while_keeps_its_model_and_one_that_is_gone_does_not() {
    let fixture = Fixture::default();
    assert_eq!(fixture.model(&[series("chat-0", "m")]).unwrap(), "m");
    let invalid = vec![InvalidVariant::new(id("chat"), "spec.variantCost".into())];
    fixture.learn(&ClusterView { invalid, ..ClusterView::default() }, &answer(&[]));
    assert_eq!(fixture.model(&[]).unwrap(), "m");
    fixture.learn(&view(Vec::new()), &answer(&[]));
    assert!(fixture.model(&[]).is_err());
}

/// A view of `chat`, which names no model, in which it has this uid and scale target.
fn view_of(uid: &str, target: &str) -> ClusterView {
    let mut state = variant("chat", "");
    state.variant.target = TargetRef::deployment(target);
    let revision = Revision { uid: uid.into(), generation: 1 };
    ClusterView { revisions: Arc::new(BTreeMap::from([(id("chat"), revision)])), ..view(vec![state]) }
}

#[test]
fn an_object_that_was_replaced_or_got_another_target_kept_its_model() {
    let served = answer(&[series("chat-0", "m")]);
    for (uid, target) in [("second", "chat"), ("first", "other")] {
        let fixture = Fixture::default();
        assert_eq!(fixture.model_in(&view_of("first", "chat"), &served).unwrap(), "m");
        assert_eq!(fixture.model_in(&view_of("first", "chat"), &answer(&[])).unwrap(), "m");
        let replaced = view_of(uid, target);
        let serves_n = answer(&[series("chat-0", "n")]);
        for answer in [&answer(&[]), &serves_n] {
            let named = fixture.evaluate(&replaced, answer).remove(&id("chat"));
            assert!(named.unwrap().unwrap_err().is_model_unknown, "m is in force, and not for this object");
        }
        assert_eq!(fixture.model_in(&replaced, &serves_n).unwrap(), "n");
    }
}

#[test]
fn a_variant_at_zero_forgot_its_model_when_the_object_no_longer_named_it() {
    let view = view_of("first", "chat");
    let mut fixture = Fixture::default();
    fixture.last.decisions = BTreeMap::from([(id("chat"), decision("m"))]);
    fixture.last.revisions = view.revisions.clone();
    assert_eq!(fixture.model_in(&view, &answer(&[])).unwrap(), "m");
    fixture.last.revisions = view_of("second", "chat").revisions;
    let restarted = Fixture { models: ModelNames::default(), ..fixture };
    assert!(restarted.model_in(&view, &answer(&[])).is_err(), "the decision was about another object");
}

#[test]
fn the_101st_variant_of_a_model_was_told_that_its_model_is_not_known() {
    let mut variants: Vec<_> =
        (0..MAX_VARIANTS_PER_MODEL - 1).map(|index| variant(&format!("z{index:03}"), "m")).collect();
    variants.splice(0..0, [variant("a", ""), variant("b", "")]);
    let fixture = Fixture::default();
    let named = fixture.learn(&view(variants), &answer(&[series("a-0", "m"), series("b-0", "m")]));
    assert_eq!(named[&id("a")], Ok("m".into()));
    let refused = named[&id("b")].clone().unwrap_err();
    assert!(refused.problem.contains("more than 100 variants"), "{}", refused.problem);
    assert!(!refused.is_model_unknown, "its model is known, and the object has to be corrected");
    let learned = fixture.models.learned().borrow().clone();
    assert_eq!((learned[&id("a")].is_decided, learned[&id("b")].is_decided), (true, false));
}

fn decision(model: &str) -> Decision {
    let unknown = Unknown { cause: Cause::NothingKnown, explanation: "".into(), since: now() };
    let verdict = Verdict::Unknown(unknown);
    Decision { model: model.into(), accelerator: None, current: None, verdict, gap: None }
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_decides_with_the_models_of_the_last_one_once_the_policy_knows_them() {
    let mut restored = Restored::default();
    for (model, name) in [("old", "chat"), ("m", "code"), ("m", "gone")] {
        let memory: &mut GroupMemory = restored.memory.groups.entry(GroupId::new("llm", model)).or_default();
        memory.variants.or_default(name);
    }
    restored.decisions = BTreeMap::from([(id("chat"), decision("n")), (id("code"), decision(""))]);
    let view = view(vec![variant("chat", ""), variant("code", "")]);
    let models = Arc::new(ModelNames::default());
    let mut learned = models.learned();
    let policy = async {
        learned.changed().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let learned = learned.borrow().clone();
        models.put_in_force(learned);
    };
    let began = tokio::time::Instant::now();
    tokio::join!(policy, models.restore(&view, &restored));
    assert_eq!(began.elapsed(), Duration::from_secs(1));
    let named = models.learn(&view, &answer(&[]), &Published::empty(), &models.in_force());
    let named: Vec<_> = named.into_values().map(Result::unwrap).collect();
    assert_eq!(named, ["n", "m"], "what was decided last counts before what is remembered");
    models.restore(&view, &Restored::default()).await;
    assert_eq!(models.learned().borrow().len(), 2, "state that cannot be read takes nothing away");
    let unheard = ModelNames::default();
    unheard.restore(&view, &restored).await;
    assert_eq!(began.elapsed(), Duration::from_secs(1) + RESTORE_TIMEOUT, "without a policy it ends too");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_forgot_the_model_of_an_object_that_was_invalid_when_it_began() {
    let mut restored = Restored::default();
    restored.memory.groups.entry(GroupId::new("llm", "m")).or_default().variants.or_default("chat");
    let invalid = vec![InvalidVariant::new(id("chat"), "spec.variantCost".into())];
    let fixture = Fixture::default();
    fixture.models.restore(&ClusterView { invalid, ..ClusterView::default() }, &restored).await;
    assert_eq!(fixture.model(&[]).unwrap(), "m");
}
