//! One declaration per op: what it takes, how it is called, what it must equal and what it refuses.
//! The grid, the error tests, the benches and `compare` all read these and nothing else.
//!
//! `args` describe their shapes by a (rows, cols) pair, so that every reader picks its own sizes:
//! `case.inputs(rows, cols, dtype, device)` makes the tensors, `(case.fused)(&inputs)` runs the op.

#![allow(
    dead_code,
    reason = "tests, benches and compare each read a part of a declaration"
)]

mod activation;
mod affine_act;
mod binary_act;
mod bitlinear;
mod conv2d;
mod dropout;
mod fill;
mod glu;
mod group_norm;
mod kept;
mod linear;
mod lora;
mod matmul_act;
mod mixed_matmul;
mod quantize;
mod reduce;
mod row_norm;
mod softmax;

pub use fill::Fill;
use kept::Kept;

use candle_core::{DType, Device, Result, Shape, Tensor};

pub type Call = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;
pub type InPlace = Box<dyn Fn(&[Tensor]) -> Result<()> + Send + Sync>;

/// Of an argument, for rows and columns.
type Dims = fn(rows: usize, cols: usize) -> Vec<usize>;

/// The same for any rows and columns.
macro_rules! dims {
    ($($dim:expr),*) => { |_, _| vec![$($dim),*] };
}
use dims;

/// Every declared case.
pub fn all() -> Vec<OpCase> {
    let ops = [
        activation::cases(),
        affine_act::cases(),
        binary_act::cases(),
        conv2d::cases(),
        dropout::cases(),
        glu::cases(),
        group_norm::cases(),
        linear::cases(),
        lora::cases(),
        matmul_act::cases(),
        reduce::cases(),
        row_norm::cases(),
        softmax::cases(),
    ];
    ops.into_iter().flatten().collect()
}

/// What `compare` and the benches measure, op by op: these, and calls at the shapes of models.
pub fn measured() -> Vec<OpCase> {
    let ops = [
        all(),
        bitlinear::at_shapes(),
        conv2d::at_shapes(),
        linear::at_shapes(),
        mixed_matmul::at_shapes(),
        quantize::at_shapes(),
    ];
    let mut cases: Vec<OpCase> = ops.into_iter().flatten().collect();
    cases.sort_by_key(|case| case.op);
    cases
}

/// What each op refuses, beside what all refuse: integers, tensors of different dtypes or devices,
/// and in-place work on what tracks gradients.
pub fn rejects() -> Vec<Reject> {
    let ops = [
        affine_act::rejects(),
        binary_act::rejects(),
        conv2d::rejects(),
        dropout::rejects(),
        glu::rejects(),
        group_norm::rejects(),
        linear::rejects(),
        lora::rejects(),
        matmul_act::rejects(),
        reduce::rejects(),
        row_norm::rejects(),
        softmax::rejects(),
    ];
    ops.into_iter().flatten().collect()
}

/// One way to call an op.
pub struct OpCase {
    /// The op's module, which is also the bench group.
    pub op: &'static str,
    /// The call within the op, such as `silu` or `add_rms_norm`; unique together with `op` and `at`.
    pub name: String,
    pub args: Vec<Arg>,
    pub fused: Call,
    /// The op's own `reference`: plain differentiable Candle, of any float dtype.
    pub reference: Call,
    /// The fastest forward that stock Candle offers, where that is not `reference`. It may cut the
    /// gradient, so stock trains with `reference`, and draw its own random numbers.
    pub stock: Option<Call>,
    /// The in-place form, which overwrites the first argument.
    pub in_place: Option<InPlace>,
    /// Of the outputs.
    pub class: Class,
    /// Of the gradients. One to a broadcast argument is always `Stepwise`.
    pub grad_class: Class,
    /// Whether outputs may be 0 by their place alone, even in a row that is NaN.
    pub hides: bool,
    /// Another case of the op differs in nothing but the activation: small sizes will do.
    pub variant: bool,
    /// The sizes of a product of matrices, where other ones matter. In what order it sums up, and so the last bits,
    /// may depend on the layout.
    pub product: Option<&'static [(usize, usize)]>,
    /// Whether other tensors of the dtype lie between arguments and output.
    pub composed: bool,
    /// The name of its only shape, which rows and columns don't change.
    pub at: Option<&'static str>,
}

/// How rounding errors add up, which decides the tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A number comes from one element of each input.
    Elementwise,
    /// So does this, by a formula that may cancel, such as 1 − tanh².
    Derivative,
    /// It comes from a whole row, in f32 up to the one rounding at the end.
    Reduction,
    /// On the way it has been through other tensors of the dtype.
    Stepwise,
}

