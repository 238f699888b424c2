//! Products of 8-bit activations and a quantised weight, for several rows of x.
//!
//! Every lane of a vector belongs to one output, so that no sum has to be added up across lanes. For that, a tile of two
//! vectors of outputs is unpacked once for all rows of x: its codes, as bytes, lie in *steps* of four columns, which a dot
//! product adds up to one sum.
//!
//! ```text
//! step      output 0: w w w w │ output 1: w w w w │ ...                two vectors: 32 outputs with AVX-512
//! x         four bytes, repeated in all lanes
//! ```
//!
//! A byte of W with C = 8 / bits codes gives one column to each of C steps. So step p of C meets columns p, C + p, 2C + p and
//! 3C + p of 4C: x is sorted in the same way ([`ByteRows`]), and W is shifted and masked only.
//!
//! With the code c, the value v₀ of code 0 and a step s, a weight is `s·c + v₀`, and x is `t·q`. Both have one scale for the
//! columns of a *block*, a group or a part of a longer one, so that
//!
//! ```text
//! y = Σ over blocks ( s·t · Σ q·c  +  v₀ · t·Σ q )
//! ```
//!
//! where `Σ q·c` is exact, in i32, and `t·Σ q` is computed once for each row of x.

mod rows;
mod tile;

use super::code_values::CodeValues;
use crate::act::Act;
use crate::cpu::byte_simd::{dispatch_bytes, width, MAX_WIDTH};
use crate::cpu::element::Element;
use crate::cpu::matmul::Narrow;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::{alloc, scratch};
use crate::ops::quantize::cpu::Decoder;
use crate::quant::{CodeRows, Packing, ScaleScope};
pub use rows::ByteRows;
use tile::{Tile, VECTORS};

/// The longest block. Its sum of products of 8 bits is far within an i32, and the sum's float is exact.
const MAX_BLOCK: usize = 256;

/// How the columns of x and W are divided.
#[derive(Clone, Copy)]
pub struct Columns {
    pub cols: usize,
    pub codes_per_byte: usize,
    /// Columns with one scale of W and of x.
    pub group: usize,
    /// Columns that are summed up as integers: a group or a part of one. The last block of a row may be shorter.
    pub block: usize,
    /// Bytes of a vector.
    width: usize,
}

impl Columns {
    /// `None` where there is no kernel: for codes in base 3, and for groups, shorter than a row, whose length is no multiple of
    /// 4 · `codes_per_byte`, or which are longer than [`MAX_BLOCK`] and no multiple of that.
    fn new(weight: &Decoder) -> Option<Self> {
        let (cols, scheme) = (weight.cols, weight.scheme);
        if scheme.packing != Packing::Bits {
            return None;
        }
        let codes_per_byte = scheme.per_byte();
        let (group, block) = match scheme.scope {
            ScaleScope::Group(group) if group < cols && group > MAX_BLOCK => (group, MAX_BLOCK),
            ScaleScope::Group(group) if group < cols => (group, group),
            _ => (cols, MAX_BLOCK),
        };
        let whole = group == cols || group.is_multiple_of(block);
        (whole && block.is_multiple_of(4 * codes_per_byte)).then_some(Columns {
            cols,
            codes_per_byte,
            group,
            block,
            width: width(),
        })
    }

    pub fn groups(&self) -> usize {
        self.cols / self.group
    }

    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(self.block)
    }

    /// Vectors of packed codes in a row of W, the last of which may go beyond it.
    fn vectors(&self) -> usize {
        self.cols.div_ceil(self.codes_per_byte).div_ceil(self.width)
    }

    /// Steps of four columns that are multiplied; those of a row's last byte may go beyond the row.
    fn steps(&self) -> usize {
        self.cols.div_ceil(4 * self.codes_per_byte) * self.codes_per_byte
    }

    /// Steps that a row of W is unpacked to.
    fn unpacked_steps(&self) -> usize {
        self.vectors() * self.width / 4 * self.codes_per_byte
    }
}

/// A weight that products of bytes suit.
pub struct Int8Product<'a> {
    weight: &'a Decoder<'a>,
    codes: CodeRows<'a>,
    values: CodeValues,
    outputs: usize,
    columns: Columns,
}

