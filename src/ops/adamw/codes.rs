//! Moments as 8-bit codes: the dynamic code of "8-bit Optimizers via Block-wise Quantization" (Dettmers et al., 2022).
//!
//! A block of 256 neighbours is divided by its largest magnitude, and each quotient in [−1, 1] is stored as the nearest value of
//! a table. Seven decades have values, each twice as many as the one below it, spread evenly: 64 from 0.1 to 1 for
//! the first moment, which has a sign, and 128 for the second, which has none.
//!
//! | magnitude, of the block's largest | error of m | error of v |
//! |---|---|---|
//! | 0.1 to 1 | at most 0.71 % of the largest | at most 0.36 % |
//! | 0.01 to 0.1 | at most 0.15 % | at most 0.071 % |
//! | each decade below | relative error twice as large as in the one above | |
//! | below 2.7e-7 (m), 1.6e-7 (v) | becomes 0 | becomes the smallest value, 3.2e-7 |
//!
//! The second moment is never rounded to 0, but where it is 0: an update divides by its root. A block with a NaN or an
//! infinity is NaN as a whole from then on, as a parameter is whose gradient was.

use std::sync::OnceLock;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 256;

/// A magnitude's code, and from 129 on those of negative numbers, for the first moment.
const LARGEST_SIGNED: usize = 128;

/// The magnitudes of one moment's codes.
pub(crate) struct Table {
    /// In ascending order, from 0 to 1.
    pub magnitudes: Vec<f32>,
    /// For the upper 16 bits of a float, the code of the smallest float that begins with them; a float with these bits has this
    /// code or the next.
    first: Vec<u8>,
}

/// The upper 16 bits of 2⁻²⁴, below which every magnitude has code 0, and of 1.
const LOWEST: u32 = (127 - 24) << 7;
const HIGHEST: u32 = 127 << 7;

impl Table {
    /// Of the first moment.
    pub(crate) fn signed() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| Table::new(0))
    }

    /// Of the second moment.
    pub(crate) fn unsigned() -> &'static Table {
        static TABLE: OnceLock<Table> = OnceLock::new();
        TABLE.get_or_init(|| Table::new(1))
    }

    /// The lowest decade has 2ᵏ values for k = `bits`, and the seventh 2ᵏ⁺⁶.
    fn new(bits: u32) -> Table {
        let mut magnitudes = vec![0f32];
        for decade in 0..7u32 {
            let count = 1 << (decade + bits);
            let top = 10f64.powi(decade as i32 - 6);
            let value = |i: i32| top * (0.1 + 0.9 * (f64::from(i) + 0.5) / f64::from(count));
            magnitudes.extend((0..count).map(|i| value(i) as f32));
        }
        magnitudes.push(1.0);
        let first = (LOWEST..=HIGHEST).map(|upper| {
            let smallest = f32::from_bits(upper << 16);
            let middles = magnitudes.windows(2).map(|pair| middle(pair[0], pair[1]));
            middles.take_while(|&middle| smallest > middle).count() as u8
        });
        let first = first.collect();
        Table { magnitudes, first }
    }

    /// The code of the magnitude that is nearest to x, in [0, 1]; of two that are as near, the smaller.
    #[inline(always)]
    pub(crate) fn nearest(&self, x: f32) -> u8 {
        let upper = (x.to_bits() >> 16).clamp(LOWEST, HIGHEST) - LOWEST;
        let code = self.first[upper as usize];
        // The last code has no next one.
        let next = usize::from(code) + 1;
        match next < self.magnitudes.len()
            && x > middle(self.magnitudes[next - 1], self.magnitudes[next])
        {
            true => code + 1,
            false => code,
        }
    }
}

#[inline(always)]
fn middle(a: f32, b: f32) -> f32 {
    0.5 * (a + b)
}

/// The code of x in [−1, 1].
#[inline(always)]
pub(crate) fn encode_signed(table: &Table, x: f32) -> u8 {
    let code = table.nearest(x.abs());
    match x < 0.0 && code > 0 {
        // −1 has no code of its own.
        true => code.min(LARGEST_SIGNED as u8 - 1) + LARGEST_SIGNED as u8,
        false => code,
    }
}

/// The value of a code of the first moment.
#[inline(always)]
pub(crate) fn decode_signed(table: &Table, code: u8) -> f32 {
    let code = usize::from(code);
    match code > LARGEST_SIGNED {
        true => -table.magnitudes[code - LARGEST_SIGNED],
        false => table.magnitudes[code],
    }
}

/// The code of x in [0, 1]; 0 for 0 alone.
#[inline(always)]
pub(crate) fn encode_unsigned(table: &Table, x: f32) -> u8 {
    table.nearest(x).max(u8::from(x > 0.0))
}

/// The scale of a block whose largest magnitude this is, infinite if a value is not finite, and what values are multiplied by
/// before they get their codes.
#[inline(always)]
pub(crate) fn scale(largest: f32) -> (f32, f32) {
    if largest == f32::INFINITY {
        (f32::NAN, 0.0)
    } else if largest < f32::MIN_POSITIVE {
        // A subnormal number's reciprocal may be infinite.
        (0.0, 0.0)
    } else {
        (largest, 1.0 / largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(table: &Table, x: f32) -> u8 {
        let middles = table.magnitudes.windows(2);
        let middles = middles.map(|pair| middle(pair[0], pair[1]));
        middles.filter(|&middle| x > middle).count() as u8
    }

    #[test]
    fn every_code_stands_for_itself() {
        let (signed, unsigned) = (Table::signed(), Table::unsigned());
        assert_eq!(
            (signed.magnitudes.len(), unsigned.magnitudes.len()),
            (129, 256)
        );
        for code in 0..=255u8 {
            let value = decode_signed(signed, code);
            assert_eq!(encode_signed(signed, value), code, "{value}");
            let value = unsigned.magnitudes[usize::from(code)];
            assert_eq!(encode_unsigned(unsigned, value), code, "{value}");
        }
        // −1 is the one value of the block's largest that has no code.
        assert_eq!(encode_signed(signed, -1.0), 255);
    }

    #[test]
    fn codes_are_the_nearest_and_errors_those_of_the_table_above() {
        let bounds = [[0.0071, 0.0015], [0.0036, 0.00071]];
        for (table, [top, below]) in [Table::signed(), Table::unsigned()].into_iter().zip(bounds) {
            // Every magnitude down to 2⁻³⁰, in steps of 2⁻¹² of it.
            for bits in ((127 - 30) << 23..=127u32 << 23).step_by(1 << 11) {
                let x = f32::from_bits(bits);
                let code = table.nearest(x);
                assert_eq!(code, slow(table, x), "{x}");
                let error = (table.magnitudes[usize::from(code)] - x).abs();
                let bound = if x >= 0.1 { top } else { below };
                assert!(x < 0.01 || error <= bound, "{x}: {error}");
            }
        }
        assert_eq!(encode_unsigned(Table::unsigned(), 1e-30), 1);
        assert_eq!(encode_unsigned(Table::unsigned(), 0.0), 0);
        assert_eq!(encode_signed(Table::signed(), -1e-9), 0);
    }
}
