//! Convolutions against plain loops in f64, over what makes them differ: windows, groups, algorithms, layouts.

mod absurd;
mod errors;
mod gradients;
mod grid;
mod layouts;
mod mps;
mod reference;
mod shapes;
mod specials;
mod transposed;

use crate::cases::Fill;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{conv2d_with, Act, Conv2dParams, ConvAlgo};
use candle_fused::reference::activation;
use reference::Sums;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const ALGOS: [ConvAlgo; 5] = [
    ConvAlgo::Auto,
    ConvAlgo::Direct,
    ConvAlgo::Tiled,
    ConvAlgo::ImplicitGemm,
    ConvAlgo::Winograd,
];
const ACTS: [Act; 10] = [
    Act::Identity,
    Act::Relu,
    Act::Relu2,
    Act::LeakyRelu(0.125),
    Act::GeluTanh,
    Act::GeluErf,
    Act::Silu,
    Act::Sigmoid,
    Act::Tanh,
    Act::Softplus,
];

/// A convolution of x with w to y, as shapes.
#[derive(Clone, Copy, Debug)]
struct Conv {
    x: [usize; 4],
    w: [usize; 4],
    y: [usize; 4],
    window: Conv2dParams,
}

/// A window of equal sides.
fn window(stride: usize, padding: usize, dilation: usize, groups: usize) -> Conv2dParams {
    Conv2dParams {
        stride: [stride; 2],
        padding: [padding; 2],
        dilation: [dilation; 2],
        groups,
    }
}

impl Conv {
    fn new(x: [usize; 4], w: [usize; 4], window: Conv2dParams) -> Self {
        let size = |i: usize| {
            let span = (w[2 + i] - 1) * window.dilation[i] + 1;
            (x[2 + i] + 2 * window.padding[i] - span) / window.stride[i] + 1
        };
        let y = [x[0], w[0], size(0), size(1)];
        Conv { x, w, y, window }
    }

    /// The one that the transposed convolution of y belongs to.
    fn transposed(y: [usize; 4], w: [usize; 4], window: Conv2dParams, ends: [usize; 2]) -> Self {
        let size = |i: usize| {
            let span = (w[2 + i] - 1) * window.dilation[i] + 1;
            (y[2 + i] - 1) * window.stride[i] + span + ends[i] - 2 * window.padding[i]
        };
        let x = [y[0], w[1] * window.groups, size(0), size(1)];
        Conv { x, w, y, window }
    }

    /// Whether Winograd's algorithm applies, which `Auto` may choose too.
    fn suits_winograd(&self) -> bool {
        let Conv2dParams {
            stride, dilation, ..
        } = self.window;
        (self.w[2], self.w[3], stride, dilation) == (3, 3, [1; 2], [1; 2])
    }

    /// Arguments of about such a size that outputs are about 1, exact in the dtype.
    fn inputs(&self, dtype: DType) -> Result<[Tensor; 3]> {
        let terms = self.w[1..].iter().product::<usize>().max(1) as f64;
        let scale = 2f64.powi(-(terms.log2() / 2.0).ceil() as i32 - 1);
        Ok([
            signal(&self.x, 1, dtype)?,
            (signal(&self.w, 2, dtype)? * scale)?,
            (signal(&self.w[..1], 3, dtype)? / 2.0)?,
        ])
    }

    /// By an algorithm, on a device.
    fn run(
        &self,
        [x, w, bias]: &[Tensor; 3],
        act: Act,
        algo: ConvAlgo,
        device: &Device,
    ) -> Result<Tensor> {
        let at = |t: &Tensor| t.to_device(device);
        let (x, w, bias) = (at(x)?, at(w)?, at(bias)?);
        conv2d_with(&x, &w, Some(&bias), self.window, act, algo)
    }

    /// What `run` should give.
    fn expected(&self, [x, w, bias]: &[Tensor; 3]) -> Result<Expected> {
        let mut sums = reference::forward(self, &values(x)?, &values(w)?);
        sums.add_bias(&values(bias)?, self.y[2] * self.y[3]);
        Ok(Expected::new(sums, self.y))
    }
}

