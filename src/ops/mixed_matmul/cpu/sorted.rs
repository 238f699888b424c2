//! x as integers, in bytes.
//!
//! An integer has 24 bits and a scale that it shares with its neighbours of a unit: `x = scale · (b₀ + 2⁸·b₁ + 2¹⁶·b₂)`. So
//! much is lost as f32 loses when a sum passes by the largest of them. Where some are so large that the others would lose
//! more, they are set aside.

use crate::cpu::parallel::{self, Shared};
use crate::cpu::rows::{fold, Fold};
use crate::cpu::simd::{self, Simd};
use crate::ops::quantize::cpu::{AbsMax, Sums};

/// Bytes of an integer.
pub const PLANES: usize = 3;
/// The largest integer.
const MOST: f32 = 127.0 * 65536.0;
/// Integers that are so many times smaller than the largest have 16 bits left. Where most are, those above are set aside.
const LARGE: f32 = 256.0;
/// Bytes of the widest vectors, and the columns that meet those of codes of one bit.
const MAX_WIDTH: usize = 64;
const MAX_BLOCK: usize = 8 * MAX_WIDTH;

/// How rows of x meet those of W.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub cols: usize,
    /// Codes of a byte of W, bytes of a vector, and columns of one.
    pub per_byte: usize,
    pub width: usize,
    pub block: usize,
    /// Columns with the same scale of x, all of one vector, and with the same scale of W.
    pub unit: usize,
    pub group: usize,
    /// The code that is subtracted from all others.
    pub middle: i32,
    /// What a row has of vectors, units and groups.
    pub vectors: usize,
    pub units: usize,
    pub groups: usize,
    /// Bytes of x that a vector meets, and a row.
    pub record: usize,
    pub stride: usize,
}

impl Shape {
    pub fn new(
        [rows, cols]: [usize; 2],
        [per_byte, width]: [usize; 2],
        [unit, group]: [usize; 2],
        middle: i32,
    ) -> Self {
        let block = width * per_byte;
        let vectors = cols.div_ceil(block);
        let record = width + block * PLANES;
        Shape {
            rows,
            cols,
            per_byte,
            width,
            block,
            unit,
            group,
            middle,
            vectors,
            units: cols.div_ceil(unit),
            groups: cols / group,
            record,
            stride: vectors * record,
        }
    }
}

/// Bytes in the order in which W's codes meet them.
pub struct Sorted {
    /// For each row and vector of W: for each lane, `−middle · Σ b₂` as an i32; then for the first codes of its bytes, the
    /// second and so on, each of the bytes of x.
    bytes: Vec<Line>,
    /// For each row, the scale of each unit.
    pub scales: Vec<f32>,
    /// Σ x over W's groups, for each row.
    pub sums: Vec<f32>,
    /// The same of `−middle · scale · (b₀ + 2⁸·b₁)`.
    pub lows: Vec<f32>,
    /// For each row, columns and numbers that are no part of the others.
    pub outliers: Vec<Vec<(usize, f32)>>,
}

