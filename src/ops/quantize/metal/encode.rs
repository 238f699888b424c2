//! Launches of kernels/quantize.metal: codes, values and clipped gradients, in one pass or in two.

use super::{aligned_codes, span, Arg, Sizes, MOST};
use crate::check;
use crate::metal::{aligned4, alloc, dtype_name, grid, sources, Launch, Operand};
use crate::ops::quantize::NAME;
use crate::quant::{Levels, Packing, Rounding, ScaleScope, Scheme};
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalDevice, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    len: u64,
    part: u64,
    parts: u32,
    scales: u32,
    team: u32,
    cols: u32,
    row_scales: u32,
    scale_cols: u32,
    bytes: u32,
    bits: u32,
    seed_low: u32,
    seed_high: u32,
    stochastic: u32,
    centred: u32,
    eps: f32,
    low: f32,
    high: f32,
    aligned: u32,
    aligned_codes: u32,
}

/// What x becomes.
pub enum Sink<'a> {
    /// Packed codes, with the scales and offsets.
    Codes(&'a ScaleBuffers),
    /// The values of the codes.
    Values,
    /// This gradient, clipped.
    ClippedGrad(&'a Operand<'a>),
}

/// Scales and offsets, to be written.
pub struct ScaleBuffers {
    pub scales: Arc<Buffer>,
    pub offsets: Option<Arc<Buffer>>,
}

impl ScaleBuffers {
    pub fn alloc(scheme: &Scheme, device: &MetalDevice, count: usize) -> Result<Self> {
        let offsets = scheme.has_offsets();
        Ok(ScaleBuffers {
            scales: alloc(device, count, DType::F32)?,
            offsets: offsets
                .then(|| alloc(device, count, DType::F32))
                .transpose()?,
        })
    }

    /// The offsets, or the scales in their place: kernels of levels without offsets do not write the binding.
    fn offsets(&self) -> &Buffer {
        self.offsets.as_ref().unwrap_or(&self.scales)
    }
}

/// Encodes a tensor.
pub struct Encoder<'a> {
    name: &'static str,
    scheme: Scheme,
    device: &'a MetalDevice,
    x: Operand<'a>,
    sizes: Sizes,
    dtype: &'static str,
}

impl<'a> Encoder<'a> {
    pub fn new(name: &'static str, scheme: Scheme, (x, l): Arg<'a>, sizes: Sizes) -> Result<Self> {
        Ok(Encoder {
            name,
            scheme,
            device: x.device(),
            x: Operand::contiguous(x, l)?,
            sizes,
            dtype: dtype_name(x.dtype(), name)?,
        })
    }

    /// Writes all rows to `out`, which has room for them.
    pub fn run(&self, sink: Sink, out: &Buffer) -> Result<()> {
        let (parts, part) = self.parts();
        let Sizes { cols, len, .. } = self.sizes;
        let per_byte = self.scheme.per_byte();
        // No byte of codes is shared by elements of two scales, and the bytes are in the order of the scales.
        let own_bytes = match sink {
            Sink::Codes(_) => {
                len == cols || (cols.is_multiple_of(per_byte) && len.is_multiple_of(per_byte))
            }
            _ => true,
        };
        if self.scheme.scope != ScaleScope::Column && parts == 1 && own_bytes {
            self.in_one_pass(sink, out)
        } else {
            self.in_two_passes(sink, out, (parts, part))
        }
    }

    /// The number of parts in which the elements of a scale are measured, and the elements of a part.
    fn parts(&self) -> (usize, usize) {
        let Sizes {
            cols, scales, len, ..
        } = self.sizes;
        match self.scheme.scope {
            ScaleScope::Column => {
                let part = len.div_ceil(grid::column_parts(len, cols));
                (len.div_ceil(part), part)
            }
            _ => grid::row_parts(scales, len),
        }
    }

