//! Composition root: constructs clients, channels, registries and tasks. The only place that spawns long-lived tasks.
