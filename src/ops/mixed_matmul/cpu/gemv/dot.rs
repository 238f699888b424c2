//! The integer products of one vector of codes and one record of x.

use crate::cpu::activation_bytes::{plane_24_bits, DIGITS};
use crate::cpu::byte_simd::{unpack_1_bit, unpack_2_bits, unpack_4_bits, ByteSimd};

/// `Σ q · c` of each lane, plus the number in the record's header. q has the digits from LOWEST on: 0, or 2 for the upper digit alone.
///
/// # Safety
/// `record` is a record of x for codes of BITS bits and vectors of `B::WIDTH` bytes.
#[inline(always)]
pub unsafe fn products<B: ByteSimd, const BITS: usize, const LOWEST: usize>(
    b: B,
    v: B::V,
    record: *const u8,
) -> B::F {
    // SAFETY: the caller promises the record: a header of a vector, then DIGITS planes for each of 8 / BITS positions.
    unsafe {
        match BITS {
            1 => few_bits::<B, 8, LOWEST>(b, unpack_1_bit(b, v), record),
            2 => few_bits::<B, 4, LOWEST>(b, unpack_2_bits(b, v), record),
            4 => few_bits::<B, 2, LOWEST>(b, unpack_4_bits(b, v), record),
            _ => eight_bits::<B, LOWEST>(b, v, record),
        }
    }
}

/// Of codes whose largest is 30 / N at most. A lane adds up 4 · N products of those with 24 bits, which fits an i32.
///
/// # Safety
/// As for [`products`], with N positions.
#[inline(always)]
unsafe fn few_bits<B: ByteSimd, const N: usize, const LOWEST: usize>(
    b: B,
    codes: [B::V; N],
    record: *const u8,
) -> B::F {
    // SAFETY: the caller promises the record, and the planes are in it.
    unsafe {
        // By Horner's rule, the uppermost digit first.
        let mut sum = b.load_i32(record.cast());
        for digit in (LOWEST..DIGITS).rev() {
            let mut xs = codes;
            for (position, xs) in xs.iter_mut().enumerate() {
                *xs = b.load(record.add(plane_24_bits(B::WIDTH, position, digit)));
            }
            // Eight dot products are a long chain: summed by themselves, they need not wait for the digit before.
            sum = match N > 4 && digit + 1 < DIGITS {
                true => b.add_shifted::<0>(sum, b.dot(b.zero(), codes, xs)),
                false => b.dot(sum, codes, xs),
            };
            if digit > LOWEST {
                sum = b.times_256(sum);
            }
        }
        b.to_float(sum)
    }
}

/// Of codes of eight bits, with which the sum of all three digits would not fit an i32: the lowest digit has its own.
///
/// # Safety
/// As for [`products`], with one position.
#[inline(always)]
unsafe fn eight_bits<B: ByteSimd, const LOWEST: usize>(
    b: B,
    codes: B::V,
    record: *const u8,
) -> B::F {
    // SAFETY: the caller promises the record, and the planes are in it.
    unsafe {
        let high = b.load(record.add(plane_24_bits(B::WIDTH, 0, 2)));
        let upper = b.dot_bytes(b.load_i32(record.cast()), codes, high);
        if LOWEST == 2 {
            return b.to_float(upper);
        }
        let low = b.load(record.add(plane_24_bits(B::WIDTH, 0, 0)));
        let middle = b.load(record.add(plane_24_bits(B::WIDTH, 0, 1)));
        let upper = b.dot_bytes(b.times_256(upper), codes, middle);
        let lower = b.dot_bytes(b.zero(), codes, low);
        b.fma(b.to_float(upper), b.splat(256.0), b.to_float(lower))
    }
}
