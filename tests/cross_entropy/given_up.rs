//! Logits that the gradient takes the place of.

use super::{configs, logits, numbers, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Result, Tensor, Var};
use candle_fused::ops::{cross_entropy, cross_entropy_inplace};

#[test]
fn logits_that_are_given_up_hold_the_gradient() -> Result<()> {
    for device in devices() {
        for dtype in DTYPES {
            let x = Var::from_tensor(&logits(5, 37, dtype, device)?)?;
            let target = Tensor::new(&[3i64, -100, 36, 0, 7], device)?;
            for config in configs(37, dtype, device)? {
                for transposed in [false, true] {
                    // The logits are the result of an op; turned round, they are a strided view of one.
                    let make = || match transposed {
                        false => x.affine(2.0, 1.0),
                        true => x.t()?.affine(2.0, 1.0)?.t(),
                    };
                    let (kept, given_up) = (make()?, make()?);
                    let want = cross_entropy(&kept, &target, &config)?;
                    let loss = cross_entropy_inplace(given_up.clone(), &target, &config)?;
                    assert_eq!(numbers(&loss)?, numbers(&want)?);
                    assert_eq!(numbers(&given_up)?, numbers(&kept)?);
                    let want = want.backward()?;
                    let got = loss.backward()?;
                    let of =
                        |grads: &candle_core::backprop::GradStore| numbers(grads.get(&x).unwrap());
                    assert_eq!(of(&got)?, of(&want)?);
                    // The logits have been overwritten: with half of x's gradient.
                    let half: Vec<f32> = of(&got)?.iter().map(|g| g / 2.0).collect();
                    assert_eq!(numbers(&given_up)?, half);
                    assert!(loss.backward().is_err(), "a second backward pass");
                }
            }
            let target = target.narrow(0, 0, 5)?;
            let variable =
                cross_entropy_inplace(x.as_tensor().clone(), &target, &Default::default());
            assert!(variable.is_err(), "a variable would be overwritten");
            // Views of the variable lie in its memory too.
            let before = numbers(&x)?;
            let views = [
                (x.reshape((37, 5))?, 5),
                (x.narrow(1, 3, 30)?, 30),
                (x.narrow(0, 1, 3)?.reshape((1, 3, 37))?, 37),
                (
                    x.t()?
                        .reshape((37, 5))?
                        .t()?
                        .narrow(0, 0, 2)?
                        .flatten_all()?,
                    74,
                ),
            ];
            for (view, classes) in views {
                let leading = &view.dims()[..view.rank() - 1];
                let target = Tensor::zeros(leading, DType::U32, device)?;
                assert_eq!(view.dims()[view.rank() - 1], classes);
                match cross_entropy_inplace(view, &target, &Default::default()) {
                    Err(error) => {
                        let error = error.to_string();
                        assert!(error.contains("cross_entropy_inplace: got"), "{error}");
                    }
                    // A reshaped strided view is a copy.
                    Ok(loss) => assert!(loss.backward()?.get(&x).is_some()),
                }
                assert_eq!(numbers(&x)?, before);
            }
            for view in [x.reshape((5, 37))?, x.narrow(0, 0, 5)?, x.t()?.t()?] {
                let loss = cross_entropy_inplace(view, &target, &Default::default());
                assert!(loss.is_err(), "a view of a variable would be overwritten");
            }
            // A detached view has no gradient.
            let detached = x.detach().reshape((5, 37))?;
            let loss = cross_entropy_inplace(detached, &target, &Default::default())?;
            assert!(loss.backward()?.get(&x).is_none());
            assert_eq!(numbers(&x)?, before);
            // A view of an op's result is overwritten where it lies.
            let wide = x.affine(2.0, 0.0)?;
            let view = wide.narrow(1, 0, 30)?;
            let target = Tensor::new(&[3i64, -100, 29, 0, 7], device)?;
            let want = cross_entropy(&view, &target, &Default::default())?.backward()?;
            let want = numbers(want.get(&x).unwrap())?;
            let got = cross_entropy_inplace(view, &target, &Default::default())?.backward()?;
            assert_eq!(numbers(got.get(&x).unwrap())?, want);
            // A broadcast view has no memory for a gradient.
            let row = x.narrow(0, 0, 1)?.broadcast_as((5, 37))?;
            let loss = cross_entropy_inplace(row, &target, &Default::default())?;
            assert!(loss.backward()?.get(&x).is_some());
        }
    }
    Ok(())
}
