//! x is rounded to 8-bit integers, which are multiplied with W's packed codes as they lie, a vector of bytes at a time.

mod kernel;

use super::{Levels, ScaleScope, INPUT_SCHEME, NAME};
use crate::cpu::activation_bytes::{ActivationBytes, RecordLayout};
use crate::cpu::byte_simd::width;
use crate::cpu::{gather, parallel, with_float};
use crate::ops::linear::cpu as linear;
use crate::ops::packed::Call;
use crate::ops::quantize::cpu::{elements, quantize};
use candle_core::{CpuStorage, Result};

pub fn forward(call: &Call<CpuStorage>) -> Result<CpuStorage> {
    let (w, x, bias) = (call.w, call.x, call.bias);
    let (outputs, cols) = w.shape().dims2()?;
    if w.shape().elem_count() == 0 || x.1.shape().elem_count() == 0 {
        return linear::bias_only(NAME, x, outputs, bias);
    }
    let weight = Weight {
        codes: elements(call.weight.codes)?,
        codes_per_byte: w.scheme().per_byte(),
        outputs,
        scales: elements(call.weight.scales)?,
        factor: match w.scheme().levels {
            Levels::Ternary => 1,
            _ => 2,
        },
        one_scale: w.scheme().scope == ScaleScope::Tensor,
    };
    let (integers, x_scales, _) = quantize(INPUT_SCHEME, x)?;
    let int8 = Int8Rows::new(&integers, x_scales, cols, weight.codes_per_byte);
    with_float!(NAME, x.0, T => {
        let bias = match bias {
            Some((bias, l)) => Some(gather::contiguous(bias.as_slice::<T>()?, l)),
            None => None,
        };
        Ok(<T as crate::cpu::element::Element>::wrap(kernel::multiply(&weight, &int8, bias.as_deref())))
    })
}

/// A matrix of weights −1, 0, 1 or −1, 1, times a scale for each output or one for all.
struct Weight<'a> {
    /// Packed rows of the same number of bytes, one for each output.
    codes: &'a [u8],
    /// 4 or 8.
    codes_per_byte: usize,
    outputs: usize,
    scales: &'a [f32],
    one_scale: bool,
    /// A weight is `factor · code − 1`: 1 for codes 0, 1, 2, and 2 for codes 0, 1.
    factor: i32,
}

impl Weight<'_> {
    fn row_bytes(&self) -> usize {
        self.codes.len() / self.outputs
    }

    fn scale(&self, output: usize) -> f32 {
        self.scales[if self.one_scale { 0 } else { output }]
    }
}

/// Rows of x, rounded to 8-bit integers.
struct Int8Rows {
    bytes: ActivationBytes,
    /// For each row, the scale of its integers.
    scales: Vec<f32>,
    /// For each row, the sum of its integers: `Σ q · (factor · code − 1) = factor · Σ q · code − Σ q`.
    sums: Vec<i32>,
}

impl Int8Rows {
    /// `integers` has `cols` signed bytes for each of `scales`.
    fn new(integers: &[u8], scales: Vec<f32>, cols: usize, codes_per_byte: usize) -> Self {
        let layout = RecordLayout::of_8_bits(width(), codes_per_byte);
        let mut bytes = ActivationBytes::zeros(layout, scales.len(), cols);
        let mut sums = vec![0; scales.len()];
        let rows = bytes.rows_mut().zip(&mut sums);
        let mut rows: Vec<_> = rows.zip(integers.chunks_exact(cols)).collect();
        parallel::each(&mut rows, 4 * cols, |((records, sum), integers)| {
            **sum = integers.iter().map(|&q| i32::from(q as i8)).sum();
            let records = records.chunks_exact_mut(layout.bytes());
            for (record, columns) in records.zip(integers.chunks(layout.cols())) {
                match codes_per_byte {
                    4 => layout.write_8_bits::<4>(columns, record),
                    _ => layout.write_8_bits::<8>(columns, record),
                }
            }
        });
        Int8Rows {
            bytes,
            scales,
            sums,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{bitlinear, reference};
    use super::*;
    use crate::cpu::byte_simd::with_every_isa;
    use crate::ops::quantize::{self, Scheme};
    use candle_core::{Device, Tensor};

    #[test]
    fn every_instruction_set_is_exact() -> Result<()> {
        let wave = |rows: usize, cols: usize| {
            let value = |i: usize| (i as f32 * 0.7).sin() + (i % 11) as f32 / 8.0 - 0.6;
            let values: Vec<f32> = (0..rows * cols).map(value).collect();
            Tensor::from_vec(values, (rows, cols), &Device::Cpu)
        };
        for cols in [1, 127, 300] {
            for levels in [Levels::Ternary, Levels::Sign { centred: true }] {
                // More rows and outputs than a block has, and not a multiple.
                let (x, w) = (wave(6, cols)?, wave(7, cols)?);
                let w = quantize::quantize(&w, Scheme::new(levels, ScaleScope::Row))?;
                let want = reference(&x, &w, None)?.to_vec2::<f32>()?.concat();
                with_every_isa(|isa| {
                    let got = bitlinear(&x, &w, None).and_then(|y| y.to_vec2::<f32>());
                    for (got, want) in got.unwrap().concat().iter().zip(&want) {
                        let most = 1e-5 * want.abs() + 1e-5;
                        assert!((got - want).abs() < most, "{got} {want} {isa:?} {levels:?}");
                    }
                });
            }
        }
        Ok(())
    }

    /// The codes end where a page ends that nothing may be read behind.
    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_is_read_behind_the_codes() {
        use crate::cpu::guarded::GuardedBytes;
        for (codes_per_byte, factor) in [(4, 1), (8, 2)] {
            for (row_bytes, outputs) in
                [(1, 1), (1, 40), (5, 9), (31, 6), (33, 5), (64, 3), (65, 7)]
            {
                let cols = row_bytes * codes_per_byte;
                let bytes: Vec<u8> = (0..row_bytes * outputs)
                    .map(|i| (i * 37) as u8 & 0x55)
                    .collect();
                let integers: Vec<u8> = (0..5 * cols).map(|i| (i * 11) as u8).collect();
                let guarded = GuardedBytes::new(&bytes);
                with_every_isa(|isa| {
                    let x = Int8Rows::new(&integers, vec![1.0; 5], cols, codes_per_byte);
                    let weight = |codes| Weight {
                        codes,
                        codes_per_byte,
                        outputs,
                        scales: &[1.0],
                        one_scale: true,
                        factor,
                    };
                    let got = kernel::multiply::<f32>(&weight(&guarded), &x, None);
                    let want = kernel::multiply::<f32>(&weight(&bytes), &x, None);
                    assert_eq!(got, want, "{isa:?} {outputs} rows of {row_bytes} bytes");
                });
            }
        }
    }
}
