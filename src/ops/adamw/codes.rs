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

/// The values of one moment's codes. Arrays of fixed lengths, so that no index needs a check, and no branches: half of them
/// would be predicted wrongly.
pub(crate) struct Table {
    /// In ascending order, from 0 to 1.
    #[cfg(any(feature = "metal", test))]
    pub magnitudes: Vec<f32>,
    /// The value of each code.
    pub values: [f32; 256],
    /// Between a magnitude and the next; infinite behind the last.
    middles: [f32; 256],
    /// For the upper 16 bits of a float, the code of the smallest float that begins with them; a float with these bits has this
    /// code or the next.
    first: [u8; (HIGHEST - LOWEST) as usize + 1],
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
        let value = |code: usize| match magnitudes.get(code) {
            Some(&magnitude) => magnitude,
            None => -magnitudes[code - LARGEST_SIGNED],
        };
        let mut middles = [f32::INFINITY; 256];
        for (middle, pair) in middles.iter_mut().zip(magnitudes.windows(2)) {
            *middle = 0.5 * (pair[0] + pair[1]);
        }
        let first = std::array::from_fn(|i| {
            let smallest = f32::from_bits((LOWEST + i as u32) << 16);
            middles
                .iter()
                .take_while(|&&middle| smallest > middle)
                .count() as u8
        });
        Table {
            values: std::array::from_fn(value),
            middles,
            first,
            #[cfg(any(feature = "metal", test))]
            magnitudes,
        }
    }

    /// The code of the magnitude that is nearest to x, in [0, 1]; of two that are as near, the smaller.
    #[inline(always)]
    pub(crate) fn nearest(&self, x: f32) -> u8 {
        let upper = (x.to_bits() >> 16).clamp(LOWEST, HIGHEST) - LOWEST;
        let code = self.first[upper as usize];
        code + u8::from(x > self.middles[usize::from(code)])
    }
}

/// The code of x in [−1, 1].
#[inline(always)]
pub(crate) fn encode_signed(table: &Table, x: f32) -> u8 {
    let (code, negative) = (table.nearest(x.abs()), u8::from(x < 0.0));
    // −1 has no code of its own, and −0 is 0.
    let code = code.min(LARGEST_SIGNED as u8 - negative);
    code + LARGEST_SIGNED as u8 * (negative & u8::from(code > 0))
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
        let pairs = table.magnitudes.windows(2);
        pairs.filter(|pair| x > 0.5 * (pair[0] + pair[1])).count() as u8
    }

    #[test]
    fn every_code_stands_for_itself() {
        let (signed, unsigned) = (Table::signed(), Table::unsigned());
        assert_eq!(
            (signed.magnitudes.len(), unsigned.magnitudes.len()),
            (129, 256)
        );
        for code in 0..=255u8 {
            let value = signed.values[usize::from(code)];
            assert_eq!(encode_signed(signed, value), code, "{value}");
            let value = unsigned.values[usize::from(code)];
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
