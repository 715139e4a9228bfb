//! The four parameters of a step with the least mean absolute relative error of prompt times and decode steps, none below 0.
//!
//! Least absolute errors are found by iteratively reweighted least squares with weights of 1/|error|. Each least-squares problem
//! is solved by coordinate descent, which keeps parameters at 0 or above and works with a singular matrix: many tables vary the batch
//! size at one prompt length only.

use serde::Serialize;

use super::table::{BatchSize, Group, Measurement};

/// Tokens of a prompt that one step computes: vLLM's default.
const TOKEN_BUDGET: f64 = 8192.0;
/// Rounds of reweighting.
const ROUNDS: usize = 60;
/// Rounds of coordinate descent in each.
const DESCENTS: usize = 2000;
/// Smaller relative errors weigh like this one: 0.1 % is below the precision of measurements.
const MIN_ERROR: f64 = 1e-3;

/// A step's parameters, in seconds, and how far they are from the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fit {
    /// Of an empty step.
    pub step_seconds: f64,
    /// For each prompt token.
    pub prompt_token_seconds: f64,
    /// For each running request.
    pub sequence_seconds: f64,
    /// For each token in the KV cache.
    pub kv_token_seconds: f64,
    /// Of prompts computed alone: time to first token. `None` where the table has none.
    pub ttft: Option<Errors>,
    /// Of decode steps: time between two tokens.
    pub itl: Option<Errors>,
}

/// The largest error, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Worst {
    /// As a share of what was measured.
    pub error: f64,
    /// The batch.
    #[serde(flatten)]
    pub size: BatchSize,
}

/// How far the fit is from the table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Errors {
    /// Measurements compared.
    pub points: usize,
    /// Mean absolute relative error.
    pub mean: f64,
    /// The largest.
    pub worst: Worst,
}

/// One measurement as a linear equation of the parameters.
#[derive(Debug, Clone, Copy)]
struct Equation {
    coefficients: [f64; 4],
    measured_s: f64,
    size: BatchSize,
}

impl Equation {
    /// A prompt alone takes as many steps as the token budget needs.
    fn prompt(Measurement { size, prompt_s, .. }: Measurement) -> Self {
        let prompt = f64::from(size.prompt);
        let steps = (prompt / TOKEN_BUDGET).ceil();
        Self { coefficients: [steps, prompt, steps, steps * prompt], measured_s: prompt_s, size }
    }

    /// A decode step in the middle of the generation.
    fn decode_step(Measurement { size, step_s, .. }: Measurement) -> Self {
        let batch = f64::from(size.batch);
        let held = batch * (f64::from(size.prompt) + f64::from(size.output) / 2.0);
        Self { coefficients: [1.0, 0.0, batch, held], measured_s: step_s, size }
    }

    /// Relative error of the computed time.
    fn error(&self, parameters: [f64; 4]) -> f64 {
        let products =
            self.coefficients.iter().zip(parameters).map(|(coefficient, parameter)| coefficient * parameter);
        let computed: f64 = products.sum();
        computed / self.measured_s - 1.0
    }
}

/// Fits `group`.
///
/// Only prompts that were computed alone count: of batches, some tables measure the first prompt and some all of them.
#[must_use]
pub fn fit(group: &Group) -> Fit {
    let measurements = || group.measurements.iter().copied();
    let alone = measurements().filter(|measurement| measurement.size.batch == 1);
    let prompts: Vec<Equation> = alone.map(Equation::prompt).collect();
    let steps: Vec<Equation> = measurements().map(Equation::decode_step).collect();
    // Prompts and steps have the same total weight, however many there are of each.
    let weighted = |all: &[Equation]| {
        let weight = 1.0 / all.len().max(1) as f64;
        all.iter().map(move |equation| (*equation, weight)).collect::<Vec<_>>()
    };
    let all: Vec<(Equation, f64)> = [weighted(&prompts), weighted(&steps)].concat();
    let parameters = least_absolute(&all);
    let [step_seconds, prompt_token_seconds, sequence_seconds, kv_token_seconds] = parameters;
    Fit {
        step_seconds,
        prompt_token_seconds,
        sequence_seconds,
        kv_token_seconds,
        ttft: errors(&prompts, parameters),
        itl: errors(&steps, parameters),
    }
}

