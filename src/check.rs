//! Argument checks. Every error names the op, what was given and what is accepted.

use candle_core::{DType, Error, Result, Tensor};

/// An error of this crate's ops: `op: message`.
pub fn error(op: &str, message: impl std::fmt::Display) -> Error {
    Error::Msg(format!("{op}: {message}")).bt()
}

pub fn unsupported_dtype(op: &str, dtype: DType) -> Error {
    error(
        op,
        format_args!("dtype {dtype:?} given, f32, f16 or bf16 accepted"),
    )
}

/// A floating-point tensor. f64 passes: it is computed by the composed reference.
pub fn float(op: &str, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 => Ok(()),
        dtype => Err(unsupported_dtype(op, dtype)),
    }
}

/// At least one dim.
pub fn has_dims(op: &str, x: &Tensor) -> Result<()> {
    if x.rank() == 0 {
        return Err(error(
            op,
            "a scalar (rank 0) given, rank 1 or more accepted",
        ));
    }
    Ok(())
}

/// A result of this shape can be addressed: views may have any dims, so that what is made of two may not.
pub fn size(op: &str, dims: &[usize]) -> Result<()> {
    let count = dims.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
    // In f64, the widest.
    let bytes = count.and_then(|count| count.checked_mul(size_of::<f64>()));
    match bytes {
        Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
        _ => Err(error(
            op,
            format_args!("the result would have shape {dims:?}, what memory can hold accepted"),
        )),
    }
}

/// `other` (called `name`) lives where `x` does and has its dtype.
pub fn alike(op: &str, x: &Tensor, name: &str, other: &Tensor) -> Result<()> {
    same_dtype(op, x.dtype(), name, other.dtype())?;
    if !x.device().same_device(other.device()) {
        let (a, b) = (other.device().location(), x.device().location());
        return Err(error(op, format_args!("{name} is on {a:?}, x is on {b:?}")));
    }
    Ok(())
}

/// `other` (called `name`) has x's dtype.
pub fn same_dtype(op: &str, x: DType, name: &str, other: DType) -> Result<()> {
    match x == other {
        true => Ok(()),
        false => Err(error(
            op,
            format_args!("{name} has dtype {other:?}, x has {x:?}"),
        )),
    }
}

/// The same of several, if they are there.
#[cfg(feature = "metal")]
pub fn same_dtypes(op: &str, x: DType, others: &[(&str, Option<DType>)]) -> Result<()> {
    let given = |(name, dtype): &(&'_ str, Option<DType>)| match dtype {
        Some(dtype) => same_dtype(op, x, name, *dtype),
        None => Ok(()),
    };
    others.iter().try_for_each(given)
}

/// `other` (called `name`) has x's shape.
pub fn same_shape(op: &str, x: &Tensor, name: &str, other: &Tensor) -> Result<()> {
    if x.dims() != other.dims() {
        let (a, b) = (other.shape(), x.shape());
        return Err(error(
            op,
            format_args!("{name} has shape {a:?}, x has {b:?}"),
        ));
    }
    Ok(())
}

/// `other` (called `name`) broadcasts to x's shape.
pub fn broadcasts(op: &str, x: &Tensor, name: &str, other: &Tensor) -> Result<()> {
    let (dims, to) = (other.dims(), x.dims());
    let tail = &to[to.len().saturating_sub(dims.len())..];
    let fits = |(&d, &to): (&usize, &usize)| d == to || d == 1;
    if dims.len() > to.len() || !dims.iter().zip(tail).all(fits) {
        let (a, b) = (other.shape(), x.shape());
        let message =
            format_args!("{name} of shape {a:?} does not broadcast to x's {b:?}").to_string();
        return Err(error(op, message));
    }
    Ok(())
}

/// `other` (called `name`) is a vector over the last dim of `x`.
pub fn over_last_dim(op: &str, x: &Tensor, name: &str, other: &Tensor) -> Result<()> {
    let last = x.dims().last().copied().unwrap_or(1);
    if other.dims() != [last] {
        let shape = other.shape();
        let message = format!("{name} has shape {shape:?}, x's last dim is {last}");
        return Err(error(op, message));
    }
    Ok(())
}

/// A positive, finite epsilon.
pub fn eps(op: &str, eps: f64) -> Result<()> {
    if !(eps > 0.0 && eps.is_finite()) {
        return Err(error(
            op,
            format_args!("eps is {eps}, a positive number is accepted"),
        ));
    }
    Ok(())
}

/// An in-place op on a tensor of a graph would change what its backward reads.
pub fn untracked(op: &str, x: &Tensor) -> Result<()> {
    if x.track_op() {
        return Err(error(
            op,
            "in place on a tensor that tracks gradients; detach() it or use the out-of-place op",
        ));
    }
    Ok(())
}

/// Whether our kernels serve this tensor's device and dtype; otherwise ops use their reference.
pub fn served(x: &Tensor) -> bool {
    let dtype = matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let device = x.device();
    dtype && (device.is_cpu() || (device.is_metal() && cfg!(feature = "metal")))
}
