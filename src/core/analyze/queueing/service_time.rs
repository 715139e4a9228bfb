//! How long an iteration, a prompt and a generated token take with n requests in the batch. Everything here is f32 and
//! in the order the reference writes it, so that the results are upstream's to the bit (algorithm reference §5.1).

use serde::{Deserialize, Serialize};

use crate::units::OutOfRange;

/// What an accelerator needs for a model, in milliseconds: the three numbers the tuner learns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// An iteration's fixed part, ms.
    pub alpha: f32,
    /// Computing one token, ms.
    pub beta: f32,
    /// Reading one token of the cache, ms.
    pub gamma: f32,
}

impl Service {
    /// # Errors
    /// When a parameter is negative or not finite.
    pub fn new(alpha: f32, beta: f32, gamma: f32) -> Result<Self, OutOfRange> {
        let at_least_zero = |unit, value: f32| checked(unit, value, 0.0, "finite and at least 0");
        at_least_zero("alpha", alpha)?;
        at_least_zero("beta", beta)?;
        at_least_zero("gamma", gamma)?;
        Ok(Self { alpha, beta, gamma })
    }
}

/// The mean request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// Tokens of its prompt, at least 0.
    pub input: f32,
    /// Tokens generated for it, at least 0; a queue can be solved from 1 on.
    pub output: f32,
}

impl Shape {
    /// # Errors
    /// When a length is negative or not finite.
    pub fn new(input: f32, output: f32) -> Result<Self, OutOfRange> {
        checked("input tokens", input, 0.0, "finite and at least 0")?;
        checked("output tokens", output, 0.0, "finite and at least 0")?;
        Ok(Self { input, output })
    }
}

/// `value` when it is finite and at least `least`.
pub(super) fn checked(
    unit: &'static str,
    value: f32,
    least: f32,
    allowed: &'static str,
) -> Result<f32, OutOfRange> {
    let ok = value.is_finite() && value >= least;
    if ok { Ok(value) } else { Err(OutOfRange { unit, value: f64::from(value), allowed }) }
}

/// The times of one service and one shape, with what does not depend on n computed once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceTimes {
    alpha: f32,
    /// What one more request in the batch adds to an iteration.
    slope: f32,
    /// What a prompt adds to the iteration it is in.
    prompt: f32,
    beta: f32,
    /// γ·(I + O/2): reading a request's own cache.
    own: f32,
    pub(super) shape: Shape,
}

impl ServiceTimes {
    /// The times of `shape` on `service`.
    #[must_use]
    pub fn new(service: Service, shape: Shape) -> Self {
        let Service { alpha, beta, gamma } = service;
        let computed = (shape.input + shape.output) / (shape.output + 1.0);
        let resident = shape.input + shape.output / 2.0;
        let slope = beta * computed + gamma * resident;
        Self { alpha, slope, prompt: (beta + gamma) * shape.input, beta, own: gamma * resident, shape }
    }

    /// T(n): one iteration with `n` requests, ms.
    #[must_use]
    pub fn iteration(&self, n: f32) -> f32 {
        self.alpha + n * self.slope
    }

    /// The prompt of one request, ms; 0 without a prompt.
    #[must_use]
    pub fn prefill(&self, n: f32) -> f32 {
        if self.shape.input > 0.0 { self.iteration(n) + self.prompt } else { 0.0 }
    }

    /// One generated token, ms.
    #[must_use]
    pub fn decode(&self, n: f32) -> f32 {
        self.iteration(n) + self.beta + self.own
    }

    /// μ(n): requests finished per ms with `n` in service.
    pub(super) fn rate(&self, n: f32) -> f32 {
        n / (self.prefill(n) + self.shape.output * self.decode(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_that_is_negative_or_not_a_number_is_named() {
        let error = Service::new(1.0, -0.5, 0.0).unwrap_err();
        assert_eq!(error.to_string(), "beta -0.5 is out of range: must be finite and at least 0");
        assert_eq!(Service::new(1.0, 0.0, f32::NAN).unwrap_err().unit, "gamma");
        assert_eq!(Shape::new(f32::INFINITY, 1.0).unwrap_err().unit, "input tokens");
        assert_eq!(Shape::new(1.0, -1.0).unwrap_err().unit, "output tokens");
    }
}
