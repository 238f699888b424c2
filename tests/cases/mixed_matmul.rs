use super::form::Form;
use super::linear::bias;
use super::refused::{Refused, Wrong};
use super::size::only;
use super::{zeros, Arg, Dims, Fill, Grid, Kept, Measured, OpCase, Reject};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use candle_fused::ops::{mixed_matmul, mixed_matmul_with, quantize, Activations, MixedMatmul};
use candle_fused::quant::{Levels, Quantized, ScaleScope, Scheme};
use candle_fused::reference::linear;
use candle_fused::reference::mixed_matmul::{reference, reference_with};
use candle_fused::reference::quantize::reference_quantize;

const OP: &str = "mixed_matmul";
const X: Arg = Arg::matrix("x", Fill::Signal);

/// Few rows, whose weight isn't decoded on the CPU, and more; columns on both sides of a vector and of a block of codes.
/// Without rows the bias has no gradient.
pub const SIZES: Grid = &[
    &[3, 0],
    &[0, 3],
    &[1, 1],
    &[1, 64],
    &[2, 31],
    &[7, 33],
    &[8, 513],
    &[9, 33],
    &[17, 36],
    &[64, 65],
    &[33, 129],
    &[1, 4097],
    &[512, 5],
];

/// Columns that groups of 32 divide.
const GROUPED: Grid = &[
    &[1, 32],
    &[2, 64],
    &[7, 96],
    &[9, 64],
    &[33, 160],
    &[3, 1024],
];

pub fn cases() -> Vec<OpCase> {
    let grid = [
        product("ternary", Scheme::ternary(ScaleScope::Row)).product(SIZES),
        product("int8", Scheme::int8(ScaleScope::Tensor)).product(SIZES),
        product("uint8", Scheme::uint8(ScaleScope::Row)).product(SIZES),
        product("mlx_4", Scheme::mlx(4, 32))
            .product(GROUPED)
            .grid(GROUPED)
            .decoding_zeros(),
        rounded("ternary_int8", Scheme::ternary(ScaleScope::Row)).product(SIZES),
        rounded("uint8_int8", Scheme::uint8(ScaleScope::Row)).product(SIZES),
        rounded("mlx_4_int8", Scheme::mlx(4, 32))
            .product(GROUPED)
            .grid(GROUPED)
            .decoding_zeros(),
    ];
    let shapes = at_shapes(OPS, shapes()).into_iter();
    grid.into_iter()
        .chain(shapes)
        .chain(beside_qmatmul())
        .collect()
}

fn product(name: &str, scheme: Scheme) -> OpCase {
    OpCase::new(
        OP,
        format!("grid_{name}"),
        &[X, bias::<33>()],
        move |t| mixed_matmul(&t[0], &fixed_weight::<33>(&t[0], scheme)?, Some(&t[1])),
        move |t| {
            let w = fixed_weight::<33>(&t[0], scheme)?.dequantize(DType::F32)?;
            linear::reference(&t[0], &w.to_dtype(t[0].dtype())?, Some(&t[1]))
        },
    )
    .sizes([])
}

/// x is rounded as the op does it, so that the slope of a step is not the gradient.
fn rounded(name: &str, scheme: Scheme) -> OpCase {
    let activations = Activations::Int8;
    OpCase::new(
        OP,
        format!("grid_{name}"),
        &[X, bias::<33>()],
        move |t| {
            let w = fixed_weight::<33>(&t[0], scheme)?;
            mixed_matmul_with(&t[0], &w, Some(&t[1]), activations)
        },
        move |t| {
            let w = fixed_weight::<33>(&t[0], scheme)?.dequantize(DType::F32)?;
            let scope = match scheme.scope {
                ScaleScope::Group(group) => ScaleScope::Group(group),
                _ => ScaleScope::Row,
            };
            let eps = 1e-30;
            let int8 = Scheme {
                eps,
                ..Scheme::int8(scope)
            };
            let x = candle_fused::reference::quantize::reference(&t[0], int8, false)?;
            linear::reference(&x, &w.to_dtype(t[0].dtype())?, Some(&t[1]))
        },
    )
    .straight_through()
    .sizes([])
}

