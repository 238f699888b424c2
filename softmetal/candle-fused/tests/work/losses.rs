//! Losses over classes, and the embedding.

use super::{tensor, work, Work, DTYPES};
use candle_core::{DType, Device, Error, Result, Tensor, Var};
use candle_fused::ops::{
    cross_entropy, embedding, kl_div, linear_cross_entropy, nll, token_log_probs,
    CrossEntropyConfig, KlDiv, LinearCrossEntropyConfig, LossReduction,
};

type Loss<'a> = &'a dyn Fn() -> Result<Tensor>;

const REDUCTIONS: [LossReduction; 3] =
    [LossReduction::Mean, LossReduction::Sum, LossReduction::None];

/// Every fifth does not count.
fn targets(rows: usize, classes: usize, device: &Device) -> Result<Tensor> {
    let target = |i: usize| {
        if i % 5 == 4 {
            -100
        } else {
            (i % classes) as i64
        }
    };
    Tensor::from_vec((0..rows).map(target).collect(), rows, device)
}

/// The work of a backward pass.
pub fn backward(device: &Device, y: &Tensor, of: &Var) -> Result<Work> {
    work(device, || {
        let grads = y.backward()?;
        let none = || Error::Msg("no gradient".into());
        grads.get(of).cloned().ok_or_else(none)
    })
}

fn at_most(work: &Work, op: &str, most: usize) {
    assert!(work.count(op) > 0, "{:?}", work.kernels);
    assert!(work.count(op) <= most, "{:?}", work.kernels);
}

/// One for the rows and one for all of them; the gradient is one, and one more for the divisor of `nll`.
#[test]
fn losses_take_two_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        for (rows, classes) in [(7, 40), (3, 1500)] {
            let x = Var::from_tensor(&tensor(&[rows, classes], dtype, &device)?)?;
            let p = tensor(&[rows, classes], dtype, &device)?;
            let target = targets(rows, classes, &device)?;
            for reduction in REDUCTIONS {
                let config = CrossEntropyConfig {
                    reduction,
                    label_smoothing: 0.1,
                    weight: Some(tensor(&[classes], dtype, &device)?.affine(0.0, 1.0)?),
                    ..Default::default()
                };
                let plain = CrossEntropyConfig {
                    label_smoothing: 0.0,
                    ..config.clone()
                };
                let divergence = KlDiv {
                    reduction,
                    ..Default::default()
                };
                let losses: [(&str, Loss, usize); 4] = [
                    ("cross_entropy", &|| cross_entropy(&x, &target, &config), 1),
                    ("cross_entropy", &|| nll(&x, &target, &plain), 2),
                    ("cross_entropy", &|| token_log_probs(&x, &target), 1),
                    ("kl_div", &|| kl_div(&x, &p, divergence), 1),
                ];
                for (op, loss, most) in losses {
                    let forward = work(&device, loss)?;
                    at_most(&forward, op, 2);
                    assert_eq!(
                        forward.count(op),
                        forward.kernels.len(),
                        "{:?}",
                        forward.kernels
                    );
                    at_most(&backward(&device, &loss()?, &x)?, op, most);
                }
            }
        }
    }
    Ok(())
}

/// Beside its products: the divisor, for each chunk the losses, the gradient and what caps its logits, and the sum.
#[test]
fn a_loss_without_logits_takes_two_dispatches_for_a_chunk() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        let (rows, chunks) = (6, 2);
        let x = Var::from_tensor(&tensor(&[rows, 8], dtype, &device)?)?;
        let w = Var::from_tensor(&tensor(&[40, 8], dtype, &device)?)?;
        let target = targets(rows, 40, &device)?;
        for softcap in [None, Some(3.0)] {
            let config = LinearCrossEntropyConfig {
                softcap,
                chunk_rows: Some(rows / chunks),
                ..Default::default()
            };
            let loss = |x: &Tensor, w: &Tensor| linear_cross_entropy(x, w, &target, &config);
            let caps = usize::from(softcap.is_some());
            let (frozen_x, frozen_w) = (x.as_detached_tensor(), w.as_detached_tensor());
            let forward = work(&device, || loss(&frozen_x, &frozen_w))?;
            at_most(&forward, "cross_entropy", 2 + chunks * (1 + caps));
            let train = work(&device, || loss(&x, &w))?;
            at_most(&train, "cross_entropy", 2 + chunks * (2 + caps));
            // A frozen head: nothing of its size is written.
            let frozen = work(&device, || loss(&x, &frozen_w))?;
            assert!(frozen.written < train.written, "{}", frozen.written);
        }
    }
    Ok(())
}

/// One for the rows. Backward: one that sorts blocks of ids, one that merges several, and one that adds up.
#[test]
fn embedding_gradients_take_three_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        let weight = Var::from_tensor(&tensor(&[9, 12], dtype, &device)?)?;
        for (count, dispatches) in [(5, 2), (1030, 3)] {
            let ids: Vec<u32> = (0..count).map(|i| i * 7 % 9).collect();
            let ids = Tensor::from_vec(ids, count as usize, &device)?;
            let forward = work(&device, || embedding(&ids, &weight))?;
            assert_eq!(forward.kernels.len(), 1, "{:?}", forward.kernels);
            let y = embedding(&ids, &weight)?;
            let back = backward(&device, &y, &weight)?;
            assert_eq!(back.count("embedding"), dispatches, "{:?}", back.kernels);
        }
        // Ids that are no tensor of their own.
        let ids = Tensor::zeros((3, 4), DType::I64, &device)?.t()?;
        let y = embedding(&ids, &weight)?;
        at_most(&backward(&device, &y, &weight)?, "embedding", 4);
    }
    Ok(())
}
