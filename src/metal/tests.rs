//! What needs a device; skipped where there is none.

use super::options::TEST_LOCK;
use super::sources::{Source, COPY};
use super::*;
use candle_core::{
    CpuStorage, Device, InplaceOp1, Layout, MetalDevice, MetalStorage, Result, Tensor,
};
use std::sync::PoisonError;

/// Runs a test alone: options, cache and counters belong to the whole process.
fn alone(test: impl FnOnce(&Device, &MetalDevice) -> Result<()>) -> Result<()> {
    let _lock = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_available() {
        eprintln!("skipped: no Metal device");
        return Ok(());
    }
    let device = Device::new_metal(0)?;
    test(&device, device.as_metal_device()?)
}

#[test]
fn a_pipeline_is_built_once() -> Result<()> {
    alone(|_, device| {
        clear_cache();
        let before = cache_stats();
        assert_eq!((before.libraries, before.pipelines), (0, 0));
        for _ in 0..3 {
            Launch::new(device, &COPY, "copy_to_strided_u16")?;
            Launch::new(device, &COPY, "copy_to_strided_u32")?;
        }
        let after = cache_stats();
        assert_eq!((after.libraries, after.pipelines), (1, 2));
        assert_eq!(after.library_compiles - before.library_compiles, 1);
        assert_eq!(after.pipeline_builds - before.pipeline_builds, 2);

        let saved = options();
        set_options(saved.clone().with_fast_math(!saved.fast_math));
        Launch::new(device, &COPY, "copy_to_strided_u16")?;
        set_options(saved);
        assert_eq!(cache_stats().library_compiles - after.library_compiles, 1);
        Ok(())
    })
}

#[test]
fn every_library_compiles() -> Result<()> {
    alone(|device, _| {
        precompile(device)?;
        assert!(cache_stats().libraries >= sources::SOURCES.len());
        println!("{}", device_info(device)?);
        Ok(())
    })
}

#[test]
fn errors_have_their_types() -> Result<()> {
    let assert_is = |error: candle_core::Error, is: fn(&MetalError) -> bool| {
        assert!(MetalError::of(&error).is_some_and(is), "{error}");
    };
    alone(|_, device| {
        let error = Launch::new(device, &COPY, "copy_to_nowhere").err().unwrap();
        assert_is(
            error,
            |found| matches!(found, MetalError::KernelNotFound { library, .. } if *library == "copy"),
        );

        let saved = options();
        set_options(saved.clone().with_define("copy_to_strided", "1 +"));
        let error = Launch::new(device, &COPY, "copy_to_strided_u16")
            .err()
            .unwrap();
        set_options(saved);
        assert_is(
            error,
            |found| matches!(found, MetalError::CompilationFailed { library, .. } if *library == "copy"),
        );

        let error = device_info(&Device::Cpu).unwrap_err();
        assert_is(error, |found| matches!(found, MetalError::NotAvailable(_)));
        Ok(())
    })
}

/// Two kernels that fill y: the first does, the second goes on for one element more.
static FILL: Source = Source::for_test(
    "fill",
    "[[kernel]] void fill(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
        if (i < 5u) {
            y[i] = 1.0f;
        }
    }
    [[kernel]] void overfill(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
        if (i < 6u) {
            y[i] = 1.0f;
        }
    }",
);

/// Candle's pool hands out buffers that are longer than the output: only softmetal, which is told, can notice.
#[test]
fn a_store_past_the_output_is_noticed() -> Result<()> {
    alone(|device, metal| {
        if !device_info(device)?.name.contains("softmetal") {
            eprintln!("skipped: no softmetal");
            return Ok(());
        }
        let run = |kernel: &str| {
            let out = alloc(metal, 5, candle_core::DType::F32)?;
            assert!(out.length() > 5 * 4, "the pool rounds up");
            let launch = Launch::new(metal, &FILL, kernel)?;
            launch.output(&out).run(grid::elementwise(5, 1))?;
            device.synchronize()
        };
        run("fill")?;
        let error = run("overfill").unwrap_err().to_string();
        assert!(error.contains("of which 20 are in use"), "{error}");
        Ok(())
    })
}

/// Takes a tensor out and puts it back.
struct Untouched;

impl InplaceOp1 for Untouched {
    fn name(&self) -> &'static str {
        "untouched"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        Ok(())
    }

    fn metal_fwd(&self, storage: &mut MetalStorage, layout: &Layout) -> Result<()> {
        InPlace::new(storage, layout)?.commit()
    }
}

#[test]
fn in_place_targets_go_back_where_they_were() -> Result<()> {
    alone(|device, _| {
        for dtype in [
            candle_core::DType::F32,
            candle_core::DType::F16,
            candle_core::DType::BF16,
        ] {
            let x = Tensor::arange(0f32, 120f32, device)?
                .reshape((2, 3, 4, 5))?
                .to_dtype(dtype)?;
            let before = x
                .flatten_all()?
                .to_dtype(candle_core::DType::F32)?
                .to_vec1::<f32>()?;
            for view in [
                x.clone(),
                x.transpose(1, 3)?,
                x.narrow(3, 1, 3)?.permute((3, 0, 2, 1))?,
            ] {
                view.inplace_op1(&Untouched)?;
            }
            let after = x
                .flatten_all()?
                .to_dtype(candle_core::DType::F32)?
                .to_vec1::<f32>()?;
            assert_eq!(before, after);
        }
        Ok(())
    })
}
