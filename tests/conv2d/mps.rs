//! Convolutions by Apple's matrix product, where there is one.

use super::{values, window, Conv, Expected, ACTS};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{conv2d_with, Act, ConvAlgo};

fn metal() -> impl Iterator<Item = &'static Device> {
    devices().iter().filter(|device| device.is_metal())
}

fn convs() -> [Conv; 7] {
    [
        Conv::new([1, 3, 9, 10], [5, 3, 3, 3], window(1, 1, 1, 1)),
        Conv::new([3, 2, 9, 10], [3, 2, 3, 2], window(2, 1, 2, 1)),
        Conv::new([2, 4, 7, 6], [4, 4, 1, 1], window(1, 0, 1, 1)),
        Conv::new([1, 1, 13, 11], [7, 1, 7, 7], window(3, 2, 1, 1)),
        Conv::new([2, 5, 1, 40], [6, 5, 1, 5], window(1, 2, 1, 1)),
        Conv::new([1, 1, 1, 1], [1, 1, 1, 1], window(1, 0, 1, 1)),
        Conv::new([0, 2, 5, 5], [3, 2, 3, 3], window(1, 1, 1, 1)),
    ]
}

#[test]
fn agrees_with_the_loops() -> Result<()> {
    for device in metal() {
        for dtype in [DType::F32, DType::F16] {
            for (i, conv) in convs().into_iter().enumerate() {
                let inputs = conv.inputs(dtype)?;
                let expected = conv.expected(&inputs)?;
                for act in [Act::Identity, ACTS[1 + i]] {
                    let y = conv.run(&inputs, act, ConvAlgo::Mps, device)?;
                    let what = format!("{dtype:?} {act:?} {conv:?}");
                    expected.after(act)?.check(&y, what)?;
                }
            }
        }
    }
    Ok(())
}

/// Images larger than the part that is unfolded at a time, which has 64 columns at least.
#[test]
fn takes_images_in_parts() -> Result<()> {
    for device in metal() {
        let conv = Conv::new([2, 1 << 16, 7, 10], [1, 1 << 16, 1, 1], window(1, 0, 1, 1));
        let x = super::signal(&[2, 1, 7, 10], 1, DType::F32)?.to_device(device)?;
        let one = (Tensor::arange(0u32, 1 << 16, device)?.eq(7u32)?).to_dtype(DType::F32)?;
        let w = one.reshape(&conv.w)?;
        let y = conv2d_with(
            &x.broadcast_as(&conv.x)?,
            &w,
            None,
            conv.window,
            Act::Identity,
            ConvAlgo::Mps,
        )?;
        let expected = Expected {
            dims: conv.y.to_vec(),
            values: values(&x)?,
            slack: vec![0.0; 140],
        };
        expected.check(&y, "parts")?;
    }
    Ok(())
}

#[test]
fn takes_any_layout_and_trains() -> Result<()> {
    for device in metal() {
        let conv = convs()[1];
        let [x, w, bias] = conv.inputs(DType::F32)?;
        let at = |t: &Tensor| t.to_device(device);
        // Stored with channels last, and inputs before outputs.
        let x = Var::from_tensor(&at(&x.permute((0, 2, 3, 1))?.contiguous()?)?)?;
        let w = Var::from_tensor(&at(&w.transpose(0, 1)?.contiguous()?)?)?;
        let bias = Var::from_tensor(&at(&bias)?)?;
        let run = |algo| {
            let views = [x.permute((0, 3, 1, 2))?, w.transpose(0, 1)?];
            let [image, weight] = &views;
            let y = conv2d_with(image, weight, Some(&bias), conv.window, Act::Silu, algo)?;
            let grads = y.sqr()?.sum_all()?.backward()?;
            let grads = [&x, &w, &bias].map(|t| grads.get(t).cloned());
            let grads = grads.into_iter().flatten().map(|g| values(&g));
            Result::Ok((values(&y)?, grads.collect::<Result<Vec<_>>>()?))
        };
        let (y, grads) = run(ConvAlgo::Mps)?;
        let (want, want_grads) = run(ConvAlgo::Direct)?;
        assert_eq!(grads.len(), 3);
        let pairs = grads
            .iter()
            .chain([&y])
            .zip(want_grads.iter().chain([&want]));
        for (got, want) in pairs {
            let size = want.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
            assert!(size > 0.1);
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-5 * size, "{got}, expected {want}");
            }
        }
    }
    Ok(())
}

#[test]
fn refuses_what_it_cannot_do() -> Result<()> {
    let refused = |conv: Conv, dtype, device: &Device, says: [&str; 2]| {
        let inputs = conv.inputs(dtype)?;
        let error = conv.run(&inputs, Act::Relu, ConvAlgo::Mps, device);
        let error = error.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.starts_with("conv2d_with: got "), "{error}");
        assert!(says.iter().all(|says| error.contains(says)), "{error}");
        Result::Ok(())
    };
    let groups = Conv::new([1, 4, 7, 6], [4, 2, 3, 3], window(1, 1, 1, 2));
    for device in metal() {
        refused(convs()[0], DType::BF16, device, ["BF16", "f32 or f16"])?;
        refused(groups, DType::F32, device, ["2 groups", "1 group"])?;
    }
    refused(convs()[0], DType::F32, &Device::Cpu, ["Mps", "CPU"])
}
