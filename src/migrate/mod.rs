//! What a migration from WVA to this program would be: what is found, what stays, what changes, what is lost, and the commands. Pure:
//! it judges objects that were read elsewhere, as the program itself would read them, and changes nothing.

mod autoscalers;
mod commands;
mod controller;
mod documents;
mod keda;
mod metrics_api;
mod objects;
mod policies;
mod release;
mod report;
mod steps;
mod uninstall;
mod values;
mod variants;

use std::collections::BTreeSet;

use self::autoscalers::Readers;
use self::controller::Controller;
use self::metrics_api::Route;
use self::policies::Policies;
use self::steps::Plan;

pub use objects::{FORGOTTEN, Kind, Needed, Objects, metrics_apis};
pub use report::{Finding, Readiness, Report, Step};

pub(crate) use documents::objects as manifest_objects;
pub(crate) use objects::quantities_as_text;

/// The kinds whose objects decide what is safe to switch, stop and remove.
const DECISIVE: [Kind; 4] =
    [Kind::Deployment, Kind::HorizontalPodAutoscaler, Kind::ScaledObject, Kind::ApiService];

/// What else has to be read to judge `objects`.
pub fn needed(objects: &mut Objects) -> BTreeSet<Needed> {
    let mut needed = objects.needed();
    for controller in controllers(objects) {
        let Ok(config) = &controller.config else { continue };
        let local = config.config_maps.iter().filter(|(kind, _)| kind.may_be_local());
        needed.extend(local.map(|(_, name)| Needed::ConfigMapsCalled(name.clone())));
    }
    needed
}

/// What a migration of `objects` would be.
#[must_use]
pub fn report(objects: &Objects) -> Report {
    let mut report = Report::default();
    report_unread(objects, &mut report);
    let controllers = controllers(objects);
    if controllers.is_empty() && !objects.is_unread(Kind::Deployment) {
        report.found("no controller of WVA");
    }
    if controllers.len() > 1 {
        report.act(
            format!("{} controllers of WVA", controllers.len()),
            "the commands take over the settings of one, and none is chosen; in a cluster all HPAs read one installation of this \
             program, because external metrics have one owner",
            "choose the one to begin with by --controller NAMESPACE/NAME, and install this program once for all namespaces",
        );
    }
    let mut policies = None;
    for controller in &controllers {
        controller.report(&mut report);
        if let Ok(config) = &controller.config {
            let read = Policies::read(controller, config, objects, &mut report);
            policies.get_or_insert(read);
        }
    }
    let variants = variants::read(objects, &controllers, &mut report);
    let config = controllers.first().and_then(|controller| controller.config.as_ref().ok());
    let instance = config.and_then(|config| config.controller_instance.as_deref());
    let readers = Readers { objects, variants: &variants, instance }.report(&mut report);
    let scaled_objects = keda::report(objects, &variants.valid, &mut report);
    let route = metrics_api::route(objects, &readers, &mut report);
    uninstall::report(objects, &controllers, &mut report);
    if controllers.len() > 1 {
        return report;
    }
    let names = objects.variants.keys().chain(objects.annotated.keys().map(|(name, _)| name));
    let plan = Plan {
        controller: controllers.first(),
        stored: controllers.first().and_then(|controller| objects.releases.get(controller.release.as_ref()?)),
        policies: policies.as_ref(),
        route: &route,
        is_scraped: route == Route::Scraped || scaled_objects.count > 0,
        scaled_objects: &scaled_objects.to_pause,
        withheld: withheld(objects, &route),
        namespaces: names.map(|name| name.namespace.clone()).collect(),
        has_hpas: !readers.of_wva.is_empty(),
    };
    plan.write(&mut report);
    report
}

/// Reports what could not be read.
fn report_unread(objects: &Objects, report: &mut Report) {
    for unread in &objects.unread {
        report.unread(unread);
    }
    for kind in DECISIVE.into_iter().chain([Kind::VariantAutoscaling]) {
        if objects.is_absent_from_files(kind) {
            report.unread(format!(
                "no {0} is in the files, which does not show that the cluster has none; add those of `kubectl get {0} -A -o yaml`",
                kind.name()
            ));
        }
    }
}

/// What was not read and decides whether switching, stopping and removing is safe.
fn withheld(objects: &Objects, route: &Route) -> Option<String> {
    let mut unread: Vec<String> = DECISIVE
        .into_iter()
        .filter(|kind| objects.is_unread(*kind))
        .map(|kind| format!("{}s", kind.name()))
        .collect();
    if unread.is_empty() && *route == Route::Unknown {
        unread.push("the rules of prometheus-adapter".into());
    }
    unread.extend(objects.namespace.as_ref().map(|namespace| format!("namespaces other than {namespace}")));
    (!unread.is_empty()).then(|| unread.join(", "))
}

fn controllers(objects: &Objects) -> Vec<Controller<'_>> {
    let controllers = objects.controllers.iter();
    controllers.map(|(name, deployment)| Controller::new(name, deployment, objects)).collect()
}
