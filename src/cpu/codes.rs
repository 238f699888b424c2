//! Codes in bytes: several to a byte, and one.

use crate::ops::quantize::{Packing, Scheme};

/// Codes, one to a byte, to a row of packed ones. What is left of the last byte is 0.
pub fn pack(scheme: &Scheme, codes: &[u8], to: &mut [u8]) {
    match (scheme.packing, scheme.bits()) {
        (Packing::Base3, _) => pack_base3(codes, to),
        (_, 1) => pack_bits::<1>(codes, to),
        (_, 2) => pack_bits::<2>(codes, to),
        (_, 4) => pack_bits::<4>(codes, to),
        _ => to.copy_from_slice(codes),
    }
}

/// A row of packed codes, or the beginning of one, to codes of one byte each.
#[inline(always)]
pub fn unpack(scheme: &Scheme, bytes: &[u8], to: &mut [u8]) {
    match (scheme.packing, scheme.bits()) {
        (Packing::Base3, _) => unpack_base3(bytes, to),
        (_, 1) => unpack_bits::<1, 8>(bytes, to),
        (_, 2) => unpack_bits::<2, 4>(bytes, to),
        (_, 4) => unpack_bits::<4, 2>(bytes, to),
        _ => to.copy_from_slice(&bytes[..to.len()]),
    }
}

/// The codes of a byte are taken as one word, whose parts are moved together.
fn pack_bits<const BITS: usize>(codes: &[u8], to: &mut [u8]) {
    let per_byte = 8 / BITS;
    let whole = codes.chunks_exact(per_byte);
    let rest = whole.remainder();
    for (byte, codes) in to.iter_mut().zip(whole) {
        let mut word = [0; 8];
        word[..per_byte].copy_from_slice(codes);
        let word = u64::from_le_bytes(word);
        *byte = match BITS {
            4 => word | (word >> 4),
            2 => word | (word >> 6) | (word >> 12) | (word >> 18),
            // The product has every byte's bit in its uppermost byte, each in its place.
            _ => word.wrapping_mul(0x0102_0408_1020_4080) >> 56,
        } as u8;
    }
    if let (false, Some(byte)) = (rest.is_empty(), to.last_mut()) {
        let place = |(i, code): (usize, &u8)| code << (BITS * i);
        *byte = rest.iter().enumerate().map(place).fold(0, |a, b| a | b);
    }
}

/// Whole bytes in fixed steps, which become vectors.
#[inline(always)]
fn unpack_bits<const BITS: usize, const PER_BYTE: usize>(bytes: &[u8], to: &mut [u8]) {
    let code = |byte: u8, i: usize| (byte >> (BITS * i)) & ((1 << BITS) - 1);
    let whole = to.len() / PER_BYTE;
    let (chunks, rest) = to.split_at_mut(whole * PER_BYTE);
    for (chunk, &byte) in chunks.chunks_exact_mut(PER_BYTE).zip(bytes) {
        for (i, to) in chunk.iter_mut().enumerate() {
            *to = code(byte, i);
        }
    }
    for (i, to) in rest.iter_mut().enumerate() {
        *to = code(bytes[whole], i);
    }
}

fn pack_base3(codes: &[u8], to: &mut [u8]) {
    for (byte, codes) in to.iter_mut().zip(codes.chunks(5)) {
        let digit = |i: usize| u16::from(codes.get(i).copied().unwrap_or(0));
        let number = (0..5).fold(0, |number, i| 3 * number + digit(i));
        *byte = (number * 256).div_ceil(243) as u8;
    }
}

#[inline(always)]
fn unpack_base3(bytes: &[u8], to: &mut [u8]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    for (chunk, &byte) in to.chunks_mut(5).zip(bytes) {
        for (to, power) in chunk.iter_mut().zip(POWERS) {
            // What is above the byte are the digits before this one: they have been dropped.
            let rest = byte.wrapping_mul(power);
            *to = ((u16::from(rest) * 3) >> 8) as u8;
        }
    }
}

/// Rows of packed codes of which each can be read beyond its end, up to a vector.
pub struct CodeRows<'a> {
    codes: &'a [u8],
    row_bytes: usize,
    /// The rows from this one on, with room behind them.
    first: usize,
    tail: Vec<u8>,
}

impl<'a> CodeRows<'a> {
    /// `vector` is in bytes.
    pub fn new(codes: &'a [u8], row_bytes: usize, vector: usize) -> Self {
        let rows = codes.len().checked_div(row_bytes).unwrap_or(0);
        let count = match row_bytes.checked_rem(vector) {
            Some(1..) => vector.div_ceil(row_bytes).min(rows),
            _ => 0,
        };
        let first = rows - count;
        let mut tail = Vec::new();
        if count > 0 {
            tail.extend(&codes[first * row_bytes..]);
            tail.resize(tail.len() + vector, 0);
        }
        CodeRows {
            codes,
            row_bytes,
            first,
            tail,
        }
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Where a row begins.
    #[inline(always)]
    pub fn row(&self, row: usize) -> *const u8 {
        match row.checked_sub(self.first) {
            Some(row) => self.tail[row * self.row_bytes..].as_ptr(),
            None => self.codes[row * self.row_bytes..].as_ptr(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::quantize::{Grid, Per};

    #[test]
    fn all_bytes_and_lengths_come_back() {
        let grids = [1u8, 2, 4, 8].map(|bits| {
            let grid = match bits {
                1 => Grid::Sign { centred: false },
                2 => Grid::Ternary,
                bits => Grid::Affine { bits: bits.into() },
            };
            Scheme::new(grid, Per::Row)
        });
        let base3 = Scheme::ternary(Per::Row).with_packing(Packing::Base3);
        for scheme in grids.into_iter().chain([base3]) {
            let codes = scheme.max_code() as usize + 1;
            // Every byte that there is, then every length.
            let all = codes.pow(scheme.per_byte() as u32);
            for len in (0..=40).chain([all * scheme.per_byte()]) {
                let of = |i: usize| {
                    let (byte, digit) = (i / scheme.per_byte(), i % scheme.per_byte());
                    (byte / codes.pow(digit as u32) % codes) as u8
                };
                let want: Vec<u8> = (0..len).map(of).collect();
                let mut bytes = vec![0xff; scheme.row_bytes(len)];
                pack(&scheme, &want, &mut bytes);
                let mut got = vec![0xff; len];
                unpack(&scheme, &bytes, &mut got);
                assert_eq!(got, want, "{scheme:?}");
            }
        }
    }

    /// A block of ggml's TQ1_0 is packed the same way: five trits −1, 0, 1, 1, −1.
    #[test]
    fn base3_is_ggmls() {
        let scheme = Scheme::ternary(Per::Row).with_packing(Packing::Base3);
        let mut byte = [0];
        pack(&scheme, &[0, 1, 2, 2, 0], &mut byte);
        let number: u32 = 27 + 2 * 9 + 2 * 3;
        assert_eq!(u32::from(byte[0]), (number * 256).div_ceil(243));
    }
}
