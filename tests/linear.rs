//! Linear layers beyond the grid: ranks of x, frozen and transposed weights.

use crate::devices::devices;
use crate::tensors::{error, signal, var};
use candle_core::{Result, D};
use candle_fused::ops::{frozen_linear, linear};

#[test]
fn x_may_have_any_rank() -> Result<()> {
    for device in devices() {
        let w = signal(&[7, 12], 1, device)?;
        for leading in [&[][..], &[1], &[2, 3], &[3, 2, 2], &[2, 1, 3, 2]] {
            let x = signal(&[leading, &[12]].concat(), 4, device)?;
            let y = linear(&x, &w, None)?;
            assert_eq!(y.dims(), [leading, &[7]].concat());
            let flat = linear(&x.reshape(((), 12))?, &w, None)?;
            assert!(error(&y.reshape(((), 7))?, &flat)? < 1e-6);
        }
    }
    Ok(())
}

#[test]
fn frozen_weights_get_no_gradient_even_if_they_are_variables() -> Result<()> {
    for device in devices() {
        let (x, w) = (var(&[3, 12], 1, device)?, var(&[7, 12], 2, device)?);
        let bias = var(&[7], 3, device)?;
        let grads = frozen_linear(&x, &w, Some(&bias))?.backward()?;
        assert!(grads.get(&x).is_some());
        assert!([&w, &bias].iter().all(|t| grads.get(t).is_none()));
    }
    Ok(())
}

/// A weight `[in, out]` that is passed as its transpose is read where it lies.
#[test]
fn a_transposed_weight_gives_the_same() -> Result<()> {
    for device in devices() {
        for rows in [1, 8, 9, 70] {
            let (x, w) = (
                signal(&[rows, 40], 1, device)?,
                signal(&[40, 36], 2, device)?,
            );
            let got = linear(&x, &w.t()?, None)?;
            let want = x.matmul(&w)?;
            assert!(error(&got, &want)? < 1e-6, "{rows} rows");
            assert_eq!(got.dim(D::Minus1)?, 36);
        }
    }
    Ok(())
}