impl Sorted {
    /// Nothing if integers are no good for the numbers.
    pub fn new(x: &[f32], shape: Shape) -> Option<Self> {
        let Shape {
            rows,
            cols,
            units,
            groups,
            stride,
            ..
        } = shape;
        let mut sorted = Sorted {
            bytes: vec![Line([0; MAX_WIDTH]); (rows * stride).div_ceil(MAX_WIDTH)],
            scales: vec![0.0; rows * units],
            sums: vec![0.0; rows * groups],
            lows: vec![0.0; rows * groups],
            outliers: vec![Vec::new(); rows],
        };
        let mut fits = vec![false; rows];
        let all_bytes = Shared::new(sorted.bytes.as_mut_ptr().cast::<u8>());
        let all_scales = Shared::new(sorted.scales.as_mut_ptr());
        let all_sums = Shared::new(sorted.sums.as_mut_ptr());
        let all_lows = Shared::new(sorted.lows.as_mut_ptr());
        let all_outliers = Shared::new(sorted.outliers.as_mut_ptr());
        let all_fits = Shared::new(fits.as_mut_ptr());
        parallel::ranges(rows, 4 * cols, 1, |range| {
            for row in range {
                // SAFETY: rows are apart, and this one is this thread's.
                unsafe {
                    let outliers = &mut *all_outliers.get().add(row);
                    let largest = simd::dispatch(Row {
                        x: &x[row * cols..(row + 1) * cols],
                        shape,
                        bytes: part(all_bytes, row, stride),
                        scales: part(all_scales, row, units),
                        sums: part(all_sums, row, groups),
                        lows: part(all_lows, row, groups),
                        outliers,
                    });
                    // Rows of nothing but tiny numbers, or of many that are large, are not for integers, nor are NaN, ∞ and what
                    // adds up to it.
                    let few = outliers.len() <= 4 + cols / 64;
                    let fits = largest == 0.0 || (1e-20..1e28).contains(&largest);
                    *all_fits.get().add(row) = few && fits;
                }
            }
        });
        fits.into_iter().all(|fits| fits).then_some(sorted)
    }

    pub fn bytes(&self) -> *const u8 {
        self.bytes.as_ptr().cast()
    }
}

/// A line of the cache, so that no vector lies in two.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code)] [u8; MAX_WIDTH]);

/// # Safety
/// There are so many rows of `len`, and no other thread has this one.
unsafe fn part<'a, T>(all: Shared<T>, row: usize, len: usize) -> &'a mut [T] {
    std::slice::from_raw_parts_mut(all.get().add(row * len), len)
}

struct Row<'a> {
    x: &'a [f32],
    shape: Shape,
    bytes: &'a mut [u8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
    lows: &'a mut [f32],
    outliers: &'a mut Vec<(usize, f32)>,
}

impl simd::Kernel for Row<'_> {
    /// The largest of |x|, ∞ where one is not finite.
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        match self.shape.per_byte {
            8 => self.vectors::<S, 8>(s),
            4 => self.vectors::<S, 4>(s),
            2 => self.vectors::<S, 2>(s),
            _ => self.vectors::<S, 1>(s),
        }
    }
}

