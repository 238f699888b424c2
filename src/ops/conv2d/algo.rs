//! Which algorithm computes a convolution.

use super::shape::Conv2dShape;
use crate::check;
use candle_core::{DType, Result};

/// How a convolution is computed. The result is the same up to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConvAlgo {
    /// The algorithm that was fastest for such shapes in measurements. If the kernel covers the whole image, the convolution
    /// is computed as [`linear_act`](crate::ops::linear_act).
    #[default]
    Auto,
    /// A loop over channels and taps for each output: for depthwise convolutions and few channels. On the CPU, one
    /// implementation serves this and `ImplicitGemm`: it counts as `Direct` with up to three outputs per group.
    Direct,
    /// As `Direct`, with a tile of the image in threadgroup memory: on Metal, if a tile fits there. Elsewhere
    /// `ImplicitGemm`.
    Tiled,
    /// A product of the weights with the im2col matrix, which is never stored.
    ImplicitGemm,
    /// Winograd's F(4×4, 3×3), with a quarter of the multiplications: on the CPU, for kernels of 3 by 3 with stride and
    /// dilation 1. Elsewhere `ImplicitGemm`. Sums are in f32, and the error of an output is at most
    /// 1e-4 · max|x| · Σ|w|, over its image and kernel. (A search for the worst found 6e-5; photos have a hundredth.)
    Winograd,
    /// The matrix product of Metal Performance Shaders, on Metal. bf16 and groups are errors.
    Mps,
}

/// Pairs of an input and an output channel of a group below which Metal computes no matrix product: most of its tile, which
/// has 32 rows, would be empty.
const MIN_GEMM_PAIRS: usize = 64;

/// Outputs per group up to which the CPU's implementation counts as [`ConvAlgo::Direct`]. Its tiles are then wide rather
/// than high.
const FEW_OUTPUTS: usize = 3;

impl ConvAlgo {
    /// The algorithm that runs on the CPU if this one is asked for. `cached` says whether transformed weights are kept for the
    /// next call. Errors name the function `name`.
    pub(super) fn on_cpu(self, name: &str, g: &Conv2dShape, cached: bool) -> Result<ConvAlgo> {
        match self {
            ConvAlgo::Auto if winograd_pays(g, cached) => Ok(ConvAlgo::Winograd),
            ConvAlgo::Winograd if winograd_serves(g) => Ok(ConvAlgo::Winograd),
            ConvAlgo::Mps => Err(check::error(
                name,
                "got ConvAlgo::Mps on the CPU, expected any other algorithm",
            )),
            _ if g.c_out <= FEW_OUTPUTS => Ok(ConvAlgo::Direct),
            _ => Ok(ConvAlgo::ImplicitGemm),
        }
    }

    /// The algorithm that runs on Metal if this one is asked for. Errors name the function `name`.
    pub(super) fn on_metal(self, name: &str, g: &Conv2dShape, dtype: DType) -> Result<ConvAlgo> {
        Ok(match self {
            // `Direct` has a kernel for a single channel.
            ConvAlgo::Auto if g.c_in == 1 => ConvAlgo::Direct,
            ConvAlgo::Auto if g.c_in * g.c_out < MIN_GEMM_PAIRS => match Tile::fits(g) {
                true => ConvAlgo::Tiled,
                false => ConvAlgo::Direct,
            },
            ConvAlgo::Auto | ConvAlgo::Winograd => ConvAlgo::ImplicitGemm,
            ConvAlgo::Tiled if !Tile::fits(g) => ConvAlgo::ImplicitGemm,
            ConvAlgo::Mps if dtype == DType::BF16 || g.groups > 1 => {
                let groups = g.groups;
                let message = format!(
                    "got ConvAlgo::Mps for {dtype:?} and {groups} groups, expected f32 or f16 and 1 group"
                );
                return Err(check::error(name, message));
            }
            // MPS takes no matrices without elements.
            ConvAlgo::Mps if g.c_in == 0 => ConvAlgo::Direct,
            algo => algo,
        })
    }

    /// The algorithm that runs on Metal for a transposed convolution.
    #[cfg(any(feature = "metal", test))]
    pub(super) fn transposed_on_metal(g: &Conv2dShape) -> ConvAlgo {
        match g.is_depthwise() || g.c_in * g.c_out < MIN_GEMM_PAIRS {
            true => ConvAlgo::Direct,
            false => ConvAlgo::ImplicitGemm,
        }
    }
}

