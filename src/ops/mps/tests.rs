//! Tests that need a Metal device and private items; skipped where there is no device.

use super::matmul::{forward_in_parts, matmul_where};
use super::{activation, matmul, matmul_auto, softmax};
use crate::act::Act;
use crate::metal::mps::{session, MPSCNNNeuronType, Matrix, Neuron, NeuronFunction, Product};
use crate::metal::options::TEST_LOCK;
use crate::metal::{cache_stats, clear_cache, is_available};
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp2, DType, Device, Layout, MetalStorage, Result, Shape, Tensor,
};
use std::sync::PoisonError;

/// Runs a test alone: the caches belong to the whole process.
fn alone(test: impl FnOnce(&Device) -> Result<()>) -> Result<()> {
    let _lock = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_available() {
        eprintln!("skipped: no Metal device");
        return Ok(());
    }
    test(&Device::new_metal(0)?)
}

fn tensor(dims: &[usize], device: &Device) -> Result<Tensor> {
    let count = dims.iter().product::<usize>();
    let values = (0..count).map(|i| ((i * 7 + 3) % 11) as f32 - 5.0);
    Tensor::from_iter(values, device)?.reshape(dims)
}

fn unsupported<T>() -> Result<T> {
    candle_core::bail!("a test on Metal alone")
}

#[test]
fn a_kernel_is_made_once() -> Result<()> {
    alone(|device| {
        clear_cache();
        let before = cache_stats();
        assert_eq!(before.mps_kernels, 0);
        let (x, y) = (tensor(&[6, 8], device)?, tensor(&[8, 4], device)?);
        let made = || cache_stats().mps_kernel_builds - before.mps_kernel_builds;
        for _ in 0..3 {
            matmul(&x, &y)?;
            matmul(&x.narrow(1, 0, 4)?, &y.narrow(0, 4, 4)?)?;
            matmul(&x, &y.narrow(1, 2, 1)?.contiguous()?)?;
            softmax(&x)?;
            softmax(&y)?;
            activation(&x, Act::Relu)?;
            activation(&x, Act::LeakyRelu(0.5))?;
        }
        assert_eq!((made(), cache_stats().mps_kernels), (6, 6));
        // Other offsets and strides are the same kernel; other sizes and orientations are not.
        matmul(
            &tensor(&[9, 20], device)?.narrow(0, 3, 6)?.narrow(1, 5, 8)?,
            &y,
        )?;
        assert_eq!(made(), 6);
        matmul(&x, &tensor(&[4, 8], device)?.t()?)?;
        assert_eq!(made(), 7);
        clear_cache();
        assert_eq!(cache_stats().mps_kernels, 0);
        matmul(&x, &y)?;
        assert_eq!(made(), 8);
        Ok(())
    })
}

#[test]
fn only_what_pays_goes_there() -> Result<()> {
    alone(|device| {
        clear_cache();
        let (x, y) = (tensor(&[6, 8], device)?, tensor(&[8, 4], device)?);
        let want = matmul_auto(&x, &y)?.to_vec2::<f32>()?;
        assert_eq!(cache_stats().mps_kernels, 0);
        let large = |product: Product, _| product.m * product.n * product.k >= 192;
        assert_eq!(matmul_where(&x, &y, large)?.to_vec2::<f32>()?, want);
        assert_eq!(cache_stats().mps_kernels, 1);
        matmul_where(&x.narrow(0, 0, 5)?, &y, large)?;
        assert_eq!(cache_stats().mps_kernels, 1);
        Ok(())
    })
}

#[test]
fn no_more_kernels_are_held_than_a_few_hundred() -> Result<()> {
    alone(|device| {
        let out = device.as_metal_device()?.new_buffer(4, DType::F32, "out")?;
        let x = tensor(&[4], device)?;
        let (storage, _) = x.storage_and_layout();
        let candle_core::Storage::Metal(storage) = &*storage else {
            return unsupported();
        };
        session(storage.device(), "many", |session| {
            for i in 0..300 {
                session.encode(&Neuron {
                    input: Matrix::new(storage.buffer(), DType::F32, 1, 4),
                    bias: None,
                    result: Matrix::new(&out, DType::F32, 1, 4),
                    function: NeuronFunction {
                        kind: MPSCNNNeuronType::Linear,
                        a: i as f32,
                        b: 0.0,
                        c: 0.0,
                    },
                    alpha: 1.0,
                })?;
            }
            Ok(())
        })?;
        assert!(cache_stats().mps_kernels <= 256);
        Ok(())
    })
}

/// A product whose columns are computed by fours, as large ones are by more.
struct InParts;

impl CustomOp2 for InParts {
    fn name(&self) -> &'static str {
        "in_parts"
    }
    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        unsupported()
    }
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        y: &MetalStorage,
        yl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        forward_in_parts((x, xl), (y, yl), 4)
    }
}

#[test]
fn parts_make_the_whole() -> Result<()> {
    alone(|device| {
        for (x, y) in [
            (tensor(&[3, 5], device)?, tensor(&[5, 11], device)?),
            (
                tensor(&[5, 3], device)?.t()?,
                tensor(&[11, 5], device)?.t()?,
            ),
            (tensor(&[2, 3, 5], device)?, tensor(&[2, 5, 8], device)?),
            (
                tensor(&[3, 2, 5], device)?.transpose(0, 1)?,
                tensor(&[5, 2, 9], device)?.transpose(0, 1)?,
            ),
        ] {
            let cpu = |t: &Tensor| t.to_device(&Device::Cpu)?.contiguous();
            let want = cpu(&x)?.matmul(&cpu(&y)?)?;
            let got = x.apply_op2_no_bwd(&y, &InParts)?;
            assert_eq!(got.dims(), want.dims());
            // Small integers: every sum is exact.
            assert_eq!(values(&got)?, values(&want)?);
        }
        Ok(())
    })
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.flatten_all()?.to_vec1()
}
