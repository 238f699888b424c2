//! A pixel that is NaN or infinite reaches the windows that hold it, and no other output.

use super::{reference, values, window, Conv, Expected, ALGOS, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{conv2d, Act};

fn convs() -> [Conv; 4] {
    [
        Conv::new([2, 3, 9, 10], [5, 3, 3, 3], window(1, 1, 1, 1)),
        Conv::new([1, 2, 9, 10], [3, 2, 3, 2], window(2, 1, 2, 1)),
        Conv::new([1, 4, 7, 6], [4, 1, 3, 3], window(1, 1, 1, 4)),
        Conv::new([1, 4, 5, 6], [3, 4, 1, 1], window(1, 0, 1, 1)),
    ]
}

/// `t` with one pixel replaced, in the middle of the last image. It is in no window that holds padding: what padding times
/// NaN is, algorithms don't agree on.
fn with_one(t: &Tensor, value: f32) -> Result<Tensor> {
    let mut values: Vec<f32> = t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let (_, _, height, width) = t.dims4()?;
    let at = values.len() - height * width + height / 2 * width + width / 2;
    values[at] = value;
    Tensor::from_vec(values, t.shape(), &Device::Cpu)?.to_dtype(t.dtype())
}

const SPECIALS: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

#[test]
fn spread_by_each_algorithm() -> Result<()> {
    for device in devices() {
        for conv in convs() {
            for special in SPECIALS {
                let mut inputs = conv.inputs(DType::F32)?;
                inputs[0] = with_one(&inputs[0], special)?;
                let expected = conv.expected(&inputs)?;
                for algo in ALGOS {
                    let y = conv.run(&inputs, Act::Identity, algo, device)?;
                    let what = format!("{special} {algo:?} {conv:?}");
                    expected.by(&conv, algo).check(&y, what)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn spread_to_gradients() -> Result<()> {
    for device in devices() {
        for (i, conv) in convs().iter().enumerate() {
            let dtype = DTYPES[i % 3];
            let [x, w, _] = conv.inputs(dtype)?;
            let g = with_one(&super::signal(&conv.y, 4, dtype)?, f32::NAN)?;
            let (xs, ws, gs) = (values(&x)?, values(&w)?, values(&g)?);
            let var = |t: &Tensor| Var::from_tensor(&t.to_device(device)?);
            let (x, w) = (var(&x)?, var(&w)?);
            let y = conv2d(&x, &w, None, conv.window, Act::Identity)?;
            let grads = (y * g.to_device(device)?)?.backward()?;
            let dx = grads.get(&x).expect("a gradient");
            let want = Expected::new(reference::grad_x(conv, &ws, &gs), conv.x);
            let want = want.by(conv, Default::default());
            want.check(dx, format!("dx, {conv:?}"))?;
            let dw = grads.get(&w).expect("a gradient");
            let want = Expected::new(reference::grad_w(conv, &xs, &gs), conv.w);
            want.check(dw, format!("dw, {conv:?}"))?;
        }
    }
    Ok(())
}

/// In the weight's gradient a special pixel reaches the elements of the kernels that see it. The packed images have zeros
/// between their rows, and zero times infinity is NaN: that must not reach any.
#[test]
fn pixels_spread_to_the_gradient_of_the_weight() -> Result<()> {
    let convs = [
        Conv::new([2, 3, 9, 10], [5, 3, 3, 3], window(1, 1, 1, 1)),
        Conv::new([1, 2, 9, 10], [3, 2, 3, 2], window(2, 1, 2, 1)),
        Conv::new([1, 4, 7, 6], [4, 1, 3, 3], window(1, 1, 1, 4)),
        // Of a few positions, the pixel is seen through a single element.
        Conv::new([1, 1, 6, 7], [2, 1, 5, 5], window(1, 0, 1, 1)),
    ];
    for device in devices() {
        for conv in convs {
            for special in SPECIALS {
                let [x, w, _] = conv.inputs(DType::F32)?;
                let x = with_one(&x, special)?;
                let g = super::signal(&conv.y, 4, DType::F32)?;
                let sums = reference::grad_w(&conv, &values(&x)?, &values(&g)?);
                let w = Var::from_tensor(&w.to_device(device)?)?;
                let y = conv2d(&x.to_device(device)?, &w, None, conv.window, Act::Identity)?;
                let grads = (y * g.to_device(device)?)?.backward()?;
                let dw = grads.get(&w).expect("a gradient");
                Expected::new(sums, conv.w).check(dw, format!("{special}, {conv:?}"))?;
            }
        }
    }
    Ok(())
}