fn errors(equations: &[Equation], parameters: [f64; 4]) -> Option<Errors> {
    let error = |equation: &Equation| equation.error(parameters).abs();
    let worst = equations.iter().max_by(|left, right| error(left).total_cmp(&error(right)))?;
    let mean = equations.iter().map(error).sum::<f64>() / equations.len() as f64;
    let worst = Worst { error: error(worst), size: worst.size };
    Some(Errors { points: equations.len(), mean, worst })
}

fn least_absolute(equations: &[(Equation, f64)]) -> [f64; 4] {
    let mut parameters = [0.0; 4];
    let mut weights: Vec<f64> = equations.iter().map(|(_, weight)| *weight).collect();
    for _ in 0..ROUNDS {
        parameters = least_squares(equations, &weights, parameters);
        for ((equation, weight), reweighted) in equations.iter().zip(&mut weights) {
            *reweighted = weight / equation.error(parameters).abs().max(MIN_ERROR);
        }
    }
    parameters
}

/// The parameters of at least 0 with the least Σ weight × error².
fn least_squares(equations: &[(Equation, f64)], weights: &[f64], start: [f64; 4]) -> [f64; 4] {
    // The normal equations of the relative errors.
    let mut matrix = [[0.0; 4]; 4];
    let mut right = [0.0; 4];
    for ((equation, _), weight) in equations.iter().zip(weights) {
        let share = equation.coefficients.map(|coefficient| coefficient / equation.measured_s);
        for i in 0..4 {
            right[i] += weight * share[i];
            for j in 0..4 {
                matrix[i][j] += weight * share[i] * share[j];
            }
        }
    }
    let mut parameters = start;
    for _ in 0..DESCENTS {
        for i in 0..4 {
            let others: f64 = (0..4).filter(|j| *j != i).map(|j| matrix[i][j] * parameters[j]).sum();
            if matrix[i][i] > 0.0 {
                parameters[i] = ((right[i] - others) / matrix[i][i]).max(0.0);
            }
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measurements of a server with these parameters.
    fn table([base, prompt, sequence, kv]: [f64; 4]) -> Group {
        let sizes = [(512, 1), (2048, 1), (8192, 1), (512, 8), (512, 32), (512, 64), (128, 1), (4096, 4)];
        let measurements = sizes.map(|(tokens, batch)| {
            let size = BatchSize { prompt: tokens, batch, output: 256 };
            let mut measurement = Measurement { size, prompt_s: 1.0, step_s: 1.0 };
            let sum = |equation: Equation| {
                let parts = equation.coefficients.iter().zip([base, prompt, sequence, kv]);
                parts.map(|(coefficient, parameter)| coefficient * parameter).sum::<f64>()
            };
            measurement.prompt_s = sum(Equation::prompt(measurement));
            measurement.step_s = sum(Equation::decode_step(measurement));
            measurement
        });
        let measurements = measurements.into();
        Group { model: String::new(), hardware: String::new(), tensor_parallel: 1, measurements }
    }

    #[test]
    fn exact_measurements_give_back_the_parameters() {
        let truth = [8.2e-3, 5.5e-5, 1.9e-4, 8.6e-8];
        let fit = fit(&table(truth));
        let found = [fit.step_seconds, fit.prompt_token_seconds, fit.sequence_seconds, fit.kv_token_seconds];
        for (found, truth) in found.into_iter().zip(truth) {
            assert!((found / truth - 1.0).abs() < 0.02, "{fit:?}");
        }
        assert!(fit.ttft.unwrap().mean < 1e-3 && fit.itl.unwrap().mean < 1e-3, "{fit:?}");
    }

    #[test]
    fn an_outlier_moves_nothing_and_is_named_as_the_worst() {
        let truth = [8.2e-3, 5.5e-5, 1.9e-4, 8.6e-8];
        let mut group = table(truth);
        group.measurements[2].step_s *= 2.2;
        let fit = fit(&group);
        assert!((fit.step_seconds / truth[0] - 1.0).abs() < 0.05, "{fit:?}");
        let size = fit.itl.unwrap().worst.size;
        assert_eq!((size.prompt, size.batch), (8192, 1));
    }
}
