//! V2 token saturation: `v2.*`, and `inputs.kv_tokens` that it rests on.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use wva_core::analyze::finding::Totals;
use wva_core::analyze::saturation_token::knowledge::{Learned, Record};
use wva_core::analyze::saturation_token::queue::{QueueDemand, Workload};
use wva_core::analyze::saturation_token::{
    Knowledge, SchedulerQueue, TokenAnalysis, TokenInput, TokenObservation, TokenPolicy, TokenVariant,
    tokens_in_use,
};
use wva_core::model::{Role, Variant};
use wva_core::snapshot::{Container, Engine, EngineParameters};
use wva_core::units::{Cost, Replicas, Tokens};
use wva_core::upstream::Tree;
use wva_core::upstream::saturation_token::analyze;

use super::UNKNOWN;
use super::read::{cost, float, integer, list, object, or_zero, text_of};

const START: Timestamp = Timestamp::UNIX_EPOCH;

/// Of a variant that a vector says nothing about.
static UNSAID: Value = Value::Null;

pub(super) fn compute(group: &str, inputs: &Value) -> Result<Value, String> {
    match group {
        "inputs.kv_tokens" => kv_tokens(inputs),
        "v2.analyze" => v2_analyze(inputs),
        "v2.defect" if inputs["cycles"].is_array() => bucket_slip(inputs),
        "v2.defect" => stock_not_rate(inputs),
        "v2.k2_estimate" => {
            let estimate = match parameters(&inputs["params"])? {
                Some(parameters) => parameters.resident_tokens(float(&inputs["i"])?, float(&inputs["o"])?),
                None => None,
            };
            Ok(json!(estimate.unwrap_or_default()))
        }
        "v2.queue_demand" => queue_demand(inputs),
        "v2.threshold" => threshold(inputs),
        "v2.args" => arguments(inputs),
        _ => Err(UNKNOWN.into()),
    }
}

fn kv_tokens(inputs: &Value) -> Result<Value, String> {
    let (blocks, block_size) = (whole(&inputs["blocks"], 0)?, whole(&inputs["block_size"], 0)?);
    let total = Tokens::new(blocks.saturating_mul(block_size));
    Ok(json!({ "total": total, "used": tokens_in_use(float_or(&inputs["kv"], 0.0)?, total) }))
}

fn v2_analyze(inputs: &Value) -> Result<Value, String> {
    let tree = tree(inputs)?;
    let cycles = list(&inputs["cycles"])?;
    let mut knowledge = store(&inputs["store"])?;
    let states: Vec<&Value> = list(&inputs["states"])?.iter().collect();
    let queue = scheduler_queue(&inputs["scheduler_queue"])?;
    let variants: Vec<TokenVariant<'_>> = states.iter().map(|one| state(one)).collect::<Result<_, _>>()?;
    let policy = policy(&inputs["cfg"])?;
    let (mut now, mut shown) = (START, Vec::new());
    for cycle in cycles {
        let replicas = observations(cycle)?;
        let inputs = TokenInput { variants: &variants, replicas: &replicas, queue };
        shown.push(show(&analyze(&inputs, &mut knowledge, &policy, tree, now), &states)?);
        now += SignedDuration::from_secs(30);
    }
    let model = inputs["model"].as_str().unwrap_or_default();
    Ok(json!({ "cycles": shown, "history": history(model, &knowledge)? }))
}

fn show(analysis: &TokenAnalysis<'_>, states: &[&Value]) -> Result<Value, String> {
    let mut replicas = serde_json::to_value(&analysis.replicas).map_err(|error| error.to_string())?;
    for one in replicas.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        one.remove("replica");
        let effective = one.remove("effective");
        one.insert("eff".into(), effective.unwrap_or_default());
    }
    let variants = analysis.variants.iter().zip(states).map(|(one, state)| {
        json!({
            "name": one.name, "role": state["role"].as_str().unwrap_or_default(),
            "accel": one.accelerator.as_deref().unwrap_or_default(), "cost": one.cost,
            "replicas": one.replicas, "pending": one.pending, "prc": one.per_replica,
            "capacity": one.total(), "demand": one.demand, "util": one.utilisation(), "reason": one.reason,
        })
    });
    let roles: Map<String, Value> = analysis
        .roles
        .iter()
        .map(|(role, sum)| {
            let sums = json!({ "supply": sum.supply, "anticipated": sum.anticipated, "demand": sum.demand });
            (json!(role).as_str().unwrap_or_default().to_owned(), sums)
        })
        .collect();
    let Totals { supply, anticipated, demand, .. } = analysis.total;
    let utilisation = if supply > 0.0 { demand / supply } else { 0.0 };
    Ok(json!({
        "replica": replicas, "variants": variants.collect::<Vec<_>>(),
        "supply": supply, "anticipated": anticipated, "demand": demand, "util": utilisation,
        "roles": if roles.is_empty() { Value::Null } else { Value::Object(roles) },
    }))
}

