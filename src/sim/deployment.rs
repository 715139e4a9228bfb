//! Keeps a wanted number of pods in a fleet, as a Deployment does: new pods take time to start; pods that are still
//! starting leave first, then the youngest.

use std::time::Duration;

use super::fleet::{Fleet, FleetError, PodPhase, PodSpec, PodView};
use super::rng::Rng;
use super::span;

/// How long a pod takes from creation to Ready.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StartUp {
    /// On average.
    pub mean: Duration,
    /// Uniform within mean ± this share of it.
    pub spread: f64,
}

/// A named set of pods made from one template.
#[derive(Debug, Clone)]
pub struct Deployment {
    template: PodSpec,
    start_up: StartUp,
    rng: Rng,
}

impl Deployment {
    /// Pods like `template`, named `<template.name>-<suffix>`.
    #[must_use]
    pub fn new(template: PodSpec, start_up: StartUp, seed: u64) -> Self {
        Self { template, start_up, rng: Rng::new(seed) }
    }

    /// The group of all its pods.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.template.group
    }

    /// Its pods that are not on their way out, oldest first.
    fn pods<'a>(&self, fleet: &'a Fleet) -> Vec<PodView<'a>> {
        let mine = fleet.pods().filter(|pod| pod.group == self.template.group);
        let mut pods: Vec<_> = mine.filter(|pod| pod.phase != PodPhase::Terminating).collect();
        pods.sort_by_key(|pod| (pod.phase == PodPhase::Starting, pod.created, pod.name));
        pods
    }

    /// Pods that exist and are not on their way out.
    #[must_use]
    pub fn replicas(&self, fleet: &Fleet) -> usize {
        self.pods(fleet).len()
    }

    /// Starts or terminates pods until there are `wanted`.
    ///
    /// # Errors
    /// When the fleet refuses a pod.
    pub fn scale(&mut self, fleet: &mut Fleet, wanted: usize) -> Result<(), FleetError> {
        let names: Vec<String> = self.pods(fleet).iter().map(|pod| pod.name.to_owned()).collect();
        for name in names.iter().skip(wanted) {
            fleet.terminate(name);
        }
        for _ in names.len()..wanted {
            let delay = self.rng.around(self.start_up.mean.as_secs_f64(), self.start_up.spread);
            self.start(fleet, span(delay))?;
        }
        Ok(())
    }

    /// Makes the first `wanted` pods, Ready at once: the state before the story begins.
    ///
    /// # Errors
    /// When the fleet refuses a pod.
    pub fn begin_with(&mut self, fleet: &mut Fleet, wanted: usize) -> Result<(), FleetError> {
        (self.replicas(fleet)..wanted).try_for_each(|_| self.start(fleet, Duration::ZERO))
    }

    fn start(&mut self, fleet: &mut Fleet, ready_in: Duration) -> Result<(), FleetError> {
        let mut name = format!("{}-{}", self.template.name, self.rng.suffix());
        while fleet.pod(&name).is_some() {
            name = format!("{}-{}", self.template.name, self.rng.suffix());
        }
        fleet.start(PodSpec { name, ..self.template.clone() }, ready_in)
    }
}
