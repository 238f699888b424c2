//! Products to which the low-rank product is added before they are rounded and written.

use super::{AdapterDropout, Lora, NAME};
use crate::cpu::element::Element;
use crate::cpu::matmul::{Low, Matrix, Product, Stored};
use crate::cpu::{gather, with_float};
use crate::op::on_cpu::{Arg, OpResult};
use crate::ops::dropout;
use crate::ops::linear::cpu::vector;
use crate::ops::linear::output_shape;
use candle_core::{CpuStorage, Layout, Result};

/// `args` are x, A and B; `held` are the op's weight and, if it has one, its bias.
pub fn forward(op: &Lora, args: &[Arg], held: &[Arg]) -> OpResult {
    let ((x, xl), (a, al), (b, bl)) = (args[0], args[1], args[2]);
    let ((w, wl), bias) = (held[0], held.get(1).copied());
    let shape = output_shape(xl, wl.dims()[0]);
    let dropped = op
        .dropout
        .map(|dropout| dropped((x, xl), dropout))
        .transpose()?;
    let input = dropped.as_ref().map_or((x, xl), |(x, l)| (x, l));
    with_float!(NAME, x, |x: &[T]| {
        let (x, w) = (Stored::new(x, xl), Stored::new(w.as_slice::<T>()?, wl));
        let (a, b) = (
            Stored::new(a.as_slice::<T>()?, al),
            Stored::new(b.as_slice::<T>()?, bl),
        );
        let input = Stored::new(input.0.as_slice::<T>()?, input.1);
        let bias = bias.map(vector::<T>).transpose()?;
        let down = Product {
            scale: op.scale,
            ..Product::new(input.matrix(), a.matrix())
        };
        let (u, rows) = (down.run::<f32>(), down.x.rows);
        let product = Product {
            low: Some(Low {
                u: Matrix::contiguous(&u, rows, down.w.rows),
                b: b.matrix(),
            }),
            addend: bias.as_deref().map(|bias| Matrix::repeated(bias, rows)),
            ..Product::new(x.matrix(), w.matrix())
        };
        Ok((T::wrap(product.run::<T>()), shape))
    })
}

fn dropped(
    (x, l): Arg,
    AdapterDropout { p, seed }: AdapterDropout,
) -> Result<(CpuStorage, Layout)> {
    let op = dropout::Dropout {
        relu: false,
        p,
        seed,
    };
    let (dropped, shape) = dropout::cpu::forward(op, (x, l))?;
    Ok((dropped, Layout::contiguous(shape)))
}

pub fn up_add(scale: f32, args: &[Arg]) -> OpResult {
    let ((base, base_l), (u, ul), (b, bl)) = (args[0], args[1], args[2]);
    with_float!(NAME, base, |base: &[T]| {
        let (u, b) = (
            Stored::new(u.as_slice::<T>()?, ul),
            Stored::new(b.as_slice::<T>()?, bl),
        );
        let base = gather::contiguous(base, base_l);
        let (rows, outputs) = (u.matrix().rows, b.matrix().rows);
        let product = Product {
            scale,
            addend: Some(Matrix::contiguous(&base, rows, outputs)),
            ..Product::new(u.matrix(), b.matrix())
        };
        Ok((T::wrap(product.run::<T>()), base_l.shape().clone()))
    })
}
