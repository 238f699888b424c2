//! Applying CustomOps. Where no argument tracks gradients the op is lent instead of boxed for a graph
//! that nobody keeps: the result is the same, and a tiny tensor's op costs two allocations less.

use candle_core::{
    CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3, Result, Tensor,
};

/// Whether a product's result will ask for a backward.
pub fn tracks(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> bool {
    x.track_op() || w.track_op() || bias.is_some_and(Tensor::track_op)
}

pub fn op1<C: CustomOp1 + Send + Sync + 'static>(x: &Tensor, op: C) -> Result<Tensor> {
    if x.track_op() {
        return x.apply_op1(op);
    }
    x.apply_op1_no_bwd(&op)
}

pub fn op2<C: CustomOp2 + Send + Sync + 'static>(x: &Tensor, y: &Tensor, op: C) -> Result<Tensor> {
    if x.track_op() || y.track_op() {
        return x.apply_op2(y, op);
    }
    x.apply_op2_no_bwd(y, &op)
}

pub fn op3<C: CustomOp3 + Send + Sync + 'static>(
    x: &Tensor,
    y: &Tensor,
    z: &Tensor,
    op: C,
) -> Result<Tensor> {
    if x.track_op() || y.track_op() || z.track_op() {
        return x.apply_op3(y, z, op);
    }
    x.apply_op3_no_bwd(y, z, &op)
}

// An empty layout has zero strides, which Candle takes for repeated elements: nothing is to be done
// for it.

pub fn inplace1<C: InplaceOp1>(x: &Tensor, op: C) -> Result<()> {
    if x.elem_count() == 0 {
        return Ok(());
    }
    x.inplace_op1(&op)
}

pub fn inplace2<C: InplaceOp2>(x: &Tensor, y: &Tensor, op: C) -> Result<()> {
    if x.elem_count() == 0 {
        return Ok(());
    }
    x.inplace_op2(y, &op)
}

pub fn inplace3<C: InplaceOp3>(x: &Tensor, y: &Tensor, z: &Tensor, op: C) -> Result<()> {
    if x.elem_count() == 0 {
        return Ok(());
    }
    x.inplace_op3(y, z, &op)
}
