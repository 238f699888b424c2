//! Variables in 16 bits, and moments in 8.

use super::{adamw, close, message, signal, store, values};
use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::nn::{AdamW, Moments, Optimizer, Rounding};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// As many elements as moments in 8 bits need, and a last block that is not full.
const LONG: usize = 4096 + 131;

/// A variable and its gradients of three steps, whose sizes differ from element to element.
fn run(adam: &mut AdamW, var: &Var, steps: u64) -> Result<()> {
    for step in 0..steps {
        let grad = signal(var.dims(), 50 + step, DType::F32, var.device())?;
        let size = (signal(var.dims(), 7, DType::F32, var.device())?.abs()? + 0.5)?;
        let grad = (grad * size)?.to_dtype(var.dtype())?;
        adam.step(&store([(var, &grad)]))?;
    }
    Ok(())
}

/// The variable in f32, trained with the very same gradients.
fn in_f32(start: &Tensor, dtype: DType, steps: u64) -> Result<Var> {
    let var = Var::from_tensor(&start.to_dtype(DType::F32)?)?;
    let mut adam = adamw(std::slice::from_ref(&var), Moments::F32, Rounding::Nearest)?;
    for step in 0..steps {
        let grad = signal(var.dims(), 50 + step, DType::F32, var.device())?;
        let size = (signal(var.dims(), 7, DType::F32, var.device())?.abs()? + 0.5)?;
        let grad = (grad * size)?.to_dtype(dtype)?.to_dtype(DType::F32)?;
        adam.step(&store([(&var, &grad)]))?;
    }
    Ok(var)
}

#[test]
fn a_master_copy_takes_the_steps_of_f32() -> Result<()> {
    for device in devices() {
        for dtype in HALVES {
            let start = signal(&[257], 1, dtype, device)?;
            let var = Var::from_tensor(&start)?;
            let mut adam = adamw(std::slice::from_ref(&var), Moments::F32, Rounding::Master)?;
            run(&mut adam, &var, 5)?;
            let exact = in_f32(&start, dtype, 5)?;
            close(&adam.state()?["0.master"], &exact, 0.0)?;
            close(&var, &exact.to_dtype(dtype)?, 0.0)?;
        }
    }
    Ok(())
}

/// 2000 steps of a millionth: a bf16 or f16 of 1 moves by none of them when rounded to nearest.
#[test]
fn small_updates_are_lost_to_nearest_rounding_alone() -> Result<()> {
    let device = &Device::Cpu;
    for dtype in HALVES {
        for (rounding, moves) in [
            (Rounding::Nearest, false),
            (Rounding::Master, true),
            (Rounding::Stochastic { seed: 3 }, true),
        ] {
            let var = Var::ones(512, dtype, device)?;
            let mut adam = adamw(std::slice::from_ref(&var), Moments::F32, rounding)?;
            adam.set_learning_rate(1e-5);
            let grad = var.ones_like()?;
            for _ in 0..2000 {
                adam.step(&store([(&var, &grad)]))?;
            }
            let mean = values(&var)?.iter().sum::<f64>() / 512.0;
            let want = if moves { 0.98 } else { 1.0 };
            assert!(
                (mean - want).abs() < 2e-3,
                "{dtype:?}, {rounding:?}: {mean}"
            );
        }
    }
    Ok(())
}

#[test]
fn chance_depends_on_seed_step_and_place_alone() -> Result<()> {
    for device in devices() {
        for dtype in HALVES {
            let run = |seed: u64, device: &Device| {
                let var = Var::from_tensor(&signal(&[1003], 1, dtype, device)?)?;
                let other = Var::from_tensor(&signal(&[1003], 1, dtype, device)?)?;
                let vars = [var.clone(), other.clone()];
                let mut adam = adamw(&vars, Moments::F32, Rounding::Stochastic { seed })?;
                adam.set_learning_rate(1e-4);
                let grad = signal(&[1003], 9, dtype, device)?;
                for _ in 0..2 {
                    adam.step(&store([(&var, &grad), (&other, &grad)]))?;
                }
                Ok::<_, candle_core::Error>((values(&var)?, values(&other)?))
            };
            let (a, b) = run(5, device)?;
            // The CPU's and Metal's f32 may differ in the last bit, which changes few results.
            let (c, _) = run(5, &Device::Cpu)?;
            let differing = a.iter().zip(&c).filter(|(a, c)| a != c).count();
            assert!(differing <= 3, "{dtype:?}: {differing} differ");
            assert_ne!(a, b, "two variables draw the same numbers");
            assert_ne!(a, run(6, device)?.0, "two seeds draw the same numbers");
        }
    }
    Ok(())
}

