//! Applying an op on behalf of a public function.

use super::any::{AnyInplaceOp, AnyOp};
use super::candle::candle_op;
use super::kept::Kept;
use super::{specs, InplaceOp, Op};
use crate::check;
use candle_core::{Error, Result, Tensor};

/// Applies an op to one, two or three tensors on behalf of the function `name`: its kernel where there is one for the
/// first argument's device and dtype, its reference elsewhere.
#[inline]
pub(crate) fn apply<O: Op>(name: &'static str, op: O, args: &[&Tensor]) -> Result<Tensor> {
    check::same_device(name, O::ARGS, args)?;
    if !check::has_kernel(args[0]) {
        return by_reference(name, &op, args);
    }
    apply_kernel(name, op, args)
}

/// As [`apply`], without the reference. Where no argument tracks gradients the op is lent to Candle instead of boxed for
/// a graph that nobody keeps: a tiny tensor's op costs three allocations less.
#[inline]
pub(crate) fn apply_kernel<O: Op>(name: &'static str, op: O, args: &[&Tensor]) -> Result<Tensor> {
    match args.iter().any(|t| t.track_op()) {
        true => in_graph(name, Kept::new(op), args),
        false => without_graph(name, &op, args),
    }
}

/// Applies the in-place form of an op to `x` on behalf of the function `name`.
pub(crate) fn apply_inplace<O: InplaceOp>(
    name: &'static str,
    op: O,
    x: &Tensor,
    rest: &[&Tensor],
) -> Result<()> {
    in_place(name, &op, x, rest)
}

fn by_reference(name: &'static str, op: &dyn AnyOp, args: &[&Tensor]) -> Result<Tensor> {
    addressable(name, op.arg_names(), args)?;
    op.check(name, &specs(args))?;
    op.reference(args)
}

/// All arguments (called `names`) have as many elements as memory can hold, those that a stride of 0 repeats included. A
/// kernel's arguments are checked for that at its door.
pub(super) fn addressable(name: &str, names: &[&str], args: &[&Tensor]) -> Result<()> {
    let mut args = args.iter().zip(names);
    args.try_for_each(|(arg, called)| check::fits_in_memory(name, called, arg.dims()))
}

fn in_graph(name: &'static str, op: Kept, args: &[&Tensor]) -> Result<Tensor> {
    let op = InGraph { name, op };
    match *args {
        [x] => x.apply_op1(op),
        [x, y] => x.apply_op2(y, op),
        [x, y, z] => x.apply_op3(y, z, op),
        _ => Err(wrong_count(name, op.op.get().arg_names(), args.len())),
    }
}

fn without_graph(name: &'static str, op: &dyn AnyOp, args: &[&Tensor]) -> Result<Tensor> {
    let op = Lent { name, op };
    match *args {
        [x] => x.apply_op1_no_bwd(&op),
        [x, y] => x.apply_op2_no_bwd(y, &op),
        [x, y, z] => x.apply_op3_no_bwd(y, z, &op),
        _ => Err(wrong_count(name, op.op.arg_names(), args.len())),
    }
}

fn in_place(name: &'static str, op: &dyn AnyInplaceOp, x: &Tensor, rest: &[&Tensor]) -> Result<()> {
    let args = [&[x], rest].concat();
    check::same_device(name, op.arg_names(), &args)?;
    check::untracked(name, x)?;
    if x.elem_count() == 0 || !check::is_served(x) {
        addressable(name, op.arg_names(), &args)?;
        op.check_inplace(name, &specs(&args))?;
        // An empty layout has zero strides, which Candle would take for repeated elements: there is nothing to do.
        return match x.elem_count() {
            0 => Ok(()),
            _ if x.device().is_cuda() => Err(check::error(
                name,
                "got a tensor on CUDA, expected the CPU or Metal: there is no in-place kernel for it",
            )),
            _ => Err(check::unsupported_dtype(name, x.dtype())),
        };
    }
    let op = LentInplace { name, op };
    match *rest {
        [] => x.inplace_op1(&op),
        [y] => x.inplace_op2(y, &op),
        [y, z] => x.inplace_op3(y, z, &op),
        _ => Err(wrong_count(name, op.op.arg_names(), args.len())),
    }
}

fn wrong_count(name: &'static str, names: &[&str], count: usize) -> Error {
    let message = format!("got {count} tensors, expected up to 3 of {names:?}");
    check::error(name, message)
}

/// An op that a graph keeps, under the name of the function that was called.
struct InGraph {
    name: &'static str,
    op: Kept,
}

/// An op for one call, under the name of the function that was called.
struct Lent<'a> {
    name: &'static str,
    op: &'a dyn AnyOp,
}

/// An op in place, under the name of the function that was called.
struct LentInplace<'a> {
    name: &'static str,
    op: &'a dyn AnyInplaceOp,
}

candle_op!(CustomOp1, [], InGraph, |s| (s.op.get(), s.name));
candle_op!(CustomOp2, [], InGraph, |s| (s.op.get(), s.name));
candle_op!(CustomOp3, [], InGraph, |s| (s.op.get(), s.name));
candle_op!(CustomOp1, ['a], Lent<'a>, |s| (s.op, s.name));
candle_op!(CustomOp2, ['a], Lent<'a>, |s| (s.op, s.name));
candle_op!(CustomOp3, ['a], Lent<'a>, |s| (s.op, s.name));
candle_op!(InplaceOp1, ['a], LentInplace<'a>, |s| (s.op, s.name));
candle_op!(InplaceOp2, ['a], LentInplace<'a>, |s| (s.op, s.name));
candle_op!(InplaceOp3, ['a], LentInplace<'a>, |s| (s.op, s.name));
