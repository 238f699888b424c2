//! The integer product: blocks of R rows of x and O rows of W, summed in i32 and scaled once.

use super::{Int8Rows, Weight};
use crate::act::Act;
use crate::cpu::byte_simd::{dispatch_bytes, ByteKernel, ByteSimd};
use crate::cpu::element::Element;
use crate::cpu::matmul::Narrow;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::prefetch;
use crate::cpu::{alloc, scratch};
use crate::quant::CodeRows;
use std::marker::PhantomData;
use std::ops::Range;

/// Rows of x and of W that a thread multiplies with each other before it reads others. Of 2048 columns, 64 rows of x are
/// 128 KB and 16 rows of W 8 KB at most, so that x stays in the second cache and W in the first.
const TILE_ROWS: usize = 64;
const TILE_OUTPUTS: usize = 16;

/// `x·Wᵀ + bias`, a row of outputs for each row of x.
pub(super) fn multiply<T: Element>(w: &Weight, x: &Int8Rows, bias: Option<&[T]>) -> Vec<T> {
    let (rows, layout) = (x.bytes.rows(), x.bytes.layout());
    assert_eq!(layout.codes_per_byte, w.codes_per_byte);
    assert_eq!(x.bytes.records(), w.row_bytes().div_ceil(layout.width));
    let product = Product {
        w,
        codes: CodeRows::new(w.codes, w.row_bytes(), layout.width),
        x,
    };
    assert!(bias.is_none_or(|bias| bias.len() == w.outputs));
    // SAFETY: `for_each_tile` covers every output of every row once, and the vector has room for them. `tile` writes all sums
    // of its tile, for which the scratch memory has room, and `Narrow` writes each as an output. The bias has `w.outputs`
    // elements, so that those from `outputs.start` on are as many as a row of the tile has.
    unsafe {
        alloc::build(rows * w.outputs, |out: *mut T| {
            let out = Shared::new(out);
            product.for_each_tile(|rows, outputs| {
                scratch::with([rows.len() * outputs.len()], |[sums]| {
                    product.tile(rows.clone(), outputs.clone(), sums);
                    let sums = (sums, rows.len(), outputs.len());
                    let bias = bias.map(|bias| (bias[outputs.start..].as_ptr(), 0));
                    let to = out.get().add(rows.start * w.outputs + outputs.start);
                    Narrow::new(sums, bias, to, w.outputs).run(Act::Identity);
                })
            });
        })
    }
}

struct Product<'a> {
    w: &'a Weight<'a>,
    codes: CodeRows<'a>,
    x: &'a Int8Rows,
}

impl Product<'_> {
    /// # Safety
    /// `sums` is valid for writes of a number for each output of each row of the tile.
    unsafe fn tile(&self, rows: Range<usize>, outputs: Range<usize>, sums: *mut f32) {
        // SAFETY: the caller promises the room that `new` asks for.
        unsafe {
            match self.w.codes_per_byte {
                4 => dispatch_bytes(Tile::<TwoBits, 2>::new(self, rows, outputs, sums)),
                _ => dispatch_bytes(Tile::<OneBit, 4>::new(self, rows, outputs, sums)),
            }
        }
    }

    /// Covers the outputs of all rows by tiles, in parallel.
    fn for_each_tile(&self, tile: impl Fn(Range<usize>, Range<usize>) + Send + Sync) {
        let (rows, outputs) = (self.x.bytes.rows(), self.w.outputs);
        // In the units of `parallel`, a multiplication and addition is about a twelfth of a cheap element; 8 is for the
        // scaling of an output.
        let cols = self.w.row_bytes() * self.w.codes_per_byte;
        let cost = |rows: usize| rows * (cols / 12 + 8);
        if rows <= TILE_ROWS {
            return parallel::ranges(outputs, cost(rows), TILE_OUTPUTS, |outputs| {
                tile(0..rows, outputs)
            });
        }
        let blocks = rows.div_ceil(TILE_ROWS);
        let tiles = blocks * outputs.div_ceil(TILE_OUTPUTS);
        parallel::ranges(tiles, TILE_OUTPUTS * cost(TILE_ROWS), 1, |range| {
            for n in range {
                let (row, output) = (n % blocks * TILE_ROWS, n / blocks * TILE_OUTPUTS);
                tile(
                    row..rows.min(row + TILE_ROWS),
                    output..outputs.min(output + TILE_OUTPUTS),
                );
            }
        });
    }
}

/// How the codes of a byte are unpacked: N vectors of those at even positions, and N of those at odd positions.
///
/// Odd codes are left one position too high, and so are twice or four times as large: that saves half of the shifts, and the
/// two sums need not wait for each other.
trait EvenOddCodes<const N: usize>: Copy + Send + Sync {
    /// Whether AVX-512 has registers for the codes of two outputs.
    const PAIRS: bool;

    fn unpack<B: ByteSimd>(b: B, v: B::V) -> [[B::V; N]; 2];
    /// The sum with all codes from the two with even and with odd ones.
    fn combine_halves<B: ByteSimd>(b: B, sums: [B::Sum; 2]) -> B::Sum;
}

