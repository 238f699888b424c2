//! Argument checks. Every error names the function that was called, what it got and what it expects.

use crate::op::Spec;
use candle_core::{DType, Device, Error, Layout, Result, Tensor};
use std::sync::OnceLock;

/// An error of this crate's ops: `function: message`.
#[cold]
pub fn error(op: &str, message: impl std::fmt::Display) -> Error {
    Error::Msg(format!("{op}: {message}")).bt()
}

/// The result of the function `inner`, whose error begins with `name` instead: the function that the user called.
pub fn on_behalf_of<T>(name: &str, inner: &str, result: Result<T>) -> Result<T> {
    result.map_err(|error| renamed(name, inner, error))
}

fn renamed(name: &str, inner: &str, error: Error) -> Error {
    match error {
        Error::Msg(text) => {
            let rest = text.strip_prefix(inner);
            match rest.and_then(|rest| rest.strip_prefix(": ")) {
                Some(message) => Error::Msg(format!("{name}: {message}")),
                None => Error::Msg(text),
            }
        }
        Error::WithBacktrace {
            inner: error,
            backtrace,
        } => Error::WithBacktrace {
            inner: Box::new(renamed(name, inner, *error)),
            backtrace,
        },
        error => error,
    }
}

/// The error where `holds` is false. A `format_args!` for the message is only formatted then.
#[inline]
pub fn ensure(holds: bool, op: &str, message: impl std::fmt::Display) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(error(op, message)),
    }
}

pub fn unsupported_dtype(op: &str, dtype: DType) -> Error {
    error(
        op,
        format_args!("got dtype {dtype:?}, expected f32, f16 or bf16"),
    )
}

/// A floating-point tensor. f64 passes: its result comes from the composed reference.
#[inline]
pub fn is_float<'a>(op: &str, x: impl Into<Spec<'a>>) -> Result<()> {
    match x.into().dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Ok(()),
        dtype => Err(unsupported_dtype(op, dtype)),
    }
}

/// What sums of numbers of this dtype are kept in.
pub(crate) fn accumulator_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The first argument is a floating-point tensor, and the others (called `names`) have its dtype.
#[inline]
pub fn same_floats(op: &str, names: &[&str], args: &[Spec<'_>]) -> Result<()> {
    let dtype = args[0].dtype;
    is_float(op, args[0])?;
    for (i, arg) in args.iter().enumerate() {
        if arg.dtype != dtype {
            return same_dtype(op, dtype, names.get(i).unwrap_or(&"an argument"), arg.dtype);
        }
    }
    Ok(())
}

/// All arguments (called `names`) live on one device.
#[inline]
pub fn same_device(op: &str, names: &[&str], args: &[&Tensor]) -> Result<()> {
    let on_cpu = |arg: &&Tensor| matches!(arg.device(), Device::Cpu);
    match args.iter().all(on_cpu) {
        true => Ok(()),
        false => same_device_as_first(op, names, args),
    }
}

/// As [`same_device`], apart from it because calls on the CPU do not come here.
fn same_device_as_first(op: &str, names: &[&str], args: &[&Tensor]) -> Result<()> {
    let first = args[0].device();
    let other = |arg: &&Tensor| !first.same_device(arg.device());
    let Some(i) = args.iter().position(other) else {
        return Ok(());
    };
    let (got, expected) = (args[i].device().location(), first.location());
    let name = names.get(i).unwrap_or(&"an argument");
    let message = format_args!(
        "got {name} on {got:?}, expected {expected:?} as for {}",
        names[0]
    );
    Err(error(op, message))
}

/// The dims of x (called `name`), which has as many as are named: `["batch", "tokens"]`.
pub fn dims<const N: usize>(
    op: &str,
    name: &str,
    x: &Tensor,
    named: [&str; N],
) -> Result<[usize; N]> {
    x.dims().try_into().map_err(|_| {
        let (got, expected) = (x.dims(), named.join(", "));
        error(
            op,
            format_args!("got {name} of shape {got:?}, expected [{expected}]"),
        )
    })
}

/// The tokens of x (called `name`), which lie along `dim`.
pub fn tokens(op: &str, name: &str, x: &Tensor, dim: usize) -> Result<usize> {
    x.dims().get(dim).copied().ok_or_else(|| {
        let got = x.dims();
        error(
            op,
            format_args!("got {name} of shape {got:?}, expected tokens along dim {dim}"),
        )
    })
}

/// At least one dim.
#[inline]
pub fn has_dims(op: &str, x: &Layout) -> Result<()> {
    let message = "got a scalar (rank 0), expected rank 1 or more";
    ensure(!x.dims().is_empty(), op, message)
}

/// The dims of an image x: `[batch, channels, height, width]`.
pub fn image(op: &str, x: &[usize]) -> Result<[usize; 4]> {
    let message = format_args!("got x of shape {x:?}, expected [batch, channels, height, width]");
    x.try_into().map_err(|_| error(op, message))
}

/// A tensor of these dims can be addressed. Broadcast views may have any dims, so a result made of two views need not
/// fit, nor a copy of one.
pub fn fits_in_memory(op: &str, name: &str, dims: &[usize]) -> Result<()> {
    // A dim of 0 must not hide an overflow: kernels multiply the other dims without it.
    let count = dims
        .iter()
        .try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1)));
    ensure(
        count.is_some_and(|count| count <= MOST_ELEMENTS),
        op,
        format_args!("got a shape of {dims:?} for {name}, expected one that memory can hold"),
    )
}

