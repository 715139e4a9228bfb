//! V2 token saturation: `v2.*`, and `inputs.kv_tokens` that it rests on.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use wva_core::analyze::finding::Totals;
use wva_core::analyze::saturation_token::knowledge::{Learned, Record};
use wva_core::analyze::saturation_token::queue::{QueueDemand, Workload};
use wva_core::analyze::saturation_token::{
    Knowledge, SchedulerQueue, TokenAnalysis, TokenInput, TokenObservation, TokenPolicy, TokenVariant,
    tokens_in_use,
};
use wva_core::snapshot::{Container, Engine, EngineParameters};
use wva_core::units::{Replicas, Tokens, count, truncated_u32};
use wva_core::upstream::{Tree, saturation_token};

use super::read::{
    all, cost, float, float_or, float_or_zero, integer_or, integer_or_zero, list, list_or_empty, object,
    replicas_or_zero, role, text, text_or_empty, tree, whole_or_zero,
};

const START: Timestamp = Timestamp::UNIX_EPOCH;
const CYCLE: SignedDuration = SignedDuration::from_secs(30);

fn tokens(value: &Value) -> Tokens {
    Tokens::new(whole_or_zero(value))
}

pub(super) fn kv_tokens(inputs: &Value) -> Value {
    let (blocks, block_size) = (whole_or_zero(&inputs["blocks"]), whole_or_zero(&inputs["block_size"]));
    let total = Tokens::new(blocks.saturating_mul(block_size));
    json!({ "total": total, "used": tokens_in_use(float_or_zero(&inputs["kv"]), total) })
}

/// These vectors are of the June tree unless they say otherwise.
fn tree_or_june(inputs: &Value) -> Tree {
    tree(inputs).unwrap_or(Tree::June)
}

pub(super) fn analyze(inputs: &Value) -> Value {
    let (tree, policy) = (tree_or_june(inputs), policy(&inputs["cfg"]));
    let mut knowledge = knowledge(&inputs["store"]);
    let states = list(&inputs["states"]);
    let queue = scheduler_queue(&inputs["scheduler_queue"]);
    let variants: Vec<_> = states.iter().map(variant).collect();
    let (mut now, mut cycles) = (START, Vec::new());
    for cycle in list(&inputs["cycles"]) {
        let replicas: Vec<_> = all(cycle, observation);
        let input = TokenInput { variants: &variants, replicas: &replicas, queue };
        cycles.push(show(&saturation_token::analyze(&input, &mut knowledge, &policy, tree, now), states));
        now += CYCLE;
    }
    json!({ "cycles": cycles, "history": history(text_or_empty(&inputs["model"]), &knowledge) })
}

fn show(analysis: &TokenAnalysis<'_>, states: &[Value]) -> Value {
    let mut replicas = json!(analysis.replicas);
    for replica in replicas.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        replica.remove("replica");
        let effective = replica.remove("effective");
        replica.insert("eff".into(), effective.unwrap_or_default());
    }
    let variants = analysis.variants.iter().zip(states).map(|(found, state)| {
        json!({
            "name": found.name, "role": text_or_empty(&state["role"]),
            "accel": found.accelerator.as_deref().unwrap_or_default(), "cost": found.cost, "replicas": found.replicas,
            "pending": found.pending, "prc": found.per_replica, "capacity": found.total(), "demand": found.demand,
            "util": found.utilisation(), "reason": found.reason,
        })
    });
    let sums = |sums: &Totals| json!({ "supply": sums.supply, "anticipated": sums.anticipated, "demand": sums.demand });
    let roles: BTreeMap<_, _> = analysis.roles.iter().map(|(role, found)| (role, sums(found))).collect();
    let Totals { supply, anticipated, demand, .. } = analysis.total;
    json!({
        "replica": replicas, "variants": variants.collect::<Vec<_>>(),
        "supply": supply, "anticipated": anticipated, "demand": demand,
        "util": if supply > 0.0 { demand / supply } else { 0.0 },
        "roles": if roles.is_empty() { Value::Null } else { json!(roles) },
    })
}

fn history(model: &str, knowledge: &Knowledge) -> Map<String, Value> {
    let mut shown = Map::new();
    for known in knowledge.histories.iter() {
        let (accelerator, gpus, length) = (&known.accelerator, known.gpus, json!(known.length));
        let values: Vec<f64> = known.values.iter().map(|value| value.to_f64()).collect();
        shown.insert(format!("{model}|{accelerator}|{gpus}|{}", text(&length)), json!(values));
    }
    shown
}

pub(super) fn defect(inputs: &Value) -> Value {
    if inputs["cycles"].is_array() { bucket_slip(inputs) } else { stock_not_rate(inputs) }
}

