//! A pixel that is NaN or infinite reaches the windows that hold it, and no other output.

use super::{reference, values, window, Conv, Expected, ALGOS, DTYPES};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::conv2d::{ConvTranspose2d, Geometry, WeightGrad};
use candle_fused::ops::Act;

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
            let geometry = Geometry::new("test", x.layout(), w.layout(), conv.window)?;
            let (xs, ws, gs) = (values(&x)?, values(&w)?, values(&g)?);
            let at = |t: &Tensor| t.to_device(device);
            let (x, w, g) = (at(&x)?, at(&w)?, at(&g)?);
            let dx = g.apply_op2_no_bwd(&w, &ConvTranspose2d::new(geometry, Act::Identity))?;
            let want = Expected::new(reference::grad_x(conv, &ws, &gs), conv.x);
            let want = want.by(conv, Default::default());
            want.check(&dx, format!("dx, {conv:?}"))?;
            let dw = x.apply_op2_no_bwd(&g, &WeightGrad(geometry))?;
            let want = Expected::new(reference::grad_w(conv, &xs, &gs), conv.w);
            want.check(&dw, format!("dw, {conv:?}"))?;
        }
    }
    Ok(())
}
