//! Calls that every function must refuse, with arguments that suit none.

use candle_core::{DType, Device, Result, Tensor};
use candle_fused::ops::{self, Act, Adapter};
use candle_fused::quant::{Quantized, ScaleScope, Scheme};

/// The name of the function that was called, and its answer.
pub type Refused = (&'static str, Result<()>);

/// `function(arguments);` for calls that must be refused, once or more often for each function.
macro_rules! refused {
    ($($function:ident($($argument:expr),* $(,)?);)*) => {
        vec![$((stringify!($function), candle_fused::ops::$function($($argument),*).map(drop))),*]
    };
}
/// Arguments that don't go together.
pub struct Wrong {
    pub act: Act,
    /// `[2, 4]`
    pub x: Tensor,
    /// `[2, 4]`, of u32.
    pub integers: Tensor,
    pub scalar: Tensor,
    /// `[3]`
    pub three: Tensor,
    /// `[2, 5]`
    pub odd: Tensor,
    /// `[0]`
    pub none: Tensor,
    /// `[1, 4, 5, 5]`, and a kernel for 3 channels.
    pub image: Tensor,
    pub kernel: Tensor,
    /// `[1, 4, 5]`, and a kernel for 3 channels.
    pub sequence: Tensor,
    pub filter: Tensor,
    /// `[5, 4]` and `[5, 3]`.
    pub weight: Tensor,
    pub wide: Tensor,
    /// Factors for the weight, and one of another rank.
    pub a: Tensor,
    pub b: Tensor,
    pub wrong_b: Tensor,
    /// `[1, 2, 4]`
    pub stack: Tensor,
    /// Of a weight `[5, 32]`.
    pub codes: Quantized,
    /// Groups of 32.
    pub groups: Scheme,
}

impl Wrong {
    pub fn new(device: &Device) -> Result<Self> {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, device);
        Ok(Wrong {
            act: Act::Silu,
            x: of(&[2, 4])?,
            integers: Tensor::zeros((2, 4), DType::U32, device)?,
            scalar: of(&[])?,
            three: of(&[3])?,
            odd: of(&[2, 5])?,
            none: of(&[0])?,
            image: of(&[1, 4, 5, 5])?,
            kernel: of(&[6, 3, 3, 3])?,
            sequence: of(&[1, 4, 5])?,
            filter: of(&[6, 3, 3])?,
            weight: of(&[5, 4])?,
            wide: of(&[5, 3])?,
            a: of(&[2, 4])?,
            b: of(&[5, 2])?,
            wrong_b: of(&[5, 3])?,
            stack: of(&[1, 2, 4])?,
            codes: ops::quantize(&of(&[5, 32])?, Scheme::ternary(ScaleScope::Row))?,
            groups: Scheme::mlx(4, 32),
        })
    }

    pub fn adapter(&self) -> Adapter<'_> {
        Adapter {
            a: &self.a,
            b: &self.wrong_b,
            scale: 1.0,
            dropout: None,
        }
    }
}