fn signal(dims: &[usize], seed: u64, dtype: DType) -> Result<Tensor> {
    Fill::Signal.tensor(dims, seed, dtype, &Device::Cpu)
}

fn values(t: &Tensor) -> Result<Vec<f64>> {
    t.to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()
}

/// Half a unit in the last place, which a rounding to the dtype may cost.
fn half_ulp(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 0.0,
    }
}

/// Numbers, and how far each may be off.
#[derive(Clone)]
struct Expected {
    dims: Vec<usize>,
    values: Vec<f64>,
    slack: Vec<f64>,
}

impl Expected {
    /// Sums of products in f32, in whatever order: some 30 roundings of up to all the terms. The rest is for sums of
    /// nothing but subnormals.
    fn new(sums: Sums, dims: impl Into<Vec<usize>>) -> Self {
        Expected {
            dims: dims.into(),
            slack: sums.mass.iter().map(|mass| 2e-6 * mass + 1e-30).collect(),
            values: sums.values,
        }
    }

    /// As far off as the algorithm may be: Winograd's transforms mix the terms of a tile's outputs, and enlarge them on
    /// the way.
    fn by(&self, conv: &Conv, algo: ConvAlgo) -> Self {
        let mut expected = self.clone();
        if matches!(algo, ConvAlgo::Auto | ConvAlgo::Winograd) && conv.suits_winograd() {
            let finite = self.slack.iter().filter(|slack| slack.is_finite());
            let most = finite.fold(0.0, |a: f64, b| a.max(*b));
            expected.slack.fill(10.0 * most);
        }
        expected
    }

    /// After an activation, which enlarges errors by its slope and adds a few units in the last place.
    fn after(&self, act: Act) -> Result<Self> {
        let z = Tensor::from_slice(&self.values, self.values.len(), &Device::Cpu)?;
        let values: Vec<f64> = activation::reference(&z, act)?.to_vec1()?;
        let slope = |z: f64| match act {
            Act::Identity | Act::Relu => 1.0,
            Act::Relu2 => 2.0 * z.abs() + 0.01,
            _ => 1.2,
        };
        let pairs = self.slack.iter().zip(&self.values).zip(&values);
        let own = if act == Act::Identity { 0.0 } else { 1.0 };
        Ok(Expected {
            dims: self.dims.clone(),
            slack: pairs
                .map(|((slack, z), value)| slack * slope(*z) + own * (1e-6 * value.abs() + 1e-7))
                .collect(),
            values,
        })
    }

    /// What is wrong with `got`, if anything. NaN and infinities have to be in their places.
    fn problem(&self, got: &Tensor) -> Result<Option<String>> {
        if got.dims() != self.dims {
            let (a, b) = (got.dims(), &self.dims);
            return Ok(Some(format!("shape {a:?}, expected {b:?}")));
        }
        let half_ulp = half_ulp(got.dtype());
        // The smallest f16 subnormal is a coarser grid than half an ulp.
        let floor = if got.dtype() == DType::F16 { 3e-8 } else { 0.0 };
        let got = values(got)?;
        let excess = |i: usize| {
            let (g, w, slack) = (got[i], self.values[i], self.slack[i]);
            if g == w || (g.is_nan() && w.is_nan()) {
                return 0.0;
            }
            let excess = (g - w).abs() / (slack + half_ulp * (w.abs() + slack) + floor);
            if excess.is_finite() && w.is_finite() {
                return excess;
            }
            f64::INFINITY
        };
        let excesses = (0..got.len()).map(|i| (i, excess(i)));
        Ok(match excesses.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((i, excess)) if excess > 1.0 => Some(format!(
                "element {i} of {:?} is {}, expected {} ({excess:.2} × the tolerance)",
                self.dims, got[i], self.values[i]
            )),
            _ => None,
        })
    }

    fn check(&self, got: &Tensor, what: impl std::fmt::Display) -> Result<()> {
        match self.problem(got)? {
            None => Ok(()),
            Some(problem) => panic!("{what}: {problem}"),
        }
    }
}
