//! Rows beyond the grid: long ones that are cut into blocks, rows far from 0, rows and dims without elements.

use crate::devices::devices;
use crate::tensors::{error, signal};
use candle_core::{DType, Device, Result, Tensor, Var, D};
use candle_fused::ops::{
    group_norm, l2_norm, layer_norm, log_softmax, masked_softmax, max_all, max_last_dim,
    mean_last_dim, rms_norm, softmax, softmax_last_dim, sum_all, sum_last_dim, Mask,
};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// As many columns as are cut into blocks on the CPU if there are few rows, and a few more.
const LONG: usize = 70_001;

#[test]
fn the_softmax_of_nothing_is_nothing() -> Result<()> {
    let shapes: [&[usize]; 6] = [&[0, 512], &[512, 0], &[0, 3], &[2, 0, 40], &[2, 0, 3], &[0]];
    for device in devices() {
        for (dims, dtype) in shapes.into_iter().flat_map(|s| DTYPES.map(|d| (s, d))) {
            let x = Tensor::zeros(dims, dtype, device)?;
            for dim in 0..dims.len() {
                assert_eq!(softmax(&x, dim)?.dims(), dims);
                assert_eq!(log_softmax(&x, dim)?.dims(), dims);
                // Candle can't fill an empty gradient on Metal.
                if device.is_cpu() {
                    let x = Var::from_tensor(&x)?;
                    let grads = softmax(&x, dim)?.backward()?;
                    assert_eq!(grads.get(&x).map(Tensor::dims), Some(dims));
                }
            }
            assert_eq!(softmax_last_dim(&x)?.dims(), dims);
            assert_eq!(masked_softmax(&x, 0.5, Mask::None)?.dims(), dims);
        }
    }
    Ok(())
}

#[test]
fn norms_of_nothing_are_nothing() -> Result<()> {
    for device in devices() {
        for (dims, dtype) in [[0, 6], [6, 0]]
            .into_iter()
            .flat_map(|s| DTYPES.map(|d| (s, d)))
        {
            let x = Tensor::zeros(&dims, dtype, device)?;
            let w = Tensor::zeros(dims[1], dtype, device)?;
            assert_eq!(rms_norm(&x, Some(&w), 1e-5)?.dims(), dims);
            assert_eq!(layer_norm(&x, Some(&w), Some(&w), 1e-5)?.dims(), dims);
            assert_eq!(l2_norm(&x, 1e-5)?.dims(), dims);
        }
        for dims in [[0, 4, 3], [2, 4, 0]] {
            let x = Tensor::zeros(&dims, DType::F32, device)?;
            let w = Tensor::zeros(4, DType::F32, device)?;
            assert_eq!(group_norm(&x, 2, Some(&w), Some(&w), 1e-5)?.dims(), dims);
        }
    }
    Ok(())
}

#[test]
fn sums_of_nothing_are_zero_and_means_are_nan() -> Result<()> {
    for device in devices() {
        let (rows, cols) = (
            Tensor::zeros((3, 0), DType::F32, device)?,
            Tensor::zeros((0, 3), DType::F32, device)?,
        );
        assert_eq!(sum_last_dim(&rows)?.to_vec1::<f32>()?, [0.0; 3]);
        assert!(mean_last_dim(&rows)?
            .to_vec1::<f32>()?
            .iter()
            .all(|v| v.is_nan()));
        assert_eq!(sum_last_dim(&cols)?.dims(), [0]);
        assert_eq!(max_last_dim(&cols).map_or(0, |y| y.elem_count()), 0);
        assert_eq!(sum_all(&rows)?.to_scalar::<f32>()?, 0.0);
    }
    Ok(())
}

#[test]
fn a_maximum_passes_over_a_nan_at_the_start_of_a_block() -> Result<()> {
    for device in devices() {
        for start in [16_384, 65_536] {
            let mut row = vec![1f32; LONG];
            row[start] = f32::NAN;
            row[start + 1] = 3.0;
            let x = Tensor::from_vec(row, (1, LONG), device)?;
            assert_eq!(max_last_dim(&x)?.to_vec1::<f32>()?, [3.0]);
            assert_eq!(max_all(&x)?.to_scalar::<f32>()?, 3.0);
            let first = Tensor::full(f32::NAN, (1, 1), device)?;
            let x = Tensor::cat(&[&first, &x], 1)?;
            assert!(max_last_dim(&x)?.to_vec1::<f32>()?[0].is_nan());
        }
    }
    Ok(())
}

