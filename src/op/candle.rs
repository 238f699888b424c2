//! Candle's `CustomOp1/2/3` and `InplaceOp1/2/3`, implemented for any [`Op`](super::Op).

use super::any::{AnyInplaceOp, AnyOp};
use super::by_reference;
use super::storage::KernelStorage;
use super::{Arg, ArgMut, Args, OpResult, Spec};
use crate::check;
use candle_core::{Error, Layout, Result, Tensor};

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
            $crate::op::candle_op!(@name self, $this, $name);
            $crate::op::candle_op!(@out_on CpuStorage cpu_fwd ($($s $l),+), |$this| ($op, $name));
            #[cfg(feature = "metal")]
            $crate::op::candle_op!(@out_on MetalStorage metal_fwd ($($s $l),+), |$this| ($op, $name));
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

    (@out_on $storage:ident $fwd:ident ($($s:ident $l:ident),+), |$this:ident| ($op:expr, $name:expr)) => {
        fn $fwd(
            &self,
            $($s: &candle_core::$storage, $l: &candle_core::Layout),+
        ) -> candle_core::Result<(candle_core::$storage, candle_core::Shape)> {
            let $this = self;
            $crate::op::candle::forward($op, $name, [$(($s, $l)),+])
        }
    };

    (@in $kind:ident ($($s:ident $l:ident),*), [$($generics:tt)*], $ty:ty, |$this:ident| ($op:expr, $name:expr)) => {
        impl<$($generics)*> candle_core::$kind for $ty {
            $crate::op::candle_op!(@name self, $this, $name);
            $crate::op::candle_op!(@in_on CpuStorage cpu_fwd ($($s $l),*), |$this| ($op, $name));
            #[cfg(feature = "metal")]
            $crate::op::candle_op!(@in_on MetalStorage metal_fwd ($($s $l),*), |$this| ($op, $name));
        }
    };

    (@in_on $storage:ident $fwd:ident ($($s:ident $l:ident),*), |$this:ident| ($op:expr, $name:expr)) => {
        fn $fwd(
            &self,
            x: &mut candle_core::$storage,
            l: &candle_core::Layout,
            $($s: &candle_core::$storage, $l: &candle_core::Layout),*
        ) -> candle_core::Result<()> {
            let $this = self;
            $crate::op::candle::inplace($op, $name, (x, l), &[$(($s, $l)),*])
        }
    };

    (@name $self:ident, $this:ident, $name:expr) => {
        fn name(&$self) -> &'static str {
            let $this = $self;
            let _ = $this;
            $name
        }
    };
}
pub(crate) use candle_op;

/// The type of a gradient, once for each argument that a macro names.
macro_rules! Grad {
    ($arg:ident) => { Option<candle_core::Tensor> };
}
pub(crate) use Grad;

/// Refuses an argument whose layout a kernel could not follow: there must be a stride for each dim, every element must lie in
/// the storage, and the elements, those that a stride of 0 repeats included, must be as many as memory can hold. A tensor
/// that Candle made fails the last alone; a layout that a user passes to `cpu_fwd` by hand, or makes a tensor of, may fail all.
/// Returns whether the argument has no elements.
#[inline(always)]
pub(super) fn admit<S: KernelStorage>(
    name: &'static str,
    called: impl FnOnce() -> &'static [&'static str],
    i: usize,
    arg: &Arg<'_, S>,
) -> Result<bool> {
    match is_plain(arg.1, arg.0.len()) {
        true => Ok(false),
        false => admit_any(name, called(), i, arg),
    }
}

/// Whether a layout, of a storage of `len` elements, is as most are: elements one behind the other, at least one, all of them in
/// the storage and as many as memory can hold. Apart from [`admit_any`], because tiny ops take as long as a few checks.
#[inline(always)]
fn is_plain(layout: &Layout, len: usize) -> bool {
    let (dims, strides) = (layout.dims(), layout.stride());
    let (mut count, mut plain) = (1usize, dims.len() == strides.len());
    for (&dim, &stride) in dims.iter().zip(strides).rev() {
        if dim != 1 {
            let (product, overflows) = count.overflowing_mul(dim);
            plain &= dim != 0 && stride == count && !overflows;
            count = product;
        }
    }
    let end = layout.start_offset().checked_add(count);
    plain && count <= check::MOST_ELEMENTS && end.is_some_and(|end| end <= len)
}

