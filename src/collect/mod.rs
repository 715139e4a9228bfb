//! Input edge: metrics of model servers become [`crate::engine::Collected`] samples, from Prometheus or from pods.
