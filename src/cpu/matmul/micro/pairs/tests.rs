//! Products of pairs against f64, and that products of bf16 are made of pairs where the CPU has an instruction for them.

use super::*;
use crate::cpu::matmul::micro::rows::most_rows;
use crate::cpu::matmul::{Matrix, Product};
use crate::cpu::simd::{Isa, Kernel};
use half::bf16;

/// Whether this CPU makes products of pairs; says so.
fn available() -> bool {
    let here = suit_this_cpu::<bf16>(2);
    println!("products of bf16 are made of pairs on this CPU: {here}");
    here
}

/// Numbers of either sign and of some orders of magnitude.
fn numbers(len: usize, seed: u32) -> Vec<bf16> {
    let mut state = seed;
    let mut random = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut number = || (random(2001) as f32 - 1000.0) / 1000.0 * 2f32.powi(random(9) as i32 - 4);
    (0..len).map(|_| bf16::from_f32(number())).collect()
}

/// Checks a sum of products, made by this many additions one behind the other: each may miss by one in the last place.
fn check(sum: f32, a: &[bf16], b: &[bf16], additions: usize, what: &str) {
    let products = || a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64());
    let (exact, size) = (
        products().sum::<f64>(),
        products().map(f64::abs).sum::<f64>(),
    );
    let bound = additions as f64 * f64::from(f32::EPSILON) * size;
    assert!(
        (f64::from(sum) - exact).abs() <= bound,
        "{what}: {sum}, {exact} ± {bound}"
    );
}

/// Rows that lie apart, with NaN between them.
fn apart(rows: &[Vec<bf16>], row: usize) -> Vec<bf16> {
    let mut data = vec![bf16::NAN; rows.len() * row];
    for (i, numbers) in rows.iter().enumerate() {
        data[i * row..][..numbers.len()].copy_from_slice(numbers);
    }
    data
}

fn check_dot<const R: usize, const C: usize>(n: usize) {
    let make = |count: u32, seed| -> Vec<_> { (0..count).map(|i| numbers(n, seed + i)).collect() };
    let (x, w) = (make(R as u32, 1), make(C as u32, 100));
    // Rows begin at odd numbers too.
    let (x_row, w_row) = (n + 1, n + 3);
    let (xs, ws) = (apart(&x, x_row), apart(&w, w_row));
    let first = |data: &[bf16], row: usize, i: usize| data[i * row..].as_ptr();
    // SAFETY: pairs suit, as the caller has asked, and each row has n elements.
    let sums = unsafe {
        let xs: [_; R] = std::array::from_fn(|r| first(&xs, x_row, r));
        let ws: [_; C] = std::array::from_fn(|c| first(&ws, w_row, c));
        dot::<bf16, R, C>(xs, ws, n, w_row)
    };
    for (r, sums) in sums.iter().enumerate() {
        for (c, &sum) in sums.iter().enumerate() {
            let what = format!("{R} × {C} of {n}: ({r}, {c})");
            check(sum, &x[r], &w[c], 2 * n.div_ceil(2 * isa::LANES) + 8, &what);
        }
    }
}

#[test]
fn rows_of_pairs_are_multiplied() {
    if available() {
        for n in [0, 2, 4, 6, 8, 14, 16, 18, 30, 32, 34, 62, 64, 66, 1000] {
            check_dot::<1, 1>(n);
            check_dot::<1, 4>(n);
            check_dot::<2, 1>(n);
            check_dot::<2, 4>(n);
            check_dot::<4, 1>(n);
            check_dot::<4, 3>(n);
        }
    }
}

/// Register blocks of all sizes, of rows that lie where they are and of rows side by side.
struct Blocks;

impl Kernel for Blocks {
    fn run<S: Simd>(self, _: S) {
        for vectors in 1..=2 {
            for rows in 1..=most_rows::<S>(vectors) {
                for k in [0, 1, 5, 16, 37] {
                    check_block(rows, vectors, k, false);
                    check_block(rows, vectors, k, true);
                }
            }
        }
    }
}