fn history(model: &str, knowledge: &Knowledge) -> Result<Value, String> {
    let mut shown = Map::new();
    for one in knowledge.histories.iter() {
        let length = text_of(&json!(one.length))?;
        let values: Vec<f64> = one.values.iter().map(|value| value.to_f64()).collect();
        shown.insert(format!("{model}|{}|{}|{length}", one.accelerator, one.gpus), json!(values));
    }
    Ok(Value::Object(shown))
}

/// What upstream does when a mean output length crosses a boundary, cycle by cycle.
fn bucket_slip(inputs: &Value) -> Result<Value, String> {
    let tree = tree(inputs)?;
    let policy = policy(&inputs["cfg"])?;
    let mut knowledge = store(&inputs["store"])?;
    let (mut now, mut rows) = (START, Vec::new());
    for cycle in list(&inputs["cycles"])? {
        let replicas = observations(cycle)?;
        let name = replicas.first().map_or("", |one| one.variant);
        let current = Replicas::new(wva_core::units::count(replicas.len()));
        let variant = TokenVariant { name, current, ..state(&UNSAID)? };
        let inputs = TokenInput { variants: &[variant], replicas: &replicas, queue: None };
        let found = analyze(&inputs, &mut knowledge, &policy, tree, now);
        let one = found.variants.first().ok_or("no variant")?;
        rows.push(json!({
            "n": current, "prc": one.per_replica, "demand": found.total.demand, "supply": found.total.supply,
            "rc": found.total.required, "sc": found.total.spare, "source": one.reason,
            "step": step(found.total, one.per_replica),
        }));
        now += SignedDuration::from_secs(30);
    }
    Ok(json!({ "rows": rows }))
}

/// A replica whose steps take `alpha` + `slope`·n ms: how the share of resident tokens lags behind the share of the rate.
fn stock_not_rate(inputs: &Value) -> Result<Value, String> {
    const ROWS: [(f64, f64); 4] = [(3.0, 1.8), (2.0, 1.8), (2.0, 1.7), (4.0, 1.8)];
    let [alpha, slope, out, most, tokens] =
        ["alpha", "slope", "out", "max_running", "tokens_per_request"].map(|name| float(&inputs[name]));
    let (alpha, slope, out, most, tokens) = (alpha?, slope?, out?, most?, tokens?);
    let policy = TokenPolicy::default();
    let (up, down) = (policy.scale_up_threshold, policy.scale_down_boundary);
    let rate = |running: f64| running / (out * (alpha + slope * running));
    let running = |rate: f64| rate * out * alpha / (1.0 - rate * out * slope);
    let row = |(replicas, load): (f64, f64)| {
        let share = load / replicas;
        let resident = running(share * rate(most)) / most;
        let worth = most * tokens;
        let supply = replicas * worth;
        let demand = supply * resident;
        let found =
            Totals { supply, anticipated: supply, demand, ..Totals::default() }.apply_thresholds(up, down);
        json!({
            "n": Replicas::ceil(replicas), "rate_share": share, "resident_share": resident,
            "rc": found.required, "sc": found.spare, "step": step(found, worth),
        })
    };
    Ok(json!({
        "max_rate": 1000.0 * rate(most), "rows": ROWS.map(row),
        "up_trigger_as_rate_share": rate(up * most) / rate(most),
    }))
}

/// Replicas more or, negative, fewer.
fn step(totals: Totals, worth: f64) -> i64 {
    let count = |value: f64| i64::from(wva_core::units::truncated_u32(value));
    if worth <= 0.0 {
        0
    } else if totals.required > 0.0 {
        count((totals.required / worth).ceil())
    } else {
        -count((totals.spare / worth).floor())
    }
}

