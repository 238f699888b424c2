//! The parameters of a convolution: how its kernel moves over the image.

use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig};

/// Padding, stride, dilation and groups of a convolution, like Candle's configs but with a value for each of height and
/// width. Each of the configs can be given where this is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dParams {
    /// Zeros on both sides of the image, in height and width.
    pub padding: [usize; 2],
    /// Pixels from one place of the kernel to the next.
    pub stride: [usize; 2],
    /// Pixels from one element of the kernel to the next.
    pub dilation: [usize; 2],
    /// The number of parts that the channels are split into, each with kernels of its own.
    pub groups: usize,
}

impl Default for Conv2dParams {
    fn default() -> Self {
        Conv2dConfig::default().into()
    }
}

/// Of Candle's configs: with the same numbers in both dims, or along the width of images of one row.
macro_rules! from_configs {
    ($($config:ident => |$c:ident| $height:tt, $groups:expr;)*) => {$(
        impl From<$config> for Conv2dParams {
            fn from($c: $config) -> Self {
                let [padding, stride, dilation] = $height;
                Conv2dParams {
                    padding: [padding, $c.padding],
                    stride: [stride, $c.stride],
                    dilation: [dilation, $c.dilation],
                    groups: $groups,
                }
            }
        }
    )*};
}

from_configs! {
    Conv2dConfig => |c| [c.padding, c.stride, c.dilation], c.groups;
    ConvTranspose2dConfig => |c| [c.padding, c.stride, c.dilation], 1;
    Conv1dConfig => |c| [0, 1, 1], c.groups;
    ConvTranspose1dConfig => |c| [0, 1, 1], c.groups;
}
