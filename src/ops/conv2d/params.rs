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

impl From<Conv2dConfig> for Conv2dParams {
    fn from(config: Conv2dConfig) -> Self {
        Conv2dParams {
            padding: [config.padding; 2],
            stride: [config.stride; 2],
            dilation: [config.dilation; 2],
            groups: config.groups,
        }
    }
}

/// Along the width of images of one row.
impl From<Conv1dConfig> for Conv2dParams {
    fn from(config: Conv1dConfig) -> Self {
        Conv2dParams {
            padding: [0, config.padding],
            stride: [1, config.stride],
            dilation: [1, config.dilation],
            groups: config.groups,
        }
    }
}

impl From<ConvTranspose2dConfig> for Conv2dParams {
    fn from(config: ConvTranspose2dConfig) -> Self {
        Conv2dParams {
            padding: [config.padding; 2],
            stride: [config.stride; 2],
            dilation: [config.dilation; 2],
            groups: 1,
        }
    }
}

/// Along the width of images of one row.
impl From<ConvTranspose1dConfig> for Conv2dParams {
    fn from(config: ConvTranspose1dConfig) -> Self {
        Conv2dParams {
            padding: [0, config.padding],
            stride: [1, config.stride],
            dilation: [1, config.dilation],
            groups: config.groups,
        }
    }
}
