//! What the grid can't express of the embedding: ids outside of the vocabulary, numbers of ids around the blocks of a sort.

use crate::devices::devices;
use candle_core::{DType, Device, Result, Tensor, Var};
use candle_fused::ops::embedding;

#[test]
fn ids_outside_of_the_vocabulary() -> Result<()> {
    for device in devices() {
        for ids in [[1i64, 4], [1, -1], [1, i64::MIN], [1, i64::MAX]] {
            let weight = Var::ones((4, 3), DType::F32, device)?;
            let y = embedding(&Tensor::new(&ids, device)?, &weight);
            if device.is_cpu() {
                let error = y.unwrap_err().to_string();
                assert!(error.contains("embedding: got"), "{error}");
                assert!(error.contains("position 1 of ids"), "{error}");
                // Without a kernel.
                let wide = weight.to_dtype(DType::F64)?;
                let error = embedding(&Tensor::new(&ids, device)?, &wide).unwrap_err();
                assert!(error.to_string().contains("position 1 of ids"), "{error}");
                let padding = Tensor::new(&[u32::MAX], device)?;
                assert!(embedding(&padding, &wide).is_err());
                continue;
            }
            let y = y?;
            let rows = y.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
            assert_eq!(rows[0], [1.0; 3]);
            assert!(rows[1].iter().all(|v| v.is_nan()));
            let grads = y.sum_all()?.backward()?;
            let grad = grads.get(&weight).unwrap().to_device(&Device::Cpu)?;
            let want = [0.0, 1.0, 0.0, 0.0].map(|v| vec![v; 3]);
            assert_eq!(grad.to_vec2::<f32>()?, want);
        }
    }
    Ok(())
}

/// The gradient of a column of ones counts the ids, of which some repeat, and that of a column of positions adds them up.
#[test]
fn any_number_of_ids() -> Result<()> {
    for device in devices() {
        // Blocks of 1024 ids are sorted on Metal.
        for count in [0usize, 1, 2, 3, 31, 33, 1023, 1024, 1025, 2048, 2500] {
            for vocabulary in [1usize, 7, 3000] {
                let ids: Vec<i64> = (0..count).map(|i| (i * i % vocabulary) as i64).collect();
                let mut want = vec![vec![0f32; 2]; vocabulary];
                for (i, &id) in ids.iter().enumerate() {
                    want[id as usize][0] += 1.0;
                    want[id as usize][1] += i as f32;
                }
                let weight = Var::ones((vocabulary, 2), DType::F32, device)?;
                let y = embedding(&Tensor::from_vec(ids, count, device)?, &weight)?;
                let numbers = (0..count).flat_map(|i| [1.0, i as f32]);
                let numbers = Tensor::from_vec(numbers.collect::<Vec<f32>>(), (count, 2), device)?;
                let grads = (y * numbers)?.sum_all()?.backward()?;
                let got = grads.get(&weight).unwrap().to_device(&Device::Cpu)?;
                assert_eq!(got.to_vec2::<f32>()?, want, "{count} ids of {vocabulary}");
            }
        }
    }
    Ok(())
}
