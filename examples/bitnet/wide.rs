//! The projections of one layer of BitNet b1.58 2B4T, for one token.

use crate::difference::max_error;
use crate::measure::{interleaved, Budget, Call};
use crate::rng::Rng;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::nn::{Linear, Module, PackedBitLinear};
use candle_fused::quant::{Quantized, ScaleScope, Scheme};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Duration;

/// `[out, in]` of queries, keys and values; output; gate and up; down.
pub const SHAPES: [(usize, usize); 4] = [(3840, 2560), (2560, 2560), (13824, 2560), (2560, 6912)];

/// So many layers take turns that their weights come from memory, as in a model, and not from a cache.
const LAYERS: usize = 6;

/// How far the packed layers may be from float ones, whose inputs aren't rounded to 8 bits.
const TOLERANCE: f64 = 0.02;

/// Longer than compare's: one token is a short time, and the medians of it are all that is said of speed here.
const BUDGET: Budget = Budget {
    time: Duration::from_secs(1),
    fewest: 25,
    limit: Duration::from_secs(4),
};

/// Medians in ms, and what the weights take.
pub struct Times {
    pub stock: f64,
    pub float: f64,
    pub packed: f64,
    pub float_bytes: usize,
    pub packed_bytes: usize,
}

pub fn measure(shapes: &[(usize, usize)], rng: &mut Rng) -> Result<Times> {
    let layer = |_| shapes.iter().map(|&shape| random(shape, rng)).collect();
    let packed: Vec<Vec<PackedBitLinear>> = (0..LAYERS).map(layer).collect::<Result<_>>()?;
    let input = |&(_, cols): &(usize, usize)| rng.uniform(&cols.into(), 1.0)?.unsqueeze(0);
    let xs: Vec<Tensor> = shapes.iter().map(input).collect::<Result<_>>()?;
    let dequantized = |layer: &PackedBitLinear| layer.weight().dequantize(DType::F32);
    let weights: Vec<Tensor> = packed[0].iter().map(dequantized).collect::<Result<_>>()?;
    let stock = |w: &Tensor| candle_nn::Linear::new(w.clone(), None);
    let stock: Vec<_> = weights.iter().map(stock).collect();
    let float = |w: &Tensor| Linear::new(w.clone(), None);
    let float: Vec<_> = weights.iter().map(float).collect();

    let error = max_error(&run(&packed[0], &xs)?, &run(&stock, &xs)?)?;
    let error = error.max(max_error(&run(&float, &xs)?, &run(&stock, &xs)?)?);
    if error > TOLERANCE {
        candle_core::bail!("wide layers differ by {error:.2e}, {TOLERANCE} accepted");
    }
    let turn = Cell::new(0);
    let next = || &packed[turn.replace((turn.get() + 1) % LAYERS)];
    let calls = vec![
        Call::new(|| run(&stock, &xs).map(drop)),
        Call::new(|| run(&float, &xs).map(drop)),
        Call::new(|| run(next(), &xs).map(drop)),
    ];
    let medians = interleaved(calls, &Device::Cpu, &BUDGET)?;
    Ok(Times {
        stock: medians[0] / 1e3,
        float: medians[1] / 1e3,
        packed: medians[2] / 1e3,
        float_bytes: weights
            .iter()
            .map(|w| w.elem_count() * size_of::<f32>())
            .sum(),
        packed_bytes: packed[0].iter().map(|layer| layer.weight().bytes()).sum(),
    })
}

fn run(layers: &[impl Module], xs: &[Tensor]) -> Result<Vec<Tensor>> {
    let both = layers.iter().zip(xs);
    both.map(|(layer, x)| layer.forward(black_box(x))).collect()
}

/// Ternary weights.
fn random((out, cols): (usize, usize), rng: &mut Rng) -> Result<PackedBitLinear> {
    let scheme = Scheme::ternary(ScaleScope::Tensor);
    let shape = scheme.codes_shape(&(out, cols).into())?;
    // Four codes of 0, 1 or 2 make a byte.
    let byte = |_| {
        let four = rng.below(81) as u8;
        [1, 3, 9, 27]
            .iter()
            .rev()
            .fold(0, |byte, digit| (byte << 2) | (four / digit % 3))
    };
    let codes: Vec<u8> = (0..shape.elem_count()).map(byte).collect();
    let codes = Tensor::from_vec(codes, shape, &Device::Cpu)?;
    let scales = Tensor::full(
        (cols as f32).powf(-0.5),
        scheme.scales_shape(&(out, cols).into())?,
        &Device::Cpu,
    )?;
    PackedBitLinear::new(
        Quantized::new(codes, scales, None, (out, cols), scheme)?,
        None,
        None,
    )
}
