//! The dropout mask: published Philox4x32-10 numbers, the same for every dtype, layout and device.

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{dropout, dropout_add, dropout_inplace, relu_dropout};

/// Philox4x32 with ten rounds, written from the paper rather than from the crate.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let wide = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high0, low0) = wide(0xD251_1F53, counter[0]);
        let (high1, low1) = wide(0xCD9E_8D57, counter[2]);
        counter = [
            high1 ^ counter[1] ^ key[0],
            low1,
            high0 ^ counter[3] ^ key[1],
            low0,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

/// The words of elements 0.. under a seed.
fn words(seed: u64, count: usize) -> Vec<u32> {
    let key = [seed as u32, (seed >> 32) as u32];
    (0..count.div_ceil(4) as u32)
        .flat_map(|block| philox([block, 0, 0, 0], key))
        .take(count)
        .collect()
}

/// The known answers of the generator's authors (Random123, kat_vectors).
#[test]
fn known_answers() {
    let max = u32::MAX;
    let pi = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
    for (counter, key, answer) in [
        (
            [0; 4],
            [0; 2],
            [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8],
        ),
        (
            [max; 4],
            [max; 2],
            [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd],
        ),
        (
            pi,
            [0xa4093822, 0x299f31d0],
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
        ),
    ] {
        assert_eq!(philox(counter, key), answer);
    }
}

fn ones(count: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::ones(count, dtype, device)
}

fn kept(y: &Tensor) -> Result<Vec<bool>> {
    let y = y.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
    Ok(y.flatten_all()?
        .to_vec1::<f32>()?
        .iter()
        .map(|&v| v != 0.)
        .collect())
}

/// Element i goes where its word is below p·2³².
#[test]
fn the_mask_is_philox() -> Result<()> {
    const COUNT: usize = 70_001;
    for device in devices() {
        for seed in [0, 1, 42, u64::from(u32::MAX) + 1, u64::MAX] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                for p in [0.1f32, 0.5, 0.9] {
                    let y = dropout(&ones(COUNT, dtype, device)?, p, seed)?;
                    let threshold = f64::from(p) * 2f64.powi(32);
                    let stays = |&word: &u32| f64::from(word) >= threshold.floor();
                    let want: Vec<bool> = words(seed, COUNT).iter().map(stays).collect();
                    assert!(kept(&y)? == want, "{dtype:?}, seed {seed}, p {p}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_mask_follows_the_element_not_the_memory() -> Result<()> {
    for device in devices() {
        let flat = dropout(&ones(35 * 33, DType::F32, device)?, 0.5, 7)?;
        let wide = ones(40 * 33, DType::F32, device)?.reshape((33, 40))?;
        let view = wide.narrow(1, 2, 35)?.t()?;
        assert_eq!(kept(&dropout(&view, 0.5, 7)?)?, kept(&flat)?);
        let scalar = ones(1, DType::F32, device)?;
        let repeated = scalar.broadcast_as((35, 33))?;
        assert_eq!(kept(&dropout(&repeated, 0.5, 7)?)?, kept(&flat)?);
    }
    Ok(())
}

#[test]
fn seeds_decide() -> Result<()> {
    let x = ones(10_000, DType::F32, &Device::Cpu)?;
    let mask = |seed| kept(&dropout(&x, 0.5, seed)?);
    assert_eq!(mask(3)?, mask(3)?);
    let agree = |a: &[bool], b: &[bool]| a.iter().zip(b).filter(|(a, b)| a == b).count();
    // Independent masks agree on 5000 ± 50 (one σ) of the elements.
    for other in [4, 3 << 32, u64::MAX] {
        let same = agree(&mask(3)?, &mask(other)?);
        assert!((4700..5300).contains(&same), "seed {other}: {same}");
    }
    Ok(())
}

#[test]
fn the_rate_is_p_and_the_mean_stays() -> Result<()> {
    const COUNT: usize = 1 << 20;
    let x = ones(COUNT, DType::F32, &Device::Cpu)?;
    for p in [0.05f64, 0.25, 0.5, 0.8] {
        let y = dropout(&x, p as f32, 11)?;
        let kept = kept(&y)?.iter().filter(|&&k| k).count() as f64;
        let sigma = (COUNT as f64 * p * (1. - p)).sqrt();
        let off = (kept - COUNT as f64 * (1. - p)).abs();
        assert!(off < 5. * sigma, "p {p}: {kept} kept");
        let mean = y.mean_all()?.to_scalar::<f32>()? as f64;
        assert!(
            (mean - 1.).abs() < 5. * sigma / COUNT as f64 / (1. - p),
            "p {p}: mean {mean}"
        );
    }
    Ok(())
}

/// At p = 0 every bit stays, also of what arithmetic would change.
#[test]
fn zero_p_is_the_identity() -> Result<()> {
    let values = [
        1f32,
        -0.,
        f32::INFINITY,
        f32::MIN_POSITIVE / 2.,
        f32::MAX,
        -3.,
    ];
    let x = Tensor::new(&values, &Device::Cpu)?;
    let bits = |t: &Tensor| -> Result<Vec<u32>> {
        Ok(t.to_vec1::<f32>()?.iter().map(|v| v.to_bits()).collect())
    };
    assert_eq!(bits(&dropout(&x, 0., 5)?)?, bits(&x)?);
    let y = x.copy()?;
    dropout_inplace(&y, 0., 5)?;
    assert_eq!(bits(&y)?, bits(&x)?);
    assert_eq!(bits(&relu_dropout(&x, 0., 5)?)?, bits(&x.relu()?)?);
    assert_eq!(bits(&dropout_add(&x, &x, 0., 5)?)?, bits(&(&x + &x)?)?);
    Ok(())
}

#[test]
fn backward_draws_the_same_mask() -> Result<()> {
    for device in devices() {
        let x = Var::from_tensor(&ones(4_099, DType::F32, device)?)?;
        let residual = Var::from_tensor(&ones(4_099, DType::F32, device)?)?;
        for y in [dropout(&x, 0.3, 9)?, relu_dropout(&x, 0.3, 9)?] {
            let grads = y.backward()?;
            // x is 1 everywhere, so the output is the mask and so is its slope.
            let (slope, mask) = (grads.get(&x).expect("a gradient"), &y);
            assert_eq!(slope.to_vec1::<f32>()?, mask.to_vec1::<f32>()?);
        }
        let grads = dropout_add(&x, &residual, 0.3, 9)?.backward()?;
        let mask = dropout(&x, 0.3, 9)?.to_vec1::<f32>()?;
        assert_eq!(grads.get(&x).expect("a gradient").to_vec1::<f32>()?, mask);
        let through = grads.get(&residual).expect("a gradient").to_vec1::<f32>()?;
        assert!(through.iter().all(|&g| g == 1.));
    }
    Ok(())
}