#[test]
fn a_variable_that_was_set_is_taken_as_it_is() -> Result<()> {
    for device in devices() {
        let var = Var::from_tensor(&signal(&[33], 1, DType::BF16, device)?)?;
        let mut adam = adamw(std::slice::from_ref(&var), Moments::F32, Rounding::Master)?;
        run(&mut adam, &var, 2)?;
        let new = signal(&[33], 8, DType::BF16, device)?;
        var.set(&new)?;
        adam.set_learning_rate(0.0);
        run(&mut adam, &var, 1)?;
        close(&var, &new, 0.0)?;
        close(&adam.state()?["0.master"], &new, 0.0)?;
    }
    Ok(())
}

/// The square of a large gradient is infinite in f32, and yet the block of 256 stays finite.
#[test]
fn large_gradients_leave_eight_bit_moments_finite() -> Result<()> {
    for device in devices() {
        let mut grad = vec![1e-3f32; 600];
        grad[300] = 1e20;
        let grad = Tensor::new(grad, device)?;
        let var = Var::from_tensor(&signal(&[600], 1, DType::F32, device)?)?;
        let mut eight = adamw(
            std::slice::from_ref(&var),
            Moments::EightBit,
            Rounding::Nearest,
        )?;
        for _ in 0..3 {
            eight.step(&super::store([(&var, &grad)]))?;
        }
        assert!(values(&var)?.iter().all(|x| x.is_finite()));
    }
    Ok(())
}

/// All forms of moments and roundings, which have kernels of their own.
#[test]
fn eight_bit_moments_stay_near_f32() -> Result<()> {
    for device in devices() {
        for dtype in super::DTYPES {
            let roundings = [
                Rounding::Nearest,
                Rounding::Master,
                Rounding::Stochastic { seed: 1 },
            ];
            // A length that is no whole number of blocks or of vectors, and one that is.
            for (rounding, len) in roundings
                .into_iter()
                .flat_map(|rounding| [(rounding, LONG), (rounding, 4096)])
            {
                let start = signal(&[len], 1, dtype, device)?;
                let (a, b) = (Var::from_tensor(&start)?, Var::from_tensor(&start)?);
                let mut eight = adamw(std::slice::from_ref(&a), Moments::EightBit, rounding)?;
                let mut floats = adamw(std::slice::from_ref(&b), Moments::F32, rounding)?;
                run(&mut eight, &a, 3)?;
                run(&mut floats, &b, 3)?;
                let (a, b, start) = (values(&a)?, values(&b)?, values(&start)?);
                let norm = |x: &[f64], y: &[f64]| {
                    x.iter()
                        .zip(y)
                        .map(|(x, y)| (x - y).powi(2))
                        .sum::<f64>()
                        .sqrt()
                };
                // Off by a few percent of the way.
                let off = norm(&a, &b) / norm(&b, &start);
                let bound = if dtype == DType::BF16 { 0.1 } else { 0.04 };
                assert!(off < bound, "{dtype:?}, {rounding:?}: {off}");
                let state = eight.state()?;
                assert_eq!(state["0.m_codes"].dims(), [len]);
                assert_eq!(state["0.v_scale"].dims(), [len.div_ceil(256)]);
            }
        }
    }
    Ok(())
}

