//! A tile of outputs: its codes and scales are unpacked, then multiplied with all rows of x.

use super::{ByteRows, Columns, Int8Product, MAX_LANES};
use crate::cpu::byte_simd::{unpack_1_bit, unpack_2_bits, unpack_4_bits, ByteKernel, ByteSimd};
use crate::quant::Levels;

/// Vectors of outputs of a tile.
pub const VECTORS: usize = 2;

/// A tile of outputs from `start` on, by one thread. Outputs that W has no more are computed as its last one.
pub struct Tile<'a> {
    product: &'a Int8Product<'a>,
    x: &'a ByteRows,
    start: usize,
    /// The result of each row, `VECTORS` vectors.
    sums: *mut f32,
    /// For each step, its codes of every output.
    codes: *mut u8,
    /// For each group, the steps and then the values of code 0 of every output.
    scales: *mut f32,
}

impl<'a> Tile<'a> {
    /// Elements of the three parts of the scratch memory, of which the first gets the results.
    pub fn room(product: &Int8Product, rows: usize) -> [usize; 3] {
        let Columns { width, .. } = product.columns;
        let (lanes, columns) = (width / 4, &product.columns);
        // A group's scales are transposed in blocks of as many groups as lanes.
        let groups = columns.groups().next_multiple_of(lanes);
        let tile = VECTORS * lanes;
        [
            rows * tile,
            columns.unpacked_steps() * tile,
            2 * groups * tile,
        ]
    }

    /// # Safety
    /// The three parts are as long as [`Tile::room`] says for the rows of x, and nothing else touches them while the tile runs.
    pub unsafe fn new(
        product: &'a Int8Product<'a>,
        x: &'a ByteRows,
        start: usize,
        [sums, codes, scales]: [*mut f32; 3],
    ) -> Self {
        assert!(start < product.outputs);
        Tile {
            product,
            x,
            start,
            sums,
            codes: codes.cast(),
            scales,
        }
    }

    /// The rows of W that the lanes of vector v stand for.
    fn outputs(&self, v: usize, lanes: usize) -> [usize; MAX_LANES] {
        let last = self.product.outputs - 1;
        std::array::from_fn(|lane| last.min(self.start + v * lanes + lane))
    }
}

impl ByteKernel for Tile<'_> {
    #[inline(always)]
    fn run<B: ByteSimd>(self, b: B) {
        let bits = self.product.weight.scheme.bits();
        assert_eq!(B::WIDTH, self.product.columns.width);
        for v in 0..VECTORS {
            // SAFETY: v < VECTORS, and the codes have as many bits.
            unsafe {
                self.unpack_scales(b, v);
                match bits {
                    1 => self.unpack_codes::<B, 1>(b, v),
                    2 => self.unpack_codes::<B, 2>(b, v),
                    4 => self.unpack_codes::<B, 4>(b, v),
                    _ => self.unpack_codes::<B, 8>(b, v),
                }
            }
        }
        match bits {
            8 => self.multiply::<B, true>(b),
            _ => self.multiply::<B, false>(b),
        }
    }
}

