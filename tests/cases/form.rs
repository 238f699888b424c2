//! The CustomOps that users can apply by hand, as `tests/custom_ops.rs` applies them.

use candle_core::{Result, Tensor};

/// Applies the op by hand, and drops its result.
pub type Run = Box<dyn Fn(&[Tensor]) -> Result<()>>;

/// One of Candle's traits for one op.
pub struct Form {
    pub name: &'static str,
    pub trait_name: &'static str,
    pub args: usize,
    pub run: Run,
}

/// A list of [`Form`]s: `Glu(act) => CustomOp2 InplaceOp2;`.
macro_rules! forms {
    ($($op:expr => $($kind:ident)+;)*) => {
        vec![$($(form!($op, $kind)),+),*]
    };
}

macro_rules! form {
    ($op:expr, CustomOp1) => {
        form!(1, $op, CustomOp1, |t, op| t[0].apply_op1_no_bwd(&op))
    };
    ($op:expr, CustomOp2) => {
        form!(2, $op, CustomOp2, |t, op| t[0].apply_op2_no_bwd(&t[1], &op))
    };
    ($op:expr, CustomOp3) => {
        form!(3, $op, CustomOp3, |t, op| t[0]
            .apply_op3_no_bwd(&t[1], &t[2], &op))
    };
    ($op:expr, InplaceOp1) => {
        form!(1, $op, InplaceOp1, |t, op| t[0].inplace_op1(&op))
    };
    ($op:expr, InplaceOp2) => {
        form!(2, $op, InplaceOp2, |t, op| t[0].inplace_op2(&t[1], &op))
    };
    ($op:expr, InplaceOp3) => {
        form!(3, $op, InplaceOp3, |t, op| t[0]
            .inplace_op3(&t[1], &t[2], &op))
    };
    ($args:literal, $op:expr, $kind:ident, |$t:ident, $made:ident| $run:expr) => {{
        let op = $op;
        Form {
            name: stringify!($op),
            trait_name: stringify!($kind),
            args: $args,
            run: Box::new(move |$t: &[candle_core::Tensor]| {
                let $made = op.clone();
                $run.map(drop)
            }),
        }
    }};
}
