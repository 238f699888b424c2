//! Activations as bytes, laid out for dot products with packed weights.
//!
//! `bitlinear` and `mixed_matmul` multiply integers: a vector of W's packed bytes at a time, without unpacking W in memory.
//! A byte of W holds the codes of C neighbouring columns (C = 8 / bits). Shifted right by `i · bits` and masked, a vector
//! holds code i of each of its bytes, and so has to meet the activations of columns i, C + i, 2C + i and so on. Those are
//! laid side by side, once for all rows of W. With codes of 2 bits, C = 4:
//!
//! ```text
//! a vector of W      byte 0         byte 1         byte 2            ...  byte WIDTH − 1
//!                    w3 w2 w1 w0    w7 w6 w5 w4    w11 w10 w9 w8
//!
//! position 0 meets   x0             x4             x8                ...
//! position 1 meets   x1             x5             x9                ...
//! position 2 meets   x2             x6             x10               ...
//! position 3 meets   x3             x7             x11               ...
//! ```
//!
//! An activation is an integer of D balanced base-256 digits, `d₀ + 2⁸·d₁ + 2¹⁶·d₂`, each digit a signed byte. A *plane* is one
//! digit of one position: WIDTH bytes. `bitlinear` has one digit, `mixed_matmul` three. All planes that meet one vector of W
//! make a *record*:
//!
//! ```text
//! row       record 0 │ record 1 │ ...                one record for each vector of W, the last one padded with zeros
//! record    header │ position 0: d₀ d₁ d₂ │ position 1: d₀ d₁ d₂ │ ... │ position C − 1: d₀ d₁ d₂
//! header    an i32 for each lane (four bytes) of the vector, from which its sum starts; only where D = 3
//! ```
//!
//! The scales that make numbers of these integers are kept beside them: `bitlinear` has one scale and one sum for each row
//! (`Int8Rows`), `mixed_matmul` has per-group scales, sums and outliers (`FixedPointRows`). Where `mixed_matmul` rounds x to 8 bits
//! it unpacks W for many rows at once: then the lanes are outputs, and x has an order of its own (`ByteRows`).

use super::byte_simd::MAX_WIDTH;

/// Digits of the 24-bit integers of [`RecordLayout::write_24_bits`].
pub const DIGITS: usize = 3;

/// How the bytes of a record lie, see the [module](self).
#[derive(Clone, Copy)]
pub struct RecordLayout {
    /// Bytes of a vector of W.
    pub width: usize,
    /// Codes of a byte of W.
    pub codes_per_byte: usize,
    /// 1, or [`DIGITS`] with a header.
    digits: usize,
}

impl RecordLayout {
    /// For integers of one signed byte.
    pub fn of_8_bits(width: usize, codes_per_byte: usize) -> Self {
        RecordLayout {
            width,
            codes_per_byte,
            digits: 1,
        }
    }

    /// For integers of three digits, with a header.
    pub fn of_24_bits(width: usize, codes_per_byte: usize) -> Self {
        RecordLayout {
            width,
            codes_per_byte,
            digits: DIGITS,
        }
    }

    /// Columns of a record: as many as a vector of W has codes.
    pub fn cols(&self) -> usize {
        self.width * self.codes_per_byte
    }

    fn header_bytes(&self) -> usize {
        match self.digits {
            1 => 0,
            _ => self.width,
        }
    }

    pub fn bytes(&self) -> usize {
        self.header_bytes() + self.digits * self.cols()
    }

    /// Writes the record of these columns, at most [`RecordLayout::cols`], where zeros are.
    #[inline(always)]
    pub fn write_8_bits<const CODES_PER_BYTE: usize>(&self, columns: &[u8], record: &mut [u8]) {
        let whole = columns.chunks_exact(CODES_PER_BYTE);
        let rest = whole.remainder();
        for (position, plane) in record.chunks_exact_mut(self.width).enumerate() {
            for (to, columns) in plane.iter_mut().zip(whole.clone()) {
                *to = columns[position];
            }
            if let Some(&column) = rest.get(position) {
                plane[whole.len()] = column;
            }
        }
    }

    /// Writes the record of [`RecordLayout::cols`] integers of at most 127 · 2¹⁶. Sums start from `−center · Σ d₂` of the lane.
    #[inline(always)]
    pub fn write_24_bits<const CODES_PER_BYTE: usize>(
        &self,
        integers: &[i32],
        center: i32,
        record: &mut [u8],
    ) {
        let width = self.width;
        let (header, planes) = record.split_at_mut(self.header_bytes());
        for position in 0..CODES_PER_BYTE {
            let mut digits = [0; MAX_WIDTH];
            for (digits, integers) in digits.iter_mut().zip(integers.chunks_exact(CODES_PER_BYTE)) {
                *digits = balanced_digits(integers[position]);
            }
            for d in 0..DIGITS {
                let plane = &mut planes[(position * DIGITS + d) * width..][..width];
                for (to, digits) in plane.iter_mut().zip(&digits) {
                    *to = (digits >> (8 * d)) as u8;
                }
            }
        }
        let lanes = integers.chunks_exact(4 * CODES_PER_BYTE);
        for (start, lane) in header.chunks_exact_mut(4).zip(lanes) {
            let sum: i32 = lane.iter().map(|&integer| top_digit(integer)).sum();
            start.copy_from_slice(&(-center * sum).to_ne_bytes());
        }
    }
}

