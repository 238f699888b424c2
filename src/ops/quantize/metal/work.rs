//! Measures, codes, values and clipped gradients.

use super::{aligned_codes, span, Arg, Sizes, MOST};
use crate::check;
use crate::metal::{aligned4, alloc, dtype_name, grid, sources, Launch, Operand};
use crate::ops::quantize::{Grid, Packing, Per, Rounding, Scheme, NAME};
use candle_core::backend::BackendStorage;
use candle_core::{DType, MetalDevice, Result};
use candle_metal_kernels::metal::Buffer;
use std::sync::Arc;

/// Units up to this length go to some lanes of a simdgroup, longer ones to a threadgroup.
const SIMD_LEN: usize = 1024;
/// Simdgroups, each with a unit to join, of a threadgroup.
const SIMDGROUPS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    len: u64,
    part: u64,
    parts: u32,
    units: u32,
    team: u32,
    cols: u32,
    row_units: u32,
    unit_cols: u32,
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

/// What is made of x.
pub enum Make<'a> {
    Codes(&'a Units),
    Values,
    Clipped(&'a Operand<'a>),
}

/// Scales and offsets, to be written.
pub struct Units {
    pub scales: Arc<Buffer>,
    pub offsets: Option<Arc<Buffer>>,
}

impl Units {
    pub fn alloc(scheme: &Scheme, device: &MetalDevice, units: usize) -> Result<Self> {
        let offsets = scheme.has_offsets();
        Ok(Units {
            scales: alloc(device, units, DType::F32)?,
            offsets: offsets
                .then(|| alloc(device, units, DType::F32))
                .transpose()?,
        })
    }

    /// Where there are no offsets, no kernel writes them.
    fn offsets(&self) -> &Buffer {
        self.offsets.as_ref().unwrap_or(&self.scales)
    }
}

/// A tensor to be quantised.
pub struct Work<'a> {
    op: &'static str,
    scheme: Scheme,
    device: &'a MetalDevice,
    x: Operand<'a>,
    sizes: Sizes,
    dtype: &'static str,
}

impl<'a> Work<'a> {
    pub fn new(op: &'static str, scheme: Scheme, (x, l): Arg<'a>, sizes: Sizes) -> Result<Self> {
        Ok(Work {
            op,
            scheme,
            device: x.device(),
            x: Operand::contiguous(x, l)?,
            sizes,
            dtype: dtype_name(x.dtype(), op)?,
        })
    }

    /// Writes to `out`, which has room for all rows.
    pub fn run(&self, make: Make, out: &Buffer) -> Result<()> {
        let (parts, part) = self.parts();
        let Sizes { cols, len, .. } = self.sizes;
        let per_byte = self.scheme.per_byte();
        // Bytes belong to one unit only, and lie as its elements do.
        let apart = match make {
            Make::Codes(_) => {
                len == cols || (cols.is_multiple_of(per_byte) && len.is_multiple_of(per_byte))
            }
            _ => true,
        };
        if self.scheme.per != Per::Column && parts == 1 && apart {
            self.at_once(make, out)
        } else {
            self.measured_first(make, out, (parts, part))
        }
    }

    /// Of a unit, and the elements of a part.
    fn parts(&self) -> (usize, usize) {
        let Sizes {
            cols, units, len, ..
        } = self.sizes;
        match self.scheme.per {
            Per::Column => {
                let part = len.div_ceil(grid::column_parts(len, cols));
                (len.div_ceil(part), part)
            }
            _ => grid::row_parts(units, len),
        }
    }

