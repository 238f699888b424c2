//! The sizes of a convolution.

use crate::check;
use candle_core::{Layout, Result, Shape};
use candle_nn::{Conv1dConfig, Conv2dConfig, ConvTranspose1dConfig, ConvTranspose2dConfig};

/// How a kernel moves over an image; each pair is (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Zeros on both sides of the image.
    pub padding: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Channels are split into so many parts, each with kernels of its own.
    pub groups: usize,
}

impl Default for Window {
    fn default() -> Self {
        Conv2dConfig::default().into()
    }
}

impl From<Conv2dConfig> for Window {
    fn from(config: Conv2dConfig) -> Self {
        Window {
            padding: [config.padding; 2],
            stride: [config.stride; 2],
            dilation: [config.dilation; 2],
            groups: config.groups,
        }
    }
}

/// Along the width of images of one row.
impl From<Conv1dConfig> for Window {
    fn from(config: Conv1dConfig) -> Self {
        Window {
            padding: [0, config.padding],
            stride: [1, config.stride],
            dilation: [1, config.dilation],
            groups: config.groups,
        }
    }
}

impl From<ConvTranspose2dConfig> for Window {
    fn from(config: ConvTranspose2dConfig) -> Self {
        Window {
            padding: [config.padding; 2],
            stride: [config.stride; 2],
            dilation: [config.dilation; 2],
            groups: 1,
        }
    }
}

/// Along the width of images of one row.
impl From<ConvTranspose1dConfig> for Window {
    fn from(config: ConvTranspose1dConfig) -> Self {
        Window {
            padding: [0, config.padding],
            stride: [1, config.stride],
            dilation: [1, config.dilation],
            groups: config.groups,
        }
    }
}

/// A convolution of x `[batch, groups · c_in, ..input]` with w `[groups · c_out, c_in, ..kernel]` to y `[batch, groups ·
/// c_out, ..output]`. It also describes what is made of two of them: the gradient of w from x and y's, and that of x from
/// w and y's, which is the transposed convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub batch: usize,
    pub groups: usize,
    pub c_in: usize,
    pub c_out: usize,
    pub input: [usize; 2],
    pub kernel: [usize; 2],
    pub output: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
}

impl Geometry {
    pub fn new(op: &str, x: &Layout, w: &Layout, window: Window) -> Result<Self> {
        let (x, w) = (dims4(op, "x", x)?, dims4(op, "weight", w)?);
        check_window(op, w, window)?;
        let Window {
            padding,
            stride,
            dilation,
            groups,
        } = window;
        if w[0] % groups != 0 || w[1].checked_mul(groups) != Some(x[1]) {
            let message = format!(
                "x has {} channels and weight is {w:?}, with {groups} groups both a multiple of {groups} and weight [.., \
                 channels / {groups}, ..] accepted",
                x[1],
            );
            return Err(check::error(op, message));
        }
        let mut output = [0; 2];
        for i in 0..2 {
            let (size, kernel) = (x[2 + i], w[2 + i]);
            let room = padding[i].checked_mul(2).and_then(|p| p.checked_add(size));
            let span = span(kernel, dilation[i]);
            output[i] = match (room, span) {
                (Some(room), Some(span)) if span <= room => (room - span) / stride[i] + 1,
                _ => {
                    let message = format!(
                        "a kernel of {:?} with dilation {dilation:?} given, x of {:?} with padding {padding:?} is smaller",
                        &w[2..],
                        &x[2..],
                    );
                    return Err(check::error(op, message));
                }
            };
        }
        let geometry = Geometry {
            batch: x[0],
            groups,
            c_in: w[1],
            c_out: w[0] / groups,
            input: [x[2], x[3]],
            kernel: [w[2], w[3]],
            output,
            stride: moves(output, stride),
            padding,
            dilation,
        };
        geometry.check_sizes(op)?;
        Ok(geometry)
    }

    /// The convolution that the transposed one of `y` with `w` belongs to. `output_padding` is what is added at the ends.
    pub fn transposed(
        op: &str,
        y: &Layout,
        w: &Layout,
        window: Window,
        output_padding: [usize; 2],
    ) -> Result<Self> {
        let (y, w) = (dims4(op, "x", y)?, dims4(op, "weight", w)?);
        check_window(op, w, window)?;
        let Window {
            padding,
            stride,
            dilation,
            groups,
        } = window;
        if w[0] != y[1] || w[0] % groups != 0 {
            let message = format!(
                "x has {} channels and weight is {w:?}, with {groups} groups [{}, ..] accepted, a multiple of {groups}",
                y[1], y[1],
            );
            return Err(check::error(op, message));
        }
        let mut input = [0; 2];
        for i in 0..2 {
            let all = y[2 + i].checked_sub(1).and_then(|last| {
                let reach = last.checked_mul(stride[i])?;
                reach
                    .checked_add(span(w[2 + i], dilation[i])?)?
                    .checked_add(output_padding[i])
            });
            let cut = padding[i].checked_mul(2);
            input[i] = match (all, cut) {
                (Some(all), Some(cut)) if cut < all => all - cut,
                _ => {
                    let message = format!(
                        "x of {:?} and a kernel of {:?} given, padding {padding:?} leaves nothing",
                        &y[2..],
                        &w[2..],
                    );
                    return Err(check::error(op, message));
                }
            };
        }
        let geometry = Geometry {
            batch: y[0],
            groups,
            c_in: w[1],
            c_out: w[0] / groups,
            input,
            kernel: [w[2], w[3]],
            output: [y[2], y[3]],
            stride: moves([y[2], y[3]], stride),
            padding,
            dilation,
        };
        geometry.check_sizes(op)?;
        Ok(geometry)
    }

