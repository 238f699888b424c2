//! Rotations of heads.

use super::losses::backward;
use super::{tensor, work, DTYPES};
use candle_core::{Device, Result, Tensor, Var};
use candle_fused::ops::{qk_norm_rope, rope, rope_inplace, rope_qk, QkNormRope, Rope, RopePairs};

fn heads(count: usize, dtype: candle_core::DType, device: &Device) -> Result<Var> {
    Var::from_tensor(&tensor(&[1, count, 5, 16], dtype, device)?)
}

/// One there and one back, for q and k together.
#[test]
fn rope_takes_one_dispatch() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        for pairs in [RopePairs::Half, RopePairs::Interleaved] {
            let (q, k) = (heads(4, dtype, &device)?, heads(2, dtype, &device)?);
            let (cos, sin) = (
                tensor(&[5, 8], dtype, &device)?,
                tensor(&[5, 8], dtype, &device)?,
            );
            let config = Rope {
                pairs,
                ..Default::default()
            };
            let plain = q.as_detached_tensor();
            let forward = work(&device, || rope(&plain, &cos, &sin, &config))?;
            assert_eq!(forward.kernels.len(), 1, "{:?}", forward.kernels);
            assert_eq!(
                forward.written,
                (q.elem_count() * dtype.size_in_bytes()) as u64
            );
            let copy = plain.copy()?;
            let inplace = work(&device, || {
                rope_inplace(&copy, &cos, &sin, &config)?;
                Ok(copy.clone())
            })?;
            assert_eq!(inplace.kernels.len(), 1, "{:?}", inplace.kernels);
            let y = rope(&q, &cos, &sin, &config)?;
            let back = backward(&device, &y, &q)?;
            assert_eq!(back.count("rope"), 1, "{:?}", back.kernels);
            let other = k.as_detached_tensor();
            let pair = work(&device, || {
                rope_qk(&plain, &other, &cos, &sin, &config).map(|(q, _)| q)
            })?;
            assert_eq!(pair.kernels.len(), 1, "{:?}", pair.kernels);
            let (y, z) = rope_qk(&q, &k, &cos, &sin, &config)?;
            let sum = (y.sum_all()? + z.sum_all()?)?;
            let back = backward(&device, &sum, &q)?;
            assert_eq!(back.count("rope"), 1, "{:?}", back.kernels);
        }
    }
    Ok(())
}

/// One there; back one for the heads, and one that adds up the gradients of the weights.
#[test]
fn qk_norm_rope_takes_two_dispatches_at_most() -> Result<()> {
    let device = Device::new_metal(0)?;
    for dtype in DTYPES {
        let (q, k) = (heads(4, dtype, &device)?, heads(2, dtype, &device)?);
        let weight = || Var::from_tensor(&tensor(&[16], dtype, &device)?);
        let (q_weight, k_weight) = (weight()?, weight()?);
        let table = tensor(&[5, 8], dtype, &device)?;
        let norm = QkNormRope {
            eps: 1e-6,
            weight_offset: 1.0,
            rope: Rope::default(),
        };
        let call = |args: [&Tensor; 4]| {
            qk_norm_rope(args[0], args[1], args[2], args[3], &table, &table, &norm)
        };
        let plain = [&q, &k, &q_weight, &k_weight].map(Var::as_detached_tensor);
        let forward = work(&device, || call(plain.each_ref()).map(|(q, _)| q))?;
        assert_eq!(forward.kernels.len(), 1, "{:?}", forward.kernels);
        let (y, z) = call([&q, &k, &q_weight, &k_weight])?;
        let sum = (y.sum_all()? + z.sum_all()?)?;
        let back = backward(&device, &sum, &q)?;
        assert!(back.count("qk_norm_rope") <= 2, "{:?}", back.kernels);
    }
    Ok(())
}
