//! The convolutions that are measured.

use candle_fused::ops::Conv2dParams;
use std::fmt;

#[derive(Clone, Copy)]
pub struct Shape {
    /// Where it comes from.
    pub model: &'static str,
    pub channels: usize,
    pub outputs: usize,
    /// Of height and width alike, as are the next two.
    pub kernel: usize,
    pub stride: usize,
    pub padding: usize,
    pub groups: usize,
    /// Height and width.
    pub image: [usize; 2],
    /// Whether it is part of the quick run too.
    pub quick: bool,
}

/// A kernel that moves by 1 and sees zeros around the image, which keeps its size.
const fn same(
    model: &'static str,
    channels: [usize; 2],
    kernel: usize,
    image: [usize; 2],
) -> Shape {
    Shape {
        model,
        channels: channels[0],
        outputs: channels[1],
        kernel,
        stride: 1,
        padding: kernel / 2,
        groups: 1,
        image,
        quick: false,
    }
}

impl Shape {
    const fn by(self, stride: usize) -> Shape {
        Shape { stride, ..self }
    }

    const fn grouped(self, groups: usize) -> Shape {
        Shape { groups, ..self }
    }

    const fn quick(self) -> Shape {
        Shape {
            quick: true,
            ..self
        }
    }

    pub fn x_dims(&self) -> [usize; 4] {
        let [height, width] = self.image;
        [1, self.channels, height, width]
    }

    pub fn w_dims(&self) -> [usize; 4] {
        let Shape { kernel, groups, .. } = *self;
        [self.outputs, self.channels / groups, kernel, kernel]
    }

    pub fn params(&self) -> Conv2dParams {
        Conv2dParams {
            padding: [self.padding; 2],
            stride: [self.stride; 2],
            dilation: [1; 2],
            groups: self.groups,
        }
    }

    /// Height and width of what comes out.
    pub fn output(&self) -> [usize; 2] {
        let size = |size| (size + 2 * self.padding - self.kernel) / self.stride + 1;
        self.image.map(size)
    }

    /// Multiplications and additions, as the definition has them.
    pub fn flops(&self) -> f64 {
        let [height, width] = self.output();
        let products: usize = self.w_dims().iter().product();
        2.0 * (products * height * width) as f64
    }
}

/// As `ResNet 64→64 3×3, 56×56`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Shape {
            model,
            channels,
            outputs,
            kernel,
            stride,
            groups,
            image: [height, width],
            ..
        } = self;
        write!(f, "{model} {channels}→{outputs} {kernel}×{kernel}")?;
        if *stride > 1 {
            write!(f, "/{stride}")?;
        }
        match groups {
            1 => {}
            groups if groups == channels => write!(f, " depthwise")?,
            groups => write!(f, " in {groups} groups")?,
        }
        write!(f, ", {width}×{height}")
    }
}

pub const SHAPES: [Shape; 16] = [
    same("photo", [3, 64], 3, [600, 800]).quick(),
    same("photo", [3, 64], 3, [768, 1024]),
    same("photo", [3, 64], 3, [1080, 1920]),
    same("ResNet", [3, 64], 7, [224; 2]).by(2).quick(),
    same("ResNet", [64, 64], 3, [56; 2]).quick(),
    same("ResNet", [128, 128], 3, [28; 2]),
    same("ResNet", [256, 256], 3, [14; 2]).quick(),
    same("ResNet", [512, 512], 3, [7; 2]),
    same("ResNet", [256, 64], 1, [56; 2]).quick(),
    same("ResNet", [64, 256], 1, [56; 2]),
    same("ResNeXt", [128, 128], 3, [28; 2]).grouped(32),
    same("MobileNet", [3, 32], 3, [224; 2]).by(2),
    same("MobileNet", [128, 128], 3, [56; 2])
        .grouped(128)
        .quick(),
    same("MobileNet", [128, 128], 3, [56; 2]).grouped(128).by(2),
    same("MobileNet", [128, 128], 1, [56; 2]),
    same("MobileNet", [1024, 1024], 1, [7; 2]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Result, Tensor};
    use candle_fused::ops::{conv2d, Act};

    #[test]
    fn outputs_are_those_of_the_op() -> Result<()> {
        for shape in SHAPES {
            // Neither channels nor outputs, which the sizes don't depend on: nothing is computed.
            let [[height, width], kernel] = [shape.image, [shape.kernel; 2]];
            let x = Tensor::zeros((1, 0, height, width), DType::F32, &Device::Cpu)?;
            let w = Tensor::zeros((0, 0, kernel[0], kernel[1]), DType::F32, &Device::Cpu)?;
            let params = Conv2dParams {
                groups: 1,
                ..shape.params()
            };
            let y = conv2d(&x, &w, None, params, Act::Identity)?;
            assert_eq!(y.dims()[2..], shape.output(), "{shape}");
        }
        Ok(())
    }

    #[test]
    fn names_differ_and_tell_the_shape() {
        let names: Vec<String> = SHAPES.iter().map(Shape::to_string).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
        assert_eq!(names[0], "photo 3→64 3×3, 800×600");
        assert_eq!(names[10], "ResNeXt 128→128 3×3 in 32 groups, 28×28");
        assert_eq!(names[13], "MobileNet 128→128 3×3/2 depthwise, 56×56");
    }

    #[test]
    fn flops_count_both_operations() {
        assert_eq!(same("", [64, 64], 3, [56; 2]).flops(), 231_211_008.0);
        let depthwise = same("", [4, 4], 3, [5; 2]).grouped(4);
        assert_eq!(depthwise.flops(), 2.0 * 4.0 * 9.0 * 25.0);
    }
}
