//! Which algorithm computes a convolution.

use super::{geometry::Geometry, NAME};
use crate::check;
use candle_core::{DType, Result};

/// How a convolution is computed. The result is the same up to rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConvAlgo {
    /// What is fastest for the shape, as [`ConvAlgo::on_cpu`] and [`ConvAlgo::on_metal`] know it. Where each kernel meets
    /// its image as a whole, that is a plain product of matrices instead.
    #[default]
    Auto,
    /// Each output for itself: for depthwise convolutions and few channels. On the CPU one loop serves this and
    /// `ImplicitGemm`, which is what it counts as from four outputs to a group on.
    Direct,
    /// Parts of the image in threadgroup memory. On the CPU, and where a part would not fit: `ImplicitGemm`.
    Tiled,
    /// A product of matrices of which one, the unfolded image, is never stored.
    ImplicitGemm,
    /// F(4×4, 3×3), with a quarter of the multiplications: on the CPU, for kernels of 3 by 3 that move by 1. Elsewhere
    /// `ImplicitGemm`. Computed in f32, an output is within 1e-4 · max|x| · Σ|w|, of the image and
    /// the kernel (6e-5 is the most that a search for it found; of photos it is a hundredth).
    Winograd,
    /// Apple's matrix product, on Metal. bf16 and groups are refused.
    Mps,
}

/// Outputs of a group that are few on the CPU.
const FEW: usize = 3;

impl ConvAlgo {
    /// What runs on the CPU where this is asked for (a convolution that is a plain product is [`linear_act`](crate::ops::linear_act) for `Auto`, on
    /// every device). `prepared` says whether the weight has been, or will be for the next
    /// time too.
    pub fn on_cpu(self, g: &Geometry, prepared: bool) -> Result<ConvAlgo> {
        match self {
            ConvAlgo::Auto if winograd_pays(g, prepared) => Ok(ConvAlgo::Winograd),
            ConvAlgo::Winograd if winograd_serves(g) => Ok(ConvAlgo::Winograd),
            ConvAlgo::Mps => Err(check::error(
                NAME,
                "algorithm Mps given, on the CPU all others are accepted",
            )),
            // One loop serves them all: with few outputs to a group, its tiles are of many positions.
            _ if g.c_out <= FEW => Ok(ConvAlgo::Direct),
            _ => Ok(ConvAlgo::ImplicitGemm),
        }
    }

    /// What runs on Metal where this is asked for. `Direct` has a kernel of its own where kernels have one channel.
    pub fn on_metal(self, g: &Geometry, dtype: DType) -> Result<ConvAlgo> {
        Ok(match self {
            ConvAlgo::Auto if g.c_in == 1 => ConvAlgo::Direct,
            // Most of a product's tile, which has 32 rows, would be empty.
            ConvAlgo::Auto if g.c_in * g.c_out < 64 => match Tile::fits(g) {
                true => ConvAlgo::Tiled,
                false => ConvAlgo::Direct,
            },
            ConvAlgo::Auto | ConvAlgo::Winograd => ConvAlgo::ImplicitGemm,
            ConvAlgo::Tiled if !Tile::fits(g) => ConvAlgo::ImplicitGemm,
            ConvAlgo::Mps if dtype == DType::BF16 || g.groups > 1 => {
                let groups = g.groups;
                let message = format!(
                    "algorithm Mps given for {dtype:?} and {groups} groups, f32 or f16 and 1 group accepted"
                );
                return Err(check::error(NAME, message));
            }
            // A product of nothing is none.
            ConvAlgo::Mps if g.c_in == 0 => ConvAlgo::Direct,
            algo => algo,
        })
    }

    /// What runs on Metal for a transposed convolution.
    pub fn transposed_on_metal(g: &Geometry) -> ConvAlgo {
        match g.is_depthwise() || g.c_in * g.c_out < 64 {
            true => ConvAlgo::Direct,
            false => ConvAlgo::ImplicitGemm,
        }
    }
}

fn winograd_serves(g: &Geometry) -> bool {
    let moves_by_one = g.stride == [1, 1] && g.dilation == [1, 1];
    g.kernel == [3, 3] && moves_by_one && g.c_out > FEW
}

/// Compares multiplications, with what else Winograd's algorithm takes in the same unit: measured on 8 to 512 channels of
/// 112² to 7² pixels.
fn winograd_pays(g: &Geometry, prepared: bool) -> bool {
    let wide = |n: usize| n as f64;
    let images = wide(g.batch) * wide(g.groups);
    let kernels = wide(g.c_out) * wide(g.c_in);
    let plain = 9.0 * kernels * images * wide(g.output[0]) * wide(g.output[1]);
    let tiles = g.output.map(|n| n.div_ceil(4));
    // Tiles are multiplied by vectors, of which the last may not be full.
    let tiles = (wide(tiles[0]) * wide(tiles[1] + 1) / 8.0).ceil() * 8.0;
    let transforms = 300.0 * wide(g.c_in) + 400.0 * wide(g.c_out);
    // The transformed kernels come from afar for each block of tiles.
    let kernels_read = 16.0 * 36.0 * kernels * (tiles / 24.0).ceil();
    let each = tiles * (36.0 * kernels + transforms) + kernels_read;
    let prepare = if prepared {
        0.0
    } else {
        4000.0 * wide(g.groups) * kernels
    };
    let winograd = images * each + prepare;
    winograd_serves(g) && 1.25 * winograd < plain
}

