//! What models share: limits on GPUs, power and money.

use std::collections::BTreeMap;

use smol_str::{SmolStr, format_smolstr};

use crate::arithmetic;
use crate::limit::{Budget, INVENTORY, KnownGpus, Limit, Quota, limits_of_variants};
use crate::model::{Compat, LimitPolicy, Power, VariantId};
use crate::report::{Detail, GroupReport, LimitGap, Step};
use crate::snapshot::{ModelGroup, Snapshot, VariantLimit};
use crate::units::Watts;

/// The limits that all models share, with the resources of the cluster.
pub(super) struct Limits {
    all: Vec<Limit>,
    /// One spelling of each accelerator that a limit names, by its name in lower case.
    spellings: BTreeMap<String, SmolStr>,
    /// The policy asks for the inventory as a limit, and lets additions through where it is not known.
    lets_unknown_through: bool,
    /// The inventory is in force.
    has_inventory: bool,
    /// Accelerators that the inventory does not list are not limited.
    is_inventory_open: bool,
    /// A node whose GPUs no inventory knows, and which leaves it without force.
    unlabelled: Option<SmolStr>,
}

impl Limits {
    /// The limits of `policy`. The inventory is not in force while it is not known, or incomplete, unless the policy says that nothing is added
    /// then.
    pub(super) fn new(snapshot: &Snapshot, compat: Compat, policy: &LimitPolicy) -> Self {
        let is_used = policy.inventory && policy.quotas.is_empty();
        let lets_unknown_through = is_used && !policy.fail_closed;
        let is_known = !(snapshot.is_inventory_stale && policy.fail_closed);
        let known = KnownGpus {
            inventory: snapshot.inventory.as_ref().filter(|_| is_known),
            elsewhere: &snapshot.elsewhere,
            unlabelled: snapshot.unlabelled.as_ref(),
        };
        let inventory = arithmetic::inventory(known, lets_unknown_through, compat);
        let mut limits = Self {
            all: Vec::new(),
            spellings: BTreeMap::new(),
            lets_unknown_through,
            has_inventory: is_used && inventory.gpus.is_some(),
            is_inventory_open: inventory.is_open,
            unlabelled: inventory.unlabelled.cloned(),
        };
        if is_used && (inventory.gpus.is_some() || policy.fail_closed) {
            let budget = limits.spelled(inventory.gpus.into_iter().flatten(), u32::saturating_add);
            let elsewhere = limits.spelled(inventory.elsewhere.into_iter().flatten(), u32::saturating_add);
            let elsewhere = elsewhere.into_iter().map(|(name, gpus)| (name, f64::from(gpus))).collect();
            let own = Limit::new(INVENTORY, Budget::Inventory(budget));
            limits.all.push(Limit { elsewhere, open: inventory.is_open, ..own });
        }
        for configured in &policy.quotas {
            let quota = limits.quota(configured);
            limits.all.push(quota);
        }
        if let Some(Power { watts, per_gpu }) = &policy.power {
            let watts_of = |watts: f64| Watts::new(watts).unwrap_or(Watts::ZERO);
            let per_gpu = limits.spelled(per_gpu, f64::max);
            let per_gpu = per_gpu.into_iter().map(|(name, watts)| (name, watts_of(watts))).collect();
            limits.all.push(Limit::new("power", Budget::Power { budget: watts_of(*watts), per_gpu }));
        }
        limits.all.extend(policy.spend.map(|budget| Limit::new("spend", Budget::Spend(budget))));
        // They limit where the inventory does. Without failClosed, not while there are none, of which a node autoscaler may add the first, or while a
        // node that names no accelerator may be one.
        let may_be_added =
            |own: &VariantLimit| !policy.fail_closed && (own.gpus == 0 || limits.unlabelled.is_some());
        let is_in_force =
            |own: &&VariantLimit| own.limit != VariantLimit::SUITABLE_NODES || is_used && !may_be_added(own);
        let of_variants = limits_of_variants(snapshot.limits.iter().filter(is_in_force));
        limits.all.extend(of_variants);
        limits
    }

    /// The limits in force when they cannot be computed, because of `cause`: nothing is added.
    pub(super) fn denying(cause: &str) -> Self {
        let name = format_smolstr!("limits that cannot be computed ({cause}; please report this)");
        Self {
            all: vec![Limit::new(name, Budget::Inventory(BTreeMap::new()))],
            spellings: BTreeMap::new(),
            lets_unknown_through: false,
            has_inventory: false,
            is_inventory_open: false,
            unlabelled: None,
        }
    }