/// The codes of each device after one step, from the moments that f32 keeps, by the nearest value of the whole table.
#[test]
fn codes_are_the_nearest_of_their_table() -> Result<()> {
    let values_of = |bits: u32| {
        let mut table = vec![0f64];
        for decade in 0..7 {
            let count = 1 << (decade + bits);
            let width = 0.9 / f64::from(count);
            let top = 10f64.powi(decade as i32 - 6);
            table.extend((0..count).map(|i| top * (0.1 + width * (f64::from(i) + 0.5))));
        }
        table.push(1.0);
        table
    };
    for device in devices() {
        let var = Var::zeros(LONG, DType::F32, device)?;
        let mut eight = adamw(
            std::slice::from_ref(&var),
            Moments::EightBit,
            Rounding::Nearest,
        )?;
        let other = Var::zeros(LONG, DType::F32, device)?;
        let mut floats = adamw(
            std::slice::from_ref(&other),
            Moments::F32,
            Rounding::Nearest,
        )?;
        run(&mut eight, &var, 1)?;
        run(&mut floats, &other, 1)?;
        let (eight, floats) = (eight.state()?, floats.state()?);
        for (moment, table) in [("m", values_of(0)), ("v", values_of(1))] {
            let codes = values(&eight[&format!("0.{moment}_codes")])?;
            let scales = values(&eight[&format!("0.{moment}_scale")])?;
            let exact = values(&floats[&format!("0.{moment}")])?;
            for (block, exact) in exact.chunks(256).enumerate() {
                let largest = exact.iter().fold(0f64, |most, x| most.max(x.abs()));
                assert!(
                    (scales[block] - largest).abs() <= 1e-6 * largest,
                    "{moment} {block}"
                );
                for (i, &x) in exact.iter().enumerate() {
                    let code = codes[256 * block + i] as usize;
                    let value = match moment == "m" && code > 128 {
                        true => -table[code - 128],
                        false => table[code],
                    };
                    let x = x / largest;
                    let nearest = table
                        .iter()
                        .map(|t| (t - x.abs()).abs())
                        .fold(1.0, f64::min);
                    let error = (value - x).abs();
                    // −1 has no code; the second moment is never rounded to 0.
                    let slack = if x < -0.99 { 0.008 } else { 1e-6 };
                    assert!(error <= nearest + slack, "{moment}: {x} as {value}");
                }
            }
        }
    }
    Ok(())
}

/// A block that holds a NaN or an infinity is NaN as a whole from then on, and no other block.
#[test]
fn a_nan_does_not_leave_its_block() -> Result<()> {
    for device in devices() {
        for bad in [f32::NAN, f32::INFINITY] {
            let var = Var::ones(LONG, DType::F32, device)?;
            let mut adam = adamw(
                std::slice::from_ref(&var),
                Moments::EightBit,
                Rounding::Nearest,
            )?;
            let mut grad = vec![1f32; LONG];
            grad[300] = bad;
            adam.step(&store([(&var, &Tensor::new(grad, device)?)]))?;
            let is_nan = |var: &Var| -> Result<Vec<usize>> {
                let values = values(var)?.into_iter().enumerate();
                Ok(values.filter(|(_, x)| x.is_nan()).map(|(i, _)| i).collect())
            };
            assert_eq!(is_nan(&var)?, [300]);
            adam.step(&store([(&var, &var.ones_like()?)]))?;
            assert_eq!(is_nan(&var)?, (256..512).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// A gradient that stops: the first moment remains, and the second is not rounded to 0.
#[test]
fn eight_bit_updates_are_bounded_where_gradients_end() -> Result<()> {
    let var = Var::zeros(LONG, DType::F32, &Device::Cpu)?;
    let mut adam = adamw(
        std::slice::from_ref(&var),
        Moments::EightBit,
        Rounding::Nearest,
    )?;
    // 1 beside 1e-5: its square is a ten billionth of the block's largest.
    let first: Vec<f32> = (0..LONG)
        .map(|i| if i % 256 == 0 { 1.0 } else { 1e-5 })
        .collect();
    let mut grad = Tensor::new(first, &Device::Cpu)?;
    for _ in 0..5 {
        adam.step(&store([(&var, &grad)]))?;
        grad = grad.zeros_like()?;
    }
    let most = values(&var)?
        .into_iter()
        .fold(0f64, |most, x| most.max(x.abs()));
    assert!(most < 0.06, "five steps of 0.01 went as far as {most}");
    Ok(())
}

#[test]
fn f64_keeps_f64_moments_and_small_variables_f32() -> Result<()> {
    let small = Var::ones(4095, DType::F32, &Device::Cpu)?;
    let double = Var::ones(LONG, DType::F64, &Device::Cpu)?;
    let adam = adamw(&[small, double], Moments::EightBit, Rounding::Nearest)?;
    let state = adam.state()?;
    assert_eq!(
        (state["0.m"].dtype(), state["1.v"].dtype()),
        (DType::F32, DType::F64)
    );
    let mut keys: Vec<_> = state.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["0.m", "0.v", "1.m", "1.v", "step"]);
    let mut other = adamw(
        &[Var::ones(3, DType::F32, &Device::Cpu)?],
        Moments::F32,
        Rounding::Nearest,
    )?;
    assert!(message(other.load_state(&state)).contains("\"0.m\""));
    Ok(())
}
