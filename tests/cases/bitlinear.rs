use super::form::Form;
use super::linear::bias;
use super::mixed_matmul::{at_shapes, fixed_weight, sample_weights, Ops, Shape, LARGE, SIZES};
use super::refused::{Refused, Wrong};
use super::size::only;
use super::{zeros, Arg, Fill, OpCase, Reject};
use candle_core::{DType, Device, Result};
use candle_fused::ops::{bitlinear, quantize, BitLinear};
use candle_fused::quant::{Packing, Quantized, ScaleScope, Scheme};
use candle_fused::reference::bitlinear::reference;
use candle_fused::reference::linear;

const OP: &str = "bitlinear";
const X: Arg = Arg::matrix("x", Fill::Signal);

pub fn cases() -> Vec<OpCase> {
    let grid = [
        product("ternary", Scheme::ternary(ScaleScope::Tensor)),
        product("ternary_by_row", Scheme::ternary(ScaleScope::Row)),
        product("sign", Scheme::sign(ScaleScope::Row)),
    ];
    grid.into_iter().chain(at_shapes(OPS, shapes())).collect()
}

/// x is rounded as the op does it, then everything is exact: so the slope of a step is not the gradient.
fn product(name: &str, scheme: Scheme) -> OpCase {
    OpCase::new(
        OP,
        format!("grid_{name}"),
        &[X, bias::<33>()],
        move |t| bitlinear(&t[0], &fixed_weight::<33>(&t[0], scheme)?, Some(&t[1])),
        move |t| {
            let w = fixed_weight::<33>(&t[0], scheme)?.dequantize(DType::F32)?;
            let rounded = candle_fused::reference::quantize::reference(
                &t[0],
                Scheme::int8(ScaleScope::Row),
                false,
            )?;
            linear::reference(&rounded, &w.to_dtype(t[0].dtype())?, Some(&t[1]))
        },
    )
    .product(SIZES)
    .straight_through()
    .sizes([])
}

const OPS: Ops = Ops {
    op: OP,
    fill: Fill::Integers,
    fused: bitlinear,
    reference,
};

/// Layers of BitNet, whose float forms are what stock Candle has. x is whole numbers, which lose nothing as integers, so
/// that both sides compute the same.
#[rustfmt::skip]
fn shapes() -> [Shape; 8] {
    let (ternary, sign) = (Scheme::ternary(ScaleScope::Tensor), Scheme::sign(ScaleScope::Tensor));
    [
        ("ternary", only("1x256x256"), dims![1, 256], dims![256, 256], ternary),
        ("ternary", only("1x2560x6912"), dims![1, 6912], dims![2560, 6912], ternary),
        ("ternary", only("1x4096x4096").quick(), dims![1, 4096], LARGE, ternary),
        ("ternary", only("4x4096x4096"), dims![4, 4096], LARGE, ternary),
        ("ternary", only("32x4096x4096"), dims![32, 4096], LARGE, ternary),
        ("ternary", only("512x4096x4096").of(&[DType::F32]), dims![512, 4096], LARGE, ternary),
        ("sign", only("1x4096x4096").quick(), dims![1, 4096], LARGE, sign),
        ("sign", only("32x4096x4096"), dims![32, 4096], LARGE, sign),
    ]
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let [ternary, grouped, _] = sample_weights()?;
    Ok(forms! {
        BitLinear { weight: ternary.clone() } => CustomOp1 CustomOp2;
        BitLinear { weight: grouped.clone() } => CustomOp1 CustomOp2;
    })
}

pub fn rejects() -> Vec<Reject> {
    fn weight(scheme: Scheme, d: &Device) -> Result<Quantized> {
        quantize(&zeros((5, 32), d)?, scheme)
    }
    vec![
        Reject::new(OP, "a weight of other columns", &["[5, 32]", "31"], |d| {
            let w = weight(Scheme::ternary(ScaleScope::Row), d)?;
            bitlinear(&zeros((2, 31), d)?, &w, None).map(drop)
        }),
        Reject::new(OP, "a scalar x", &["[5, 32]"], |d| {
            let w = weight(Scheme::ternary(ScaleScope::Row), d)?;
            bitlinear(&zeros((), d)?, &w, None).map(drop)
        }),
        Reject::new(
            OP,
            "a bias of another length",
            &["bias", "[4]", "[5]"],
            |d| {
                let w = weight(Scheme::ternary(ScaleScope::Row), d)?;
                bitlinear(&zeros((2, 32), d)?, &w, Some(&zeros(4, d)?)).map(drop)
            },
        ),
        Reject::new(OP, "a weight with offsets", &["Affine"], |d| {
            let w = weight(Scheme::mlx(4, 32), d)?;
            bitlinear(&zeros((2, 32), d)?, &w, None).map(drop)
        }),
        Reject::new(OP, "a weight packed by thirds", &["Base3"], |d| {
            let w = weight(
                Scheme::ternary(ScaleScope::Row).with_packing(Packing::Base3),
                d,
            )?;
            bitlinear(&zeros((2, 32), d)?, &w, None).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        bitlinear(&w.x, &w.codes, None);
        bitlinear(&w.integers, &w.codes, None);
    }
}
