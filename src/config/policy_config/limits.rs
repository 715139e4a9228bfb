//! What all models share: what an entry `default` of the release's own namespace says of limits.

use std::collections::BTreeMap;

use smol_str::SmolStr;
use wva_core::model::{LimitPolicy, Power, Quota};
use wva_core::units::Cost;

use super::fields::{Fields, Range, as_whole};
use super::node::Node;

/// Hours and cards of a large cluster cost less, and draw less.
const MOST: f64 = 1e9;

/// What an entry says of limits.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Limits {
    enabled: bool,
    fail_closed: bool,
    limiters: Vec<Limiter>,
    pub(super) rescale: Option<bool>,
    power: Option<Power>,
    spend: Option<Cost>,
}

#[derive(Debug, Clone, PartialEq)]
enum Limiter {
    Inventory,
    Quota(Quota),
}

impl Limits {
    pub(super) fn read(fields: &mut Fields<'_>) -> Self {
        let enabled = fields.switch("enableLimiter");
        let limiters = fields.each("limiters", Limiter::read);
        let limiters: Vec<_> = limiters.into_iter().flatten().flatten().collect();
        if enabled != Some(true) && !limiters.is_empty() {
            fields.note("limiters", "has no effect without enableLimiter: true");
        }
        let fail_closed = fields.switch("failClosed").unwrap_or(false);
        if enabled != Some(true) && fail_closed {
            fields.note("failClosed", "has no effect without enableLimiter: true");
        }
        let quotas = limiters.iter().any(|limiter| matches!(limiter, Limiter::Quota(_)));
        if quotas && limiters.contains(&Limiter::Inventory) {
            fields.note("limiters", "has quotas, which take the place of the inventory");
        }
        Self {
            enabled: enabled.unwrap_or(false),
            fail_closed,
            limiters,
            rescale: fields.switch("enableRescale"),
            power: fields.within("power", power).flatten(),
            spend: fields
                .number("spend", Range::from(0.0, MOST, "0 to 1e9"))
                .and_then(|spend| Cost::new(spend).ok()),
        }
    }

    /// What counts nowhere but in the entry `default` of the release's own namespace is set here.
    pub(super) fn is_set(&self) -> bool {
        self.enabled
            || self.fail_closed
            || !self.limiters.is_empty()
            || self.power.is_some()
            || self.spend.is_some()
    }

    /// As the core has it. Any quota takes the place of the inventory (algorithm reference §7.9).
    pub(super) fn policy(&self, rescale_namespaces: BTreeMap<SmolStr, bool>) -> LimitPolicy {
        let quotas: Vec<Quota> = self
            .limiters
            .iter()
            .filter(|_| self.enabled)
            .filter_map(|limiter| match limiter {
                Limiter::Quota(quota) => Some(quota.clone()),
                Limiter::Inventory => None,
            })
            .collect();
        LimitPolicy {
            inventory: self.enabled && quotas.is_empty(),
            fail_closed: self.enabled && self.fail_closed,
            quotas,
            power: self.power.clone(),
            spend: self.spend,
            rescale: self.rescale.unwrap_or(false),
            rescale_namespaces,
        }
    }
}

impl Limiter {
    fn read(fields: &mut Fields<'_>) -> Option<Self> {
        let kind = fields.text("type");
        let name: SmolStr = fields.text("name").unwrap_or_default().into();
        let scope = fields.text("scope");
        let quotas = fields.by_name("quotas", quota);
        let namespace_quotas = fields.by_two_names("namespaceQuotas", quota);
        let exclude = fields.texts("exclude");
        match (kind, scope) {
            (Some("gpu-inventory" | "inventory"), _) => {
                if scope.is_some() || quotas.is_some() || namespace_quotas.is_some() || exclude.is_some() {
                    fields.note("type", "gpu-inventory has no scope and no quotas: they have no effect");
                }
                Some(Self::Inventory)
            }
            (Some("quota"), Some("cluster")) => {
                if namespace_quotas.is_some() || exclude.is_some() {
                    fields.note("scope", "cluster leaves namespaceQuotas and exclude without effect");
                }
                Some(Self::Quota(Quota::Cluster { name, quotas: quotas.unwrap_or_default() }))
            }
            (Some("quota"), Some("namespace")) => {
                if quotas.is_some() {
                    fields.note("scope", "namespace leaves quotas without effect: see namespaceQuotas");
                }
                let namespace_quotas = namespace_quotas.unwrap_or_default();
                let exclude = exclude.unwrap_or_default();
                Some(Self::Quota(Quota::Namespace { name, namespace_quotas, exclude }))
            }
            (Some("quota"), scope) => {
                let given = scope.map_or(Node::Null, |text| Node::Text(text.to_owned()));
                fields.refuse("scope", &given, "cluster or namespace");
                None
            }
            (other, _) => {
                let given = other.map_or(Node::Null, |text| Node::Text(text.to_owned()));
                fields.refuse("type", &given, "gpu-inventory or quota");
                None
            }
        }
    }
}

fn quota(fields: &mut Fields<'_>, path: &str, node: &Node) -> Option<i64> {
    let whole = as_whole(node).filter(|value| (Quota::UNLIMITED..=Quota::MAX_GPUS).contains(value));
    if whole.is_none() {
        let (least, most) = (Quota::UNLIMITED, Quota::MAX_GPUS);
        fields.refuse(path, node, &format!("a whole number, {least} (unlimited) to {most}"));
    }
    whole
}

fn power(fields: &mut Fields<'_>) -> Option<Power> {
    let range = Range::from(0.0, MOST, "0 to 1e9");
    let watts = fields.number("watts", range);
    let per_gpu = fields.by_name("perGpu", |fields, path, node| match node {
        Node::Number(watts) if (0.0..=MOST).contains(watts) => Some(*watts),
        _ => {
            fields.refuse(path, node, &format!("a number, {}", range.words));
            None
        }
    });
    match (watts, per_gpu) {
        (Some(watts), Some(per_gpu)) if !per_gpu.is_empty() => Some(Power { watts, per_gpu }),
        _ => {
            fields.refuse_all("watts and perGpu belong together: must have both");
            None
        }
    }
}
