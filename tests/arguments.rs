//! Arguments that once led a kernel out of bounds, into a hang or a deadlock, or lost a gradient.

use candle_core::{
    CpuStorage, CustomOp2, DType, Device, InplaceOp1, Layout, Module, Result, Tensor, Var,
};
use candle_fused::ops::{
    self, Act, Activation, Activations, Linear, Lora, MaskedSoftmax, MatmulAct, MixedMatmul,
};
use candle_fused::quant::{Quantized, Scheme};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

fn ones(dims: &[usize]) -> Result<Tensor> {
    Tensor::ones(dims, DType::F32, &Device::Cpu)
}

/// Views that can be addressed one by one, whose product `x·Aᵀ` has 2⁶⁴ + 1 elements.
#[test]
fn a_product_between_that_overflows() -> Result<()> {
    let one = ones(&[1, 1])?;
    let x = one.broadcast_as((274177, 1))?;
    let a = one.broadcast_as((67280421310721, 1))?;
    let b = one.broadcast_as((1, 67280421310721))?;
    let op = Lora {
        weight: one.clone(),
        bias: None,
        scale: 1.0,
        dropout: None,
    };
    assert!(x.apply_op3(&a, &b, op).is_err());
    assert!(ops::lora(&x, &one, None, &a, &b, 1.0).is_err());
    Ok(())
}

/// Candle's traits are public: a layout need not be that of a tensor.
#[test]
fn layouts_outside_of_their_storage() {
    let few = CpuStorage::F32(vec![1.0; 4]);
    let (large, small) = (Layout::contiguous((1000, 1000)), Layout::contiguous((2, 2)));
    let linear = CustomOp2::cpu_fwd(&Linear::default(), &few, &large, &few, &large);
    assert!(linear.is_err());
    let product = CustomOp2::cpu_fwd(&MatmulAct(Act::Relu), &few, &small, &few, &large);
    assert!(product.is_err());
    let beyond = Layout::contiguous_with_offset((2, 2), 1);
    assert!(CustomOp2::cpu_fwd(&Linear::default(), &few, &beyond, &few, &small).is_err());
    assert!(CustomOp2::cpu_fwd(&Linear::default(), &few, &small, &few, &small).is_ok());

    let mut target = CpuStorage::F32(vec![1.0; 4]);
    let repeated = Layout::new((1000, 4).into(), vec![0, 1], 0);
    assert!(InplaceOp1::cpu_fwd(&Activation(Act::Silu), &mut target, &repeated).is_err());
    assert!(InplaceOp1::cpu_fwd(&Activation(Act::Silu), &mut target, &large).is_err());
    assert!(InplaceOp1::cpu_fwd(&Activation(Act::Silu), &mut target, &small).is_ok());
}

#[test]
fn sizes_behind_a_dim_of_zero() -> Result<()> {
    let none = ones(&[2, 0, 3])?;
    assert!(ops::group_norm(&none, 1 << 40, None, None, 1e-5).is_err());
    assert!(ops::group_norm(&none, usize::MAX, None, None, 1e-5).is_err());
    let rows = ones(&[1 << 40, 0])?;
    assert_eq!(ops::softmax_last_dim(&rows)?.dims(), [1 << 40, 0]);
    assert_eq!(ops::log_softmax(&rows, 1)?.dims(), [1 << 40, 0]);
    Ok(())
}

#[test]
fn a_causal_op_takes_no_mask() -> Result<()> {
    let (x, mask) = (ones(&[3, 3])?, ones(&[3, 3])?);
    let op = MaskedSoftmax {
        scale: 1.0,
        causal: true,
    };
    assert!(x.apply_op2(&mask, op).is_err());
    Ok(())
}

/// An op's own tensors get no gradient: one that tracks it is refused, not ignored.
#[test]
fn held_tensors_that_track_gradients() -> Result<()> {
    let x = ones(&[2, 32])?;
    let w = ops::quantize(&ones(&[4, 32])?, Scheme::mlx(4, 32))?;
    let scales = Var::from_tensor(w.scales())?;
    let trained = Quantized::new(
        w.codes().clone(),
        scales.as_tensor().clone(),
        w.offsets().cloned(),
        w.shape().clone(),
        *w.scheme(),
    )?;
    assert!(x
        .apply_op1(MixedMatmul {
            weight: w,
            activations: Activations::Exact
        })
        .is_ok());
    let refused = x.apply_op1(MixedMatmul {
        weight: trained.clone(),
        activations: Activations::Exact,
    });
    assert!(refused.is_err());
    let y = ops::mixed_matmul(&x, &trained, None)?;
    assert!(y.sum_all()?.backward()?.get(&scales).is_some());
    Ok(())
}

