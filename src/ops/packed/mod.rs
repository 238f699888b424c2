//! What the products with packed weights (`bitlinear`, `mixed_matmul`) have in common: checks, the way to the kernels, and the
//! storages of a weight.

#[cfg(feature = "metal")]
pub(crate) mod metal;

use super::linear::{self, output_shape};
use crate::check;
use crate::op::{self, Arg, Args, KernelStorage, Op, OpResult, Spec};
use crate::quant::Quantized;
use candle_core::{DType, Result, Tensor};

/// What errors call the arguments of a product.
pub(crate) const ARGS: &[&str] = &["x", "bias"];

/// Applies a product to x and a bias on behalf of the function `name`.
pub(crate) fn apply<O: Op>(
    name: &'static str,
    op: O,
    w: &Quantized,
    x: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    check::same_device(name, &["x", "weight"], &[x, w.codes()])?;
    let args = [x, bias.unwrap_or(x)];
    let args = &args[..1 + usize::from(bias.is_some())];
    // The kernels know no gradient of the scales: trained ones get theirs from the composed form, as does an empty x.
    let trains = w.scales().track_op() || w.offsets().is_some_and(Tensor::track_op);
    if trains || x.elem_count() == 0 {
        check::same_device(name, ARGS, args)?;
        op.check(name, &op::specs(args))?;
        return op.reference(args);
    }
    op::apply(name, op, args)
}

/// x is `[.., in]` for a weight `[out, in]`, and a bias `[out]`.
pub(crate) fn check_args(name: &str, args: &[Spec<'_>], w: &Quantized) -> Result<()> {
    check::same_floats(name, ARGS, args)?;
    let x = args[0];
    match (x.dims().last(), w.shape().dims()) {
        (Some(last), &[out, cols]) if *last == cols => {
            if let Some(bias) = args.get(1).filter(|bias| bias.dims() != [out]) {
                let shape = bias.shape();
                let message = format!("got bias of shape {shape:?}, expected [{out}]");
                return Err(check::error(name, message));
            }
            linear::check_result(name, "the result", x.layout, out)
        }
        _ => Err(wrong_shapes(name, x, w, "in")),
    }
}

/// As [`check_args`], and all are on one device.
pub(crate) fn check_tensors(
    name: &str,
    x: &Tensor,
    w: &Quantized,
    bias: Option<&Tensor>,
) -> Result<()> {
    let args = [x, bias.unwrap_or(x)];
    check::same_device(
        name,
        &["x", "bias", "weight"],
        &[args[0], args[1], w.codes()],
    )?;
    let specs = args.map(Spec::from);
    check_args(name, &specs[..1 + usize::from(bias.is_some())], w)
}

/// `last` is the side of the weight that x's last dim should be.
pub(crate) fn wrong_shapes(
    name: &str,
    x: Spec<'_>,
    w: &Quantized,
    last: &str,
) -> candle_core::Error {
    let (x, w) = (x.shape(), w.shape());
    let message = format!(
        "got x of shape {x:?} and a weight of shape {w:?}, expected [.., {last}] and [out, in]"
    );
    check::error(name, message)
}

/// The product of an empty x, computed in its own dtype: Candle cannot convert an empty tensor on Metal. The op `linear`
/// multiplies, because Candle's own products and sums of empty tensors leave the graph: nothing would get a gradient.
fn empty_product(x: &Tensor, w: &Quantized, bias: Option<&Tensor>) -> Result<Tensor> {
    let w = match x.dtype() {
        DType::F64 => w.dequantize(DType::F32)?.to_dtype(DType::F64)?,
        dtype => w.dequantize(dtype)?,
    };
    linear::linear(x, &w, bias)
}

/// The tensors of a weight as kernels take them.
pub(crate) struct WeightArgs<'a, S> {
    pub codes: Arg<'a, S>,
    pub scales: Arg<'a, S>,
    pub offsets: Option<Arg<'a, S>>,
}

impl<S> Clone for WeightArgs<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for WeightArgs<'_, S> {}

impl<'a, S> WeightArgs<'a, S> {
    fn new(args: &[Arg<'a, S>]) -> Self {
        WeightArgs {
            codes: args[0],
            scales: args[1],
            offsets: args.get(2).copied(),
        }
    }
}

/// Codes, scales and perhaps offsets.
pub(crate) fn tensors(w: &Quantized) -> Vec<&Tensor> {
    let tensors = [Some(w.codes()), Some(w.scales()), w.offsets()];
    tensors.into_iter().flatten().collect()
}

/// Calls `f` with the storages of a weight, which the op holds beside its arguments.
pub(crate) fn with_weight<S: KernelStorage, R>(
    name: &'static str,
    w: &Quantized,
    f: impl FnOnce(WeightArgs<'_, S>) -> Result<R>,
) -> Result<R> {
    op::with_storages(name, &tensors(w), |args| f(WeightArgs::new(args)))
}

/// The arguments of a product as kernels take them.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a, S> {
    pub w: &'a Quantized,
    pub weight: WeightArgs<'a, S>,
    pub x: Arg<'a, S>,
    pub bias: Option<Arg<'a, S>>,
}

/// The product of x with a weight, and a bias if there is one, by a device's `forward`.
pub(crate) fn product<S: KernelStorage>(
    name: &'static str,
    w: &Quantized,
    args: Args<S>,
    forward: impl Fn(&Call<'_, S>) -> Result<S>,
) -> OpResult<S> {
    let (x, bias) = (args[0], args.get(1).copied());
    let out = with_weight(name, w, |weight| forward(&Call { w, weight, x, bias }))?;
    Ok((out, output_shape(x.1, w.shape().dims()[0])))
}

/// The methods of [`Op`] that the products with a field `weight` share: all but `check`. `NAME`, `gradients` and the modules
/// `cpu` and `metal`, one of which is called `device` here, are those of the module that it is used in.
macro_rules! packed_product {
    ($self:ident, $forward:expr, $reference:expr) => {
        const NAME: &'static str = NAME;
        const ARGS: &'static [&'static str] = $crate::ops::packed::ARGS;

        fn held(&self) -> Vec<&Tensor> {
            $crate::ops::packed::tensors(&self.weight)
        }
        $crate::op::kernels!($self, args => {
            $crate::ops::packed::product(NAME, &$self.weight, args, $forward)
        });
        fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> $crate::op::Grads {
            gradients(inputs, &self.weight, g)
        }
        fn reference(&$self, args: &[&Tensor]) -> Result<Tensor> {
            ($reference)(args[0], &$self.weight, args.get(1).copied())
        }
    };
}
pub(crate) use packed_product;

/// `x·Wᵀ + bias` in f32, rounded once, where `input` makes the product's input of x in f32.
pub(crate) fn reference(
    x: &Tensor,
    w: &Quantized,
    bias: Option<&Tensor>,
    input: impl Fn(Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return empty_product(x, w, bias);
    }
    let wide = |t: &Tensor| t.to_dtype(DType::F32);
    let (weight, bias) = (w.dequantize(DType::F32)?, bias.map(wide).transpose()?);
    linear::reference(&input(wide(x)?)?, &weight, bias.as_ref())?.to_dtype(x.dtype())
}