    fn launch(&self, kernel: &str) -> Result<Launch<'a>> {
        let kernel = format!("{NAME}_{kernel}_{}", self.dtype);
        Launch::new(self.device, &sources::QUANTIZE, &kernel)
    }

    /// A launch of the variant of a sink's kernel, bound to x and to what else the kernel takes an element of for each of x's.
    fn launch_for<'b>(&'b self, sink: &Sink<'b>, variant: &str) -> Result<Launch<'b>> {
        let (kernel, second) = match *sink {
            Sink::Codes(_) => ("fwd", None),
            // The kernel has a binding for a gradient, which it does not use.
            Sink::Values => ("fake", Some(&self.x)),
            Sink::ClippedGrad(g) => ("bwd_x", Some(g)),
        };
        let launch = self.launch(&format!("{kernel}_{variant}"))?.input(&self.x);
        Ok(match second {
            Some(second) => launch.input(second),
            None => launch,
        })
    }

    /// One launch, in which a team measures and encodes the elements that share a scale.
    fn in_one_pass(&self, sink: Sink, out: &Buffer) -> Result<()> {
        let Sizes { scales, len, .. } = self.sizes;
        let name = match (self.scheme.levels, &sink) {
            (Levels::Ternary, Sink::Codes(_)) if self.scheme.packing == Packing::Base3 => "base3",
            (levels, _) => levels_name(levels),
        };
        let bytes = self.scheme.row_bytes(len);
        let (team, grid) = teams(scales, len);
        let params = Params {
            team,
            aligned: self.aligned(&sink, scales, len),
            ..self.params(bytes)
        };
        let launch = self.launch_for(&sink, name)?.output(out);
        let launch = match sink {
            Sink::Codes(scales) => launch.output(&scales.scales).output(scales.offsets()),
            _ => launch,
        };
        launch.params(&params).run(grid)
    }

    /// Launches that measure and compute the parameters of all scales, then one that encodes row by row.
    fn in_two_passes(&self, sink: Sink, out: &Buffer, parts: (usize, usize)) -> Result<()> {
        let Sizes { rows, cols, .. } = self.sizes;
        let params_of_scales = match sink {
            Sink::Codes(scales) => self.measure(scales, parts)?,
            _ => {
                let scales = ScaleBuffers::alloc(&self.scheme, self.device, self.sizes.scales)?;
                self.measure(&scales, parts)?
            }
        };
        let name = match (self.scheme.levels, &sink) {
            (Levels::Ternary, Sink::Codes(_)) if self.scheme.packing == Packing::Base3 => "base3",
            (Levels::Ternary | Levels::Int8 | Levels::ZeroPoint { .. }, _) => "scaled",
            (Levels::Sign { .. }, _) => "signs",
            (Levels::Affine { .. }, _) => "biased",
        };
        let params = Params {
            aligned: self.aligned(&sink, rows, cols),
            ..self.params(self.scheme.row_bytes(cols))
        };
        let grid = grid::elementwise_rows(rows, cols, self.span(&sink));
        self.launch_for(&sink, &format!("second_pass_{name}"))?
            .input_buffer(&params_of_scales)
            .output(out)
            .params(&params)
            .run(grid)
    }

    /// The parameters of all scales, as the second pass reads them. Writes the scales and offsets too.
    fn measure(&self, to: &ScaleBuffers, (parts, part): (usize, usize)) -> Result<Arc<Buffer>> {
        /// Simdgroups of a threadgroup that computes parameters, those of one scale each.
        const SIMDGROUPS: usize = 8;
        let Sizes {
            cols, scales, len, ..
        } = self.sizes;
        let stat = match self.scheme.levels {
            Levels::Ternary | Levels::Sign { .. } => "sums",
            Levels::Int8 => "abs_max",
            Levels::ZeroPoint { .. } | Levels::Affine { .. } => "min_max",
        };
        let (pass, team, grid) = match self.scheme.scope {
            ScaleScope::Column => ("columns", 0, grid::columns(cols, parts)),
            _ => {
                let (team, grid) = teams(scales * parts, part.min(len));
                ("measure", team, grid)
            }
        };
        if part > MOST {
            let message = format!("got {len} elements that share a scale, expected up to 2^40");
            return Err(check::error(self.name, message));
        }
        let params = Params {
            part: part as u64,
            parts: parts as u32,
            team,
            aligned: self.aligned(&Sink::Values, scales, len),
            ..self.params(0)
        };
        let stats = alloc(self.device, 2 * scales * parts, DType::F32)?;
        self.launch(&format!("{pass}_{stat}"))?
            .input(&self.x)
            .output(&stats)
            .params(&params)
            .run(grid)?;
        let params_of_scales = alloc(self.device, 4 * scales, DType::F32)?;
        let kernel = format!("{NAME}_params_{}", levels_name(self.scheme.levels));
        Launch::new(self.device, &sources::QUANTIZE, &kernel)?
            .input_buffer(&stats)
            .output(&params_of_scales)
            .output(&to.scales)
            .output(to.offsets())
            .params(&params)
            .run(grid::row_per_simdgroup(scales, SIMDGROUPS))?;
        Ok(params_of_scales)
    }

    fn span(&self, sink: &Sink) -> usize {
        match sink {
            Sink::Codes(_) => span(self.scheme.packing),
            _ => span(Packing::Bits),
        }
    }

    /// Whether kernels may access spans four elements at a time, in `count` pieces of `len` elements each.
    fn aligned(&self, sink: &Sink, count: usize, len: usize) -> u32 {
        let operands = match sink {
            Sink::ClippedGrad(g) => aligned4(&[&self.x, g]),
            _ => aligned4(&[&self.x]),
        };
        operands * u32::from(count == 1 || len.is_multiple_of(4))
    }

    /// Parameters for rows, or pieces with a scale of their own, whose codes take `bytes` bytes.
    fn params(&self, bytes: usize) -> Params {
        let Scheme {
            levels,
            rounding,
            eps,
            ..
        } = self.scheme;
        let seed = match rounding {
            Rounding::Nearest => 0,
            Rounding::Stochastic { seed } => seed,
        };
        let sizes = self.sizes;
        Params {
            len: sizes.len as u64,
            part: sizes.len as u64,
            parts: 1,
            scales: sizes.scales as u32,
            team: 0,
            cols: sizes.cols as u32,
            row_scales: sizes.row_scales as u32,
            scale_cols: sizes.scale_cols as u32,
            bytes: bytes as u32,
            bits: self.scheme.bits(),
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            stochastic: u32::from(rounding != Rounding::Nearest),
            centred: u32::from(levels == Levels::Sign { centred: true }),
            eps,
            low: self.scheme.min_code() as f32,
            high: self.scheme.max_code() as f32,
            aligned: 0,
            aligned_codes: aligned_codes(&self.scheme, 0, bytes),
        }
    }
}

fn levels_name(levels: Levels) -> &'static str {
    match levels {
        Levels::Ternary => "ternary",
        Levels::Sign { .. } => "sign",
        Levels::Int8 => "int8",
        Levels::ZeroPoint { .. } => "zero_point",
        Levels::Affine { .. } => "affine",
    }
}

/// Threads of a team, 0 for a whole threadgroup, and the grid of `count` teams of `len` elements each.
fn teams(count: usize, len: usize) -> (u32, grid::Grid) {
    /// Up to this many elements that share a scale go to lanes of one simdgroup, four spans of eight to each of 32 lanes.
    /// More of them go to a threadgroup.
    const SIMD_LEN: usize = 1024;
    let span = span(Packing::Bits);
    match len <= SIMD_LEN {
        true => {
            let team = grid::lanes(len.div_ceil(span));
            (team as u32, grid::elementwise(count * team, 1))
        }
        false => (0, grid::row_per_threadgroup(count, len, span)),
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    Params => "quantize" QuantizeParams {
        len, part, parts, scales, team, cols, row_scales, scale_cols, bytes, bits, seed_low,
        seed_high, stochastic, centred, eps, low, high, aligned, aligned_codes
    }
}
