//! `MPSMatrixNeuron` and `MPSMatrixFullyConnected`

use super::array::Region;
use super::multiplication::product;
use super::{available, Batch, Encoding, Matrix, Origin, Vector};
use crate::command_buffer::CommandBuffer;

/// A function of one number, with parameters a, b and c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeuronKind {
    None,
    ReLU,
    Linear,
    Sigmoid,
    HardSigmoid,
    TanH,
    Absolute,
    SoftPlus,
    SoftSign,
    ELU,
    PReLU,
    ReLUN,
    Power,
    Exponential,
    Logarithm,
    GeLU,
}

/// result = neuron(alpha · input + bias)
#[derive(Clone, Debug)]
pub struct Neuron {
    pub kind: NeuronKind,
    pub parameters: [f32; 3],
    /// A value of a for each column, for PReLU.
    pub slopes: Vec<f32>,
    pub alpha: f64,
    /// `usize::MAX` for all there are.
    pub rows: usize,
    pub columns: usize,
    pub source_origin: Origin,
    pub result_origin: Origin,
    pub batch: Batch,
}

impl Default for Neuron {
    fn default() -> Self {
        Self {
            kind: NeuronKind::None,
            parameters: [0.0; 3],
            slopes: Vec::new(),
            alpha: 1.0,
            rows: usize::MAX,
            columns: usize::MAX,
            source_origin: Origin::default(),
            result_origin: Origin::default(),
            batch: Batch::default(),
        }
    }
}

impl Neuron {
    pub fn encode(
        &self,
        buffer: &CommandBuffer,
        input: &Matrix,
        bias: Option<&Vector>,
        result: &Matrix,
    ) {
        let mut encoding = Encoding::new(buffer, "MPSMatrixNeuron");
        let rows = available(self.rows, self.source_origin.row, input.descriptor.rows);
        let columns = available(
            self.columns,
            self.source_origin.column,
            input.descriptor.columns,
        );
        encoding.require(rows > 0 && columns > 0, || {
            format!("{rows}×{columns} elements are empty")
        });
        let x = encoding.region("the input matrix", input, self.source_origin, rows, columns);
        let y = encoding.region(
            "the result matrix",
            result,
            self.result_origin,
            rows,
            columns,
        );
        let batch = encoding.batch(self.batch, &[input, result]);
        encoding.require_float(&[
            ("the input matrix", input.descriptor.data_type),
            ("the result matrix", result.descriptor.data_type),
        ]);
        let bias = bias.map(|bias| bias_region(&mut encoding, bias, columns));
        self.check_slopes(&mut encoding, columns);

        let (neuron, alpha) = (self.clone(), self.alpha as f32);
        let inputs: Vec<_> = [&x].into_iter().chain(&bias).collect();
        let (input, result, bias) = (x.clone(), y.clone(), bias.clone());
        encoding.finish(batch, &inputs, &y, move |index| {
            let mut values = input.load(index);
            values.iter_mut().for_each(|value| *value *= alpha);
            neuron.apply(&mut values, bias.as_ref(), columns);
            result.store(index, &values);
        });
    }

    fn check_slopes(&self, encoding: &mut Encoding<'_>, columns: usize) {
        let per_column = self.kind == NeuronKind::PReLU;
        encoding.require(!per_column || self.slopes.len() == columns, || {
            format!(
                "PReLU has {} parameters for {columns} columns",
                self.slopes.len()
            )
        });
    }

    /// Adds the bias to each row and applies the function.
    fn apply(&self, values: &mut [f32], bias: Option<&Region>, columns: usize) {
        let bias = bias.map(|bias| bias.load(0));
        for row in values.chunks_exact_mut(columns) {
            for (j, value) in row.iter_mut().enumerate() {
                let x = *value + bias.as_ref().map_or(0.0, |bias| bias[j]);
                *value = self.activate(x, j);
            }
        }
    }