/// A weight for x, `[OUTPUTS, cols]` and the same on every call: an op that takes codes has no dtype of theirs to mistake.
pub fn fixed_weight<const OUTPUTS: usize>(x: &Tensor, scheme: Scheme) -> Result<Quantized> {
    let cols = x.dims().last().copied().unwrap_or(1);
    let w = Fill::Signal.tensor(&[OUTPUTS, cols], 7, DType::F32, &Device::Cpu)?;
    reference_quantize(&w, scheme)?.to_device(x.device())
}

/// Weights `[5, 32]`: of ternary codes by row, of 4-bit codes in groups, and of int8 by column.
pub fn sample_weights() -> Result<[Quantized; 3]> {
    let weight = Tensor::ones((5, 32), DType::F32, &Device::Cpu)?;
    Ok([
        quantize(&weight, Scheme::ternary(ScaleScope::Row))?,
        quantize(&weight, Scheme::mlx(4, 32))?,
        quantize(&weight, Scheme::int8(ScaleScope::Column))?,
    ])
}

/// The weight of a large layer.
pub const LARGE: Dims = dims![4096, 4096];

/// A name, what it is measured as, x, weight and scheme.
pub type Shape = (&'static str, Measured, Dims, Dims, Scheme);

const OPS: Ops = Ops {
    op: OP,
    fill: Fill::Signal,
    fused: mixed_matmul,
    reference,
};

/// Square layers, beside what stock Candle does with their floats.
#[rustfmt::skip]
fn shapes() -> [Shape; 9] {
    let signs = Scheme::new(Levels::Sign { centred: false }, ScaleScope::Group(128));
    let mlx = |bits| Scheme::mlx(bits, 64);
    [
        ("mlx_4", only("1x256x256"), dims![1, 256], dims![256, 256], mlx(4)),
        ("mlx_4", only("1x4096x4096").quick(), dims![1, 4096], LARGE, mlx(4)),
        ("mlx_4", only("8x4096x4096"), dims![8, 4096], LARGE, mlx(4)),
        ("mlx_4", only("32x4096x4096"), dims![32, 4096], LARGE, mlx(4)),
        ("mlx_4", only("512x4096x4096").of(&[DType::F32]), dims![512, 4096], LARGE, mlx(4)),
        ("mlx_8", only("1x4096x4096").quick(), dims![1, 4096], LARGE, mlx(8)),
        ("mlx_2", only("1x4096x4096").quick(), dims![1, 4096], LARGE, mlx(2)),
        ("int8", only("1x4096x4096").quick(), dims![1, 4096], LARGE, Scheme::int8(ScaleScope::Row)),
        ("signs", only("1x4096x4096").quick(), dims![1, 4096], LARGE, signs),
    ]
}

/// Square layers with activations of 8 bits, beside stock's products with a weight in ggml's blocks. Those have other codes, so
/// that the two results are close and not equal.
fn beside_qmatmul() -> Vec<OpCase> {
    let kinds = [
        ("q4_k", GgmlDType::Q4K, Scheme::mlx(4, 64)),
        ("q4_0", GgmlDType::Q4_0, Scheme::mlx(4, 32)),
        ("q8_0", GgmlDType::Q8_0, Scheme::mlx(8, 32)),
    ];
    #[rustfmt::skip]
    let sizes: [(&'static str, Dims); 8] = [
        ("1x4096x4096", dims![1, 4096]), ("2x4096x4096", dims![2, 4096]), ("4x4096x4096", dims![4, 4096]),
        ("8x4096x4096", dims![8, 4096]), ("16x4096x4096", dims![16, 4096]), ("32x4096x4096", dims![32, 4096]),
        ("128x4096x4096", dims![128, 4096]), ("512x4096x4096", dims![512, 4096]),
    ];
    let kinds = kinds.into_iter();
    let rows = kinds.flat_map(|kind| sizes.map(|size| (kind, size)));
    rows.map(|((name, blocks, scheme), (size, x))| {
        let (packed, stock) = (Kept::new(), Kept::new());
        let args = [
            Arg::new("x", Fill::Signal, x).constant(),
            Arg::new("weight", Fill::Signal, LARGE).constant(),
        ];
        let activations = Activations::Int8;
        OpCase::new(
            OP,
            format!("int8_{name}"),
            &args,
            move |t| {
                let w = packed.of(&t[1], || quantize(&t[1], scheme))?;
                mixed_matmul_with(&t[0], &w, None, activations)
            },
            move |t| reference_with(&t[0], &quantize(&t[1], scheme)?, None, activations),
        )
        .stock(move |t| {
            let w = stock.of(&t[1], || {
                let w = QTensor::quantize(&t[1], blocks)?;
                Ok(std::sync::Arc::new(QMatMul::from_qtensor(w)?))
            })?;
            w.forward(&t[0])
        })
        .random()
        .reduction()
        .at(only(size).of(&[DType::F32]))
    })
    .collect()
}

type Product = fn(&Tensor, &Quantized, Option<&Tensor>) -> Result<Tensor>;

/// A product with a packed weight.
#[derive(Clone, Copy)]
pub struct Ops {
    pub op: &'static str,
    /// Of x.
    pub fill: Fill,
    pub fused: Product,
    pub reference: Product,
}

/// The weight is packed once, and stock gets the numbers that its codes stand for.
pub fn at_shapes<const N: usize>(ops: Ops, shapes: [Shape; N]) -> [OpCase; N] {
    shapes.map(|(name, size, x, w, scheme)| {
        let (packed, floats) = (Kept::new(), Kept::new());
        let args = [
            Arg::new("x", ops.fill, x).constant(),
            Arg::new("weight", Fill::Signal, w).constant(),
        ];
        OpCase::new(
            ops.op,
            name,
            &args,
            move |t| (ops.fused)(&t[0], &packed.of(&t[1], || quantize(&t[1], scheme))?, None),
            move |t| (ops.reference)(&t[0], &quantize(&t[1], scheme)?, None),
        )
        .stock(move |t| {
            let w = floats.of(&t[1], || quantize(&t[1], scheme)?.dequantize(t[1].dtype()))?;
            linear::reference(&t[0], &w, None)
        })
        .reduction()
        .at(size)
    })
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let [ternary, grouped, column] = sample_weights()?;
    Ok(forms! {
        MixedMatmul { weight: grouped.clone(), activations: Activations::Exact } => CustomOp1 CustomOp2;
        MixedMatmul { weight: ternary.clone(), activations: Activations::Int8 } => CustomOp1 CustomOp2;
        MixedMatmul { weight: column.clone(), activations: Activations::Exact } => CustomOp1 CustomOp2;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(OP, "a weight of other columns", &["[5, 32]", "31"], |d| {
            let w = quantize(&zeros((5, 32), d)?, Scheme::mlx(4, 32))?;
            mixed_matmul(&zeros((2, 31), d)?, &w, None).map(drop)
        }),
        Reject::new(OP, "a scalar x", &["[5, 32]"], |d| {
            let w = quantize(&zeros((5, 32), d)?, Scheme::mlx(4, 32))?;
            mixed_matmul(&zeros((), d)?, &w, None).map(drop)
        }),
        Reject::new(
            OP,
            "a bias of another length",
            &["bias", "[4]", "[5]"],
            |d| {
                let w = quantize(&zeros((5, 32), d)?, Scheme::mlx(4, 32))?;
                mixed_matmul(&zeros((2, 32), d)?, &w, Some(&zeros(4, d)?)).map(drop)
            },
        ),
        Reject::new(OP, "scales for each column", &["Column"], |d| {
            let w = quantize(&zeros((5, 32), d)?, Scheme::int8(ScaleScope::Column))?;
            mixed_matmul(&zeros((2, 32), d)?, &w, None).map(drop)
        }),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        mixed_matmul(&w.x, &w.codes, None);
        mixed_matmul(&w.integers, &w.codes, None);
        mixed_matmul_with(&w.x, &w.codes, None, Activations::Int8);
        mixed_matmul_with(&w.integers, &w.codes, None, Activations::Int8);
    }
}
