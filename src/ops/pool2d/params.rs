//! The parameters of a pooling: its windows, and how they move over the image.

use candle_core::ToUsize2;

/// Windows of an image, with a value for each of height and width.
///
/// ```
/// use candle_fused::ops::Pool2dParams;
/// let params = Pool2dParams::new((3, 2)).with_stride(2).with_padding((1, 0));
/// assert_eq!((params.kernel, params.stride, params.padding), ([3, 2], [2, 2], [1, 0]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool2dParams {
    /// The pixels of a window.
    pub kernel: [usize; 2],
    /// Pixels from one window to the next.
    pub stride: [usize; 2],
    /// How far windows reach over the border, on all sides: half the kernel at most, as in PyTorch.
    pub padding: [usize; 2],
    /// Whether padding counts as pixels of 0 in a mean, as by default in PyTorch. A mean is over the window's pixels in the
    /// image otherwise. Maxima don't look at it.
    pub count_include_pad: bool,
}

impl Pool2dParams {
    /// Windows side by side, without padding.
    pub fn new(kernel: impl ToUsize2) -> Self {
        let kernel = pair(kernel);
        Pool2dParams {
            kernel,
            stride: kernel,
            padding: [0; 2],
            count_include_pad: true,
        }
    }

    pub fn with_stride(self, stride: impl ToUsize2) -> Self {
        let stride = pair(stride);
        Pool2dParams { stride, ..self }
    }

    pub fn with_padding(self, padding: impl ToUsize2) -> Self {
        let padding = pair(padding);
        Pool2dParams { padding, ..self }
    }

    /// Means of the pixels that a window has in the image: `count_include_pad = false`.
    pub fn with_pixels_counted_alone(self) -> Self {
        Pool2dParams {
            count_include_pad: false,
            ..self
        }
    }

    /// Whether there is one window, which is the whole image of an x of these dims.
    pub(super) fn covers(&self, x: &[usize]) -> bool {
        x.len() == 4
            && !x.contains(&0)
            && x[2..] == self.kernel
            && self.padding == [0; 2]
            && !self.stride.contains(&0)
    }
}

fn pair(values: impl ToUsize2) -> [usize; 2] {
    let (height, width) = values.to_usize2();
    [height, width]
}
