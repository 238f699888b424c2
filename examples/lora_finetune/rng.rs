//! Random numbers that are the same in every run. Candle's own can't be seeded on the CPU.

use candle_core::{Device, Result, Shape, Tensor};

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In `0..end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.unit() * end as f64) as usize
    }

    /// In `[-bound, bound)`.
    pub fn uniform(&mut self, shape: &Shape, bound: f64) -> Result<Tensor> {
        self.tensor(shape, |rng| (rng.unit() * 2.0 - 1.0) * bound)
    }

    pub fn normal(&mut self, shape: &Shape, stdev: f64) -> Result<Tensor> {
        // Box and Muller's; 1 - u is never 0.
        self.tensor(shape, |rng| {
            let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
            radius * (std::f64::consts::TAU * rng.unit()).cos() * stdev
        })
    }

    fn tensor(&mut self, shape: &Shape, mut draw: impl FnMut(&mut Self) -> f64) -> Result<Tensor> {
        let values: Vec<f32> = (0..shape.elem_count()).map(|_| draw(self) as f32).collect();
        Tensor::from_vec(values, shape, &Device::Cpu)
    }
}
