//! Chunks of rows on the CPU.

use super::{Outputs, Settings, NAME};
use crate::check;
use crate::cpu::alloc;
use crate::cpu::element::Element;
use crate::cpu::elementwise::{map_in_place, map_run, ElementwiseOp, Map};
use crate::cpu::math;
use crate::cpu::matmul::{accumulate, rounded, Matrix, Product, Stored};
use crate::cpu::parallel;
use crate::cpu::row_view::RowView;
use crate::cpu::simd::Simd;
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::{Arg, Args};
use crate::ops::cross_entropy::cpu::{RowGradients, RowLosses, Terms};
use crate::ops::targets;
use candle_core::{CpuStorage, DType, Result, Storage};
use std::borrow::Cow;
use std::ops::Range;

/// Of `(x, w, target[, weight])` and, if they are given, the gradients of the rows' losses.
pub fn run(op: &Settings, args: Args, grad: Option<Arg>, wanted: [bool; 2]) -> Outputs<CpuStorage> {
    let ((x, xl), (w, wl)) = (args[0], args[1]);
    let (classes, ignored) = (wl.dims()[0], op.loss.ignore_index);
    let targets = targets::read(NAME, "target", args[2], classes, ignored)?;
    with_float!(NAME, x, |x: &[T]| {
        let (x, w) = (Stored::new(x, xl), Stored::new(w.as_slice::<T>()?, wl));
        let weight = args.get(3).map(|arg| widened::<T>(*arg)).transpose()?;
        let chunks = Chunks {
            op,
            x: x.matrix(),
            w: w.matrix(),
            targets: &targets,
            weight: weight.as_deref(),
            grad: grad
                .map(widened::<T>)
                .transpose()?
                .unwrap_or_else(|| vec![1.0]),
            terms: Terms::new(&op.loss, 1.0, &targets, weight.as_deref(), wl.dims()[0]),
        };
        let (losses, dx, dw) = chunks.run(wanted);
        let loss = chunks.terms.reduce::<T>(losses, op.loss.reduction);
        let grads = match grad {
            None => [dx, dw].map(CpuStorage::F32),
            Some(_) => [narrowed::<T>(dx), narrowed::<T>(dw)],
        };
        Ok((T::wrap(loss), grads))
    })
}

fn widened<T: Element>((storage, layout): Arg) -> Result<Vec<f32>> {
    let values = gather::contiguous(storage.as_slice::<T>()?, layout);
    Ok(values.iter().map(|v| v.widen()).collect())
}

/// For a graph.
pub fn storage(storage: CpuStorage) -> Storage {
    Storage::Cpu(storage)
}

/// A gradient that was made for a gradient of 1 of the loss, in the dtype of its tensor.
pub fn finished(mut values: Vec<f32>, grad: f32, dtype: DType) -> Result<CpuStorage> {
    // Nearly always it is 1.
    if grad != 1.0 {
        map_in_place(&mut values, [], Scaled { factor: grad });
    }
    match dtype {
        DType::F32 => Ok(CpuStorage::F32(values)),
        DType::F16 => Ok(narrowed::<half::f16>(values)),
        DType::BF16 => Ok(narrowed::<half::bf16>(values)),
        dtype => Err(check::unsupported_dtype(NAME, dtype)),
    }
}

/// The values, rounded: from the last ones on, so that their memory can be given back piece by piece. The values and their
/// roundings are then hardly more than the values alone.
fn narrowed<T: Element>(mut values: Vec<f32>) -> CpuStorage {
    /// 64 MB of values.
    const PIECE: usize = 16 << 20;
    let count = values.len();
    if T::DTYPE == DType::F32 {
        return CpuStorage::F32(values);
    }
    // SAFETY: the pieces cover all elements.
    let out = unsafe {
        alloc::build(count, |out: *mut T| {
            while !values.is_empty() {
                let start = (values.len() - 1) / PIECE * PIECE;
                let piece = rounded::<T>(&values[start..]);
                std::ptr::copy_nonoverlapping(piece.as_ptr(), out.add(start), piece.len());
                values.truncate(start);
                values.shrink_to_fit();
            }
        })
    };
    T::wrap(out)
}

/// All that a chunk reads.
struct Chunks<'a, T> {
    op: &'a Settings,
    x: Matrix<'a, T>,
    w: Matrix<'a, T>,
    targets: &'a [u32],
    weight: Option<&'a [f32]>,
    /// One for all rows, or one for each.
    grad: Vec<f32>,
    terms: Terms,
}