/// What a threadgroup of `Tiled` takes on: outputs in height and width, channels of them, and the room for pixels and for
/// weights. kernels/conv2d.metal has the same numbers.
pub(crate) struct Tile;

impl Tile {
    pub(crate) const OUTPUTS: [usize; 2] = [8, 16];
    pub(crate) const CHANNELS: usize = 8;
    const PIXELS: usize = 2048;
    const WEIGHTS: usize = 1024;

    /// Whether there is room for one channel of x.
    fn fits(g: &Geometry) -> bool {
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

    fn geometry(groups: usize, c_in: usize, c_out: usize, kernel: usize) -> Geometry {
        Geometry {
            batch: 1,
            groups,
            c_in,
            c_out,
            input: [32, 32],
            kernel: [kernel, kernel],
            output: [33 - kernel, 33 - kernel],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
        }
    }

    fn image(channels: usize, side: usize) -> Geometry {
        Geometry {
            input: [side, side],
            output: [side, side],
            padding: [1, 1],
            ..geometry(1, channels, channels, 3)
        }
    }

    #[test]
    fn on_the_cpu_winograd_is_for_large_products() {
        let auto = |g: Geometry, prepared| ConvAlgo::Auto.on_cpu(&g, prepared).unwrap();
        assert_eq!(auto(image(64, 56), false), ConvAlgo::Winograd);
        // The kernels take longer to transform than there is to gain.
        assert_eq!(auto(image(256, 14), false), ConvAlgo::ImplicitGemm);
        assert_eq!(auto(image(4, 8), true), ConvAlgo::ImplicitGemm);
        for other in [
            geometry(1, 64, 64, 5),
            Geometry {
                stride: [1, 2],
                ..image(64, 56)
            },
            Geometry {
                dilation: [2, 1],
                ..image(64, 56)
            },
        ] {
            assert_eq!(auto(other, true), ConvAlgo::ImplicitGemm);
            let asked = ConvAlgo::Winograd.on_cpu(&other, true).unwrap();
            assert_eq!(asked, ConvAlgo::ImplicitGemm);
        }
        assert_eq!(auto(geometry(8, 1, 1, 3), true), ConvAlgo::Direct);
    }

    #[test]
    fn on_the_cpu_what_is_asked_for_runs_or_is_replaced() {
        let g = image(16, 8);
        for (algo, runs) in [
            (ConvAlgo::Direct, ConvAlgo::ImplicitGemm),
            (ConvAlgo::Tiled, ConvAlgo::ImplicitGemm),
            (ConvAlgo::ImplicitGemm, ConvAlgo::ImplicitGemm),
            (ConvAlgo::Winograd, ConvAlgo::Winograd),
        ] {
            assert_eq!(algo.on_cpu(&g, false).unwrap(), runs);
        }
        let error = ConvAlgo::Mps.on_cpu(&g, false).unwrap_err().to_string();
        assert!(error.contains("conv2d") && error.contains("Mps"), "{error}");
    }

    fn runs(algo: ConvAlgo, g: Geometry) -> ConvAlgo {
        algo.on_metal(&g, DType::F32).unwrap()
    }

    #[test]
    fn auto_goes_by_the_channels() {
        assert_eq!(runs(ConvAlgo::Auto, geometry(8, 1, 1, 3)), ConvAlgo::Direct);
        assert_eq!(
            runs(ConvAlgo::Auto, geometry(1, 1, 32, 5)),
            ConvAlgo::Direct
        );
        assert_eq!(runs(ConvAlgo::Auto, geometry(1, 3, 8, 3)), ConvAlgo::Tiled);
        assert_eq!(
            runs(ConvAlgo::Auto, geometry(1, 3, 8, 13)),
            ConvAlgo::Direct
        );
        assert_eq!(
            runs(ConvAlgo::Auto, geometry(1, 64, 64, 3)),
            ConvAlgo::ImplicitGemm
        );
        let transposed = ConvAlgo::transposed_on_metal;
        assert_eq!(transposed(&geometry(8, 1, 1, 3)), ConvAlgo::Direct);
        assert_eq!(transposed(&geometry(1, 3, 8, 3)), ConvAlgo::Direct);
        assert_eq!(transposed(&geometry(1, 16, 8, 3)), ConvAlgo::ImplicitGemm);
    }

    #[test]
    fn what_is_asked_for_runs_or_is_replaced() {
        let g = geometry(1, 4, 4, 3);
        for algo in [ConvAlgo::Direct, ConvAlgo::Tiled, ConvAlgo::ImplicitGemm] {
            assert_eq!(runs(algo, g), algo);
        }
        assert_eq!(runs(ConvAlgo::Winograd, g), ConvAlgo::ImplicitGemm);
        let large = geometry(1, 4, 4, 13);
        assert_eq!(runs(ConvAlgo::Tiled, large), ConvAlgo::ImplicitGemm);
        let apart = Geometry {
            stride: [9, 9],
            ..g
        };
        assert_eq!(runs(ConvAlgo::Tiled, apart), ConvAlgo::ImplicitGemm);
    }

    #[test]
    fn mps_is_refused_where_it_cannot_serve() {
        let g = geometry(1, 4, 4, 3);
        assert_eq!(runs(ConvAlgo::Mps, g), ConvAlgo::Mps);
        let error = ConvAlgo::Mps.on_metal(&g, DType::BF16).unwrap_err();
        assert!(error.to_string().contains("BF16"), "{error}");
        let error = ConvAlgo::Mps.on_metal(&geometry(2, 4, 4, 3), DType::F16);
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
