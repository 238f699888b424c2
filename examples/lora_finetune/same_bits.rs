//! Equality without any tolerance.

use candle_core::{Result, Tensor};

/// Whether two f32 tensors have one shape and the same bits.
pub fn same_bits(x: &Tensor, y: &Tensor) -> Result<bool> {
    let bits = |x: &Tensor| -> Result<Vec<u32>> {
        let values = x.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    Ok(x.dims() == y.dims() && bits(x)? == bits(y)?)
}
