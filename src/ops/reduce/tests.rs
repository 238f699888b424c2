//! What the public functions don't reach: column sums, and results that don't depend on the threads.

use super::*;
use candle_core::{DType, Device};

fn randn(dims: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1.0, dims, &Device::Cpu).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    let x = x.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
    x.to_vec1().unwrap()
}

#[test]
fn sum_to_undoes_every_broadcast() -> Result<()> {
    for (from, to) in [
        (vec![4, 5, 6], vec![4, 5, 6]),
        (vec![4, 5, 6], vec![6]),
        (vec![4, 5, 6], vec![5, 1]),
        (vec![4, 5, 6], vec![4, 1, 6]),
        (vec![4, 5, 6], vec![1, 5, 1]),
        (vec![4, 5, 6], vec![]),
        (vec![2, 3, 4, 5, 6], vec![3, 1, 1, 6]),
        (vec![4, 1, 6], vec![1, 1, 6]),
        (vec![0, 6], vec![6]),
        (vec![3, 0], vec![3, 1]),
        (vec![260, 1025], vec![1025]),
        (vec![3, 900, 33], vec![33]),
        (vec![3000, 17], vec![1, 17]),
        (vec![2, 70000], vec![2, 1]),
    ] {
        let x = randn(&from);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = x.to_dtype(dtype)?;
            let got = sum_to(&x, &to.clone().into())?;
            assert_eq!((got.dims(), got.dtype()), (&to[..], dtype));
            let mut want = x.to_dtype(DType::F64)?;
            while want.rank() > to.len() {
                want = want.sum(0)?;
            }
            for (d, &n) in to.iter().enumerate() {
                if n == 1 {
                    want = want.sum_keepdim(d)?;
                }
            }
            let unit = match dtype {
                DType::F32 => 1e-6,
                DType::F16 => 2e-3,
                _ => 2e-2,
            };
            let scale = (x.elem_count() as f32 / got.elem_count().max(1) as f32).sqrt();
            for (a, b) in values(&got).into_iter().zip(values(&want)) {
                assert!(
                    (a - b).abs() <= unit * 4.0 * scale,
                    "{from:?} {to:?} {a} {b}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn sum_to_reads_any_layout() -> Result<()> {
    let x = randn(&[40, 3, 50]);
    let broadcast = x.get(0)?.get(0)?.broadcast_as((9, 2, 50))?;
    for x in [x.transpose(0, 2)?, x.narrow(2, 7, 30)?, broadcast] {
        let want = x.contiguous()?.flatten_to(1)?.sum(0)?;
        for (a, b) in values(&sum_to(&x, &x.dims()[x.rank() - 1].into())?)
            .into_iter()
            .zip(values(&want))
        {
            assert!((a - b).abs() < 1e-4, "{a} {b}");
        }
    }
    Ok(())
}

#[test]
fn sums_have_the_same_bits_with_any_number_of_threads() -> Result<()> {
    let x = randn(&[3, 140_000]);
    let tall = randn(&[1000, 300]);
    let run = |threads: usize| -> Result<[Vec<f32>; 3]> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap().install(|| {
            Ok([
                values(&sum_last_dim(&x)?),
                values(&sum_all(&x)?),
                values(&sum_to(&tall, &tall.dims()[tall.rank() - 1].into())?),
            ])
        })
    };
    let one = run(1)?;
    for threads in [2, 5] {
        assert_eq!(run(threads)?, one);
    }
    Ok(())
}
