//! Rows of x as bytes, in the order in which they meet the unpacked codes of W.

use super::Columns;
use crate::cpu::parallel;

/// Rows of 8-bit integers with their scales.
pub struct ByteRows {
    /// Four bytes for each step of each row, zeros behind the last column.
    bytes: Vec<u8>,
    /// For each block of each row, its scale and the scale times the sum of its integers.
    blocks: Vec<[f32; 2]>,
    row_bytes: usize,
    row_blocks: usize,
}

impl ByteRows {
    /// `integers` has `cols` signed bytes for each row, `scales` a scale for each group of each row.
    pub fn new(columns: Columns, integers: &[u8], scales: &[f32]) -> Self {
        let Columns { cols, .. } = columns;
        let rows = integers.len() / cols;
        assert_eq!(scales.len(), rows * columns.groups());
        let (row_bytes, row_blocks) = (4 * columns.steps(), columns.blocks());
        let mut packed = ByteRows {
            bytes: vec![0; rows * row_bytes],
            blocks: vec![[0.0; 2]; rows * row_blocks],
            row_bytes,
            row_blocks,
        };
        let to = packed.bytes.chunks_exact_mut(row_bytes);
        let to = to.zip(packed.blocks.chunks_exact_mut(row_blocks));
        let from = integers.chunks_exact(cols);
        let from = from.zip(scales.chunks_exact(columns.groups()));
        let mut rows: Vec<_> = to.zip(from).collect();
        parallel::each(
            &mut rows,
            2 * cols,
            |((bytes, blocks), (integers, scales))| {
                let parts = integers.chunks(columns.block).enumerate();
                for ((n, integers), block) in parts.zip(blocks.iter_mut()) {
                    let scale = scales[n * columns.block / columns.group];
                    let sum: i32 = integers.iter().map(|&q| i32::from(q as i8)).sum();
                    *block = [scale, scale * sum as f32];
                }
                match columns.codes_per_byte {
                    8 => sort::<8>(integers, bytes),
                    4 => sort::<4>(integers, bytes),
                    2 => sort::<2>(integers, bytes),
                    _ => bytes[..integers.len()].copy_from_slice(integers),
                }
            },
        );
        packed
    }

    pub fn rows(&self) -> usize {
        self.blocks.len() / self.row_blocks
    }

    /// The bytes of a row, four for each step.
    #[inline(always)]
    pub fn row(&self, row: usize) -> *const u8 {
        self.bytes[row * self.row_bytes..].as_ptr()
    }

    /// For each block of a row, its scale and the scale times the sum of its integers.
    #[inline(always)]
    pub fn blocks(&self, row: usize) -> &[[f32; 2]] {
        &self.blocks[row * self.row_blocks..][..self.row_blocks]
    }
}

/// Sorts columns as codes of which a byte has C meet them; `to` has a multiple of 4·C bytes.
fn sort<const C: usize>(columns: &[u8], to: &mut [u8]) {
    let whole = columns.chunks_exact(4 * C);
    let rest = whole.remainder();
    let mut last = [[0; C]; 4];
    last.as_flattened_mut()[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(last.as_flattened());
    for (to, from) in to.chunks_exact_mut(4 * C).zip(whole.chain(last)) {
        for (position, to) in to.chunks_exact_mut(4).enumerate() {
            for (byte, to) in to.iter_mut().enumerate() {
                *to = from[byte * C + position];
            }
        }
    }
}