fn winograd_serves(g: &Conv2dShape) -> bool {
    let steps_are_one = g.stride == [1, 1] && g.dilation == [1, 1];
    g.kernel == [3, 3] && steps_are_one && g.c_out > FEW_OUTPUTS
}

/// Whether Winograd's algorithm is faster than the implicit GEMM, by a model of both that counts in multiplications. The
/// numbers were fitted to measurements on 2 x86 cores with 8 to 512 channels of 112² to 7² pixels.
fn winograd_pays(g: &Conv2dShape, cached: bool) -> bool {
    /// Transforms of a channel's part of a tile, to Winograd's domain and back.
    const TRANSFORM_INPUT: f64 = 300.0;
    const TRANSFORM_OUTPUT: f64 = 400.0;
    /// The transform of a kernel of 3 by 3 weights.
    const TRANSFORM_WEIGHTS: f64 = 4000.0;
    /// The 36 transformed weights of a kernel, read from memory once for each block of 24 tiles.
    const READ_WEIGHTS: f64 = 16.0 * 36.0;
    /// Winograd is chosen if the model says that the implicit GEMM takes this many times as long, or longer.
    const MARGIN: f64 = 1.25;

    let float = |n: usize| n as f64;
    let images = float(g.batch) * float(g.groups);
    let (c_in, c_out) = (float(g.c_in), float(g.c_out));
    let kernels = c_out * c_in;
    let gemm = 9.0 * kernels * images * float(g.output[0]) * float(g.output[1]);
    let [down, across] = g.output.map(|n| n.div_ceil(4));
    // Rows are multiplied with a halo of one tile, by vectors of 8 tiles, the last of which may not be full.
    let tiles = (float(down) * float(across + 1) / 8.0).ceil() * 8.0;
    let of_tile = 36.0 * kernels + TRANSFORM_INPUT * c_in + TRANSFORM_OUTPUT * c_out;
    let of_image = tiles * of_tile + READ_WEIGHTS * kernels * (tiles / 24.0).ceil();
    let of_weights = match cached {
        true => 0.0,
        false => TRANSFORM_WEIGHTS * float(g.groups) * kernels,
    };
    winograd_serves(g) && MARGIN * (images * of_image + of_weights) < gemm
}

/// A threadgroup's tile of `Tiled`: its outputs in height and width, its channels of outputs, and the pixels and weights that
/// it has room for. kernels/conv2d.metal has the same numbers.
pub(crate) struct Tile;

impl Tile {
    pub(crate) const OUTPUTS: [usize; 2] = [8, 16];
    pub(crate) const CHANNELS: usize = 8;
    const PIXELS: usize = 2048;
    const WEIGHTS: usize = 1024;

