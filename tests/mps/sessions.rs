//! Several steps in one session, several sessions at a time, and what fails.

use super::place::run;
use super::{error, exact, metal, signal, softmetal};
use candle_core::backend::BackendStorage;
use candle_core::{DType, Device, Result, Storage};
use candle_fused::metal::mps::{
    session, MPSCNNNeuronType, Matrix, MpsKernel, MpsSession, Multiplication, Neuron,
    NeuronFunction, SoftMax, VectorMultiplication,
};
use candle_fused::metal::MetalError;
use candle_fused::ops::mps::matmul;

/// x·y, its softmax, and that times y again: each step reads what the one before has written, and writes what it has read.
#[test]
fn steps_are_in_order() -> Result<()> {
    for device in metal() {
        let of = |seed| signal(&[6, 6], seed, DType::F32, device);
        let (x, y, z) = (of(1)?, of(2)?, of(3)?);
        let (xs, ys) = (exact(&x)?, exact(&y)?);
        run([&x, &y, &z], |session, buffers| {
            let [x, y, z] = buffers.map(|buffer| Matrix::new(buffer, DType::F32, 6, 6));
            session.encode(&Multiplication::new(x, y, z))?;
            session.encode(&SoftMax {
                input: z,
                result: x,
            })?;
            session.encode(&Multiplication::new(x, y, z))
        })?;
        let want = candle_nn::ops::softmax(&xs.matmul(&ys)?, 1)?.matmul(&ys)?;
        assert!(error(&z, &want)? < 1e-5);
    }
    Ok(())
}

#[test]
fn wrong_arguments() -> Result<()> {
    fn refused<'a>(session: &mut MpsSession<'a>, step: impl MpsKernel<'a>, says: &[&str]) {
        let error = session
            .encode(&step)
            .expect_err("a wrong argument")
            .to_string();
        for says in says {
            assert!(error.contains(says), "{error}: no {says}");
        }
    }
    for device in metal() {
        let of = |seed| signal(&[4, 4], seed, DType::F32, device);
        let (x, y, z) = (of(1)?, of(2)?, of(3)?);
        run([&x, &y, &z], |session, buffers| {
            let [x, y, z] = buffers.map(|buffer| Matrix::new(buffer, DType::F32, 4, 4));
            let product = "MPSMatrixMultiplication";
            let times = |left, right, result| Multiplication::new(left, right, result);
            let bf16 = Matrix {
                dtype: DType::BF16,
                ..x
            };
            refused(
                session,
                times(bf16, y, z),
                &[product, "left", "BF16", "f32 or f16"],
            );
            let half = Matrix {
                dtype: DType::F16,
                ..x
            };
            refused(session, times(half, y, z), &[product, "F16", "F32"]);
            let endless = Matrix {
                row_stride: usize::MAX,
                ..x
            };
            refused(session, times(endless, y, z), &[product, "row stride"]);
            let softmax = SoftMax {
                input: x,
                result: x,
            };
            refused(session, softmax, &["MPSMatrixSoftMax", "overlaps"]);
            let three = Matrix { rows: 3, ..x };
            refused(session, times(x, three, z), &[product, "4×4 by 3×4 to 4×4"]);
            refused(
                session,
                times(Matrix { columns: 0, ..x }, y, z),
                &[product, "empty"],
            );
            refused(
                session,
                times(x.at(1), y, z),
                &[product, "left does not fit", "element 1", "bytes"],
            );
            refused(
                session,
                times(x.at(usize::MAX), y, z),
                &[product, "does not fit"],
            );
            refused(
                session,
                times(x, y, z.times(2, 16)),
                &[product, "result does not fit"],
            );
            refused(
                session,
                times(x.with_row_stride(3), y, z),
                &[product, "row stride of 3"],
            );
            let two = Matrix { rows: 1, ..x }.times(2, 5);
            refused(session, times(two, y, z), &[product, "matrix stride of 5"]);
            refused(session, times(x, y, x), &[product, "overlaps"]);

            let line = Matrix { rows: 1, ..y };
            let short = Matrix { columns: 3, ..line };
            let vector = "MPSMatrixVectorMultiplication";
            let by = |vector, result| VectorMultiplication::new(x, vector, result);
            refused(
                session,
                by(short, Matrix { rows: 1, ..z }),
                &[vector, "vector is 1×3, 1×4 accepted"],
            );
            refused(session, by(line, z), &[vector, "result is 4×4"]);
            refused(
                session,
                SoftMax {
                    input: x,
                    result: line,
                },
                &["MPSMatrixSoftMax", "1 of 4×4 F32 to 1 of 1×4"],
            );
            let neuron = |kind, bias| Neuron {
                input: x,
                bias,
                result: z,
                function: NeuronFunction {
                    kind,
                    a: 0.0,
                    b: 0.0,
                    c: 0.0,
                },
                alpha: 1.0,
            };
            let relu = MPSCNNNeuronType::ReLU;
            refused(
                session,
                neuron(relu, Some(short)),
                &["MPSMatrixNeuron", "bias is 1×3"],
            );
            refused(
                session,
                neuron(MPSCNNNeuronType::PReLU, None),
                &["MPSMatrixNeuron", "any but PReLU"],
            );
            refused(
                session,
                neuron(MPSCNNNeuronType(77), None),
                &["MPSMatrixNeuron", "function 77"],
            );
            Ok(())
        })?;
    }
    Ok(())
}

/// softmetal sees that nobody has written what a product is added to; a GPU would not.
#[test]
fn a_failure_is_an_error() -> Result<()> {
    for device in softmetal() {
        let x = signal(&[4, 4], 1, DType::F32, device)?;
        let fresh = device
            .as_metal_device()?
            .new_private_buffer(16, DType::F32, "fresh")?;
        let (storage, _) = x.storage_and_layout();
        let Storage::Metal(storage) = &*storage else {
            panic!("a tensor that is not on Metal")
        };
        let result = session(storage.device(), "a_visit", |session| {
            let x = Matrix::new(storage.buffer(), DType::F32, 4, 4);
            let result = Matrix::new(&fresh, DType::F32, 4, 4);
            session.encode(&Multiplication {
                beta: 1.0,
                ..Multiplication::new(x, x, result)
            })
        });
        let error = result.expect_err("a failure");
        let found = MetalError::of(&error);
        let failed = matches!(
            found,
            Some(MetalError::CommandBufferFailed { op: "a_visit", .. })
        );
        assert!(failed, "{error}");
        // The next session is none the worse for it.
        matmul(&x, &x)?;
    }
    Ok(())
}

#[test]
fn threads_share_the_kernels() -> Result<()> {
    if metal().next().is_none() {
        return Ok(());
    }
    let work = |seed| -> Result<()> {
        let device = Device::new_metal(0)?;
        let mut x = signal(&[8, 8], seed, DType::F32, &device)?;
        let mut want = exact(&x)?;
        let y = (signal(&[8, 8], 9, DType::F32, &device)? / 16.0)?;
        for _ in 0..20 {
            x = (matmul(&x, &y)? + &y)?;
            want = (want.matmul(&exact(&y)?)? + exact(&y)?)?;
        }
        assert!(error(&x, &want)? < 1e-5);
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
        let mut results = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        results.try_for_each(|result| result)
    })
}