/// Biases and norm weights of `[1, n]` and `[1]` are what stock Candle's broadcasting makes of them.
#[test]
fn vectors_as_stock_takes_them() -> Result<()> {
    let x = Tensor::arange(0f32, 12., &Device::Cpu)?
        .reshape((3, 4))?
        .affine(0.3, -1.0)?;
    let w = Tensor::arange(0f32, 20., &Device::Cpu)?
        .reshape((5, 4))?
        .affine(0.1, -0.7)?;
    type Call = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let of_product: [(Call, Call); 3] = [
        (
            |x, w, b| ops::linear(x, w, Some(b)),
            |x, w, b| x.matmul(&w.t()?)?.broadcast_add(b),
        ),
        (
            |x, w, b| ops::linear_act(x, w, Some(b), Act::Silu),
            |x, w, b| x.matmul(&w.t()?)?.broadcast_add(b)?.silu(),
        ),
        (
            |x, w, b| ops::matmul_act(x, &w.t()?, Some(b), Act::Tanh),
            |x, w, b| x.matmul(&w.t()?)?.broadcast_add(b)?.tanh(),
        ),
    ];
    let of_row: [(Call, Call); 3] = [
        (
            |x, _, b| ops::rms_norm(x, Some(b), 1e-5),
            |x, _, b| ops::rms_norm(x, None, 1e-5)?.broadcast_mul(b),
        ),
        (
            |x, _, b| ops::layer_norm(x, Some(b), Some(b), 1e-5),
            |x, _, b| {
                ops::layer_norm(x, None, None, 1e-5)?
                    .broadcast_mul(b)?
                    .broadcast_add(b)
            },
        ),
        (
            |x, _, b| ops::bias_act(x, b, Act::Silu),
            |x, _, b| x.broadcast_add(b)?.silu(),
        ),
    ];
    for (n, calls) in [(5, of_product), (4, of_row)] {
        for dims in [vec![1, n], vec![1]] {
            let count = dims.iter().product::<usize>();
            let b = Tensor::arange(1f32, count as f32 + 1., &Device::Cpu)?.reshape(dims)?;
            let b = Var::from_tensor(&b)?;
            for (i, (ours, stock)) in calls.iter().enumerate() {
                let (got, want) = (ours(&x, &w, &b)?, stock(&x, &w, &b)?);
                assert_close(&got, &want, i)?;
                let gradient = |y: Tensor| -> Result<Tensor> {
                    let grads = y.sqr()?.sum_all()?.backward()?;
                    Ok(grads.get(&b).expect("a gradient").clone())
                };
                assert_close(&gradient(got)?, &gradient(want)?, i)?;
            }
        }
    }
    Ok(())
}

fn assert_close(got: &Tensor, want: &Tensor, i: usize) -> Result<()> {
    assert_eq!(got.dims(), want.dims(), "call {i}");
    let size = want.abs()?.max_all()?.to_scalar::<f32>()?;
    for error in (got - want)?.abs()?.flatten_all()?.to_vec1::<f32>()? {
        assert!(
            error <= 1e-5 * size.max(1.0),
            "call {i}: off by {error} of {size}"
        );
    }
    Ok(())
}

/// Stock's ReLU takes integers.
#[test]
fn relu_of_integers() -> Result<()> {
    let x = Tensor::new(&[-2i64, 0, 3], &Device::Cpu)?;
    let y = candle_fused::nn::Activation::Relu.forward(&x)?;
    assert_eq!(y.to_vec1::<i64>()?, [0, 0, 3]);
    Ok(())
}

/// Ops that read a tensor twice, while another thread writes to it.
#[test]
fn no_deadlock_with_a_writer() {
    let (done, wait) = mpsc::channel();
    thread::spawn(move || {
        let run = || -> Result<()> {
            let t = ones(&[8, 8])?;
            let writer = t.clone();
            let writes = thread::spawn(move || {
                (0..3000).try_for_each(|_| ops::activation_inplace(&writer, Act::Relu))
            });
            while !writes.is_finished() {
                ops::frozen_linear(&t, &t, None)?;
                ops::add_rms_norm(&t, &t, None, 1e-5)?;
                ops::lora(&t, &t, None, &t, &t, 1.0)?;
            }
            writes.join().expect("the writer")
        };
        done.send(run()).expect("the test waits");
    });
    let result = wait.recv_timeout(Duration::from_secs(120));
    result.expect("a deadlock").expect("an op failed");
}

/// By hand `Cast` may be asked for x's own dtype, which Candle's kernels on Metal do not have.
#[test]
fn a_cast_to_the_same_dtype_is_a_copy() -> Result<()> {
    for device in crate::devices::devices() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = Tensor::arange(0f32, 12., device)?.reshape((3, 4))?;
            let x = x.to_dtype(dtype)?.t()?;
            let y = x.apply_op1(candle_fused::ops::Cast(dtype))?;
            assert_eq!(y.dtype(), dtype);
            let [x, y] = [&x, &y].map(|t| t.to_dtype(DType::F32)?.to_vec2::<f32>());
            assert_eq!(x?, y?);
        }
    }
    Ok(())
}