/// A tensor argument.
#[derive(Clone, Copy)]
pub struct Arg {
    pub name: &'static str,
    pub shape: Dims,
    pub fill: Fill,
    /// Whether the op has a gradient to it.
    pub grad: bool,
}

/// A call that must be an error, and what the error must say: the op's name and these.
pub struct Reject {
    pub op: &'static str,
    pub what: &'static str,
    pub says: &'static [&'static str],
    pub call: fn(&Device) -> Result<()>,
}

impl Reject {
    const fn new(
        op: &'static str,
        what: &'static str,
        says: &'static [&'static str],
        call: fn(&Device) -> Result<()>,
    ) -> Self {
        Reject {
            op,
            what,
            says,
            call,
        }
    }
}

/// Zeros, for calls that must be refused before anyone looks at the values.
fn zeros(shape: impl Into<Shape>, device: &Device) -> Result<Tensor> {
    Tensor::zeros(shape, DType::F32, device)
}

/// What an op returns: a tensor or a pair of them.
pub trait Outputs {
    fn tensors(self) -> Vec<Tensor>;
}

impl Outputs for Tensor {
    fn tensors(self) -> Vec<Tensor> {
        vec![self]
    }
}

impl Outputs for (Tensor, Tensor) {
    fn tensors(self) -> Vec<Tensor> {
        vec![self.0, self.1]
    }
}

fn call<O: Outputs>(f: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static) -> Call {
    Box::new(move |t| Ok(f(t)?.tensors()))
}

impl OpCase {
    pub fn new<O: Outputs>(
        op: &'static str,
        name: impl Into<String>,
        args: &[Arg],
        fused: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
        reference: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
    ) -> Self {
        OpCase {
            op,
            name: name.into(),
            args: args.to_vec(),
            fused: call(fused),
            reference: call(reference),
            stock: None,
            in_place: None,
            class: Class::Elementwise,
            grad_class: Class::Derivative,
            hides: false,
            variant: false,
            product: None,
            composed: false,
            at: None,
        }
    }

    pub fn stock<O: Outputs>(
        mut self,
        stock: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
    ) -> Self {
        self.stock = Some(call(stock));
        self
    }

    pub fn in_place(
        mut self,
        in_place: impl Fn(&[Tensor]) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.in_place = Some(Box::new(in_place));
        self
    }

    pub fn reduction(mut self) -> Self {
        self.class = Class::Reduction;
        self.grad_class = Class::Reduction;
        self
    }

    pub fn stepwise_gradients(mut self) -> Self {
        self.grad_class = Class::Stepwise;
        self
    }

    /// Not one kernel, but several with tensors in between.
    pub fn composed(mut self) -> Self {
        self.composed = true;
        self
    }

    /// A product of matrices, whose gradients go through tensors of the dtype.
    pub fn product(self, sizes: &'static [(usize, usize)]) -> Self {
        OpCase {
            product: Some(sizes),
            ..self.reduction().stepwise_gradients()
        }
    }

    pub fn variant(mut self) -> Self {
        self.variant = true;
        self
    }

    pub fn at(mut self, label: &'static str) -> Self {
        self.at = Some(label);
        self
    }

    pub fn hiding(mut self) -> Self {
        self.hides = true;
        self
    }

    /// `op/name`
    pub fn id(&self) -> String {
        format!("{}/{}", self.op, self.name)
    }

    /// Whether any argument gets a gradient.
    pub fn trains(&self) -> bool {
        self.args.iter().any(|arg| arg.grad)
    }

    /// The arguments for this size, contiguous and the same on every call.
    pub fn inputs(
        &self,
        rows: usize,
        cols: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Vec<Tensor>> {
        self.args
            .iter()
            .enumerate()
            .map(|(i, arg)| {
                arg.fill
                    .tensor(&(arg.shape)(rows, cols), i as u64, dtype, device)
            })
            .collect()
    }
}

impl Arg {
    pub const fn new(name: &'static str, fill: Fill, shape: Dims) -> Arg {
        Arg {
            name,
            shape,
            fill,
            grad: true,
        }
    }

    /// `[rows, cols]`
    pub const fn matrix(name: &'static str, fill: Fill) -> Arg {
        Arg::new(name, fill, |rows, cols| vec![rows, cols])
    }

    /// `[rows, 1]`
    pub const fn column(name: &'static str, fill: Fill) -> Arg {
        Arg::new(name, fill, |rows, _| vec![rows, 1])
    }

    /// `[cols]`
    pub const fn vector(name: &'static str, fill: Fill) -> Arg {
        Arg::new(name, fill, |_, cols| vec![cols])
    }

    /// Without a gradient.
    pub const fn constant(self) -> Arg {
        Arg {
            grad: false,
            ..self
        }
    }
}