fn queue_demand(inputs: &Value) -> Result<Value, String> {
    let workload = Workload::mean(&observations(&inputs["replicas"])?);
    let Some(queue) = scheduler_queue(&inputs["queue"])?.filter(|queue| *queue != SchedulerQueue::default())
    else {
        return Ok(json!({ "total": 0.0, "by_role": {} }));
    };
    let demand = QueueDemand::new(queue, workload);
    let mut by_role = Map::new();
    for name in list(&inputs["roles"])? {
        by_role.insert(text_of(name)?, json!(demand.of_role(role(name)?)));
    }
    Ok(json!({ "total": demand.total(), "by_role": by_role }))
}

fn threshold(inputs: &Value) -> Result<Value, String> {
    let scope = &inputs["scope"];
    let scope = Totals {
        supply: float_or(&scope["supply"], 0.0)?,
        anticipated: float_or(&scope["anticipated"], 0.0)?,
        demand: float_or(&scope["demand"], 0.0)?,
        required: float_or(&scope["rc"], 0.0)?,
        spare: float_or(&scope["sc"], 0.0)?,
    };
    let totals = scope.apply_thresholds(float_or(&inputs["up"], 0.0)?, float_or(&inputs["down"], 0.0)?);
    Ok(json!({ "rc": totals.required, "sc": totals.spare }))
}

fn arguments(inputs: &Value) -> Result<Value, String> {
    let given = |value: &Value| if value.is_null() { Ok(Vec::new()) } else { list(value).cloned() };
    let texts = |value: &Value| given(value)?.iter().map(text_of).collect::<Result<Vec<_>, _>>();
    let mut containers = Vec::new();
    for one in given(&inputs["containers"])? {
        let image = one["image"].as_str().unwrap_or_default().to_owned();
        let environment = environment(&one["env"])?;
        containers.push(Container {
            image,
            command: texts(&one["command"])?,
            args: texts(&one["args"])?,
            environment,
        });
    }
    let engine = match inputs["engine"].as_str() {
        Some("vllm") => Engine::Vllm,
        Some("sglang") => Engine::Sglang,
        _ => Engine::of(&containers),
    };
    let found = EngineParameters::parse(engine, &containers);
    Ok(json!({
        "engine": found.engine, "gpu_mem": found.memory_fraction, "block": found.block_size,
        "kv_dtype": found.kv_cache_dtype, "tp": found.tensor_parallel_size,
        "blocks_override": found.blocks_override, "max_batched": found.max_batched_tokens,
        "s": found.max_sequences, "max_len": found.max_length, "eager": found.eager, "v1": found.v1,
        "chunked": found.chunked_prefill, "tokens_override": found.tokens_override, "b": found.batched_tokens,
    }))
}

/// A map, or a list as in a pod.
fn environment(value: &Value) -> Result<Vec<(String, String)>, String> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Object(map) => Ok(map.iter().map(|(name, value)| (name.clone(), text(value))).collect()),
        _ => list(value)?.iter().map(|one| Ok((text_of(&one["name"])?, text(&one["value"])))).collect(),
    }
}

/// These vectors are of the June tree unless they say otherwise.
fn tree(inputs: &Value) -> Result<Tree, String> {
    match inputs["tree"].as_str() {
        None | Some("526ce85") => Ok(Tree::June),
        Some("late") => Ok(Tree::August),
        Some(other) => Err(format!("unknown tree {other}")),
    }
}

fn policy(cfg: &Value) -> Result<TokenPolicy, String> {
    let usual = TokenPolicy::default();
    Ok(TokenPolicy {
        kv_cache_threshold: float_or(&cfg["kv"], usual.kv_cache_threshold)?,
        queue_length_threshold: float_or(&cfg["queue"], usual.queue_length_threshold)?,
        scale_up_threshold: float_or(&cfg["up"], usual.scale_up_threshold)?,
        scale_down_boundary: float_or(&cfg["down"], usual.scale_down_boundary)?,
    })
}