impl Tile<'_> {
    /// Unpacks the codes of vector v.
    ///
    /// # Safety
    /// v < VECTORS, and codes have BITS bits.
    #[inline(always)]
    unsafe fn unpack_codes<B: ByteSimd, const BITS: usize>(&self, b: B, v: usize) {
        let Int8Product {
            codes,
            columns,
            weight,
            ..
        } = self.product;
        let signed = BITS == 8 && weight.scheme.levels == Levels::Int8;
        let outputs = self.outputs(v, B::LANES);
        let mut rows = [std::ptr::null(); MAX_LANES];
        for (row, output) in rows.iter_mut().zip(outputs) {
            *row = codes.row(output);
        }
        let per_byte = 8 / BITS;
        let mut words = [0f32; MAX_LANES * MAX_LANES];
        let words = words.as_mut_ptr().cast::<u8>();
        for vector in 0..columns.vectors() {
            // SAFETY: rows of W can be read up to the end of their last vector. `words` has room for LANES vectors, and
            // `codes` for every unpacked step, of which a vector of packed codes has LANES · per_byte.
            unsafe {
                b.transpose(&rows, vector * B::WIDTH, words);
                let mut to = self
                    .codes
                    .add((vector * B::LANES * per_byte * VECTORS + v) * B::WIDTH);
                for lane in 0..B::LANES {
                    let mut packed = b.load(words.add(lane * B::WIDTH));
                    if signed {
                        packed = b.flip_sign_bits(packed);
                    }
                    match BITS {
                        1 => store_all(b, unpack_1_bit(b, packed), &mut to),
                        2 => store_all(b, unpack_2_bits(b, packed), &mut to),
                        4 => store_all(b, unpack_4_bits(b, packed), &mut to),
                        _ => store_all(b, [packed], &mut to),
                    }
                }
            }
        }
    }

    /// Writes the step and the value of code 0 of each group, for the outputs of vector v.
    ///
    /// # Safety
    /// v < VECTORS
    #[inline(always)]
    unsafe fn unpack_scales<B: ByteSimd>(&self, b: B, v: usize) {
        let Int8Product {
            values, columns, ..
        } = self.product;
        let weight = self.product.weight;
        let groups = columns.groups();
        let outputs = self.outputs(v, B::LANES);
        for first in (0..groups).step_by(B::LANES) {
            let (mut scales, mut offsets) =
                ([0f32; MAX_LANES * MAX_LANES], [0f32; MAX_LANES * MAX_LANES]);
            self.transpose_groups(b, weight.scales, first, &outputs, &mut scales);
            if !weight.offsets.is_empty() {
                self.transpose_groups(b, weight.offsets, first, &outputs, &mut offsets);
            }
            for i in 0..B::LANES {
                // SAFETY: the arrays have LANES vectors, and there is room for the scales of as many groups from `first` on.
                unsafe {
                    let scale = b.load_f32(scales.as_ptr().add(i * B::LANES));
                    let offset = b.load_f32(offsets.as_ptr().add(i * B::LANES));
                    let slope = b.splat(values.a - values.center * values.factor);
                    let slope = b.fma(b.splat(values.b), offset, slope);
                    let zero = b.fma(slope, scale, b.mul(b.splat(values.c), offset));
                    let to = self.scales.add(((first + i) * 2 * VECTORS + v) * B::LANES);
                    b.store_f32(to, b.mul(scale, b.splat(values.factor)));
                    b.store_f32(to.add(VECTORS * B::LANES), zero);
                }
            }
        }
    }

    /// The numbers of LANES groups from `first` on, of each output: `to[i · LANES + lane]` is group `first + i` of output
    /// `outputs[lane]`. Groups that W does not have are left as they are.
    #[inline(always)]
    fn transpose_groups<B: ByteSimd>(
        &self,
        b: B,
        numbers: &[f32],
        first: usize,
        outputs: &[usize; MAX_LANES],
        to: &mut [f32; MAX_LANES * MAX_LANES],
    ) {
        let groups = self.product.columns.groups();
        let one = numbers.len() == 1;
        let at = |output: usize| if one { 0 } else { output * groups };
        if at(outputs[B::LANES - 1]) + first + B::LANES <= numbers.len() {
            let mut rows = [std::ptr::null(); MAX_LANES];
            for (row, &output) in rows.iter_mut().zip(outputs) {
                *row = numbers[at(output)..].as_ptr().cast();
            }
            // SAFETY: every row has LANES numbers from `first` on, because the last one has, and `to` has room for LANES
            // vectors.
            return unsafe { b.transpose(&rows, first * size_of::<f32>(), to.as_mut_ptr().cast()) };
        }
        for (i, to) in to
            .chunks_exact_mut(B::LANES)
            .take(groups - first)
            .enumerate()
        {
            for (to, &output) in to.iter_mut().zip(outputs) {
                *to = numbers[at(output) + first + i];
            }
        }
    }

    /// All rows of x, in register blocks of about the same size.
    #[inline(always)]
    fn multiply<B: ByteSimd, const WIDE_CODES: bool>(&self, b: B) {
        let rows = self.x.rows();
        let most = if B::MANY_REGISTERS { 6 } else { 4 };
        let each = rows.div_ceil(rows.div_ceil(most)).next_multiple_of(2);
        for row in (0..rows).step_by(each) {
            match each.min(rows - row) {
                1 | 2 => self.block::<B, 2, WIDE_CODES>(b, row),
                3 | 4 => self.block::<B, 4, WIDE_CODES>(b, row),
                _ => self.block::<B, 6, WIDE_CODES>(b, row),
            }
        }
    }

    /// R rows of x from `row` on, the last one again where there are fewer.
    #[allow(clippy::needless_range_loop, reason = "registers by their numbers")]
    #[inline(always)]
    fn block<B: ByteSimd, const R: usize, const WIDE_CODES: bool>(&self, b: B, row: usize) {
        let columns = &self.product.columns;
        let last = self.x.rows() - 1;
        let mut x = [std::ptr::null(); R];
        let mut blocks: [&[[f32; 2]]; R] = [&[]; R];
        for r in 0..R {
            x[r] = self.x.row(last.min(row + r));
            blocks[r] = self.x.blocks(last.min(row + r));
        }
        let (steps, block_steps) = (columns.steps(), columns.block / 4);
        let mut totals = [[b.splat(0.0); VECTORS]; R];
        for n in 0..columns.blocks() {
            let mut sums = [[b.zero(); VECTORS]; R];
            for step in n * block_steps..steps.min((n + 1) * block_steps) {
                // SAFETY: rows of x have four bytes for each step, and `codes` has VECTORS vectors for each.
                unsafe {
                    let from = self.codes.add(step * VECTORS * B::WIDTH);
                    let mut codes = [b.load(from); VECTORS];
                    for v in 1..VECTORS {
                        codes[v] = b.load(from.add(v * B::WIDTH));
                    }
                    for r in 0..R {
                        let x = b.repeat_four(x[r].add(4 * step));
                        for v in 0..VECTORS {
                            sums[r][v] = match WIDE_CODES {
                                true => b.dot_bytes(sums[r][v], codes[v], x),
                                false => b.dot(sums[r][v], [codes[v]], [x]),
                            };
                        }
                    }
                }
            }
            let group = n * columns.block / columns.group;
            for v in 0..VECTORS {
                // SAFETY: there are VECTORS vectors of steps and as many of values of code 0 for each group.
                let (scale, zero) = unsafe {
                    let from = self.scales.add((group * 2 * VECTORS + v) * B::LANES);
                    (b.load_f32(from), b.load_f32(from.add(VECTORS * B::LANES)))
                };
                for r in 0..R {
                    let [x_scale, x_sum] = blocks[r][n];
                    let scale = b.mul(scale, b.splat(x_scale));
                    let total = b.fma(b.splat(x_sum), zero, totals[r][v]);
                    totals[r][v] = b.fma(b.to_float(sums[r][v]), scale, total);
                }
            }
        }
        for r in 0..R.min(last + 1 - row) {
            for v in 0..VECTORS {
                // SAFETY: there is room for VECTORS vectors of every row, and x has row + r.
                unsafe {
                    let to = self.sums.add(((row + r) * VECTORS + v) * B::LANES);
                    b.store_f32(to, totals[r][v]);
                }
            }
        }
    }
}

/// Stores each vector to the place of its step, and moves on to the next one.
///
/// # Safety
/// There is room for all of them, `VECTORS` vectors apart.
#[inline(always)]
unsafe fn store_all<B: ByteSimd, const N: usize>(b: B, vectors: [B::V; N], to: &mut *mut u8) {
    for vector in vectors {
        // SAFETY: the caller has room for it.
        unsafe { b.store(*to, vector) };
        *to = to.wrapping_add(VECTORS * B::WIDTH);
    }
}
