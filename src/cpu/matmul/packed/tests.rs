//! Products of every layout, on every instruction set.

use super::multiply::{Multiply, To};
use super::operand::copy_len;
use super::strips::{self, Pack, Strips};
use super::*;
use crate::cpu::simd::Isa;
use crate::layout::MatrixLayout;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Small integers, so that every order of additions gives the same. Anything that is not an element of a matrix is NaN.
fn numbers<T: Element>(layout: MatrixLayout, seed: usize) -> Vec<T> {
    let MatrixLayout {
        rows,
        cols,
        row,
        col,
    } = layout;
    let len = rows.saturating_sub(1) * row + cols.saturating_sub(1) * col + 1;
    let mut data = vec![T::narrow(f32::NAN); len];
    for i in 0..rows {
        for k in 0..cols {
            data[i * row + k * col] = T::narrow(((i * 31 + k * 7 + seed) % 9) as f32 - 4.0);
        }
    }
    data
}

/// Dense rows, dense rows that lie apart (an odd and an even number of elements), dense columns, and a repeated row.
fn layouts(rows: usize, cols: usize) -> Vec<MatrixLayout> {
    [
        (cols, 1),
        (cols + 3, 1),
        (cols + 8, 1),
        (1, rows),
        (1, rows + 5),
        (0, 1),
    ]
    .map(|(row, col)| MatrixLayout {
        rows,
        cols,
        row,
        col,
    })
    .to_vec()
}

fn exact<T: Element>(a: Matrix<T>, b: Matrix<T>, i: usize, j: usize) -> f32 {
    let at = |m: Matrix<T>, i: usize, k: usize| m.data[i * m.row + k * m.col].widen();
    (0..a.cols).map(|k| at(a, i, k) * at(b, j, k)).sum()
}

/// `2 · A·Bᵀ + A·Bᵀ` of a part of A's and of B's rows.
struct Products<T>(PhantomData<T>);

impl<T: Element> Kernel for Products<T> {
    fn run<S: Simd>(self, s: S) {
        for (m, n, k) in [(1, 1, 1), (8, 5, 2), (19, 39, 37), (14, 70, 790), (3, 4, 0)] {
            for (al, bl) in layouts(m, k)
                .into_iter()
                .flat_map(|a| layouts(n, k).into_iter().map(move |b| (a, b)))
            {
                let (a, b) = (numbers::<T>(al, 1), numbers::<T>(bl, 2));
                let (a, b) = (Matrix::new(&a, al), Matrix::new(&b, bl));
                let (rows, cols) = (m / 3..m, n / 5..n);
                let row = cols.len().next_multiple_of(MAX_LANES);
                let mut packed = vec![f32::NAN; strips::len(cols.len(), k)];
                let mut room = vec![f32::NAN; copy_len(rows.len())];
                let mut sums = vec![f32::NAN; rows.len() * row];
                let to = To {
                    rows: rows.clone(),
                    room: room.as_mut_ptr(),
                    sums: sums.as_mut_ptr(),
                    row,
                };
                // SAFETY: the vectors have the room that is asked for, and the matrices these rows.
                unsafe {
                    let strips = Strips::new(b, cols.clone(), packed.as_mut_ptr());
                    Pack::new(&strips, b, 0..cols.len()).run(s);
                    Multiply::new(a, &strips, &to, Some(2.0)).run(s);
                    Multiply::new(a, &strips, &to, None).run(s);
                }
                for (i, sums) in rows.zip(sums.chunks(row)) {
                    for (j, &sum) in cols.clone().zip(sums) {
                        assert_eq!(sum, 3.0 * exact(a, b, i, j), "{al:?} · {bl:?}: ({i}, {j})");
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_multiplies_every_layout() {
    for isa in Isa::available() {
        // SAFETY: available on this machine.
        unsafe {
            isa.run(Products::<f32>(PhantomData));
            isa.run(Products::<f16>(PhantomData));
            isa.run(Products::<bf16>(PhantomData));
        }
    }
}

/// More rows than are packed at a time on either side, and matrices that have neither dense rows nor dense columns.
#[test]
fn blocks_cover_large_products() {
    let apart = |rows: usize, cols: usize| MatrixLayout {
        rows,
        cols,
        row: 2 * cols + 1,
        col: 2,
    };
    let by_column = |rows: usize, cols: usize| MatrixLayout {
        rows,
        cols,
        row: 1,
        col: rows,
    };
    for (m, n, k) in [
        (700, 21, 5),
        (21, 700, 5),
        (530, 520, 3),
        (11, 500, 300),
        (2, 20000, 1),
        (5, 3, 900),
    ] {
        for (al, bl) in [
            (
                MatrixLayout::contiguous(m, k),
                MatrixLayout::contiguous(n, k),
            ),
            (by_column(m, k), apart(n, k)),
            (apart(m, k), by_column(n, k)),
        ] {
            let (a, b) = (numbers::<f32>(al, 3), numbers::<f32>(bl, 4));
            let (a, b) = (Matrix::new(&a, al), Matrix::new(&b, bl));
            let mut out = vec![1f32; m * n];
            // SAFETY: there is an initialised element for each result.
            unsafe { accumulate((a, b), out.as_mut_ptr(), true) };
            for (at, &sum) in out.iter().enumerate() {
                let (i, j) = (at / n, at % n);
                assert_eq!(sum, 1.0 + exact(a, b, i, j), "{al:?} · {bl:?}: ({i}, {j})");
            }
        }
    }
}

/// A sum of more terms than are packed at a time, of which every part counts, rounded once.
#[test]
fn long_sums_are_added_up_in_parts() {
    let k = 40_000;
    let ones = vec![bf16::ONE; 20 * k];
    let addend = vec![bf16::from_f32(-2.0); 3];
    let product = crate::cpu::matmul::Product {
        scale: 0.25,
        addend: Some(Matrix::repeated(&addend, 20)),
        ..crate::cpu::matmul::Product::new(
            Matrix::contiguous(&ones, 20, k),
            Matrix::contiguous(&ones[..3 * k], k, 3).t(),
        )
    };
    let mut out = vec![0f32; 60];
    // SAFETY: there is room for the result.
    unsafe { run(&product, out.as_mut_ptr()) };
    assert_eq!(out, vec![9998.0; 60]);
}