/// The elements of the largest tensor that can be addressed, in f64, the widest dtype.
pub const MOST_ELEMENTS: usize = isize::MAX as usize / size_of::<f64>();

/// `other` (called `name`) has x's dtype.
#[inline]
pub fn same_dtype(op: &str, x: DType, name: &str, other: DType) -> Result<()> {
    let message = format_args!("got {name} of dtype {other:?}, expected {x:?} as for x");
    ensure(x == other, op, message)
}

/// `other` (called `name`) has x's shape.
#[inline]
pub fn same_shape(op: &str, x: Spec<'_>, name: &str, other: Spec<'_>) -> Result<()> {
    let (got, expected) = (other.shape(), x.shape());
    let message = format_args!("got {name} of shape {got:?}, expected x's {expected:?}");
    ensure(got == expected, op, message)
}

/// `other` (called `name`) has these dims.
pub fn has_shape(op: &str, name: &str, other: &Layout, expected: &[usize]) -> Result<()> {
    let got = other.dims();
    let message = format_args!("got {name} of shape {got:?}, expected {expected:?}");
    ensure(got == expected, op, message)
}

/// `other` (called `name`) broadcasts to x's shape.
pub fn broadcasts(op: &str, x: Spec<'_>, name: &str, other: Spec<'_>) -> Result<()> {
    let (dims, to) = (other.dims(), x.dims());
    let tail = &to[to.len().saturating_sub(dims.len())..];
    let fits = |(&d, &to): (&usize, &usize)| d == to || d == 1;
    ensure(
        dims.len() <= to.len() && dims.iter().zip(tail).all(fits),
        op,
        format_args!("got {name} of shape {dims:?}, expected one that broadcasts to x's {to:?}"),
    )
}

/// `other` (called `name`) is a vector of `len` elements, one for each `of_what` of x.
#[inline]
pub fn vector<'a>(
    op: &str,
    name: &str,
    other: impl Into<Spec<'a>>,
    len: usize,
    of_what: &str,
) -> Result<()> {
    let got = other.into().dims();
    ensure(
        got == [len],
        op,
        format_args!("got {name} of shape {got:?}, expected [{len}] for x's {of_what} of {len}"),
    )
}

/// A positive, finite epsilon.
#[inline]
pub fn eps(op: &str, eps: f64) -> Result<()> {
    let message = format_args!("got eps = {eps}, expected a positive number");
    ensure(eps > 0.0 && eps.is_finite(), op, message)
}

/// An in-place op on a tensor of a graph would change what its backward reads.
pub fn untracked(op: &str, x: &Tensor) -> Result<()> {
    let message =
        "got a tensor that tracks gradients, expected one that may be overwritten in place; \
                   detach() it or use the out-of-place op";
    ensure(!x.track_op(), op, message)
}

/// A tensor that an op struct holds beside its arguments gets no gradient, so that one which tracks it must not be given.
#[inline]
pub fn frozen(op: &str, held: &[&Tensor]) -> Result<()> {
    let message =
        "got an op that holds a tensor which tracks gradients, expected a detached one: it would get no gradient";
    ensure(!held.iter().any(|t| t.track_op()), op, message)
}

/// Whether our kernels serve this tensor's device and dtype; otherwise ops use their reference.
#[inline]
pub fn has_kernel(x: &Tensor) -> bool {
    is_served(x) && (!x.device().is_cpu() || cpu_has_kernels())
}

/// Whether our CustomOps take a tensor of this device and dtype, by a kernel or, on a CPU without kernels, by their reference.
#[inline]
pub fn is_served(x: &Tensor) -> bool {
    let dtype = matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let device = x.device();
    dtype && (device.is_cpu() || (device.is_metal() && cfg!(feature = "metal")))
}

/// Whether the CPU has the vectors that kernels are compiled for; without them, ops run their references. On x86-64 those are
/// AVX2, FMA and F16C, which nearly all CPUs since 2013 have. `CANDLE_FUSED_CPU_KERNELS=off` turns the kernels off, to see
/// what stock Candle computes.
#[inline]
pub fn cpu_has_kernels() -> bool {
    static KERNELS: OnceLock<bool> = OnceLock::new();
    *KERNELS.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        let vectors = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        #[cfg(not(target_arch = "x86_64"))]
        let vectors = true;
        vectors && std::env::var_os("CANDLE_FUSED_CPU_KERNELS").is_none_or(|value| value != "off")
    })
}
