use super::{dims, Arg, Dims, Fill, Kept, OpCase};
use candle_core::{Result, Tensor};
use candle_fused::ops::linear;
use candle_fused::ops::mixed_matmul::{mixed_matmul, reference};
use candle_fused::ops::quantize::{quantize, Grid, Per, Quantized, Scheme};

/// The weight of a large layer.
pub const LARGE: Dims = dims![4096, 4096];

/// Square layers, beside what stock Candle does with their floats.
pub fn at_shapes() -> Vec<OpCase> {
    let signs = Scheme::new(Grid::Sign { centred: false }, Per::Group(128));
    let shapes: [(_, _, Dims, Dims, _); 9] = [
        (
            "mlx_4",
            "1x256x256",
            dims![1, 256],
            dims![256, 256],
            Scheme::mlx(4, 64),
        ),
        (
            "mlx_4",
            "1x4096x4096",
            dims![1, 4096],
            LARGE,
            Scheme::mlx(4, 64),
        ),
        (
            "mlx_4",
            "8x4096x4096",
            dims![8, 4096],
            LARGE,
            Scheme::mlx(4, 64),
        ),
        (
            "mlx_4",
            "32x4096x4096",
            dims![32, 4096],
            LARGE,
            Scheme::mlx(4, 64),
        ),
        (
            "mlx_4",
            "512x4096x4096",
            dims![512, 4096],
            LARGE,
            Scheme::mlx(4, 64),
        ),
        (
            "mlx_8",
            "1x4096x4096",
            dims![1, 4096],
            LARGE,
            Scheme::mlx(8, 64),
        ),
        (
            "mlx_2",
            "1x4096x4096",
            dims![1, 4096],
            LARGE,
            Scheme::mlx(2, 64),
        ),
        (
            "int8",
            "1x4096x4096",
            dims![1, 4096],
            LARGE,
            Scheme::int8(Per::Row),
        ),
        ("signs", "1x4096x4096", dims![1, 4096], LARGE, signs),
    ];
    let ops = Ops {
        op: "mixed_matmul",
        fill: Fill::Signal,
        fused: mixed_matmul,
        reference,
    };
    shapes.map(|shape| packed(ops, shape)).into()
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

/// By name, label, x, weight and scheme. The weight is packed once, and stock gets the numbers that its codes stand for.
pub fn packed(
    ops: Ops,
    (name, label, x, w, scheme): (&str, &'static str, Dims, Dims, Scheme),
) -> OpCase {
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
    .at(label)
}
