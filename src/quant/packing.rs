//! Packing: codes of one byte each to bytes that hold several, and back.
//!
//! ```text
//! codes   c0 c1 c2 c3 c4 c5 c6 c7 ..      one to a byte
//! 4 bits  c1·16 + c0 | c3·16 + c2 | ..    the first code in the lowest bits
//! 2 bits  c3·64 + c2·16 + c1·4 + c0 | ..
//! 1 bit   c7·128 + .. + c0 | ..
//! base 3  ⌈(c0·81 + c1·27 + c2·9 + c3·3 + c4) · 256 / 243⌉ | ..
//! ```

use super::{Packing, Scheme};

/// Packs a row of codes, or a part of one that begins with a byte. The unused bits of the last byte are 0.
pub fn pack(scheme: &Scheme, codes: &[u8], to: &mut [u8]) {
    match (scheme.packing, scheme.bits()) {
        (Packing::Base3, _) => pack_base3(codes, to),
        (_, 1) => pack_bits::<1>(codes, to),
        (_, 2) => pack_bits::<2>(codes, to),
        (_, 4) => pack_bits::<4>(codes, to),
        _ => to.copy_from_slice(codes),
    }
}

/// Unpacks the first `to.len()` codes of a row, or of a part of one that begins with a byte.
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

/// The codes of one byte are read as one 64-bit word and moved to their bits together.
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
            // The product moves bit 0 of byte i to bit 56 + i; no two terms meet in the same bit.
            _ => word.wrapping_mul(0x0102_0408_1020_4080) >> 56,
        } as u8;
    }
    if let (false, Some(byte)) = (rest.is_empty(), to.last_mut()) {
        let place = |(i, code): (usize, &u8)| code << (BITS * i);
        *byte = rest.iter().enumerate().map(place).fold(0, |a, b| a | b);
    }
}

/// Whole bytes are unpacked by loops of constant length, which the compiler turns into vectors.
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
            // The multiplication modulo 256 drops the digits before this one.
            let rest = byte.wrapping_mul(power);
            *to = ((u16::from(rest) * 3) >> 8) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Levels, ScaleScope};

    #[test]
    fn all_bytes_and_lengths_come_back() {
        let schemes = [1u8, 2, 4, 8].map(|bits| {
            let levels = match bits {
                1 => Levels::Sign { centred: false },
                2 => Levels::Ternary,
                bits => Levels::Affine { bits: bits.into() },
            };
            Scheme::new(levels, ScaleScope::Row)
        });
        let base3 = Scheme::ternary(ScaleScope::Row).with_packing(Packing::Base3);
        for scheme in schemes.into_iter().chain([base3]) {
            let codes = scheme.max_code() as usize + 1;
            // Short lengths, then a row that has every possible byte.
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
        let scheme = Scheme::ternary(ScaleScope::Row).with_packing(Packing::Base3);
        let mut byte = [0];
        pack(&scheme, &[0, 1, 2, 2, 0], &mut byte);
        let number: u32 = 27 + 2 * 9 + 2 * 3;
        assert_eq!(u32::from(byte[0]), (number * 256).div_ceil(243));
    }
}
