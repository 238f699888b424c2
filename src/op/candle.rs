//! Candle's `CustomOp1/2/3` and `InplaceOp1/2/3`, implemented for any [`Op`](super::Op).

use super::any::{AnyInplaceOp, AnyOp};
use super::{Arg, Spec};
use crate::check;
use candle_core::backend::BackendStorage;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, Error, Layout, Result, Shape, Tensor};

/// Makes a public op struct a Candle CustomOp, under the op's own name: `custom_op!(Softmax: CustomOp1, InplaceOp1);`.
/// With `=> |s| ..` the kernels are those of another [`Op`](crate::op::Op), made from the struct.
macro_rules! custom_op {
    ($ty:ty: $($kind:ident),+) => {
        $($crate::op::candle_op!($kind, [], $ty, |s| (s, <$ty as $crate::op::Op>::NAME));)+
    };
    ($ty:ty, $name:literal: $($kind:ident),+ => |$s:ident| $op:expr) => {
        $($crate::op::candle_op!($kind, [], $ty, |$s| (&$op, $name));)+
    };
}
pub(crate) use custom_op;

/// One of Candle's traits for a type from which `|s| (op, name)` takes an [`Op`](crate::op::Op) and its name in errors.
macro_rules! candle_op {
    (CustomOp1, $($rest:tt)*) => { $crate::op::candle_op!(@out CustomOp1 (s1 l1 t1), $($rest)*); };
    (CustomOp2, $($rest:tt)*) => { $crate::op::candle_op!(@out CustomOp2 (s1 l1 t1, s2 l2 t2), $($rest)*); };
    (CustomOp3, $($rest:tt)*) => {
        $crate::op::candle_op!(@out CustomOp3 (s1 l1 t1, s2 l2 t2, s3 l3 t3), $($rest)*);
    };
    (InplaceOp1, $($rest:tt)*) => { $crate::op::candle_op!(@in InplaceOp1 (), $($rest)*); };
    (InplaceOp2, $($rest:tt)*) => { $crate::op::candle_op!(@in InplaceOp2 (s2 l2), $($rest)*); };
    (InplaceOp3, $($rest:tt)*) => { $crate::op::candle_op!(@in InplaceOp3 (s2 l2, s3 l3), $($rest)*); };

    (@out $kind:ident ($($s:ident $l:ident $t:ident),+), [$($generics:tt)*], $ty:ty, |$this:ident| ($op:expr, $name:expr)) => {
        impl<$($generics)*> candle_core::$kind for $ty {
            fn name(&self) -> &'static str {
                let $this = self;
                let _ = $this;
                $name
            }
            fn cpu_fwd(
                &self,
                $($s: &candle_core::CpuStorage, $l: &candle_core::Layout),+
            ) -> candle_core::Result<(candle_core::CpuStorage, candle_core::Shape)> {
                let $this = self;
                $crate::op::candle::cpu($op, $name, [$(($s, $l)),+])
            }
            #[cfg(feature = "metal")]
            fn metal_fwd(
                &self,
                $($s: &candle_core::MetalStorage, $l: &candle_core::Layout),+
            ) -> candle_core::Result<(candle_core::MetalStorage, candle_core::Shape)> {
                let $this = self;
                $crate::op::candle::metal($op, $name, [$(($s, $l)),+])
            }
            #[allow(unused_parens, reason = "one gradient needs none, several need them")]
            fn bwd(
                &self,
                $($t: &candle_core::Tensor,)+
                y: &candle_core::Tensor,
                grad: &candle_core::Tensor,
            ) -> candle_core::Result<($($crate::op::candle::Grad!($t)),+)> {
                let $this = self;
                let [$($t),+] = $crate::op::candle::bwd($op, $name, [$($t),+], y, grad)?;
                Ok(($($t),+))
            }
        }
    };

    (@in $kind:ident ($($s:ident $l:ident),*), [$($generics:tt)*], $ty:ty, |$this:ident| ($op:expr, $name:expr)) => {
        impl<$($generics)*> candle_core::$kind for $ty {
            fn name(&self) -> &'static str {
                let $this = self;
                let _ = $this;
                $name
            }
            fn cpu_fwd(
                &self,
                x: &mut candle_core::CpuStorage,
                l: &candle_core::Layout,
                $($s: &candle_core::CpuStorage, $l: &candle_core::Layout),*
            ) -> candle_core::Result<()> {
                let $this = self;
                $crate::op::candle::cpu_inplace($op, $name, (x, l), &[$(($s, $l)),*])
            }
            #[cfg(feature = "metal")]
            fn metal_fwd(
                &self,
                x: &mut candle_core::MetalStorage,
                l: &candle_core::Layout,
                $($s: &candle_core::MetalStorage, $l: &candle_core::Layout),*
            ) -> candle_core::Result<()> {
                let $this = self;
                $crate::op::candle::metal_inplace($op, $name, (x, l), &[$(($s, $l)),*])
            }
        }
    };
}
pub(crate) use candle_op;

/// The type of a gradient, once for each argument that a macro names.
macro_rules! Grad {
    ($arg:ident) => { Option<candle_core::Tensor> };
}
pub(crate) use Grad;