impl Row<'_> {
    #[inline(always)]
    fn vectors<S: Simd, const PER_BYTE: usize>(mut self, s: S) -> f32 {
        let Shape {
            block, unit, group, ..
        } = self.shape;
        let mut largest = 0f32;
        // What a group's sums are so far, without a rounding for each unit.
        let (mut current, mut totals) = (0, [0f64; 2]);
        for (vector, from) in self.x.chunks(block).enumerate() {
            let mut x = [0f32; MAX_BLOCK];
            x[..from.len()].copy_from_slice(from);
            let mut integers = [0i32; MAX_BLOCK];
            for start in (0..from.len()).step_by(unit) {
                let x = &mut x[start..from.len().min(start + unit)];
                let col = vector * block + start;
                let (max, sum) = self.measure(s, x, col);
                largest = largest.max(max);
                // Smaller ones than f32 can divide by are nothing beside any other.
                if !(f32::MIN_POSITIVE * MOST..f32::INFINITY).contains(&max) {
                    continue;
                }
                let scale = max / MOST;
                self.scales[col / unit] = scale;
                let factor = MOST / max;
                let integers = &mut integers[start..start + x.len()];
                for (integer, x) in integers.iter_mut().zip(x) {
                    // SAFETY: no number is larger than the largest.
                    *integer = unsafe { (*x * factor).round_ties_even().to_int_unchecked() };
                }
                if current != col / group {
                    self.end_group(current, totals);
                    (current, totals) = (col / group, [0.0; 2]);
                }
                let low: i32 = integers.iter().map(|i| i - (top_byte(*i) << 16)).sum();
                totals[0] += f64::from(sum);
                totals[1] += f64::from(scale) * f64::from(low);
            }
            self.put::<PER_BYTE>(vector, &integers[..block]);
        }
        self.end_group(current, totals);
        largest
    }

    #[inline(always)]
    fn end_group(&mut self, group: usize, [sum, low]: [f64; 2]) {
        self.sums[group] = sum as f32;
        self.lows[group] = (-f64::from(self.shape.middle) * low) as f32;
    }

    /// The largest |x| of a unit and Σ x, after what is too large for the others has been taken out.
    #[inline(always)]
    fn measure<S: Simd>(&mut self, s: S, x: &mut [f32], col: usize) -> (f32, f32) {
        let (first, n) = (x[0], x.len());
        // SAFETY: as many are there.
        let [max] = unsafe { fold(s, AbsMax { first }, [x.as_ptr()], n) };
        let [large, small] = unsafe { fold(s, Split(max / LARGE), [x.as_ptr()], n) };
        let max = match max < f32::INFINITY && are_outliers(large as usize, small, n) {
            true => self.set_aside(x, col),
            false => max,
        };
        // SAFETY: as above.
        let [_, sum] = unsafe { fold(s, Sums, [x.as_ptr()], n) };
        (max, sum)
    }

    /// Takes out what is too large for the others; the largest of those that stay.
    #[inline(never)]
    fn set_aside(&mut self, x: &mut [f32], col: usize) -> f32 {
        loop {
            let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
            let is_large = |x: f32| x.abs() >= max / LARGE;
            let large = x.iter().filter(|x| is_large(**x)).count();
            let small: f32 = x.iter().filter(|x| !is_large(**x)).map(|x| x.abs()).sum();
            if !are_outliers(large, small, x.len()) {
                return max;
            }
            for (i, x) in x.iter_mut().enumerate().filter(|(_, x)| is_large(**x)) {
                self.outliers.push((col + i, std::mem::take(x)));
            }
        }
    }

    /// The bytes of a vector's integers to their places, and what the middle code gives with the last ones.
    #[inline(always)]
    fn put<const PER_BYTE: usize>(&mut self, vector: usize, integers: &[i32]) {
        let Shape {
            width,
            record,
            middle,
            ..
        } = self.shape;
        let record = &mut self.bytes[vector * record..(vector + 1) * record];
        let (middles, to) = record.split_at_mut(width);
        for code in 0..PER_BYTE {
            let mut digits = [0; MAX_WIDTH];
            for (digits, integers) in digits.iter_mut().zip(integers.chunks_exact(PER_BYTE)) {
                *digits = raised(integers[code]) ^ 0x8080;
            }
            for p in 0..PLANES {
                let to = &mut to[(code * PLANES + p) * width..][..width];
                for (to, digits) in to.iter_mut().zip(&digits) {
                    *to = (digits >> (8 * p)) as u8;
                }
            }
        }
        let lanes = integers.chunks_exact(4 * PER_BYTE);
        for (to, lane) in middles.chunks_exact_mut(4).zip(lanes) {
            let sum: i32 = lane.iter().map(|i| top_byte(*i)).sum();
            to.copy_from_slice(&(-middle * sum).to_ne_bytes());
        }
    }
}

/// Digits go from −128 to 127: those of what is larger by 128 of each but the last are from 0 on.
#[inline(always)]
fn raised(integer: i32) -> i32 {
    integer + 0x8080
}

/// b₂
#[inline(always)]
fn top_byte(integer: i32) -> i32 {
    raised(integer) >> 16
}

/// How many are large, and Σ |x| of the others.
#[derive(Clone, Copy)]
struct Split(f32);

impl Fold<1, 2> for Split {
    #[inline(always)]
    fn step<S: Simd>(&self, s: S, [large, small]: [S::F; 2], [x]: [S::F; 1]) -> [S::F; 2] {
        let (zero, size) = (s.splat(0.0), s.abs(x));
        let is_small = s.lt(size, s.splat(self.0));
        [
            s.add(large, s.select(is_small, zero, s.splat(1.0))),
            s.add(small, s.select(is_small, size, zero)),
        ]
    }
}

/// Whether so many of `n` make the others, which are so much together, lose too many digits.
#[inline(always)]
fn are_outliers(large: usize, small: f32, n: usize) -> bool {
    small > 0.0 && 4 * large <= n
}
