//! One declaration per op: what it takes, how it is called, what it must equal and what it refuses.
//! The grid, the error tests, the benches and `compare` all read these and nothing else.
//!
//! Arguments describe their shapes by a [`Size`], so that every reader picks its own sizes:
//! `case.inputs(size, dtype, device)` makes the tensors, `(case.fused)(&inputs)` runs the op.

#![allow(
    dead_code,
    reason = "tests, benches and compare each read a part of a declaration"
)]

mod fill;
#[macro_use]
pub mod form;
mod kept;
#[macro_use]
mod refused;
pub mod size;

pub use fill::Fill;
use kept::Kept;
pub use refused::{Refused, Wrong};
pub use size::{Grid, Kind, Measured, Run, Size};

use candle_core::{DType, Device, Result, Shape, Tensor};

pub type Call = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;
pub type InPlace = Box<dyn Fn(&[Tensor]) -> Result<()> + Send + Sync>;
type MakeCall = Box<dyn Fn(&Run) -> Result<Option<Call>> + Send + Sync>;

/// The shape of an argument at a size.
type Dims = fn(Size) -> Vec<usize>;

/// The same shape at every size.
macro_rules! dims {
    ($($dim:expr),*) => { |_| vec![$($dim),*] };
}

/// The one list of ops: calls a macro with their names. Each has a file of its own beside this one, with its `cases`,
/// `rejects`, `refused` and `custom_ops`; the grid's tests are made from this list too.
macro_rules! with_ops {
    ($macro:ident) => {
        $macro! {
            activation
            affine_act
            attention
            batch_norm
            binary_act
            bitlinear
            cast
            conv2d
            cross_entropy
            dropout
            embedding
            glu
            group_norm
            kl_div
            linear
            linear_cross_entropy
            lora
            lora_gather
            matmul_act
            mixed_matmul
            pool2d
            qk_norm_rope
            quantize
            reduce
            rope
            row_norm
            softmax
            upsample
        }
    };
}
#[allow(unused_imports, reason = "the grid is a part of the tests alone")]
pub(crate) use with_ops;

macro_rules! declare {
    ($($op:ident)*) => {
        $(mod $op;)*

        fn declared() -> Vec<OpCase> {
            [$($op::cases()),*].into_iter().flatten().collect()
        }

        /// Wrong calls of every function.
        pub fn refused(wrong: &Wrong) -> Vec<Refused> {
            [$($op::refused(wrong)),*].into_iter().flatten().collect()
        }

        /// Every public CustomOp.
        pub fn custom_ops() -> Result<Vec<form::Form>> {
            Ok([$($op::custom_ops()?),*].into_iter().flatten().collect())
        }

        /// What each op refuses, beside what all refuse: integers, tensors of different dtypes or devices,
        /// and in-place work on what tracks gradients.
        pub fn rejects() -> Vec<Reject> {
            [$($op::rejects()),*].into_iter().flatten().collect()
        }
    };
}
with_ops!(declare);

/// Every case that the tests run: all but those of one shape, which are there to be measured.
pub fn all() -> Vec<OpCase> {
    let mut cases = declared();
    cases.retain(|case| !case.one_shape);
    cases
}

/// What `compare` and the benches measure, op by op.
pub fn measured() -> Vec<OpCase> {
    let mut cases = declared();
    cases.retain(|case| !case.sizes.is_empty());
    cases
}

/// One way to call an op.
pub struct OpCase {
    /// The op's module, which is also the bench group.
    pub op: &'static str,
    /// The call within the op, such as `silu` or `add_rms_norm`; unique together with `op` and the sizes' labels.
    pub name: String,
    pub args: Vec<Arg>,
    pub fused: Call,
    /// The op's own `reference`: plain differentiable Candle, of any float dtype.
    pub reference: Call,
    /// The fastest forward that stock Candle offers, where that is not `reference`.
    pub stock: Option<Call>,
    /// Whether stock trains with `stock` too. Most of Candle's fused forwards cut the gradient: then it trains with
    /// `reference`.
    pub stock_trains: bool,
    /// A faster way than these, made once for a row of `compare`, outside of what is timed.
    pub stock_fast: Option<MakeCall>,
    /// Whether stock draws its own random numbers, so that its results can't be ours.
    pub random: bool,
    /// The in-place form, which overwrites the first argument.
    pub in_place: Option<InPlace>,
    /// Of the outputs.
    pub class: Class,
    /// Of the gradients. One to a broadcast argument is always `Stepwise`.
    pub grad_class: Class,
    /// Whether outputs may be 0 by their place alone, even in a row that is NaN.
    pub hides: bool,
    /// Whether a kernel may decode a weight of exactly 0 to a tiny number, because it rounds once where the reference rounds
    /// twice. Times an infinite x that is an infinity, where the reference has NaN.
    pub decodes_zeros: bool,
    /// Another case of the op differs in nothing but the activation: small sizes will do.
    pub variant: bool,
    /// The sizes of a product of matrices, where other ones matter. In what order it sums up, and so the last bits,
    /// may depend on the layout.
    pub product: Option<Grid>,
    /// The only sizes that the tests may ask for, where the arguments need more than rows and columns or not all will do.
    pub grid: Option<Grid>,
    /// Whether the gradient is by definition not the slope of the outputs, which are steps.
    pub straight_through: bool,
    /// Whether other tensors of the dtype lie between arguments and output.
    pub composed: bool,
    /// What `compare` and the benches measure it at.
    pub sizes: Vec<Measured>,
    /// Whether its shapes are always the same, whatever the size: the shapes of a model's layer, which is measured only.
    pub one_shape: bool,
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

/// What an op returns: a tensor, or two or three of them.
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

impl Outputs for (Tensor, Tensor, Tensor) {
    fn tensors(self) -> Vec<Tensor> {
        vec![self.0, self.1, self.2]
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
            stock_trains: false,
            stock_fast: None,
            random: false,
            in_place: None,
            class: Class::Elementwise,
            grad_class: Class::Derivative,
            hides: false,
            decodes_zeros: false,
            variant: false,
            product: None,
            grid: None,
            straight_through: false,
            composed: false,
            sizes: size::variant(size::ONE_M),
            one_shape: false,
        }
    }

