//! What the parameters of kernels over images have in common.

use candle_core::Layout;

/// Sizes and steps of the windows of an image. MSL lists the fields one by one.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct WindowParams {
    pub(crate) input: [u32; 2],
    pub(crate) kernel: [u32; 2],
    pub(crate) output: [u32; 2],
    pub(crate) stride: [u32; 2],
    pub(crate) padding: [u32; 2],
}

impl WindowParams {
    pub(crate) fn new(
        input: [usize; 2],
        kernel: [usize; 2],
        output: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Self {
        WindowParams {
            input: pair(input),
            kernel: pair(kernel),
            output: pair(output),
            stride: pair(stride),
            padding: pair(padding),
        }
    }
}

/// Height and width as kernels count them. What calls this has seen that they fit.
pub(crate) fn pair([height, width]: [usize; 2]) -> [u32; 2] {
    [height as u32, width as u32]
}

/// The strides of `[batch, channels, height, width]`, in elements.
pub(crate) fn image_strides(layout: &Layout) -> [u64; 4] {
    let stride = layout.stride();
    [0, 1, 2, 3].map(|i| stride[i] as u64)
}
