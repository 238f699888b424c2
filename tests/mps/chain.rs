//! A thousand calls in a row, each on what the last one has left: ours, Candle's and shaders, in no order.
//!
//! Nothing is read back on the way, which would wait for the GPU and hide a session that doesn't. Results that are kept, and
//! the memory of those that are not, are judged at the end.

use super::{error, metal, signal};
use candle_core::{DType, Device, Result, Tensor, D};
use candle_fused::ops::mps;
use candle_fused::ops::{self, conv2d_with, Act, Conv2dParams, ConvAlgo};

const CALLS: usize = 1000;
const KEEP: usize = 10;
const DIMS: [usize; 2] = [6, 8];

/// What a call needs beside x; all of them keep what they multiply about as large as it is.
struct Model {
    square: Tensor,
    wide: Tensor,
    left: Tensor,
    bias: Tensor,
    base: Tensor,
    weight: Tensor,
}

impl Model {
    fn new(device: &Device) -> Result<Self> {
        let of = |dims: &[usize], seed, scale: f64| {
            signal(dims, seed, DType::F32, &Device::Cpu)? * scale
        };
        let on = |x: Result<Tensor>| x?.to_device(device);
        Ok(Self {
            square: on(of(&[8, 8], 1, 0.05))?,
            wide: on(of(&[12, 20], 2, 0.05))?,
            left: on(of(&[6, 6], 3, 0.07))?,
            bias: on(of(&[8], 4, 0.1))?,
            base: on(of(&DIMS, 5, 0.5))?,
            weight: on(of(&[8], 6, 0.25))?,
        })
    }

    /// The next x: half of what call `i` gives, and a constant, so that neither values nor errors grow.
    fn next(&self, i: u64, x: &Tensor) -> Result<Tensor> {
        let y = self.call(i % 21, i / 21, x)?;
        match i / 21 % 2 {
            0 => (y * 0.5)? + &self.base,
            _ => ops::add_act(&(y * 0.5)?, &self.base, Act::Tanh),
        }
    }

    fn call(&self, kind: u64, variant: u64, x: &Tensor) -> Result<Tensor> {
        let acts = [
            Act::Relu,
            Act::Sigmoid,
            Act::Tanh,
            Act::GeluErf,
            Act::LeakyRelu(0.25),
            Act::Softplus,
        ];
        let act = acts[variant as usize % acts.len()];
        let column = variant as usize % 8;
        match kind {
            0 | 1 => matmul(x, &self.square),
            2 => matmul(x, &self.square.t()?),
            3 => matmul(x, &self.wide.narrow(0, 3, 8)?.narrow(1, column, 8)?),
            4 => matmul(&self.left.t()?, x),
            5 => matmul(&x.t()?, &self.left)?.t(),
            6 => softmax(x),
            7 => softmax(&x.t()?)?.t(),
            8 => activation(x, act),
            9 => activation(
                &Tensor::cat(&[x, &self.base], 1)?.narrow(1, column, 8)?,
                act,
            ),
            10 => matmul(x, &self.square.narrow(1, column, 1)?)?.broadcast_mul(&self.bias),
            11 => matmul(&self.left.narrow(0, column % 6, 1)?, x)?.broadcast_add(x),
            12 => batched(x, &self.square),
            13 => ops::rms_norm(x, Some(&self.weight), 0.1),
            14 => ops::softmax_last_dim(&x.t()?)?.t(),
            15 => ops::linear(x, &self.square, Some(&self.bias)),
            16 => ops::bias_act(x, &self.bias, act),
            17 => x.matmul(&self.square),
            18 => x.t()?.contiguous()?.t()?.tanh(),
            19 => convolution(x, &self.square.narrow(1, column, 1)?),
            _ => x.broadcast_add(&self.bias)?.affine(0.5, 0.1),
        }
    }
}

/// Three matrices that lie side by side in one.
fn batched(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let heads = x.reshape((2, 3, 8))?.transpose(0, 1)?;
    let y = y.broadcast_as((3, 8, 8))?;
    matmul(&heads, &y)?.transpose(0, 1)?.reshape(&DIMS)
}

fn matmul(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    match x.device().is_metal() {
        true => mps::matmul(x, y),
        false => x.contiguous()?.matmul(&y.contiguous()?),
    }
}

/// Of x as an image, by a column of y as eight kernels of one element.
fn convolution(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let image = x.reshape((1, 1, DIMS[0], DIMS[1]))?;
    let w = y.contiguous()?.reshape((8, 1, 1, 1))?;
    let algo = match x.device().is_metal() {
        true => ConvAlgo::Mps,
        false => ConvAlgo::Direct,
    };
    let y = conv2d_with(&image, &w, None, Conv2dParams::default(), Act::Tanh, algo)?;
    y.narrow(1, 3, 1)?.reshape(&DIMS)
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    match x.device().is_metal() {
        true => mps::softmax(x),
        false => candle_nn::ops::softmax(x, D::Minus1),
    }
}

fn activation(x: &Tensor, act: Act) -> Result<Tensor> {
    match x.device().is_metal() {
        true => mps::activation(x, act),
        false => candle_fused::reference::activation::reference(x, act),
    }
}

/// A linear congruential sequence.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn run(device: &Device) -> Result<Vec<Tensor>> {
    let model = Model::new(device)?;
    let (mut x, mut state, mut kept) = (model.base.clone(), 42, Vec::new());
    for i in 0..CALLS {
        x = model.next(random(&mut state), &x)?;
        if i % KEEP == KEEP - 1 {
            kept.push(x.clone());
        }
    }
    Ok(kept)
}

#[test]
fn a_thousand_calls() -> Result<()> {
    for device in metal() {
        let (got, want) = (run(device)?, run(&Device::Cpu)?);
        assert_eq!(got.len(), CALLS / KEEP);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let error = error(got, want)?;
            assert!(error < 1e-4, "after {} calls: {error:e}", (i + 1) * KEEP);
        }
        assert!(error(&got[0], &got[got.len() - 1])? > 0.01);
    }
    Ok(())
}
