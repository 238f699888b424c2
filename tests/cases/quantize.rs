use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::only;
use super::{zeros, Arg, Fill, Grid, Kept, OpCase, Reject};
use candle_core::{DType, Result, Shape, Tensor};
use candle_fused::ops::{
    dequantize, fake_quantize, fake_quantize_clipped, quantize, Dequantize, FakeQuantize,
};
use candle_fused::quant::{ScaleScope, Scheme};
use candle_fused::reference::quantize::{reference, reference_dequantize, reference_quantize};

const OP: &str = "quantize";
const X: Arg = Arg::matrix("x", Fill::Signal);

/// Columns that groups of 32 divide.
const GROUPED: Grid = &[
    &[0, 32],
    &[3, 0],
    &[1, 32],
    &[3, 64],
    &[5, 96],
    &[130, 32],
    &[3, 1024],
];

pub fn cases() -> Vec<OpCase> {
    let grid = [
        in_and_out("int8", Scheme::int8(ScaleScope::Row)),
        in_and_out("uint8", Scheme::uint8(ScaleScope::Column)),
        in_and_out("ternary", Scheme::ternary(ScaleScope::Tensor)),
        in_and_out("sign", Scheme::sign(ScaleScope::Row)),
        in_and_out("mlx_4", Scheme::mlx(4, 32)).map(|case| case.grid(GROUPED)),
    ];
    let grid = grid.into_iter().flatten();
    grid.chain(at_shapes()).collect()
}

/// Forth and back in one op, with both gradients, and in two. Plain Candle computes in f32 too.
fn in_and_out(name: &str, scheme: Scheme) -> [OpCase; 3] {
    let cases = [
        OpCase::new(
            OP,
            format!("grid_fake_{name}"),
            &[X],
            move |t| fake_quantize(&t[0], scheme),
            move |t| reference(&t[0], scheme, false),
        ),
        OpCase::new(
            OP,
            format!("grid_clipped_{name}"),
            &[X],
            move |t| fake_quantize_clipped(&t[0], scheme),
            move |t| reference(&t[0], scheme, true),
        ),
        OpCase::new(
            OP,
            format!("grid_codes_{name}"),
            &[X.constant()],
            move |t| dequantize(&quantize(&t[0], scheme)?, t[0].dtype()),
            move |t| reference_dequantize(&reference_quantize(&t[0], scheme)?, t[0].dtype()),
        ),
    ];
    cases.map(|case| case.reduction().straight_through().sizes([]))
}

/// Weights and activations of a large layer, there and back.
fn at_shapes() -> Vec<OpCase> {
    let schemes = [
        ("int8", Scheme::int8(ScaleScope::Row)),
        ("uint8_tensor", Scheme::uint8(ScaleScope::Tensor)),
        ("ternary", Scheme::ternary(ScaleScope::Tensor)),
        ("sign", Scheme::sign(ScaleScope::Tensor)),
        ("mlx_4", Scheme::mlx(4, 64)),
    ];
    let of_scheme = |(name, scheme)| {
        [
            to_codes(name, scheme),
            to_values(name, scheme),
            fake(name, scheme),
        ]
    };
    schemes.into_iter().flat_map(of_scheme).collect()
}

fn case(
    name: String,
    fused: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    reference: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> OpCase {
    let x = Arg::new("x", Fill::Signal, |_| vec![4096, 4096]).constant();
    OpCase::new(
        OP,
        name,
        &[x],
        move |t| fused(&t[0]),
        move |t| reference(&t[0]),
    )
    .at(only("4096x4096"))
}

fn to_codes(name: &str, scheme: Scheme) -> OpCase {
    case(
        format!("quantize_{name}"),
        move |x| Ok(quantize(x, scheme)?.codes().clone()),
        move |x| Ok(reference_quantize(x, scheme)?.codes().clone()),
    )
}

fn to_values(name: &str, scheme: Scheme) -> OpCase {
    let (ours, stock) = (Kept::new(), Kept::new());
    case(
        format!("dequantize_{name}"),
        move |x| dequantize(&ours.of(x, || quantize(x, scheme))?, x.dtype()),
        move |x| reference_dequantize(&stock.of(x, || quantize(x, scheme))?, x.dtype()),
    )
}

fn fake(name: &str, scheme: Scheme) -> OpCase {
    case(
        format!("fake_quantize_{name}"),
        move |x| fake_quantize(x, scheme),
        move |x| reference(x, scheme, false),
    )
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let (int8, groups) = (Scheme::int8(ScaleScope::Tensor), Scheme::mlx(4, 5));
    let shape = Shape::from((4, 5));
    Ok(forms! {
        Dequantize { scheme: int8, shape: shape.clone(), dtype: DType::F16 } => CustomOp2 CustomOp3;
        Dequantize { scheme: groups, shape: shape.clone(), dtype: DType::F32 } => CustomOp2 CustomOp3;
        FakeQuantize { scheme: int8, clipped: true } => CustomOp1;
        FakeQuantize { scheme: groups, clipped: false } => CustomOp1;
    })
}

pub fn rejects() -> Vec<Reject> {
    const FAKE: &str = "fake_quantize";
    vec![
        Reject::new(OP, "groups that don't divide a row", &["33", "32"], |d| {
            quantize(&zeros((2, 33), d)?, Scheme::mlx(4, 32)).map(drop)
        }),
        Reject::new(FAKE, "groups that don't divide a row", &["33", "32"], |d| {
            fake_quantize(&zeros((2, 33), d)?, Scheme::mlx(4, 32)).map(drop)
        }),
        Reject::new(OP, "groups of none", &["0"], |d| {
            quantize(&zeros((2, 32), d)?, Scheme::mlx(4, 0)).map(drop)
        }),
        Reject::new(OP, "3 bits", &["3"], |d| {
            quantize(&zeros((2, 32), d)?, Scheme::mlx(3, 32)).map(drop)
        }),
        Reject::new("dequantize", "integers as values", &["U32"], |d| {
            dequantize(
                &quantize(&zeros((2, 32), d)?, Scheme::int8(ScaleScope::Row))?,
                DType::U32,
            )
            .map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        dequantize(&w.codes, DType::U32);
        fake_quantize(&w.x, w.groups);
        fake_quantize(&w.integers, w.groups);
        fake_quantize_clipped(&w.x, w.groups);
        quantize(&w.x, w.groups);
        quantize(&w.integers, w.groups);
    }
}