    /// Whether there is room for one channel of x.
    fn fits(g: &Conv2dShape) -> bool {
        let side = |i: usize| {
            let last = (Tile::OUTPUTS[i] - 1).checked_mul(g.stride[i])?;
            let kernel = g.kernel[i].checked_sub(1)?.checked_mul(g.dilation[i])?;
            last.checked_add(kernel)?.checked_add(1)
        };
        let pixels = side(0).zip(side(1)).and_then(|(a, b)| a.checked_mul(b));
        let weights = g.kernel[0].checked_mul(g.kernel[1].saturating_mul(Tile::CHANNELS));
        pixels.is_some_and(|n| n <= Tile::PIXELS) && weights.is_some_and(|n| n <= Tile::WEIGHTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(groups: usize, c_in: usize, c_out: usize, kernel: usize) -> Conv2dShape {
        Conv2dShape {
            groups,
            c_in,
            c_out,
            input: [32, 32],
            kernel: [kernel, kernel],
            output: [33 - kernel, 33 - kernel],
            ..Conv2dShape::of_one_pixel()
        }
    }

    fn image(channels: usize, side: usize) -> Conv2dShape {
        Conv2dShape {
            input: [side, side],
            output: [side, side],
            padding: [1, 1],
            ..shape(1, channels, channels, 3)
        }
    }

    #[test]
    fn on_the_cpu_winograd_is_for_large_products() {
        let auto = |g: Conv2dShape, cached| ConvAlgo::Auto.on_cpu("f", &g, cached).unwrap();
        assert_eq!(auto(image(64, 56), false), ConvAlgo::Winograd);
        // The kernels take longer to transform than there is to gain.
        assert_eq!(auto(image(256, 14), false), ConvAlgo::ImplicitGemm);
        assert_eq!(auto(image(4, 8), true), ConvAlgo::ImplicitGemm);
        for other in [
            shape(1, 64, 64, 5),
            Conv2dShape {
                stride: [1, 2],
                ..image(64, 56)
            },
            Conv2dShape {
                dilation: [2, 1],
                ..image(64, 56)
            },
        ] {
            assert_eq!(auto(other, true), ConvAlgo::ImplicitGemm);
            let asked = ConvAlgo::Winograd.on_cpu("f", &other, true).unwrap();
            assert_eq!(asked, ConvAlgo::ImplicitGemm);
        }
        assert_eq!(auto(shape(8, 1, 1, 3), true), ConvAlgo::Direct);
    }

    #[test]
    fn on_the_cpu_an_algorithm_runs_or_is_replaced() {
        let g = image(16, 8);
        for (algo, runs) in [
            (ConvAlgo::Direct, ConvAlgo::ImplicitGemm),
            (ConvAlgo::Tiled, ConvAlgo::ImplicitGemm),
            (ConvAlgo::ImplicitGemm, ConvAlgo::ImplicitGemm),
            (ConvAlgo::Winograd, ConvAlgo::Winograd),
        ] {
            assert_eq!(algo.on_cpu("f", &g, false).unwrap(), runs);
        }
        let error = ConvAlgo::Mps
            .on_cpu("conv1d", &g, false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("conv1d: ") && error.contains("Mps"),
            "{error}"
        );
    }

    fn runs(algo: ConvAlgo, g: Conv2dShape) -> ConvAlgo {
        algo.on_metal("f", &g, DType::F32).unwrap()
    }

    #[test]
    fn auto_goes_by_the_channels() {
        assert_eq!(runs(ConvAlgo::Auto, shape(8, 1, 1, 3)), ConvAlgo::Direct);
        assert_eq!(runs(ConvAlgo::Auto, shape(1, 1, 32, 5)), ConvAlgo::Direct);
        assert_eq!(runs(ConvAlgo::Auto, shape(1, 3, 8, 3)), ConvAlgo::Tiled);
        assert_eq!(runs(ConvAlgo::Auto, shape(1, 3, 8, 13)), ConvAlgo::Direct);
        assert_eq!(
            runs(ConvAlgo::Auto, shape(1, 64, 64, 3)),
            ConvAlgo::ImplicitGemm
        );
        let transposed = ConvAlgo::transposed_on_metal;
        assert_eq!(transposed(&shape(8, 1, 1, 3)), ConvAlgo::Direct);
        assert_eq!(transposed(&shape(1, 3, 8, 3)), ConvAlgo::Direct);
        assert_eq!(transposed(&shape(1, 16, 8, 3)), ConvAlgo::ImplicitGemm);
    }

    #[test]
    fn an_algorithm_runs_or_is_replaced() {
        let g = shape(1, 4, 4, 3);
        for algo in [ConvAlgo::Direct, ConvAlgo::Tiled, ConvAlgo::ImplicitGemm] {
            assert_eq!(runs(algo, g), algo);
        }
        assert_eq!(runs(ConvAlgo::Winograd, g), ConvAlgo::ImplicitGemm);
        let large = shape(1, 4, 4, 13);
        assert_eq!(runs(ConvAlgo::Tiled, large), ConvAlgo::ImplicitGemm);
        let apart = Conv2dShape {
            stride: [9, 9],
            ..g
        };
        assert_eq!(runs(ConvAlgo::Tiled, apart), ConvAlgo::ImplicitGemm);
    }

    #[test]
    fn mps_is_refused_where_it_cannot_serve() {
        let g = shape(1, 4, 4, 3);
        assert_eq!(runs(ConvAlgo::Mps, g), ConvAlgo::Mps);
        let error = ConvAlgo::Mps.on_metal("f", &g, DType::BF16).unwrap_err();
        assert!(error.to_string().contains("BF16"), "{error}");
        let error = ConvAlgo::Mps.on_metal("f", &shape(2, 4, 4, 3), DType::F16);
        assert!(error.unwrap_err().to_string().contains("2 groups"));
    }

    #[test]
    fn the_kernel_has_the_same_tiles() {
        let source = include_str!("../../../kernels/conv2d.metal");
        for (name, number) in [
            ("ROWS", Tile::OUTPUTS[0]),
            ("COLS", Tile::OUTPUTS[1]),
            ("CHANNELS", Tile::CHANNELS),
            ("PIXELS", Tile::PIXELS),
            ("WEIGHTS", Tile::WEIGHTS / 4),
        ] {
            let line = format!("#define TILE_{name} {number}u\n");
            assert!(source.contains(&line), "no {line}");
        }
    }
}
