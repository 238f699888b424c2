//! What the public functions don't reach: column sums, and results that don't depend on the threads.

use super::*;
use crate::cpu::parallel::alone;
use crate::philox::philox;
use candle_core::{DType, Device};

/// Values between −2 and 2, the same in every run.
fn noise(dims: &[usize]) -> Tensor {
    let value = |i| {
        philox(7, i)
            .iter()
            .map(|&w| w as f32 / 2f32.powi(32))
            .sum::<f32>()
            - 2.0
    };
    let n = dims.iter().product::<usize>() as u64;
    Tensor::from_iter((0..n).map(value), &Device::Cpu)
        .and_then(|x| x.reshape(dims))
        .unwrap()
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
        let x = noise(&from);
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
            // One rounding to the dtype; each of n additions in f32 rounds sums of up to 2√n.
            let n = (x.elem_count() / got.elem_count().max(1)) as f32;
            let lost = f32::EPSILON * (n + n.sqrt());
            let unit = match dtype {
                DType::F32 => f32::EPSILON,
                DType::F16 => 2f32.powi(-11),
                _ => 2f32.powi(-8),
            };
            for (a, b) in values(&got).into_iter().zip(values(&want)) {
                let bound = unit * b.abs() + 2.0 * lost;
                assert!((a - b).abs() <= bound, "{from:?} {to:?} {a} {b} ± {bound}");
            }
        }
    }
    Ok(())
}

#[test]
fn sum_to_reads_any_layout() -> Result<()> {
    let x = noise(&[40, 3, 50]);
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

/// Alone, a thread has one range of all that threads share out otherwise: a sum that depends on where ranges begin and end has
/// other bits.
#[test]
fn sums_have_the_same_bits_on_one_thread() -> Result<()> {
    let x = noise(&[3, 1_400_000]);
    let tall = noise(&[10_000, 420]);
    let run = || -> Result<[Vec<f32>; 4]> {
        Ok([
            values(&sum_last_dim(&x)?),
            values(&sum_all(&x)?),
            values(&sum_to(&tall, &420.into())?),
            values(&sum_to(&x, &1_400_000.into())?),
        ])
    };
    assert!(run()? == alone(run)?, "other bits on one thread");
    Ok(())
}

/// Against the reference: blocks of rows, rows that are taken as one, and a NaN that comes first or not.
#[test]
fn columns_are_reduced_whatever_their_number() -> Result<()> {
    for dims in [
        [1, 30_000, 3],
        [2, 1200, 300],
        [3, 700, 1],
        [5, 171, 3],
        [1, 90, 65],
    ] {
        let x = noise(&dims);
        let first_is_nan = Tensor::full(f32::NAN, (dims[0], 1, dims[2]), &Device::Cpu)?;
        let later = Tensor::cat(&[&x, &first_is_nan, &x], 1)?;
        let first = Tensor::cat(&[&first_is_nan, &x], 1)?;
        for x in [&x, &later, &first] {
            let (got, want) = (max(x, 1)?, x.max(1)?);
            for (got, want) in values(&got).into_iter().zip(values(&want)) {
                assert!(
                    got == want || (got.is_nan() && want.is_nan()),
                    "{dims:?} {got} {want}"
                );
            }
        }
        let want = x.to_dtype(DType::F64)?.mean(1)?;
        for (got, want) in values(&mean(&x, 1)?).into_iter().zip(values(&want)) {
            assert!((got - want).abs() < 1e-6, "{dims:?} {got} {want}");
        }
    }
    Ok(())
}

/// Views whose dims lie in another order in memory, and the order of the results.
#[test]
fn dims_are_reduced_in_any_layout() -> Result<()> {
    let x = noise(&[4, 5, 6, 7]);
    for order in [[3, 2, 1, 0], [0, 2, 3, 1], [1, 0, 3, 2], [2, 3, 0, 1]] {
        let x = x.permute(order)?.narrow(1, 1, 2)?;
        for dims in [&[0][..], &[1], &[2], &[0, 3], &[1, 2], &[0, 1, 2], &[1, 3]] {
            let dense = x.contiguous()?;
            // What is added up, and in which order, is a matter of the shape alone.
            let same = [
                (sum(&x, dims)?, sum(&dense, dims)?),
                (max_keepdim(&x, dims)?, max_keepdim(&dense, dims)?),
            ];
            for (got, want) in same {
                assert_eq!(got.dims(), want.dims());
                assert_eq!(values(&got), values(&want), "{order:?} {dims:?}");
            }
            let (got, want) = (mean(&x, dims)?, dense.mean(dims)?);
            assert_eq!(got.dims(), want.dims());
            for (got, want) in values(&got).into_iter().zip(values(&want)) {
                assert!((got - want).abs() < 1e-4, "{order:?} {dims:?} {got} {want}");
            }
        }
    }
    Ok(())
}