fn admit_any<S: KernelStorage>(
    name: &'static str,
    called: &[&str],
    i: usize,
    (storage, layout): &Arg<'_, S>,
) -> Result<bool> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let (mut last, mut count, mut empty) = (layout.start_offset(), 1usize, false);
    // What overflows saturates, and is then too large for any storage or memory.
    for (&dim, &stride) in dims.iter().zip(strides) {
        empty |= dim == 0;
        // A dim of 0 must not hide an overflow: kernels multiply the other dims without it.
        let dim = dim.max(1);
        count = count.saturating_mul(dim);
        last = last.saturating_add((dim - 1).saturating_mul(stride));
    }
    let is_layout = dims.len() == strides.len() && (empty || last < storage.len());
    match is_layout && count <= check::MOST_ELEMENTS {
        true => Ok(empty),
        false => Err(refused(name, called, i, storage.len(), layout)),
    }
}

#[cold]
fn refused(name: &'static str, called: &[&str], i: usize, len: usize, layout: &Layout) -> Error {
    let called = called.get(i).copied().unwrap_or("an argument");
    let fits = check::fits_in_memory(name, called, layout.dims());
    fits.err().unwrap_or_else(|| {
        let message = format_args!(
            "got {layout:?} of a storage of {len} elements for {called}, expected a layout inside of it"
        );
        check::error(name, message)
    })
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

pub(crate) fn forward<S: KernelStorage, const N: usize>(
    op: &dyn AnyOp,
    name: &'static str,
    args: [Arg<'_, S>; N],
) -> OpResult<S> {
    let mut empty = false;
    for (i, arg) in args.iter().enumerate() {
        empty |= admit(name, || op.arg_names(), i, arg)?;
    }
    op.check(name, &args.each_ref().map(Spec::from))?;
    match empty {
        false => S::run(name, op, &args),
        true => without_elements(op, name, args),
    }
}

/// Runs an op on arguments at least one of which is an empty tensor.
#[cold]
fn without_elements<S: KernelStorage, const N: usize>(
    op: &dyn AnyOp,
    name: &'static str,
    args: [Arg<'_, S>; N],
) -> OpResult<S> {
    let layouts = args.map(|(_, layout)| without_places(layout));
    let args: [Arg<S>; N] = std::array::from_fn(|i| (args[i].0, &layouts[i]));
    S::run(name, op, &args)
}

/// The layout, but a plain one if it has no elements: strides and the offset could then be anything, and kernels would compute
/// with them.
fn without_places(layout: &Layout) -> Layout {
    if !layout.dims().contains(&0) {
        return layout.clone();
    }
    let mut strides = vec![1usize; layout.dims().len()];
    for i in (1..strides.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(layout.dims()[i]);
    }
    Layout::new(layout.shape().clone(), strides, 0)
}

pub(crate) fn bwd<const N: usize>(
    op: &dyn AnyOp,
    name: &'static str,
    inputs: [&Tensor; N],
    y: &Tensor,
    grad: &Tensor,
) -> Result<[Option<Tensor>; N]> {
    let grads = match grad.device().is_cpu() && !check::cpu_has_kernels() {
        true => by_reference::bwd(op, &inputs, grad),
        false => op.bwd(&inputs, y, grad),
    };
    let grads = grads.map_err(|error| match error {
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

pub(crate) fn inplace<S: KernelStorage>(
    op: &dyn AnyInplaceOp,
    name: &'static str,
    x: ArgMut<S>,
    rest: Args<S>,
) -> Result<()> {
    let args = [&[(&*x.0, x.1)], rest].concat();
    for (i, arg) in args.iter().enumerate() {
        admit(name, || op.arg_names(), i, arg)?;
    }
    no_overlap(name, x.1)?;
    let specs: Vec<Spec> = args.iter().map(Spec::from).collect();
    op.check_inplace(name, &specs)?;
    match x.1.dims().contains(&0) {
        true => Ok(()),
        false => S::run_inplace(name, op, x, rest),
    }
}