    pub(super) fn all(&self) -> &[Limit] {
        &self.all
    }

    /// Whether a limit may hold back a variant of `group`.
    pub(super) fn concern(&self, group: &ModelGroup) -> bool {
        let concerns = |limit: &Limit| match &limit.budget {
            Budget::OfVariants(shares) => group.variants.iter().any(|state| {
                let VariantId { namespace, name } = &state.variant.id;
                shares.get(namespace).is_some_and(|names| names.contains_key(name))
            }),
            _ => true,
        };
        self.all.iter().any(concerns)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// `by_type` under one spelling of each name; the values of several spellings are merged by `both`.
    fn spelled<'n, T: Copy + 'n>(
        &mut self,
        by_type: impl IntoIterator<Item = (&'n SmolStr, &'n T)>,
        both: impl Fn(T, T) -> T,
    ) -> BTreeMap<SmolStr, T> {
        let mut spelled: BTreeMap<SmolStr, T> = BTreeMap::new();
        for (name, value) in by_type {
            let own = self.spellings.entry(name.to_ascii_lowercase()).or_insert_with(|| name.clone());
            spelled.entry(own.clone()).and_modify(|sum| *sum = both(*sum, *value)).or_insert(*value);
        }
        spelled
    }

    /// An accelerator as the limits spell it: users, nodes and vendors differ in upper and lower case.
    pub(super) fn spelling(&self, accelerator: Option<&SmolStr>) -> Option<SmolStr> {
        let name = accelerator?;
        Some(self.spellings.get(&name.to_ascii_lowercase()).unwrap_or(name).clone())
    }

    /// A quota that is not valid has been refused where the policy was read; here it denies.
    fn quota(&mut self, configured: &crate::model::Quota) -> Limit {
        use crate::model::Quota::{Cluster, Namespace};
        // The tighter of two spellings; a negative quota is no bound.
        let tighter =
            |left: i64, right: i64| if left < 0 || (0..left).contains(&right) { right } else { left };
        let named =
            |name: &SmolStr, usual| if name.is_empty() { SmolStr::new_static(usual) } else { name.clone() };
        let (name, quota) = match configured {
            Cluster { name, quotas } => {
                (named(name, "cluster quota"), Quota::cluster(self.spelled(quotas, tighter)))
            }
            Namespace { name, namespace_quotas, exclude } => {
                let listed = namespace_quotas.iter();
                let listed = listed.map(|(name, quotas)| (name.clone(), self.spelled(quotas, tighter)));
                let (listed, excluded) = (listed.collect(), exclude.iter().cloned().collect());
                (named(name, "namespace quota"), Quota::namespaces(listed, excluded))
            }
        };
        let denied = || Quota::cluster(BTreeMap::new());
        let quota = quota.or_else(|_| denied());
        Limit::new(name, quota.map_or_else(|_| Budget::Inventory(BTreeMap::new()), Budget::Quota))
    }

    /// Says of which variants of `group` the inventory is no limit although the policy asks for it.
    pub(super) fn report_gaps(&self, group: &ModelGroup, report: &mut GroupReport) {
        if !self.lets_unknown_through {
            return;
        }
        for state in &group.variants {
            let Some(gap) = self.gap(state.variant.accelerator.as_ref()) else { continue };
            let name = &state.variant.id.name;
            report.steps.push(Step::of_variant(name, Detail::LimitNotEnforced(gap.clone())));
            report.limit_gaps.insert(name.clone(), gap);
        }
    }

    fn gap(&self, accelerator: Option<&SmolStr>) -> Option<LimitGap> {
        if !self.has_inventory {
            let unlabelled = self.unlabelled.clone().map(|node| LimitGap::UnlabelledNode { node });
            return unlabelled.or(Some(LimitGap::NoInventory));
        }
        let accelerator = accelerator.filter(|_| self.is_inventory_open)?;
        let own = self.spelling(Some(accelerator))?;
        let lists =
            |limit: &Limit| matches!(&limit.budget, Budget::Inventory(there) if there.contains_key(&own));
        let missing = !self.all.iter().any(lists);
        missing.then(|| LimitGap::NotInInventory { accelerator: accelerator.clone() })
    }
}
