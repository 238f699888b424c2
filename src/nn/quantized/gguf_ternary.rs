//! ggml's ternary blocks of 256 numbers: TQ1_0 and TQ2_0.

use super::save_load::check_codes;
use crate::quant::{pack, Quantized, ScaleScope, Scheme};
use candle_core::{Device, Result, Tensor};
use half::f16;

/// Numbers in a block.
pub const BLOCK: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ternary {
    /// 48 bytes of five base-3 digits, 4 of four, and an f16 scale.
    Tq1,
    /// 64 bytes of four codes of two bits, and an f16 scale.
    Tq2,
}

impl Ternary {
    /// The size of a block in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Ternary::Tq1 => 54,
            Ternary::Tq2 => 66,
        }
    }

    /// Converts the blocks of a tensor `[.., cols]` to codes with a scale for each block; cols is a multiple of a block.
    pub fn read(self, op: &str, data: &[u8], dims: &[usize], device: &Device) -> Result<Quantized> {
        let scheme = Scheme::ternary(ScaleScope::Group(BLOCK));
        let blocks = data.len() / self.bytes();
        let (mut packed, mut scales) = (vec![0; blocks * BLOCK / 4], Vec::with_capacity(blocks));
        let mut codes = [0; BLOCK];
        for (block, to) in data
            .chunks_exact(self.bytes())
            .zip(packed.chunks_exact_mut(BLOCK / 4))
        {
            let (bytes, scale) = block.split_at(self.bytes() - 2);
            match self {
                Ternary::Tq1 => unpack_tq1(bytes, &mut codes),
                Ternary::Tq2 => unpack_tq2(bytes, &mut codes),
            }
            pack(&scheme, &codes, to);
            scales.push(f16::from_le_bytes([scale[0], scale[1]]).to_f32());
        }
        check_codes(op, &scheme, &packed)?;
        let shape = candle_core::Shape::from(dims);
        let codes = Tensor::from_vec(packed, scheme.codes_shape(&shape)?, device)?;
        let scales = Tensor::from_vec(scales, scheme.scales_shape(&shape)?, device)?;
        Quantized::new(codes, scales, None, shape, scheme)
    }
}

/// The bytes are in three parts of 32, 16 and 4. Byte j of a part of n bytes holds the base-3 digits of the elements j, j + n,
/// j + 2n, .. of that part, the first digit highest.
fn unpack_tq1(bytes: &[u8], codes: &mut [u8; BLOCK]) {
    let (mut from, mut to) = (0, 0);
    for (count, digits) in [(32, 5), (16, 5), (4, 4)] {
        for j in 0..count {
            let mut rest = bytes[from + j];
            for n in 0..digits {
                codes[to + n * count + j] = ((u16::from(rest) * 3) >> 8) as u8;
                rest = rest.wrapping_mul(3);
            }
        }
        from += count;
        to += digits * count;
    }
}

/// Each 32 bytes hold 128 elements: byte j has the elements j, j + 32, j + 64 and j + 96, the first in the lowest bits.
fn unpack_tq2(bytes: &[u8], codes: &mut [u8; BLOCK]) {
    for (bytes, codes) in bytes.chunks(32).zip(codes.chunks_mut(128)) {
        for (i, code) in codes.iter_mut().enumerate() {
            *code = (bytes[i % 32] >> (2 * (i / 32))) & 3;
        }
    }
}
