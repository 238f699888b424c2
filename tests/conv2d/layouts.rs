//! Views of every kind give what contiguous copies give.

use super::{window, Conv, Expected, ALGOS};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::{conv2d, conv2d_with, Act, ConvAlgo, ConvTranspose2d};

/// Ways to store a tensor of four dims so that a view has its shape.
const VIEWS: [(&str, View); 7] = [
    ("channels last", |t| permuted(t, [0, 2, 3, 1], [0, 3, 1, 2])),
    ("first dims swapped", |t| {
        permuted(t, [1, 0, 2, 3], [1, 0, 2, 3])
    }),
    ("image transposed", |t| {
        permuted(t, [0, 1, 3, 2], [0, 1, 3, 2])
    }),
    ("all turned", |t| permuted(t, [3, 2, 1, 0], [3, 2, 1, 0])),
    ("inside padding", |t| {
        let padded = t.pad_with_same(3, 2, 1)?.pad_with_same(2, 1, 2)?;
        let [_, _, height, width] = dims(t);
        padded.narrow(3, 2, width)?.narrow(2, 1, height)
    }),
    ("inside more channels", |t| {
        let more = Tensor::cat(&[t, t, t], 1)?;
        more.narrow(1, t.dim(1)?, t.dim(1)?)
    }),
    // Other values: those of the first image.
    ("repeated", |t| {
        t.narrow(0, 0, 1)?.contiguous()?.broadcast_as(t.shape())
    }),
];

type View = fn(&Tensor) -> Result<Tensor>;

fn dims(t: &Tensor) -> [usize; 4] {
    t.dims().try_into().expect("four dims")
}

fn permuted(t: &Tensor, there: [usize; 4], back: [usize; 4]) -> Result<Tensor> {
    t.permute(there)?.contiguous()?.permute(back)
}

/// A view made on the device, and a contiguous copy made without it.
fn moved(t: &Tensor, view: View, device: &Device) -> Result<[Tensor; 2]> {
    let t = t.to_device(device)?;
    let view = view(&t)?;
    let copy = view.to_device(&Device::Cpu)?.force_contiguous()?;
    Ok([view, copy.to_device(device)?])
}

/// The same sums, perhaps in another order: each result has its own error.
fn same(conv: &Conv, inputs: &[Tensor; 3], got: &Tensor, want: &Tensor, what: &str) -> Result<()> {
    let slack = conv.expected(inputs)?.slack;
    let most = slack.iter().fold(0.0, |a: f64, b| a.max(*b));
    let want = Expected {
        dims: want.dims().to_vec(),
        values: super::values(want)?,
        slack: vec![2.0 * most; want.elem_count()],
    };
    want.check(got, what)
}

#[test]
fn of_x_and_weight() -> Result<()> {
    let convs = [
        Conv::new([2, 4, 7, 6], [6, 4, 3, 2], window(2, 1, 1, 1)),
        Conv::new([2, 4, 7, 6], [6, 2, 3, 3], window(1, 1, 1, 2)),
        Conv::new([2, 4, 7, 6], [4, 1, 3, 3], window(1, 1, 1, 4)),
        Conv::new([2, 4, 5, 6], [5, 4, 1, 1], window(1, 0, 1, 1)),
    ];
    for device in devices() {
        for conv in convs {
            let inputs = conv.inputs(DType::F32)?;
            let bias = inputs[2].to_device(device)?;
            for (i, (name, view)) in VIEWS.iter().enumerate() {
                let (other, other_view) = VIEWS[(i + 3) % VIEWS.len()];
                let [x, x_copy] = moved(&inputs[0], *view, device)?;
                let [w, w_copy] = moved(&inputs[1], other_view, device)?;
                for algo in ALGOS {
                    let run = |x, w| conv2d_with(x, w, Some(&bias), conv.window, Act::Relu, algo);
                    let what = format!("{algo:?}, x {name}, w {other}, {conv:?}");
                    same(
                        &conv,
                        &inputs,
                        &run(&x, &w)?,
                        &run(&x_copy, &w_copy)?,
                        &what,
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// A gradient's x is often a view, and so is what a transposed convolution takes.
#[test]
fn of_gradients() -> Result<()> {
    let convs = [
        Conv::new([2, 4, 7, 6], [6, 4, 3, 2], window(2, 1, 1, 1)),
        Conv::new([2, 4, 7, 6], [4, 1, 3, 3], window(1, 1, 1, 4)),
    ];
    for device in devices() {
        for conv in convs {
            let inputs = conv.inputs(DType::F32)?;
            let g = super::signal(&conv.y, 4, DType::F32)?;
            for (i, (name, view)) in VIEWS.iter().enumerate() {
                let (other, other_view) = VIEWS[(i + 3) % VIEWS.len()];
                let [z, z_copy] = moved(&g, *view, device)?;
                let [x, x_copy] = moved(&inputs[0], other_view, device)?;
                let [w, w_copy] = moved(&inputs[1], other_view, device)?;
                // With a stride of 2 there can be an output padding.
                let ends = [conv.window.stride[0] - 1; 2];
                let op = ConvTranspose2d::new(conv.window, ends, Act::Identity);
                let (got, want) = (
                    z.apply_op2_no_bwd(&w, &op)?,
                    z_copy.apply_op2_no_bwd(&w_copy, &op)?,
                );
                let what = format!("transposed: x {name}, w {other}, {conv:?}");
                same(&conv, &inputs, &got, &want, &what)?;
                let g = g.to_device(device)?;
                let dw = |x: &Tensor| -> Result<Tensor> {
                    let w = Var::from_tensor(&w)?;
                    let y = conv2d(x, &w, None, conv.window, Act::Identity)?;
                    let grads = (y * &g)?.backward()?;
                    Ok(grads.get(&w).expect("a gradient").clone())
                };
                let what = format!("dw: x {other}, {conv:?}");
                same(&conv, &inputs, &dw(&x)?, &dw(&x_copy)?, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn of_a_bias() -> Result<()> {
    for device in devices() {
        let conv = Conv::new([2, 4, 7, 6], [6, 4, 3, 2], window(1, 0, 1, 1));
        let inputs = conv.inputs(DType::F32)?;
        let [x, w, bias] = [0, 1, 2].map(|i| inputs[i].to_device(device));
        let (x, w, bias) = (x?, w?, bias?);
        let every_second = Tensor::stack(&[&bias, &bias.zeros_like()?], 1)?.narrow(1, 0, 1)?;
        let run = |bias: &Tensor| {
            let algo = ConvAlgo::Auto;
            conv2d_with(&x, &w, Some(bias), conv.window, Act::Identity, algo)
        };
        let got = run(&every_second.squeeze(1)?)?;
        same(&conv, &inputs, &got, &run(&bias)?, "bias")?;
        let one = bias.narrow(0, 2, 1)?.broadcast_as(6)?;
        let got = run(&one)?;
        same(&conv, &inputs, &got, &run(&one.contiguous()?)?, "one bias")?;
    }
    Ok(())
}
