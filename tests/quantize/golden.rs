//! Values that BitNet, its papers and the formats document.

use super::values;
use crate::devices::devices;
use candle_core::{DType, Result, Tensor};
use candle_fused::ops::quantize;
use candle_fused::quant::{Levels, Packing, ScaleScope, Scheme};

/// Per token, `round(x · 127 / max |x|)`.
#[test]
fn activations_of_bitnet() -> Result<()> {
    let x = [0.1f32, 0.5, -0.3, 0.8, -0.1, 0.2, 0.9, -0.7];
    let want = [14i8, 71, -42, 113, -14, 28, 127, -99];
    for device in devices() {
        let q = quantize(&Tensor::new(&x, device)?, Scheme::int8(ScaleScope::Row))?;
        let codes = q.codes().to_vec1::<u8>()?;
        assert_eq!(codes, want.map(|code| code as u8));
        assert_eq!(values(q.scales())?, [0.9 / 127.]);
    }
    Ok(())
}

#[test]
fn signs_of_groups() -> Result<()> {
    let w = [0.5f32, -0.3, 0.8, -0.1, 0.2, -0.7, 0.9, -0.4];
    let scheme = Scheme::new(Levels::Sign { centred: false }, ScaleScope::Group(4));
    for device in devices() {
        let q = quantize(&Tensor::new(&w, device)?, scheme)?;
        assert_eq!(q.codes().to_vec1::<u8>()?, [0b0101_0101]);
        for (got, want) in values(q.scales())?.into_iter().zip([0.425, 0.55]) {
            assert!((got - want).abs() < 1e-7);
        }
    }
    Ok(())
}

/// Halves go to the even one, as torch has it.
#[test]
fn ternary_codes_and_their_packings() -> Result<()> {
    // Their mean is 1.
    let w = [0.5f32, -0.5, 1.5, -1.5, 2.0, 0.0, -2.0, 0.75, -0.75, 0.5];
    let codes = [1u8, 1, 2, 0, 2, 1, 0, 2, 0, 1];
    let values_of: Vec<f32> = codes.iter().map(|&code| f32::from(code) - 1.).collect();
    for device in devices() {
        let w = Tensor::new(&w, device)?;
        let q = quantize(&w, Scheme::ternary(ScaleScope::Tensor))?;
        assert_eq!(values(q.scales())?, [1.]);
        assert_eq!(
            q.codes().to_vec1::<u8>()?,
            [0b00_10_01_01, 0b10_00_01_10, 0b01_00]
        );
        assert_eq!(values(&q.dequantize(DType::F32)?)?, values_of);
        let q = quantize(
            &w,
            Scheme::ternary(ScaleScope::Tensor).with_packing(Packing::Base3),
        )?;
        let base3 = |digits: &[u8]| {
            let number = digits
                .iter()
                .fold(0, |number, &d| 3 * number + u32::from(d));
            (number * 256).div_ceil(243) as u8
        };
        assert_eq!(
            q.codes().to_vec1::<u8>()?,
            [base3(&codes[..5]), base3(&codes[5..])]
        );
        assert_eq!(values(&q.dequantize(DType::F32)?)?, values_of);
    }
    Ok(())
}

/// Signs are those of what is left without the mean; the scale is the mean of |w| itself.
#[test]
fn signs_without_the_mean() -> Result<()> {
    let w = [3f32, 1., 2., 2., -1., 5.];
    for device in devices() {
        let q = quantize(&Tensor::new(&w, device)?, Scheme::sign(ScaleScope::Tensor))?;
        // The mean is 2, and what equals it is negative.
        assert_eq!(q.codes().to_vec1::<u8>()?, [0b10_0001]);
        assert_eq!(values(q.scales())?, [14. / 6.]);
    }
    Ok(())
}

/// All 256 codes, those above 127 too.
#[test]
fn every_code_is_reached() -> Result<()> {
    for device in devices() {
        let x = Tensor::arange(0f32, 256., device)?;
        let q = quantize(&x, Scheme::uint8(ScaleScope::Tensor))?;
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(q.codes().to_vec1::<u8>()?, all);
        assert_eq!(values(&q.dequantize(DType::F32)?)?, values(&x)?);
        let q = quantize(&(x - 100.)?, Scheme::uint8(ScaleScope::Tensor))?;
        assert_eq!(q.codes().to_vec1::<u8>()?, all);
        assert_eq!(q.offsets().map(values).transpose()?, Some(vec![100.]));
        let x = Tensor::arange(-127f32, 128., device)?;
        let q = quantize(&x, Scheme::int8(ScaleScope::Tensor))?;
        let codes = q.codes().to_vec1::<u8>()?;
        assert!(codes.into_iter().eq((-127i8..=127).map(|i| i as u8)));
    }
    Ok(())
}