fn spec<'a, S: BackendStorage>(&(storage, layout): &Arg<'a, S>) -> Spec<'a> {
    Spec {
        layout,
        dtype: storage.dtype(),
    }
}

/// The elements of a storage.
fn cpu_len(storage: &CpuStorage) -> usize {
    match storage {
        CpuStorage::U8(v) => v.len(),
        CpuStorage::U32(v) => v.len(),
        CpuStorage::I16(v) => v.len(),
        CpuStorage::I32(v) => v.len(),
        CpuStorage::I64(v) => v.len(),
        CpuStorage::BF16(v) => v.len(),
        CpuStorage::F16(v) => v.len(),
        CpuStorage::F32(v) => v.len(),
        CpuStorage::F64(v) => v.len(),
        CpuStorage::F8E4M3(v) => v.len(),
        CpuStorage::F6E2M3(v)
        | CpuStorage::F6E3M2(v)
        | CpuStorage::F4(v)
        | CpuStorage::F8E8M0(v) => v.len(),
    }
}

#[cfg(feature = "metal")]
fn metal_len(storage: &MetalStorage) -> usize {
    storage.buffer().length() / storage.dtype().size_in_bytes().max(1)
}

/// Every element of the layout lies in a storage of `len` elements. A tensor's own layout always fits; one that a user
/// passes to `cpu_fwd` by hand need not.
fn in_bounds(name: &'static str, len: usize, layout: &Layout) -> Result<()> {
    let (dims, strides) = (layout.dims(), layout.stride());
    if dims.contains(&0) {
        return Ok(());
    }
    let last = dims
        .iter()
        .zip(strides)
        .try_fold(layout.start_offset(), |at, (&dim, &stride)| {
            at.checked_add((dim - 1).checked_mul(stride)?)
        });
    match last {
        Some(last) if last < len => Ok(()),
        _ => Err(check::error(
            name,
            format!(
                "got {layout:?} of a storage of {len} elements, expected a layout inside of it"
            ),
        )),
    }
}

/// No two elements of an in-place op's target are the same memory.
fn no_overlap(name: &'static str, layout: &Layout) -> Result<()> {
    match layout.has_internal_overlap() {
        false => Ok(()),
        true => Err(check::error(
            name,
            format!("got {layout:?}, expected one without repeated elements to write in place"),
        )),
    }
}

pub(crate) fn cpu<const N: usize>(
    op: &dyn AnyOp,
    name: &'static str,
    args: [Arg<'_, CpuStorage>; N],
) -> Result<(CpuStorage, Shape)> {
    for (storage, layout) in &args {
        in_bounds(name, cpu_len(storage), layout)?;
    }
    op.check(name, &args.each_ref().map(spec))?;
    op.cpu(&args)
}

#[cfg(feature = "metal")]
pub(crate) fn metal<const N: usize>(
    op: &dyn AnyOp,
    name: &'static str,
    args: [Arg<'_, MetalStorage>; N],
) -> Result<(MetalStorage, Shape)> {
    for (storage, layout) in &args {
        in_bounds(name, metal_len(storage), layout)?;
    }
    op.check(name, &args.each_ref().map(spec))?;
    op.metal(&args)
}

pub(crate) fn bwd<const N: usize>(
    op: &dyn AnyOp,
    name: &'static str,
    inputs: [&Tensor; N],
    y: &Tensor,
    grad: &Tensor,
) -> Result<[Option<Tensor>; N]> {
    let grads = op.bwd(&inputs, y, grad).map_err(|error| match error {
        Error::BackwardNotSupported { .. } => Error::BackwardNotSupported { op: name },
        error => error,
    })?;
    let count = grads.len();
    grads.try_into().map_err(|_| {
        check::error(
            name,
            format!("got {count} gradients, expected one for each of {N} inputs"),
        )
    })
}

pub(crate) fn cpu_inplace(
    op: &dyn AnyInplaceOp,
    name: &'static str,
    x: (&mut CpuStorage, &Layout),
    rest: &[Arg<'_, CpuStorage>],
) -> Result<()> {
    for (storage, layout) in rest {
        in_bounds(name, cpu_len(storage), layout)?;
    }
    in_bounds(name, cpu_len(x.0), x.1)?;
    no_overlap(name, x.1)?;
    let mut specs = vec![Spec {
        layout: x.1,
        dtype: x.0.dtype(),
    }];
    specs.extend(rest.iter().map(spec));
    op.check_inplace(name, &specs)?;
    op.cpu_inplace(x, rest)
}

#[cfg(feature = "metal")]
pub(crate) fn metal_inplace(
    op: &dyn AnyInplaceOp,
    name: &'static str,
    x: (&mut MetalStorage, &Layout),
    rest: &[Arg<'_, MetalStorage>],
) -> Result<()> {
    let args = [&[(&*x.0, x.1)], rest].concat();
    for (storage, layout) in &args {
        in_bounds(name, metal_len(storage), layout)?;
    }
    no_overlap(name, x.1)?;
    let specs: Vec<Spec> = args.iter().map(spec).collect();
    op.check_inplace(name, &specs)?;
    op.metal_inplace(&args)
}
