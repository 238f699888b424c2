//! Convolutions and their gradients as loops in f64, by the definition: y[o] = Σ x[o·stride + k·dilation − padding]·w[k].

use super::Conv;
use candle_fused::ops::Conv2dParams;

/// Sums of products, and of the products' sizes.
pub struct Sums {
    pub values: Vec<f64>,
    pub mass: Vec<f64>,
}

impl Sums {
    fn zeros(dims: [usize; 4]) -> Self {
        let zeros = vec![0.0; dims.iter().product()];
        Sums {
            values: zeros.clone(),
            mass: zeros,
        }
    }

    fn add(&mut self, i: usize, term: f64) {
        self.values[i] += term;
        self.mass[i] += term.abs();
    }

    /// One number for each channel, which has so many pixels.
    pub fn add_bias(&mut self, bias: &[f64], pixels: usize) {
        for i in 0..self.values.len() {
            self.add(i, bias[i / pixels % bias.len()]);
        }
    }
}

pub fn forward(conv: &Conv, x: &[f64], w: &[f64]) -> Sums {
    let mut sums = Sums::zeros(conv.y);
    each_term(conv, |xi, wi, yi| sums.add(yi, x[xi] * w[wi]));
    sums
}

/// The gradient of x, or the transposed convolution of g.
pub fn grad_x(conv: &Conv, w: &[f64], g: &[f64]) -> Sums {
    let mut sums = Sums::zeros(conv.x);
    each_term(conv, |xi, wi, yi| sums.add(xi, w[wi] * g[yi]));
    sums
}

pub fn grad_w(conv: &Conv, x: &[f64], g: &[f64]) -> Sums {
    let mut sums = Sums::zeros(conv.w);
    each_term(conv, |xi, wi, yi| sums.add(wi, x[xi] * g[yi]));
    sums
}

pub fn grad_bias(conv: &Conv, g: &[f64]) -> Sums {
    let [_, channels, height, width] = conv.y;
    let mut sums = Sums::zeros([channels, 1, 1, 1]);
    for (i, g) in g.iter().enumerate() {
        sums.add(i / (height * width) % channels, *g);
    }
    sums
}

/// Calls `f` with the places in x, w and y of each product.
fn each_term(conv: &Conv, mut f: impl FnMut(usize, usize, usize)) {
    let Conv { x, w, y, window } = conv;
    let Conv2dParams {
        stride,
        padding,
        dilation,
        groups,
    } = *window;
    // Where x is, if it is not padding.
    let place = |i: usize, out: usize, k: usize| {
        let at = (out * stride[i] + k * dilation[i]).checked_sub(padding[i])?;
        (at < x[2 + i]).then_some(at)
    };
    for n in 0..y[0] {
        for out in 0..y[1] {
            let group = out / (y[1] / groups);
            for c in 0..w[1] {
                let plane = n * x[1] + group * w[1] + c;
                for (i, j) in pairs(w[2], w[3]) {
                    let wi = ((out * w[1] + c) * w[2] + i) * w[3] + j;
                    for oy in 0..y[2] {
                        let Some(iy) = place(0, oy, i) else { continue };
                        let xi = (plane * x[2] + iy) * x[3];
                        let yi = ((n * y[1] + out) * y[2] + oy) * y[3];
                        for ox in 0..y[3] {
                            if let Some(ix) = place(1, ox, j) {
                                f(xi + ix, wi, yi + ox);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn pairs(rows: usize, cols: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |i| (0..cols).map(move |j| (i, j)))
}