    /// Whether what is convolved and what comes of it can be addressed.
    fn check_sizes(&self, op: &str) -> Result<()> {
        let Geometry {
            batch,
            groups,
            c_in,
            c_out,
            input,
            kernel,
            output,
            ..
        } = *self;
        check::size(op, &[batch, groups, c_in, input[0], input[1]])?;
        check::size(op, &[groups, c_out, c_in, kernel[0], kernel[1]])?;
        check::size(op, &[batch, groups, c_out, output[0], output[1]])
    }

    /// For a geometry that somebody has put together: whether there is such a convolution. Of a transposed one the input may
    /// be larger than the outputs see.
    pub fn check(&self, op: &str) -> Result<()> {
        let g = self;
        let sides = (0..2).all(|i| {
            let last = g.output[i].checked_sub(1);
            let reach = last.map_or(Some(0), |last| {
                last.checked_mul(g.stride[i])?
                    .checked_add(span(g.kernel[i], g.dilation[i])?)
            });
            let room = g.padding[i].checked_mul(2);
            let room = room.and_then(|p| p.checked_add(g.input[i]));
            reach
                .zip(room)
                .is_some_and(|(reach, room)| reach <= room && g.stride[i] <= room.max(1))
        });
        let none = [g.stride, g.dilation, g.kernel]
            .iter()
            .any(|n| n.contains(&0));
        if sides && g.groups > 0 && !none {
            return self.check_sizes(op);
        }
        Err(check::error(
            op,
            format!("{g:?} given, one whose outputs see what there is accepted"),
        ))
    }

    pub fn window(&self) -> Window {
        Window {
            padding: self.padding,
            stride: self.stride,
            dilation: self.dilation,
            groups: self.groups,
        }
    }

    pub fn x_shape(&self) -> Shape {
        let [h, w] = self.input;
        (self.batch, self.groups * self.c_in, h, w).into()
    }

    pub fn w_shape(&self) -> Shape {
        let [h, w] = self.kernel;
        (self.groups * self.c_out, self.c_in, h, w).into()
    }

    pub fn y_shape(&self) -> Shape {
        let [h, w] = self.output;
        (self.batch, self.groups * self.c_out, h, w).into()
    }

    /// Whether each kernel meets each image once and as a whole.
    pub fn is_product(&self) -> bool {
        let whole = |i: usize| self.kernel[i] == self.input[i] && self.output[i] == 1;
        let dense = |i: usize| self.kernel[i] == 1 || self.dilation[i] == 1;
        let [height, width] = [0, 1].map(|i| whole(i) && dense(i) && self.padding[i] == 0);
        self.groups == 1 && height && width
    }

    /// Whether kernels have one channel each.
    pub fn is_depthwise(&self) -> bool {
        self.c_in == 1 && self.groups > 1
    }
}

/// The strides; a single output has none to move to.
fn moves(output: [usize; 2], stride: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|i| if output[i] == 1 { 1 } else { stride[i] })
}

/// What a kernel covers, gaps included.
fn span(kernel: usize, dilation: usize) -> Option<usize> {
    kernel.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
}

fn dims4(op: &str, name: &str, layout: &Layout) -> Result<[usize; 4]> {
    layout.dims().try_into().map_err(|_| {
        let shape = layout.shape();
        check::error(op, format!("{name} has shape {shape:?}, rank 4 accepted"))
    })
}

fn check_window(op: &str, w: [usize; 4], window: Window) -> Result<()> {
    let Window {
        stride,
        dilation,
        groups,
        ..
    } = window;
    if stride.contains(&0) || dilation.contains(&0) || groups == 0 {
        let message = format!(
            "stride {stride:?}, dilation {dilation:?} and {groups} groups given, 1 or more accepted"
        );
        return Err(check::error(op, message));
    }
    if w[2] * w[3] == 0 {
        let message = format!("weight is {w:?}, a kernel of 1 by 1 or more accepted");
        return Err(check::error(op, message));
    }
    Ok(())
}