fn state(one: &Value) -> Result<TokenVariant<'_>, String> {
    Ok(TokenVariant {
        name: one["name"].as_str().unwrap_or_default(),
        role: role(&one["role"])?,
        accelerator: one["accel"].as_str().unwrap_or_default(),
        cost: cost(&one["cost"])?,
        gpus: if one["gpus"].is_null() { 1 } else { integer(&one["gpus"])? },
        current: or_zero(&one["current"])?,
        pending: or_zero(&one["pending"])?,
        parameters: None,
    })
}

fn role(value: &Value) -> Result<Role, String> {
    match value.as_str() {
        None | Some("" | "both") => Ok(Role::Both),
        Some("decode") => Ok(Role::Decode),
        Some("prefill") => Ok(Role::Prefill),
        Some(other) => Err(format!("unknown role {other}")),
    }
}

fn observations(replicas: &Value) -> Result<Vec<TokenObservation<'_>>, String> {
    list(replicas)?.iter().map(observation).collect()
}

fn observation(one: &Value) -> Result<TokenObservation<'_>, String> {
    Ok(TokenObservation {
        replica: one["pod"].as_str().unwrap_or_default(),
        variant: one["variant"].as_str().unwrap_or_default(),
        accelerator: one["accel"].as_str().unwrap_or_default(),
        cost: Cost::new(float_or(&one["cost"], Variant::DEFAULT_COST)?).map_err(|error| error.to_string())?,
        kv: float_or(&one["kv"], 0.0)?,
        in_use: Tokens::new(whole(&one["used"], 0)?),
        capacity: Tokens::new(whole(&one["total"], 0)?),
        queue: or_zero(&one["queue"])?.get(),
        prompt: float_or(&one["in"], 0.0)?,
        output: float_or(&one["out"], 0.0)?,
        prefix_hits: float_or(&one["hit"], 0.0)?,
    })
}

fn scheduler_queue(value: &Value) -> Result<Option<SchedulerQueue>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let amount = |value: &Value| -> Result<u64, String> { Ok(whole(value, 0)?.max(0).unsigned_abs()) };
    Ok(Some(SchedulerQueue { requests: amount(&value["size"])?, bytes: amount(&value["bytes"])? }))
}

fn store(value: &Value) -> Result<Knowledge, String> {
    let mut knowledge = Knowledge::default();
    if value.is_null() {
        return Ok(knowledge);
    }
    for (name, one) in object(value)? {
        let record = Record {
            accelerator: one["accel"].as_str().unwrap_or_default().into(),
            gpus: if one["gpus"].is_null() { 1 } else { integer(&one["gpus"])? },
            capacity: Tokens::new(whole(&one["total"], 0)?),
            effective: Tokens::new(whole(&one["eff"], 0)?),
            parameters: parameters(&one["params"])?.map(Box::new),
            learned: if one["learned"] == json!("live") { Learned::Live } else { Learned::Arguments },
            updated: START,
        };
        knowledge.records.insert(name.into(), record);
    }
    Ok(knowledge)
}

/// A setting that is not given is empty, which differs from every given one, and not the engine's default.
fn parameters(given: &Value) -> Result<Option<EngineParameters>, String> {
    if given.is_null() {
        return Ok(None);
    }
    let engine = if given["engine"] == json!("sglang") { Engine::Sglang } else { Engine::Vllm };
    let number = |name: &str| whole(&given[name], 0);
    Ok(Some(EngineParameters {
        memory_fraction: float_or(&given["gpu_mem"], 0.0)?,
        block_size: number("block")?,
        kv_cache_dtype: given["kv_dtype"].as_str().unwrap_or_default().into(),
        tensor_parallel_size: number("tp")?,
        blocks_override: number("blocks_override")?,
        tokens_override: number("tokens_override")?,
        max_batched_tokens: number("max_batched")?,
        max_sequences: number("s")?,
        max_length: number("max_len")?,
        batched_tokens: number("b")?,
        ..EngineParameters::defaults(engine)
    }))
}

fn float_or(value: &Value, usual: f64) -> Result<f64, String> {
    if value.is_null() { Ok(usual) } else { float(value) }
}

/// A whole number, also when written as 3.0; too large is the largest.
fn whole(value: &Value, usual: i64) -> Result<i64, String> {
    let exact = if value.is_null() { Some(usual) } else { value.as_i64() };
    let rounded = || value.as_f64().map(|value| Tokens::truncated(value).get());
    exact.or_else(rounded).ok_or_else(|| format!("{value} is not a whole number"))
}
