use super::{Arg, Fill, Kept, OpCase};
use candle_core::Tensor;
use candle_fused::ops::quantize::{
    dequantize, fake_quantize, quantize, reference, reference_dequantize, reference_quantize, Per,
    Scheme,
};

const OP: &str = "quantize";

/// Weights and activations of a large layer, there and back.
pub fn at_shapes() -> Vec<OpCase> {
    let schemes = [
        ("int8", Scheme::int8(Per::Row)),
        ("uint8_tensor", Scheme::uint8(Per::Tensor)),
        ("ternary", Scheme::ternary(Per::Tensor)),
        ("sign", Scheme::sign(Per::Tensor)),
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
    fused: impl Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync + 'static,
    reference: impl Fn(&Tensor) -> candle_core::Result<Tensor> + Send + Sync + 'static,
) -> OpCase {
    let x = Arg::new("x", Fill::Signal, |_, _| vec![4096, 4096]).constant();
    OpCase::new(
        OP,
        name,
        &[x],
        move |t| fused(&t[0]),
        move |t| reference(&t[0]),
    )
    .at("4096x4096")
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