type Norm = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Of x, weight and bias: ours, and the same in f64.
const NORMS: [(&str, Norm, Norm); 4] = [
    (
        "rms_norm",
        |x, w, _| rms_norm(x, Some(w), 1e-5),
        |x, w, _| {
            let square = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?;
            x.broadcast_div(&square.sqrt()?)?.broadcast_mul(w)
        },
    ),
    (
        "layer_norm",
        |x, w, b| layer_norm(x, Some(w), Some(b), 1e-5),
        |x, w, b| centred(x)?.broadcast_mul(w)?.broadcast_add(b),
    ),
    (
        "l2_norm",
        |x, _, _| l2_norm(x, 1e-5),
        |x, _, _| x.broadcast_div(&x.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?),
    ),
    (
        "group_norm",
        // Two channels in one group: the weight and the bias of a channel are their first two elements.
        |x, w, b| {
            let (rows, cols) = x.dims2()?;
            let x = x.reshape((rows, 2, cols / 2))?;
            let (w, b) = (w.narrow(0, 0, 2)?, b.narrow(0, 0, 2)?);
            group_norm(&x, 1, Some(&w), Some(&b), 1e-5)?.reshape((rows, cols))
        },
        |x, w, b| {
            let (rows, cols) = x.dims2()?;
            let (w, b) = (
                w.narrow(0, 0, 2)?.reshape((2, 1))?,
                b.narrow(0, 0, 2)?.reshape((2, 1))?,
            );
            let x = centred(x)?.reshape((rows, 2, cols / 2))?;
            x.broadcast_mul(&w)?
                .broadcast_add(&b)?
                .reshape((rows, cols))
        },
    ),
];

fn centred(x: &Tensor) -> Result<Tensor> {
    let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let var = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?;
    x.broadcast_div(&var.sqrt()?)
}

/// Outputs and all gradients, of an x that is shifted by `offset`.
fn norm_agrees(size: (usize, usize), offset: f64, device: &Device) -> Result<()> {
    let (rows, cols) = size;
    let x = (signal(&[rows, cols], 1, device)? + offset)?;
    let (w, b) = (signal(&[cols], 2, device)?, signal(&[cols], 3, device)?);
    let g = signal(&[rows, cols], 4, device)?;
    for (name, ours, exact) in NORMS {
        let run = |norm: Norm, dtype: DType, device: &Device| -> Result<Vec<Tensor>> {
            let wide = |t: &Tensor| t.to_device(device)?.to_dtype(dtype);
            let (x, w, b) = (wide(&x)?, wide(&w)?, wide(&b)?);
            let vars = [&x, &w, &b].map(Var::from_tensor);
            let [x, w, b] = vars;
            let (x, w, b) = (x?, w?, b?);
            let y = norm(&x, &w, &b)?;
            let grads = (&y * wide(&g)?)?.sum_all()?.backward()?;
            let grads = [&x, &w, &b]
                .into_iter()
                .filter_map(|v| grads.get(v).cloned());
            Ok([y.detach()].into_iter().chain(grads).collect())
        };
        let got = run(ours, DType::F32, device)?;
        let want = run(exact, DType::F64, &Device::Cpu)?;
        assert_eq!(got.len(), want.len(), "{name}");
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let error = error(got, want)?;
            assert!(
                error < 2e-5,
                "{name} {rows}×{cols} + {offset}, {i}: {error:e}"
            );
        }
    }
    Ok(())
}

#[test]
fn norms_of_rows_far_from_zero_keep_their_digits() -> Result<()> {
    for device in devices() {
        for offset in [1000.0, 30_000.0] {
            norm_agrees((5, 1026), offset, device)?;
        }
    }
    Ok(())
}

#[test]
fn norms_of_few_long_rows_agree() -> Result<()> {
    for device in devices() {
        for (size, offset) in [((1, LONG + 1), 0.0), ((3, LONG + 1), 1000.0)] {
            norm_agrees(size, offset, device)?;
        }
    }
    Ok(())
}

#[test]
fn softmax_of_few_long_rows_agrees() -> Result<()> {
    for device in devices() {
        let x = (signal(&[2, LONG], 1, device)? * 8.0)?;
        let g = signal(&[2, LONG], 2, device)?;
        let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
        let (exact, exact_g) = (Var::from_tensor(&wide(&x)?)?, wide(&g)?);
        let x = Var::from_tensor(&x)?;
        let softmaxes: [fn(&Tensor) -> Result<Tensor>; 2] =
            [|x| softmax(x, 1), |x| log_softmax(x, 1)];
        let stock: [fn(&Tensor) -> Result<Tensor>; 2] = [
            |x| candle_nn::ops::softmax(x, 1),
            |x| candle_nn::ops::log_softmax(x, 1),
        ];
        for (ours, stock) in softmaxes.into_iter().zip(stock) {
            let (got, want) = (ours(&x)?, stock(&exact)?);
            assert!(error(&got, &want)? < 1e-6);
            let got = (got * &g)?.sum_all()?.backward()?;
            let want = (want * &exact_g)?.sum_all()?.backward()?;
            let (Some(got), Some(want)) = (got.get(&x), want.get(&exact)) else {
                panic!("no gradient")
            };
            assert!(error(got, want)? < 2e-5);
        }
    }
    Ok(())
}
