use super::mixed_matmul::{packed, Ops, LARGE};
use super::{dims, Dims, Fill, OpCase};
use candle_fused::ops::bitlinear::{bitlinear, reference};
use candle_fused::ops::quantize::{Per, Scheme};

/// Layers of BitNet, whose float forms are what stock Candle has. x is whole numbers, which lose nothing as integers, so
/// that both sides compute the same.
pub fn at_shapes() -> Vec<OpCase> {
    let (ternary, sign) = (Scheme::ternary(Per::Tensor), Scheme::sign(Per::Tensor));
    let shapes: [(_, _, Dims, Dims, _); 8] = [
        (
            "ternary",
            "1x256x256",
            dims![1, 256],
            dims![256, 256],
            ternary,
        ),
        (
            "ternary",
            "1x2560x6912",
            dims![1, 6912],
            dims![2560, 6912],
            ternary,
        ),
        ("ternary", "1x4096x4096", dims![1, 4096], LARGE, ternary),
        ("ternary", "4x4096x4096", dims![4, 4096], LARGE, ternary),
        ("ternary", "32x4096x4096", dims![32, 4096], LARGE, ternary),
        ("ternary", "512x4096x4096", dims![512, 4096], LARGE, ternary),
        ("sign", "1x4096x4096", dims![1, 4096], LARGE, sign),
        ("sign", "32x4096x4096", dims![32, 4096], LARGE, sign),
    ];
    let ops = Ops {
        op: "bitlinear",
        fill: Fill::Integers,
        fused: bitlinear,
        reference,
    };
    shapes.map(|shape| packed(ops, shape)).into()
}