impl<'a> Int8Product<'a> {
    /// `None` where there is no kernel, by the rule of [`Columns::new`].
    pub fn new(weight: &'a Decoder<'a>, outputs: usize) -> Option<Self> {
        let columns = Columns::new(weight)?;
        let row_bytes = weight.scheme.row_bytes(weight.cols);
        Some(Int8Product {
            weight,
            codes: CodeRows::new(weight.codes, row_bytes, columns.width),
            values: CodeValues::new(weight.scheme),
            outputs,
            columns,
        })
    }

    /// The product, plus bias. `integers` has signed bytes for each row of x, and `scales` its scale of each group.
    pub fn multiply<T: Element>(
        &self,
        integers: &[u8],
        scales: &[f32],
        bias: Option<&[T]>,
    ) -> Vec<T> {
        let Columns { cols, width, .. } = self.columns;
        let x = ByteRows::new(self.columns, integers, scales);
        let (rows, outputs, lanes) = (x.rows(), self.outputs, width / 4);
        assert!(bias.is_none_or(|bias| bias.len() == outputs));
        let tile = VECTORS * lanes;
        // In the units of `parallel`: sixteen products of bytes are a cheap element, and to unpack a code is about half of one.
        let cost = rows * (cols / 16 + 16) + cols / 2;
        // SAFETY: the ranges begin at multiples of a tile, and the tiles cover all outputs. `Tile` writes all sums of its
        // outputs, for which the scratch memory has room, and `Narrow` rounds those that W has. The bias has `outputs` elements.
        unsafe {
            alloc::build(rows * outputs, |out: *mut T| {
                let out = Shared::new(out);
                parallel::ranges(outputs, cost, tile, |range| {
                    scratch::with(Tile::room(self, rows), |room| {
                        for start in range.clone().step_by(tile) {
                            let count = tile.min(range.end - start);
                            dispatch_bytes(Tile::new(self, &x, start, room));
                            let bias = bias.map(|bias| (bias[start..].as_ptr(), 0));
                            let (sums, to) = ((room[0], rows, count), out.get().add(start));
                            let narrow = Narrow::new(sums, bias, to, outputs);
                            narrow.apart(tile).run(Act::Identity);
                        }
                    })
                });
            })
        }
    }
}

/// The most lanes of a vector.
const MAX_LANES: usize = MAX_WIDTH / 4;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::guarded_weight::GuardedWeight;
    use super::*;
    use crate::cpu::byte_simd::with_every_isa;
    use crate::quant::{Levels, Scheme};

    /// Tiles of outputs that W has not all of, and groups that are more and fewer than the lanes of a vector.
    #[test]
    fn nothing_is_read_behind_the_weight() {
        const GROUP: usize = 32;
        for (levels, scope) in [
            (Levels::Sign { centred: true }, ScaleScope::Group(GROUP)),
            (Levels::Affine { bits: 2 }, ScaleScope::Group(GROUP)),
            (Levels::Affine { bits: 4 }, ScaleScope::Group(GROUP)),
            (Levels::ZeroPoint { bits: 8 }, ScaleScope::Group(GROUP)),
            (Levels::Int8, ScaleScope::Row),
        ] {
            let scheme = Scheme::new(levels, scope);
            for lanes in [8, 16] {
                for groups in [1, lanes - 1, lanes, lanes + 1] {
                    let (outputs, cols) = (33, groups * GROUP);
                    let w = GuardedWeight::new(scheme, outputs, cols);
                    let rows = 6;
                    let integers: Vec<u8> = (0..rows * cols).map(|i| (i * 29) as u8).collect();
                    with_every_isa(|isa| {
                        let y = |w: &Decoder| {
                            let product = Int8Product::new(w, outputs).expect("a kernel");
                            let scales = 0..rows * product.columns.groups();
                            let scales: Vec<_> = scales.map(|i| 0.5 + i as f32 / 64.0).collect();
                            product.multiply::<f32>(&integers, &scales, None)
                        };
                        let (guarded, copy) = (y(&w.guarded()), y(&w.copy()));
                        assert_eq!(guarded, copy, "{isa:?} {scheme:?} {groups} groups");
                    });
                }
            }
        }
    }
}