    fn activate(&self, x: f32, column: usize) -> f32 {
        let [a, b, c] = self.parameters;
        let leaky = |slope: f32| if x >= 0.0 { x } else { slope * x };
        match self.kind {
            NeuronKind::None => x,
            NeuronKind::ReLU => leaky(a),
            NeuronKind::Linear => a * x + b,
            NeuronKind::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            NeuronKind::HardSigmoid => (a * x + b).clamp(0.0, 1.0),
            NeuronKind::TanH => a * (b * x).tanh(),
            NeuronKind::Absolute => x.abs(),
            NeuronKind::SoftPlus => a * (b * x).exp().ln_1p(),
            NeuronKind::SoftSign => x / (1.0 + x.abs()),
            NeuronKind::ELU => {
                if x >= 0.0 {
                    x
                } else {
                    a * x.exp_m1()
                }
            }
            NeuronKind::PReLU => leaky(self.slopes[column]),
            NeuronKind::ReLUN => leaky(a).min(b),
            NeuronKind::Power => (a * x + b).powf(c),
            // A base of −1 stands for e.
            NeuronKind::Exponential if c == -1.0 => (a * x + b).exp(),
            NeuronKind::Exponential => c.powf(a * x + b),
            NeuronKind::Logarithm if c == -1.0 => (a * x + b).ln(),
            NeuronKind::Logarithm => (a * x + b).log(c),
            NeuronKind::GeLU => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        }
    }
}

/// result = neuron(alpha · input · weight + bias), with a weight of inputs × outputs
#[derive(Clone, Debug, Default)]
pub struct FullyConnected {
    /// Its columns are the input channels.
    pub neuron: Neuron,
    /// `None` for all there are.
    pub outputs: Option<usize>,
    pub weight_origin: Origin,
}

impl FullyConnected {
    pub fn encode(
        &self,
        buffer: &CommandBuffer,
        input: &Matrix,
        weight: &Matrix,
        bias: Option<&Vector>,
        result: &Matrix,
    ) {
        let mut encoding = Encoding::new(buffer, "MPSMatrixFullyConnected");
        let Neuron {
            source_origin,
            result_origin,
            batch,
            ..
        } = self.neuron;
        let m = available(self.neuron.rows, source_origin.row, input.descriptor.rows);
        let k = available(
            self.neuron.columns,
            source_origin.column,
            input.descriptor.columns,
        );
        let wanted = self.outputs.unwrap_or(usize::MAX);
        let n = available(wanted, self.weight_origin.column, weight.descriptor.columns);
        encoding.require(m > 0 && k > 0 && n > 0, || {
            format!("a product of {m}×{k} and {k}×{n} is empty")
        });
        let x = encoding.region("the input matrix", input, source_origin, m, k);
        let w = encoding.region("the weight matrix", weight, self.weight_origin, k, n);
        let y = encoding.region("the result matrix", result, result_origin, m, n);
        let batch = encoding.batch(batch, &[input, weight, result]);
        encoding.require_float(&[
            ("the input matrix", input.descriptor.data_type),
            ("the weight matrix", weight.descriptor.data_type),
            ("the result matrix", result.descriptor.data_type),
        ]);
        encoding.require_apart("the input matrix", &x, &y, &batch);
        encoding.require_apart("the weight matrix", &w, &y, &batch);
        let bias = bias.map(|bias| bias_region(&mut encoding, bias, n));
        self.neuron.check_slopes(&mut encoding, n);

        let (neuron, alpha) = (self.neuron.clone(), self.neuron.alpha as f32);
        let inputs: Vec<_> = [&x, &w].into_iter().chain(&bias).collect();
        let (input, weight, result, bias) = (x.clone(), w.clone(), y.clone(), bias.clone());
        encoding.finish(batch, &inputs, &y, move |index| {
            let mut values = product(&input.load(index), &weight.load(index), m, n, k);
            values.iter_mut().for_each(|value| *value *= alpha);
            neuron.apply(&mut values, bias.as_ref(), n);
            result.store(index, &values);
        });
    }
}

fn bias_region(encoding: &mut Encoding<'_>, bias: &Vector, columns: usize) -> Region {
    encoding.region(
        "the bias vector",
        &bias.as_matrix(),
        Origin::default(),
        1,
        columns,
    )
}

fn erf(x: f32) -> f32 {
    extern "C" {
        fn erff(x: f32) -> f32;
    }
    // SAFETY: a function of the C library without conditions.
    unsafe { erff(x) }
}