    fn launch(&self, kernel: &str) -> Result<Launch<'a>> {
        let kernel = format!("{NAME}_{kernel}_{}", self.dtype);
        Launch::new(self.device, &sources::QUANTIZE, &kernel)
    }

    fn at_once(&self, make: Make, out: &Buffer) -> Result<()> {
        let Sizes { units, len, .. } = self.sizes;
        let name = match (self.scheme.grid, &make) {
            (Grid::Ternary, Make::Codes(_)) if self.scheme.packing == Packing::Base3 => "base3",
            (grid, _) => grid_name(grid),
        };
        let bytes = self.scheme.row_bytes(len);
        let (team, grid) = teams(units, len);
        let params = Params {
            team,
            aligned: self.aligned(&make, units, len),
            ..self.params(bytes)
        };
        let launch = match make {
            Make::Codes(units) => self
                .launch(&format!("fwd_{name}"))?
                .input(&self.x)
                .output(out)
                .output(&units.scales)
                .output(units.offsets()),
            Make::Values => self
                .launch(&format!("fake_{name}"))?
                .input(&self.x)
                .input(&self.x)
                .output(out),
            Make::Clipped(g) => self
                .launch(&format!("bwd_x_{name}"))?
                .input(&self.x)
                .input(g)
                .output(out),
        };
        launch.params(&params).run(grid)
    }

    fn measured_first(&self, make: Make, out: &Buffer, parts: (usize, usize)) -> Result<()> {
        let Sizes { rows, cols, .. } = self.sizes;
        let units = match make {
            Make::Codes(units) => self.measure(units, parts)?,
            _ => {
                let units = Units::alloc(&self.scheme, self.device, self.sizes.units)?;
                self.measure(&units, parts)?
            }
        };
        let name = match (self.scheme.grid, &make) {
            (Grid::Ternary, Make::Codes(_)) if self.scheme.packing == Packing::Base3 => "base3",
            (Grid::Ternary | Grid::Int8 | Grid::ZeroPoint { .. }, _) => "scaled",
            (Grid::Sign { .. }, _) => "signs",
            (Grid::Affine { .. }, _) => "biased",
        };
        let params = Params {
            aligned: self.aligned(&make, rows, cols),
            ..self.params(self.scheme.row_bytes(cols))
        };
        let grid = grid::elementwise_rows(rows, cols, self.span(&make));
        let launch = match make {
            Make::Codes(_) => self
                .launch(&format!("fwd_known_{name}"))?
                .input(&self.x)
                .input_buffer(&units),
            Make::Values => self
                .launch(&format!("fake_known_{name}"))?
                .input(&self.x)
                .input(&self.x)
                .input_buffer(&units),
            Make::Clipped(g) => self
                .launch(&format!("bwd_x_known_{name}"))?
                .input(&self.x)
                .input(g)
                .input_buffer(&units),
        };
        launch.output(out).params(&params).run(grid)
    }

    /// The units as the kernels take them; scales and offsets are written too.
    fn measure(&self, to: &Units, (parts, part): (usize, usize)) -> Result<Arc<Buffer>> {
        let Sizes {
            cols, units, len, ..
        } = self.sizes;
        let stat = match self.scheme.grid {
            Grid::Ternary | Grid::Sign { .. } => "sums",
            Grid::Int8 => "abs_max",
            Grid::ZeroPoint { .. } | Grid::Affine { .. } => "ends",
        };
        let (pass, team, grid) = match self.scheme.per {
            Per::Column => ("columns", 0, grid::columns(cols, parts)),
            _ => {
                let (team, grid) = teams(units * parts, part.min(len));
                ("measure", team, grid)
            }
        };
        if part > MOST {
            let message = format!("{len} elements share a scale, up to 2^40 accepted");
            return Err(check::error(self.op, message));
        }
        let params = Params {
            part: part as u64,
            parts: parts as u32,
            team,
            aligned: self.aligned(&Make::Values, units, len),
            ..self.params(0)
        };
        let stats = alloc(self.device, 2 * units * parts, DType::F32)?;
        self.launch(&format!("{pass}_{stat}"))?
            .input(&self.x)
            .output(&stats)
            .params(&params)
            .run(grid)?;
        let known = alloc(self.device, 4 * units, DType::F32)?;
        let kernel = format!("{NAME}_units_{}", grid_name(self.scheme.grid));
        Launch::new(self.device, &sources::QUANTIZE, &kernel)?
            .input_buffer(&stats)
            .output(&known)
            .output(&to.scales)
            .output(to.offsets())
            .params(&params)
            .run(grid::row_per_simdgroup(units, SIMDGROUPS))?;
        Ok(known)
    }

    fn span(&self, make: &Make) -> usize {
        match make {
            Make::Codes(_) => span(self.scheme.packing),
            _ => span(Packing::Bits),
        }
    }

    /// Whether spans of eight may be taken four elements at a time, in so many pieces of `len` elements each.
    fn aligned(&self, make: &Make, count: usize, len: usize) -> u32 {
        let operands = match make {
            Make::Clipped(g) => aligned4(&[&self.x, g]),
            _ => aligned4(&[&self.x]),
        };
        operands * u32::from(count == 1 || len.is_multiple_of(4))
    }

    /// For rows or units of so many bytes.
    fn params(&self, bytes: usize) -> Params {
        let Scheme {
            grid,
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
            units: sizes.units as u32,
            team: 0,
            cols: sizes.cols as u32,
            row_units: sizes.row_units as u32,
            unit_cols: sizes.unit_cols as u32,
            bytes: bytes as u32,
            bits: self.scheme.bits(),
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            stochastic: u32::from(rounding != Rounding::Nearest),
            centred: u32::from(grid == Grid::Sign { centred: true }),
            eps,
            low: self.scheme.min_code() as f32,
            high: self.scheme.max_code() as f32,
            aligned: 0,
            aligned_codes: aligned_codes(&self.scheme, 0, bytes),
        }
    }
}

fn grid_name(grid: Grid) -> &'static str {
    match grid {
        Grid::Ternary => "ternary",
        Grid::Sign { .. } => "sign",
        Grid::Int8 => "int8",
        Grid::ZeroPoint { .. } => "zero_point",
        Grid::Affine { .. } => "affine",
    }
}

/// Threads of a team, 0 for a threadgroup, and the grid of so many teams for `len` elements each.
fn teams(count: usize, len: usize) -> (u32, grid::Grid) {
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
mod tests {
    use super::Params;
    use std::mem::{offset_of, size_of};

    #[test]
    fn params_mirror_the_kernels() {
        assert_eq!(size_of::<Params>(), 88);
        assert_eq!(offset_of!(Params, part), 8);
        assert_eq!(offset_of!(Params, parts), 16);
        assert_eq!(offset_of!(Params, units), 20);
        assert_eq!(offset_of!(Params, team), 24);
        assert_eq!(offset_of!(Params, cols), 28);
        assert_eq!(offset_of!(Params, row_units), 32);
        assert_eq!(offset_of!(Params, unit_cols), 36);
        assert_eq!(offset_of!(Params, bytes), 40);
        assert_eq!(offset_of!(Params, bits), 44);
        assert_eq!(offset_of!(Params, seed_low), 48);
        assert_eq!(offset_of!(Params, seed_high), 52);
        assert_eq!(offset_of!(Params, stochastic), 56);
        assert_eq!(offset_of!(Params, centred), 60);
        assert_eq!(offset_of!(Params, eps), 64);
        assert_eq!(offset_of!(Params, low), 68);
        assert_eq!(offset_of!(Params, high), 72);
        assert_eq!(offset_of!(Params, aligned), 76);
        assert_eq!(offset_of!(Params, aligned_codes), 80);
    }
}
