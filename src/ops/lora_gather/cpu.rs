//! One product of all rows with W, and for each adapter two small ones of its rows with A and B.

use super::{Routes, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::{Matrix, Product, Stored};
use crate::cpu::with_float;
use crate::op::on_cpu::Arg;
use crate::ops::linear::cpu as linear;
use candle_core::{CpuStorage, DType, Layout, Result, WithDType};

/// All terms of a row are added up in f32, and rounded once.
pub fn forward(routes: &Routes, args: &[Arg], held: &[Arg]) -> Result<CpuStorage> {
    let ((x, xl), (a, al), (b, bl)) = (args[0], args[1], args[2]);
    let ((w, wl), bias) = (held[0], held.get(1).copied());
    let outputs = wl.dims()[0];
    with_float!(NAME, x, |x: &[T]| {
        let (x, w) = (Stored::new(x, xl), Stored::new(w.as_slice::<T>()?, wl));
        let (a, b) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
        let bias = bias.map(linear::vector::<T>).transpose()?;
        let base = Product {
            addend: bias
                .as_deref()
                .map(|bias| Matrix::repeated(bias, x.matrix().rows)),
            ..Product::new(x.matrix(), w.matrix())
        };
        let mut sums = base.run::<f32>();
        for (n, rows) in used(routes) {
            let picked = picked(x.matrix(), rows);
            let (a, b) = (nth(a, al, n)?, nth(b, bl, n)?);
            let down = Product {
                scale: routes.scales()[n],
                ..Product::new(
                    Matrix::contiguous(&picked, rows.len(), x.matrix().cols),
                    a.matrix(),
                )
            };
            let (u, mut wide) = (down.run::<f32>(), Vec::new());
            let up = Product::new(
                Matrix::contiguous(&u, rows.len(), down.w.rows),
                b.matrix().widened_into(&mut wide),
            );
            let low = up.run::<f32>();
            for (low, &row) in low.chunks_exact(outputs.max(1)).zip(rows) {
                let sums = &mut sums[row as usize * outputs..][..outputs];
                sums.iter_mut().zip(low).for_each(|(sum, low)| *sum += low);
            }
        }
        match T::DTYPE {
            DType::F32 => Ok(CpuStorage::F32(sums)),
            _ => Ok(T::wrap(sums.into_iter().map(T::narrow).collect())),
        }
    })
}

pub fn down(routes: &Routes, (x, xl): Arg, (a, al): Arg) -> Result<CpuStorage> {
    let rank = al.dims()[1];
    with_float!(NAME, x, |x: &[T]| {
        let (x, a) = (Stored::new(x, xl), a.as_slice::<T>()?);
        let mut out = vec![T::ZERO; x.matrix().rows * rank];
        for (n, rows) in used(routes) {
            let picked = picked(x.matrix(), rows);
            let a = nth(a, al, n)?;
            let picked = Matrix::contiguous(&picked, rows.len(), x.matrix().cols);
            let u = Product::new(picked, a.matrix()).run::<T>();
            for (u, &row) in u.chunks_exact(rank).zip(rows) {
                out[row as usize * rank..][..rank].copy_from_slice(u);
            }
        }
        Ok(T::wrap(out))
    })
}

pub fn outer(routes: &Routes, (p, pl): Arg, (q, ql): Arg) -> Result<CpuStorage> {
    let (width, height) = (ql.dims()[1], pl.dims()[1]);
    with_float!(NAME, p, |p: &[T]| {
        let (p, q) = (Stored::new(p, pl), Stored::new(q.as_slice::<T>()?, ql));
        let mut out = vec![T::ZERO; routes.adapters() * height * width];
        for (n, rows) in used(routes) {
            let (p, q) = (picked(p.matrix(), rows), picked(q.matrix(), rows));
            let product = Product {
                scale: routes.scales()[n],
                ..Product::new(
                    Matrix::contiguous(&p, rows.len(), height).t(),
                    Matrix::contiguous(&q, rows.len(), width).t(),
                )
            };
            out[n * height * width..][..height * width].copy_from_slice(&product.run::<T>());
        }
        Ok(T::wrap(out))
    })
}

/// The adapters that have rows, and their rows.
fn used(routes: &Routes) -> impl Iterator<Item = (usize, &[u32])> {
    let all = (0..routes.adapters()).map(|n| (n, routes.rows(n)));
    all.filter(|(_, rows)| !rows.is_empty())
}

/// A dense copy of some rows of a matrix.
fn picked<T: Element>(m: Matrix<T>, rows: &[u32]) -> Vec<T> {
    let mut out = Vec::with_capacity(rows.len() * m.cols);
    for &row in rows {
        let row = row as usize * m.row;
        match m.has_dense_rows() {
            true => out.extend_from_slice(&m.data[row..][..m.cols]),
            false => out.extend((0..m.cols).map(|j| m.data[row + j * m.col])),
        }
    }
    out
}

/// Matrix `n` of a stack of them.
fn nth<'a, T: Element>(data: &'a [T], layout: &Layout, n: usize) -> Result<Stored<'a, T>> {
    let (dims, stride) = (layout.dims()[1..].into(), layout.stride()[1..].to_vec());
    let start = layout.start_offset() + n * layout.stride()[0];
    Ok(Stored::new(data, &Layout::new(dims, stride, start)))
}
