use super::assert_near;
use crate::devices::devices;
use candle_core::{Device, Result, Tensor};
use candle_fused::ops::*;

#[test]
fn two_by_two() -> Result<()> {
    for device in devices() {
        let x = Tensor::new(&[[1f32, 2.], [3., 4.]], device)?;
        let y = Tensor::new(&[[5f32, 6.], [7., 8.]], device)?;
        let out = matmul_act(&x, &y, None, Act::Identity)?;
        assert_near(&out.to_device(&Device::Cpu)?, &[19., 22., 43., 50.], 0.)?;
        let bias = Tensor::new(&[-20f32, 1.], device)?;
        let out = matmul_act(&x, &y, Some(&bias), Act::Relu)?;
        assert_near(&out.to_device(&Device::Cpu)?, &[0., 23., 23., 51.], 0.)?;
    }
    Ok(())
}
