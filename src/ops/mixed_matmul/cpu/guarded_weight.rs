//! For tests: a weight whose codes, scales and offsets end where a page ends that nothing may be read behind.

use crate::cpu::guarded::GuardedBytes;
use crate::ops::quantize::cpu::Decoder;
use crate::quant::Scheme;

pub struct GuardedWeight {
    scheme: Scheme,
    cols: usize,
    codes: GuardedBytes,
    scales: GuardedBytes,
    offsets: GuardedBytes,
    /// The same bytes, not next to such a page.
    copied_codes: Vec<u8>,
    copied_scales: Vec<f32>,
    copied_offsets: Vec<f32>,
}

impl GuardedWeight {
    pub fn new(scheme: Scheme, outputs: usize, cols: usize) -> Self {
        let shape = scheme.scales_shape(&(outputs, cols).into());
        let count = shape.expect("a scheme that suits").elem_count();
        let numbers = |first: f32| -> Vec<u8> {
            let number = |i: usize| first + i as f32 / 8.0;
            (0..count).flat_map(|i| number(i).to_ne_bytes()).collect()
        };
        let codes = (0..outputs * scheme.row_bytes(cols)).map(|i| (i * 37) as u8 & 0x55);
        let codes = GuardedBytes::new(&codes.collect::<Vec<_>>());
        let scales = GuardedBytes::new(&numbers(0.5));
        let offsets = match scheme.has_offsets() {
            true => GuardedBytes::new(&numbers(1.0)),
            false => GuardedBytes::new(&[]),
        };
        GuardedWeight {
            scheme,
            cols,
            copied_codes: codes.to_vec(),
            copied_scales: scales.as_f32().to_vec(),
            copied_offsets: offsets.as_f32().to_vec(),
            codes,
            scales,
            offsets,
        }
    }

    /// To read beyond its parts kills the process.
    pub fn guarded(&self) -> Decoder<'_> {
        Decoder {
            scheme: &self.scheme,
            codes: &self.codes,
            scales: self.scales.as_f32(),
            offsets: self.offsets.as_f32(),
            cols: self.cols,
        }
    }

    pub fn copy(&self) -> Decoder<'_> {
        Decoder {
            codes: &self.copied_codes,
            scales: &self.copied_scales,
            offsets: &self.copied_offsets,
            ..self.guarded()
        }
    }
}