/// Codes whose even and odd ones are under these masks, once the byte is shifted right by each of N numbers of bits. Odd ones
/// are `2^BITS` times as large.
macro_rules! even_odd_codes {
    ($name:ident, $bits:literal, $n:literal, [$even:literal, $odd:literal], [$($shift:literal),+], $pairs:literal) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl EvenOddCodes<$n> for $name {
            const PAIRS: bool = $pairs;

            #[inline(always)]
            fn unpack<B: ByteSimd>(b: B, v: B::V) -> [[B::V; $n]; 2] {
                [[$(b.codes::<$even, $shift>(v)),+], [$(b.codes::<$odd, $shift>(v)),+]]
            }
            #[inline(always)]
            fn combine_halves<B: ByteSimd>(b: B, [even, odd]: [B::Sum; 2]) -> B::Sum {
                b.add_shifted::<$bits>(even, odd)
            }
        }
    };
}
even_odd_codes!(OneBit, 1, 4, [0b01, 0b10], [0, 2, 4, 6], false);
even_odd_codes!(TwoBits, 2, 2, [0b0011, 0b1100], [0, 4], true);

/// Some outputs of some rows, by one thread.
struct Tile<'a, C, const N: usize> {
    product: &'a Product<'a>,
    rows: Range<usize>,
    outputs: Range<usize>,
    /// Room for every output of every row of the tile.
    sums: *mut f32,
    codes: PhantomData<C>,
}

impl<'a, C, const N: usize> Tile<'a, C, N> {
    /// # Safety
    /// `sums` is valid for writes of a number for each output of each row of the tile.
    unsafe fn new(
        product: &'a Product<'a>,
        rows: Range<usize>,
        outputs: Range<usize>,
        sums: *mut f32,
    ) -> Self {
        assert!(rows.end <= product.x.bytes.rows() && outputs.end <= product.w.outputs);
        Tile {
            product,
            rows,
            outputs,
            sums,
            codes: PhantomData,
        }
    }
}

impl<C: EvenOddCodes<N>, const N: usize> ByteKernel for Tile<'_, C, N> {
    #[inline(always)]
    fn run<B: ByteSimd>(self, b: B) {
        assert_eq!(B::WIDTH, self.product.x.bytes.layout().width);
        let Tile { rows, outputs, .. } = &self;
        let mut row = rows.start;
        let pairs = match B::MANY_REGISTERS && C::PAIRS {
            true => outputs.start + outputs.len() / 2 * 2,
            false => outputs.start,
        };
        while row + 4 <= rows.end {
            self.blocks::<B, 4, 2>(b, row, outputs.start..pairs);
            self.blocks::<B, 4, 1>(b, row, pairs..outputs.end);
            row += 4;
        }
        while row < rows.end {
            let whole = outputs.start + outputs.len() / 4 * 4;
            self.blocks::<B, 1, 4>(b, row, outputs.start..whole);
            self.blocks::<B, 1, 1>(b, row, whole..outputs.end);
            row += 1;
        }
    }
}

impl<C: EvenOddCodes<N>, const N: usize> Tile<'_, C, N> {
    /// R rows of x times `outputs`, a multiple of O.
    #[inline(always)]
    fn blocks<B: ByteSimd, const R: usize, const O: usize>(
        &self,
        b: B,
        row: usize,
        outputs: Range<usize>,
    ) {
        for output in outputs.step_by(O) {
            self.block::<B, R, O>(b, row, output);
        }
    }

    /// R rows of x times O rows of W.
    #[inline(always)]
    fn block<B: ByteSimd, const R: usize, const O: usize>(&self, b: B, row: usize, output: usize) {
        let Product { w, codes, x } = self.product;
        let (record_bytes, row_bytes) = (2 * N * B::WIDTH, x.bytes.row_bytes());
        let w_rows: [_; O] = std::array::from_fn(|o| codes.row(output + o));
        let x_row = x.bytes.row(row);
        // Rows of W are too short for the CPU to predict where the next ones are.
        let ahead = O * codes.row_bytes();
        let mut sums = [[[b.zero(); 2]; O]; R];
        for record in 0..x.bytes.records() {
            // SAFETY: a row of W can be read up to the end of its last vector, and `multiply` has compared the number of its
            // vectors with that of x's records. `run` calls this with R rows from `row` on that x has; each has that many
            // records of 2 · N planes of WIDTH bytes, because `multiply` has compared the codes per byte as well.
            unsafe {
                let at = record * B::WIDTH;
                // Loops, because closures would not be inlined with this function's target features.
                let mut codes = [C::unpack(b, b.load(w_rows[0].add(at))); O];
                for o in 1..O {
                    codes[o] = C::unpack(b, b.load(w_rows[o].add(at)));
                }
                for w in w_rows {
                    prefetch(w.wrapping_add(at + ahead));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let planes = x_row.add(r * row_bytes + record * record_bytes);
                    for odd in 0..2 {
                        let mut xs = codes[0][odd];
                        for (i, xs) in xs.iter_mut().enumerate() {
                            *xs = b.load(planes.add((2 * i + odd) * B::WIDTH));
                        }
                        for (sums, codes) in sums.iter_mut().zip(codes) {
                            sums[odd] = b.dot(sums[odd], codes[odd], xs);
                        }
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (o, &sums) in sums.iter().enumerate() {
                let (row, output) = (row + r, output + o);
                let at = (row - self.rows.start) * self.outputs.len() + output - self.outputs.start;
                let with_codes = b.reduce_add_i32(C::combine_halves(b, sums));
                let sum = w.factor * with_codes - x.sums[row];
                let scale = x.scales[row] * w.scale(output);
                // SAFETY: there is room for every output of every row of the tile, of which this is one. Adding 0 makes 0
                // of −0, also where no bias follows.
                unsafe { *self.sums.add(at) = sum as f32 * scale + 0.0 };
            }
        }
    }
}