/// What upstream does when a mean output length crosses a boundary, cycle by cycle.
fn bucket_slip(inputs: &Value) -> Value {
    let (tree, policy) = (tree_or_june(inputs), policy(&inputs["cfg"]));
    let mut knowledge = knowledge(&inputs["store"]);
    let (mut now, mut rows) = (START, Vec::new());
    for cycle in list(&inputs["cycles"]) {
        let replicas: Vec<_> = all(cycle, observation);
        let name = replicas.first().map_or("", |replica| replica.variant);
        let current = Replicas::new(count(replicas.len()));
        let variants = [TokenVariant { name, current, ..variant(&Value::Null) }];
        let input = TokenInput { variants: &variants, replicas: &replicas, queue: None };
        let found = saturation_token::analyze(&input, &mut knowledge, &policy, tree, now);
        let (total, variant) = (found.total, &found.variants[0]);
        rows.push(json!({
            "n": current, "prc": variant.per_replica, "demand": total.demand, "supply": total.supply,
            "rc": total.required, "sc": total.spare, "source": variant.reason, "step": step(total, variant.per_replica),
        }));
        now += CYCLE;
    }
    json!({ "rows": rows })
}

/// A replica whose steps take `alpha` + `slope`·n ms: how the share of resident tokens lags behind the share of the rate.
fn stock_not_rate(inputs: &Value) -> Value {
    const ROWS: [(f64, f64); 4] = [(3.0, 1.8), (2.0, 1.8), (2.0, 1.7), (4.0, 1.8)];
    let names = ["alpha", "slope", "out", "max_running", "tokens_per_request"];
    let [alpha, slope, out, max_running, tokens] = names.map(|name| float(&inputs[name]));
    let policy = TokenPolicy::default();
    let (up, down) = (policy.scale_up_threshold, policy.scale_down_boundary);
    let rate = |running: f64| running / (out * (alpha + slope * running));
    let running = |rate: f64| rate * out * alpha / (1.0 - rate * out * slope);
    let row = |(replicas, load): (f64, f64)| {
        let share = load / replicas;
        let resident = running(share * rate(max_running)) / max_running;
        let worth = max_running * tokens;
        let supply = replicas * worth;
        let demand = supply * resident;
        let found =
            Totals { supply, anticipated: supply, demand, ..Totals::default() }.apply_thresholds(up, down);
        json!({
            "n": Replicas::ceil(replicas), "rate_share": share, "resident_share": resident,
            "rc": found.required, "sc": found.spare, "step": step(found, worth),
        })
    };
    json!({
        "max_rate": 1000.0 * rate(max_running), "rows": ROWS.map(row),
        "up_trigger_as_rate_share": rate(up * max_running) / rate(max_running),
    })
}

/// Replicas more or, negative, fewer.
fn step(totals: Totals, worth: f64) -> i64 {
    let count = |value: f64| i64::from(truncated_u32(value));
    if worth <= 0.0 {
        0
    } else if totals.required > 0.0 {
        count((totals.required / worth).ceil())
    } else {
        -count((totals.spare / worth).floor())
    }
}

pub(super) fn estimate(inputs: &Value) -> Value {
    let resident =
        |parameters: EngineParameters| parameters.resident_tokens(float(&inputs["i"]), float(&inputs["o"]));
    json!(parameters(&inputs["params"]).and_then(resident).unwrap_or_default())
}

pub(super) fn queue_demand(inputs: &Value) -> Value {
    let replicas: Vec<_> = all(&inputs["replicas"], observation);
    let queue = scheduler_queue(&inputs["queue"]).filter(|queue| *queue != SchedulerQueue::default());
    let Some(queue) = queue else { return json!({ "total": 0.0, "by_role": {} }) };
    let demand = QueueDemand::new(queue, Workload::mean(&replicas));
    let of_role = |name: &Value| (text(name).to_owned(), json!(demand.of_role(role(name))));
    json!({ "total": demand.total(), "by_role": all::<_, Map<_, _>>(&inputs["roles"], of_role) })
}

pub(super) fn threshold(inputs: &Value) -> Value {
    let sum = |name: &str| float_or_zero(&inputs["scope"][name]);
    let scope = Totals {
        supply: sum("supply"),
        anticipated: sum("anticipated"),
        demand: sum("demand"),
        required: sum("rc"),
        spare: sum("sc"),
    };
    let totals = scope.apply_thresholds(float_or_zero(&inputs["up"]), float_or_zero(&inputs["down"]));
    json!({ "rc": totals.required, "sc": totals.spare })
}