/// A block of `k` pairs, once written and once added.
fn check_block(rows: usize, vectors: usize, k: usize, side_by_side: bool) {
    let cols = vectors * isa::LANES;
    let make = |count: usize, seed| -> Vec<_> {
        (0..count as u32)
            .map(|i| numbers(2 * k, seed + i))
            .collect()
    };
    let (a, b) = (make(rows, 1), make(cols, 100));
    // Slot t of row i, in pairs. The first of them is not aligned as an f32 is.
    let (a_row, a_step) = if side_by_side { (1, rows) } else { (k + 3, 1) };
    let mut packed_a = vec![bf16::NAN; 2 + 2 * rows * (k + 3)];
    let odd = packed_a.as_ptr().align_offset(size_of::<f32>()) ^ 1;
    let mut packed_b = vec![bf16::NAN; 2 * cols * k];
    for t in 0..2 * k {
        let (slot, half) = (t / 2, t % 2);
        for (i, a) in a.iter().enumerate() {
            packed_a[odd + 2 * (i * a_row + slot * a_step) + half] = a[t];
        }
        for (j, b) in b.iter().enumerate() {
            packed_b[2 * (slot * cols + j) + half] = b[t];
        }
    }
    let c_row = cols + 2;
    let mut c = vec![f32::NAN; rows * c_row];
    for add in [false, true] {
        let block = Block {
            k,
            a: packed_a[odd..].as_ptr().cast(),
            a_row,
            a_step,
            ahead: 0,
            b: packed_b.as_ptr().cast(),
            c: c.as_mut_ptr(),
            c_row,
            add,
        };
        // SAFETY: pairs suit, as the caller has asked. A has `rows` pairs at each of k slots, B `vectors` vectors, and C has room for
        // as many rows and columns, initialised by the first product.
        unsafe { block.of_pairs(rows, vectors) };
    }
    for (i, sums) in c.chunks(c_row).enumerate() {
        for (j, &sum) in sums[..cols].iter().enumerate() {
            let what = format!("{rows} × {vectors} of {k}: ({i}, {j})");
            check(0.5 * sum, &a[i], &b[j], 2 * k + 2, &what);
        }
        assert!(sums[cols..].iter().all(|x| x.is_nan()));
    }
}

#[test]
fn blocks_of_pairs_are_multiplied() {
    struct Fit<'a>(&'a mut bool);
    impl Kernel for Fit<'_> {
        fn run<S: Simd>(self, _: S) {
            *self.0 = fit::<S>();
        }
    }
    if available() {
        let mut tested = false;
        for isa in Isa::available() {
            // SAFETY: available on this machine.
            unsafe {
                let mut here = false;
                isa.run(Fit(&mut here));
                if here {
                    isa.run(Blocks);
                }
                tested |= here;
            }
        }
        assert!(tested, "pairs, but no vectors that they fit");
    }
}

/// The instructions take subnormal numbers for 0, which f32 doesn't.
#[test]
fn products_are_made_of_pairs_where_the_cpu_can() {
    let here = available();
    let (terms, small, large) = (70, bf16::from_bits(1), bf16::from_f32(2f32.powi(120)));
    let exact = small.to_f32() * large.to_f32() * terms as f32;
    for (rows, outputs) in [(1, 1), (1, 30), (3, 5), (30, 2), (40, 40), (13, 100)] {
        let (x, w) = (vec![small; rows * terms], vec![large; outputs * terms]);
        let (x, w) = (
            Matrix::contiguous(&x, rows, terms),
            Matrix::contiguous(&w, outputs, terms),
        );
        let expected = if here { 0.0 } else { exact };
        for (sums, what) in [
            (Product::new(x, w).run::<f32>(), "x is small"),
            (Product::new(w, x).run(), "w is small"),
        ] {
            assert_eq!(
                sums,
                vec![expected; rows * outputs],
                "{rows} × {outputs}, {what}"
            );
        }
    }
}