    pub fn stock<O: Outputs>(
        mut self,
        stock: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
    ) -> Self {
        self.stock = Some(call(stock));
        self
    }

    /// Stock's forward, which has gradients.
    pub fn stock_with_gradients<O: Outputs>(
        self,
        stock: impl Fn(&[Tensor]) -> Result<O> + Send + Sync + 'static,
    ) -> Self {
        OpCase {
            stock_trains: true,
            ..self.stock(stock)
        }
    }

    /// Stock's way for one row of `compare`, or `None` for those that the others will do for.
    pub fn stock_fast(
        mut self,
        make: impl Fn(&Run) -> Result<Option<Call>> + Send + Sync + 'static,
    ) -> Self {
        self.stock_fast = Some(Box::new(make));
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
    pub fn product(self, sizes: Grid) -> Self {
        OpCase {
            product: Some(sizes),
            ..self.reduction().stepwise_gradients()
        }
    }

    pub fn variant(mut self) -> Self {
        self.variant = true;
        self
    }

    /// Tested at these sizes and no others.
    pub fn grid(mut self, sizes: Grid) -> Self {
        self.grid = Some(sizes);
        self
    }

    pub fn straight_through(mut self) -> Self {
        self.straight_through = true;
        self
    }

    /// Stock draws its own random numbers.
    pub fn random(mut self) -> Self {
        self.random = true;
        self
    }

    /// Measured at these sizes, instead of those of a variant.
    pub fn sizes(mut self, sizes: impl Into<Vec<Measured>>) -> Self {
        self.sizes = sizes.into();
        self
    }

    /// Of one shape, which is measured and trains as stock does.
    pub fn at(self, size: Measured) -> Self {
        OpCase {
            one_shape: true,
            stock_trains: true,
            ..self.sizes([size])
        }
    }

    pub fn hiding(mut self) -> Self {
        self.hides = true;
        self
    }

    pub fn decoding_zeros(mut self) -> Self {
        self.decodes_zeros = true;
        self
    }

    /// `op/name`
    pub fn id(&self) -> String {
        format!("{}/{}", self.op, self.name)
    }

    /// A size that will do where the values don't matter.
    pub fn small(&self) -> Size {
        let sizes = self.grid.unwrap_or(&[&[2, 4]]).iter().copied().map(Size);
        let mut large_enough = sizes.filter(|size| size.rows() > 1 && size.cols() > 1);
        large_enough.next().expect("a size of several rows")
    }

    /// Whether any argument gets a gradient.
    pub fn trains(&self) -> bool {
        self.args.iter().any(|arg| arg.grad)
    }

    /// The arguments for this size, contiguous and the same on every call.
    pub fn inputs(&self, size: Size, dtype: DType, device: &Device) -> Result<Vec<Tensor>> {
        self.args
            .iter()
            .enumerate()
            .map(|(i, arg)| arg.fill.tensor(&(arg.shape)(size), i as u64, dtype, device))
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

    /// `[rows, cols]`, or all the dims of a larger size.
    pub const fn matrix(name: &'static str, fill: Fill) -> Arg {
        Arg::new(name, fill, |size| size.dims().to_vec())
    }

    /// `[rows, 1]`, or all the dims of a larger size but the last.
    pub const fn column(name: &'static str, fill: Fill) -> Arg {
        Arg::new(name, fill, |size| [size.leading(), &[1]].concat())
    }

    /// `[cols]`
    pub const fn vector(name: &'static str, fill: Fill) -> Arg {
        Arg::new(name, fill, |size| vec![size.cols()])
    }

    /// Without a gradient.
    pub const fn constant(self) -> Arg {
        Arg {
            grad: false,
            ..self
        }
    }
}