pub(super) fn arguments(inputs: &Value) -> Value {
    let texts = |value: &Value| list_or_empty(value).iter().map(|value| text(value).to_owned()).collect();
    let container = |given: &Value| Container {
        image: text_or_empty(&given["image"]).to_owned(),
        command: texts(&given["command"]),
        args: texts(&given["args"]),
        environment: environment(&given["env"]),
    };
    let containers: Vec<_> = list_or_empty(&inputs["containers"]).iter().map(container).collect();
    let engine = match text_or_empty(&inputs["engine"]) {
        "vllm" => Engine::Vllm,
        "sglang" => Engine::Sglang,
        _ => Engine::of(&containers),
    };
    let found = EngineParameters::parse(engine, &containers);
    json!({
        "engine": found.engine, "gpu_mem": found.memory_fraction, "block": found.block_size,
        "kv_dtype": found.kv_cache_dtype, "tp": found.tensor_parallel_size,
        "blocks_override": found.blocks_override, "max_batched": found.max_batched_tokens,
        "s": found.max_sequences, "max_len": found.max_length, "eager": found.eager, "v1": found.v1,
        "chunked": found.chunked_prefill, "tokens_override": found.tokens_override, "b": found.batched_tokens,
    })
}

/// A map, or a list as in a pod.
fn environment(value: &Value) -> Vec<(String, String)> {
    let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), shown(value))).collect(),
        value => {
            let variables = list_or_empty(value).iter();
            variables.map(|given| (text(&given["name"]).to_owned(), shown(&given["value"]))).collect()
        }
    }
}

fn policy(cfg: &Value) -> TokenPolicy {
    let usual = TokenPolicy::default();
    TokenPolicy {
        kv_cache_threshold: float_or(&cfg["kv"], usual.kv_cache_threshold),
        queue_length_threshold: float_or(&cfg["queue"], usual.queue_length_threshold),
        scale_up_threshold: float_or(&cfg["up"], usual.scale_up_threshold),
        scale_down_boundary: float_or(&cfg["down"], usual.scale_down_boundary),
    }
}

fn variant(state: &Value) -> TokenVariant<'_> {
    TokenVariant {
        name: text_or_empty(&state["name"]),
        role: role(&state["role"]),
        accelerator: text_or_empty(&state["accel"]),
        cost: cost(&state["cost"]),
        gpus: integer_or(&state["gpus"], 1),
        current: replicas_or_zero(&state["current"]),
        pending: replicas_or_zero(&state["pending"]),
        parameters: None,
    }
}

fn observation(given: &Value) -> TokenObservation<'_> {
    TokenObservation {
        replica: text_or_empty(&given["pod"]),
        variant: text_or_empty(&given["variant"]),
        accelerator: text_or_empty(&given["accel"]),
        cost: cost(&given["cost"]),
        kv: float_or_zero(&given["kv"]),
        in_use: tokens(&given["used"]),
        capacity: tokens(&given["total"]),
        queue: integer_or_zero(&given["queue"]),
        prompt: float_or_zero(&given["in"]),
        output: float_or_zero(&given["out"]),
        prefix_hits: float_or_zero(&given["hit"]),
    }
}

fn scheduler_queue(value: &Value) -> Option<SchedulerQueue> {
    let amount = |value: &Value| whole_or_zero(value).max(0).unsigned_abs();
    let queue = || SchedulerQueue { requests: amount(&value["size"]), bytes: amount(&value["bytes"]) };
    (!value.is_null()).then(queue)
}

fn knowledge(value: &Value) -> Knowledge {
    let mut knowledge = Knowledge::default();
    let stored = (!value.is_null()).then(|| object(value));
    for (name, given) in stored.into_iter().flatten() {
        let is_live = given["learned"] == "live";
        let record = Record {
            accelerator: text_or_empty(&given["accel"]).into(),
            gpus: integer_or(&given["gpus"], 1),
            capacity: tokens(&given["total"]),
            effective: tokens(&given["eff"]),
            parameters: parameters(&given["params"]).map(Box::new),
            learned: if is_live { Learned::Live } else { Learned::Arguments },
            updated: START,
        };
        knowledge.records.insert(name.into(), record);
    }
    knowledge
}

/// A setting that is not given is empty, which differs from every given one, and not the engine's default.
fn parameters(given: &Value) -> Option<EngineParameters> {
    if given.is_null() {
        return None;
    }
    let engine = if given["engine"] == "sglang" { Engine::Sglang } else { Engine::Vllm };
    let number = |name: &str| whole_or_zero(&given[name]);
    Some(EngineParameters {
        memory_fraction: float_or_zero(&given["gpu_mem"]),
        block_size: number("block"),
        kv_cache_dtype: text_or_empty(&given["kv_dtype"]).into(),
        tensor_parallel_size: number("tp"),
        blocks_override: number("blocks_override"),
        tokens_override: number("tokens_override"),
        max_batched_tokens: number("max_batched"),
        max_sequences: number("s"),
        max_length: number("max_len"),
        batched_tokens: number("b"),
        ..EngineParameters::defaults(engine)
    })
}