impl<T: Element> Chunks<'_, T> {
    /// The losses, dx and dw; nothing for what is not wanted.
    fn run(&self, [wants_x, wants_w]: [bool; 2]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let (rows, cols, classes) = (self.x.rows, self.x.cols, self.w.rows);
        let step = self
            .op
            .chunk_rows(rows, [classes, cols], [wants_x, wants_w]);
        let count = |wanted, count| if wanted { count } else { 0 };
        let mut logits = Vec::with_capacity(step.min(rows) * classes);
        let (mut losses, mut dx) = (
            Vec::with_capacity(rows),
            Vec::with_capacity(count(wants_x, rows * cols)),
        );
        let fill = |dw: *mut f32| {
            if wants_w && rows == 0 {
                // SAFETY: `build` has room for them.
                unsafe { dw.write_bytes(0, classes * cols) };
            }
            for start in (0..rows).step_by(step) {
                let chunk = start..rows.min(start + step);
                self.logits(chunk.clone(), &mut logits);
                let factors = self.losses(chunk.clone(), &logits, &mut losses);
                if !wants_x && !wants_w {
                    continue;
                }
                self.gradient(chunk.clone(), &factors, &mut logits);
                let dlogits = Matrix::contiguous(&logits, chunk.len(), classes);
                if wants_x {
                    self.dx(dlogits, &mut dx);
                }
                if wants_w {
                    let mut wide = Vec::new();
                    let x = self.x.rows(chunk).widened_into(&mut wide);
                    // SAFETY: `build` has room for `classes` rows of `cols` elements, which the first chunk writes.
                    unsafe { accumulate((dlogits.t(), x.t()), dw, start > 0) };
                }
            }
        };
        // SAFETY: all of dw is written, by the first chunk or, where there is none, above.
        let dw = unsafe { alloc::build(count(wants_w, classes * cols), fill) };
        (losses, dx, dw)
    }

    /// The capped logits of some rows.
    fn logits(&self, chunk: Range<usize>, logits: &mut Vec<f32>) {
        let product = Product::new(self.x.rows(chunk.clone()), self.w);
        logits.clear();
        logits.reserve_exact(chunk.len() * self.w.rows);
        // SAFETY: there is room for the product, which writes all of it.
        unsafe {
            product.write(logits.as_mut_ptr());
            logits.set_len(chunk.len() * self.w.rows);
        }
        if let Some(cap) = self.op.softcap {
            map_in_place(logits, [], Capped { cap });
        }
    }

    /// Adds the losses of some rows to those before them; returns the factors of their gradients.
    fn losses(&self, chunk: Range<usize>, logits: &[f32], losses: &mut Vec<f32>) -> Vec<u32> {
        let classes = self.w.rows;
        let rows = RowLosses {
            x: &RowView::contiguous(Cow::Borrowed(logits), classes),
            targets: &self.targets[chunk.clone()],
            weight: self.weight,
            terms: self.terms,
        };
        let (mut made, factors) = rows.run([chunk.len(), classes]);
        losses.append(&mut made);
        factors
    }

    /// Replaces the logits of some rows by their gradient.
    fn gradient(&self, chunk: Range<usize>, factors: &[u32], logits: &mut [f32]) {
        let grad = match self.grad.len() {
            1 => &self.grad[..],
            _ => &self.grad[chunk.clone()],
        };
        let smoothed = self.weight.filter(|_| self.op.loss.label_smoothing > 0.0);
        let size = [chunk.len(), self.w.rows];
        let gradients = RowGradients::new(factors, grad, smoothed, size);
        gradients.capped(self.op.softcap).overwrite(logits);
    }

    /// Adds the rows of `dlogits·W` to those before them.
    fn dx(&self, dlogits: Matrix<f32>, dx: &mut Vec<f32>) {
        let count = dlogits.rows * self.w.cols;
        dx.reserve(count);
        let room = dx.spare_capacity_mut()[..count].as_mut_ptr();
        // SAFETY: there is room for the product, which writes all of it.
        unsafe {
            match self.w.as_f32() {
                Some(w) => Product::new(dlogits, w.t()).write(room.cast::<f32>()),
                None => self.dx_by_classes(dlogits, room.cast()),
            }
            dx.set_len(dx.len() + count);
        }
    }

    /// `dlogits·W` for a 16-bit W, of which some rows at a time are widened.
    ///
    /// # Safety
    /// `dx` is valid for writes of the product, rows one behind the other.
    unsafe fn dx_by_classes(&self, dlogits: Matrix<f32>, dx: *mut f32) {
        /// Rows of W that are widened at a time: of 4096 columns, 16 MB.
        const CLASSES: usize = 1024;
        let (classes, cols) = (self.w.rows, self.w.cols);
        for start in (0..classes).step_by(CLASSES) {
            let part = start..classes.min(start + CLASSES);
            let w = self.w.rows(part.clone()).widened(1.0);
            let w = Matrix::contiguous(&w, part.len(), cols);
            let dlogits = dlogits.t().rows(part).t();
            // SAFETY: the caller has room for the product, which the first part writes; there is a class at least.
            unsafe { accumulate((dlogits, w.t()), dx, start > 0) };
        }
    }
}

/// A map as an elementwise op.
macro_rules! elementwise {
    ($map:ty) => {
        impl ElementwiseOp<f32, 1, 1> for $map {
            fn cost(&self) -> usize {
                Self::COST
            }

            #[inline(always)]
            unsafe fn run<S: Simd>(
                &self,
                s: S,
                _: usize,
                x: [*const f32; 1],
                y: [*mut f32; 1],
                n: usize,
            ) {
                // SAFETY: the caller's promise is the same.
                unsafe { map_run(s, *self, x, y, n) }
            }
        }
    };
}

/// `factor · x`
#[derive(Clone, Copy)]
struct Scaled {
    factor: f32,
}

impl Map<1, 1> for Scaled {
    const COST: usize = 1;

    #[inline(always)]
    fn map<S: Simd>(&self, s: S, [x]: [S::F; 1]) -> [S::F; 1] {
        [s.mul(x, s.splat(self.factor))]
    }
}

elementwise!(Scaled);

/// `cap · tanh(x / cap)`
#[derive(Clone, Copy)]
struct Capped {
    cap: f32,
}

impl Map<1, 1> for Capped {
    const COST: usize = 2 * parallel::EXP;

    #[inline(always)]
    fn map<S: Simd>(&self, s: S, [x]: [S::F; 1]) -> [S::F; 1] {
        let (cap, inverse) = (s.splat(self.cap), s.splat(1.0 / self.cap));
        [s.mul(math::tanh(s, s.mul(x, inverse)), cap)]
    }
}

elementwise!(Capped);