/// Where plane `digit` of `position` begins in a record of 24-bit integers, behind the header.
pub const fn plane_24_bits(width: usize, position: usize, digit: usize) -> usize {
    width * (1 + position * DIGITS + digit)
}

/// Bytes of a record of 24-bit integers: as [`RecordLayout::bytes`], for kernels that know the width as a constant.
pub const fn record_24_bits(width: usize, codes_per_byte: usize) -> usize {
    plane_24_bits(width, codes_per_byte, 0)
}

/// Balanced base-256 digits lie in −128..=127. Adding 0x8080, 128 for each of the two low digits, makes plain byte extraction
/// give the digits plus 128; flipping the upper bit of those two bytes takes the 128 off again.
#[inline(always)]
fn balanced_digits(integer: i32) -> i32 {
    (integer + 0x8080) ^ 0x8080
}

/// d₂
#[inline(always)]
pub fn top_digit(integer: i32) -> i32 {
    (integer + 0x8080) >> 16
}

/// A cache line, so that no vector lies in two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine(#[allow(dead_code)] [u8; MAX_WIDTH]);

/// The records of some rows, see the [module](self).
pub struct ActivationBytes {
    lines: Vec<CacheLine>,
    layout: RecordLayout,
    records: usize,
    rows: usize,
}

impl ActivationBytes {
    pub fn zeros(layout: RecordLayout, rows: usize, cols: usize) -> Self {
        let records = cols.div_ceil(layout.cols());
        let bytes = rows * records * layout.bytes();
        ActivationBytes {
            lines: vec![CacheLine([0; MAX_WIDTH]); bytes.div_ceil(MAX_WIDTH)],
            layout,
            records,
            rows,
        }
    }

    pub fn layout(&self) -> RecordLayout {
        self.layout
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Records of a row.
    pub fn records(&self) -> usize {
        self.records
    }

    /// Bytes from a record to the same record of the next row.
    pub fn row_bytes(&self) -> usize {
        self.records * self.layout.bytes()
    }

    /// The records of each row.
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let row_bytes = self.row_bytes();
        let (first, count) = (self.lines.as_mut_ptr().cast(), self.rows * row_bytes);
        // SAFETY: `zeros` made lines for as many bytes, a line is nothing but bytes, and `self` is borrowed.
        let bytes = unsafe { std::slice::from_raw_parts_mut::<u8>(first, count) };
        bytes.chunks_exact_mut(row_bytes)
    }

    /// Where the records of a row begin: [`ActivationBytes::row_bytes`] from there on can be read.
    #[inline(always)]
    pub fn row(&self, row: usize) -> *const u8 {
        assert!(row < self.rows);
        // SAFETY: `zeros` made lines for `rows` rows of as many bytes, and `row` is one of them.
        unsafe { self.lines.as_ptr().cast::<u8>().add(row * self.row_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every column's integer is put together again from its planes, and every lane's header from its top digits.
    #[test]
    fn planes_hold_the_digits_of_their_position() {
        let (width, center, largest) = (32, 3, 127 << 16);
        let layout = RecordLayout::of_24_bits(width, 4);
        let integers: Vec<i32> = (0..layout.cols() as i32)
            .map(|i| match i {
                0 => largest,
                1 => -largest,
                i => (i - 60) * 120_011,
            })
            .collect();
        let mut record = vec![0; record_24_bits(width, 4)];
        assert_eq!(record.len(), layout.bytes());
        layout.write_24_bits::<4>(&integers, center, &mut record);
        for (col, &want) in integers.iter().enumerate() {
            let digit = |d: usize| {
                let byte = record[plane_24_bits(width, col % 4, d) + col / 4];
                i32::from(byte as i8) << (8 * d)
            };
            assert_eq!(digit(0) + digit(1) + digit(2), want, "column {col}");
        }
        let top = |col: usize| i32::from(record[plane_24_bits(width, col % 4, 2) + col / 4] as i8);
        for (lane, header) in record[..width].chunks_exact(4).enumerate() {
            let sum: i32 = (16 * lane..16 * (lane + 1)).map(top).sum();
            assert_eq!(header, (-center * sum).to_ne_bytes());
        }
    }

    #[test]
    fn bytes_are_sorted_by_position_and_padded() {
        let layout = RecordLayout::of_8_bits(32, 8);
        let columns: Vec<u8> = (1..=100).collect();
        let mut bytes = ActivationBytes::zeros(layout, 2, columns.len());
        assert_eq!((bytes.records(), bytes.row_bytes()), (1, 256));
        let row = bytes.rows_mut().nth(1).unwrap();
        layout.write_8_bits::<8>(&columns, row);
        for (at, &byte) in row.iter().enumerate() {
            let col = at % 32 * 8 + at / 32;
            assert_eq!(byte, columns.get(col).copied().unwrap_or(0), "byte {at}");
        }
    }
}
