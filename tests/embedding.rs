//! What the grid can't express of the embedding: ids outside of the vocabulary.

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
