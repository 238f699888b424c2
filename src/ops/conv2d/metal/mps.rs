//! A convolution by im2col and Apple's matrix product, a part of the columns at a time. Launches of
//! kernels/conv2d_mps.metal.

use super::params::{Columns, Params};
use super::{Arg, Conv2dShape, NAME};
use crate::metal::mps::{session, Matrix, Multiplication};
use crate::metal::sources::CONV2D_MPS;
use crate::metal::{alloc, dtype_name, grid, Launch, Operand};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};
use candle_metal_kernels::metal::Buffer;

/// Bytes of a part of the im2col matrix, and of its products, at most; unless [`COLUMNS`] columns have more.
const PART: usize = 16 << 20;
const COLUMNS: usize = 64;
/// Parts of a session: the system ends a command buffer that takes seconds.
const PARTS: usize = 64;

/// The parts, in order: the image, its first column and the number of columns.
fn parts(g: &Conv2dShape, dtype: DType) -> Vec<[usize; 3]> {
    let pixels = g.output[0] * g.output[1];
    let column = g.c_in * g.kernel[0] * g.kernel[1] * dtype.size_in_bytes();
    let column = column.max(g.c_out * DType::F32.size_in_bytes());
    let most = (PART / column.max(1)).max(COLUMNS).min(pixels);
    let images = (0..g.batch).map(|image| (0..pixels).step_by(most).map(move |at| (image, at)));
    images
        .flatten()
        .map(|(image, first)| [image, first, most.min(pixels - first)])
        .collect()
}

/// Writes all outputs, of which there is at least one. The shape has one group.
pub fn forward(
    g: &Conv2dShape,
    params: Params,
    x: Arg,
    w: Arg,
    bias: Option<&Operand>,
    out: &Buffer,
) -> Result<()> {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    let name = dtype_name(dtype, NAME)?;
    let rows = g.c_in * g.kernel[0] * g.kernel[1];
    let (x, w) = (Operand::strided(x.0, x.1), Operand::contiguous(w.0, w.1)?);
    let columns = |&part: &[usize; 3]| Columns::new(params, part);
    let parts: Vec<Columns> = parts(g, dtype).iter().map(columns).collect();
    let most = parts.iter().map(|p| p.columns as usize).max().unwrap_or(0);
    let part = alloc(device, rows * most, dtype)?;
    let sums = alloc(device, g.c_out * most, DType::F32)?;
    let sums_operand = Operand::fresh(sums.clone(), g.c_out * most, DType::F32);
    let [unfold, finish] = ["unfold", "columns"].map(|step| format!("{NAME}_fwd_{step}_{name}"));
    parts.chunks(PARTS).try_for_each(|parts| {
        session(device, NAME, |session| {
            for params in parts {
                let columns = params.columns as usize;
                let unfold = Launch::new(device, &CONV2D_MPS, &unfold)?;
                let unfold = unfold.input(&x).output(&part).params(params);
                session.encode(&unfold.on(grid::elementwise_rows(rows, columns, 1)))?;
                let left = Matrix::new(w.buffer(), dtype, g.c_out, rows);
                session.encode(&Multiplication::new(
                    left.at(w.offset() / dtype.size_in_bytes()),
                    Matrix::new(&part, dtype, rows, columns),
                    Matrix::new(&sums, DType::F32, g.c_out, columns),
                ))?;
                let finish = Launch::new(device, &CONV2D_MPS, &finish)?;
                let finish = finish.input(&sums_operand).input_or(bias, &w);
                let finish = finish.output(out).params(params);
                session.encode(&finish.on(grid::elementwise_rows(g.c_out, columns, 1)))?;
            }
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_each_image_once() {
        let g = Conv2dShape {
            batch: 2,
            c_in: 1 << 16,
            c_out: 3,
            input: [10, 13],
            output: [10, 13],
            ..Conv2dShape::of_one_pixel()
        };
        let want = [
            [0, 0, 64],
            [0, 64, 64],
            [0, 128, 2],
            [1, 0, 64],
            [1, 64, 64],
            [1, 128, 2],
        ];
        assert_eq!(parts(&g, DType::F32), want);
        let small = Conv2dShape { c_in: 3, ..g };
        assert_eq!(parts(&small, DType::F16), [[0, 0, 130], [1, 0, 130]]);
        // The products count too.
        let tall = Conv2dShape {
            c_in: 1,
            c_out: 1 << 16,
            ..g
        };
        assert_eq!(parts(&tall, DType::F32), want);
    }
}
