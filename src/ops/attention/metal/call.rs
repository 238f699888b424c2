//! The arguments of a call as kernels read them.

use super::params::Params;
use crate::metal::grid::{self, Grid};
use crate::metal::sources::Source;
use crate::metal::{dtype_name, Launch, Operand};
use crate::op::on_metal::{Arg, Args};
use crate::op::Spec;
use crate::ops::attention::geometry::{Geometry, Roles, Strides};
use crate::ops::attention::{Attend, NAME};
use crate::philox;
use candle_core::backend::BackendStorage;
use candle_core::{DType, Layout, MetalDevice, Result};

/// Queries and keys of a tile.
pub const BLOCK: usize = 32;
/// Numbers of queries, keys and of all rows that kernels count by 32 bits, with room for sums.
const MOST: usize = 1 << 30;
/// The longest way from row to row, of which 32 stay within 32 bits.
const MOST_STRIDE: u64 = 1 << 27;

/// A tensor whose rows, of the last dim, are dense.
pub struct Rows<'a> {
    pub operand: Operand<'a>,
    pub strides: [u64; 3],
    aligned: bool,
}

impl<'a> Rows<'a> {
    /// The tensor as it is if its rows are dense, and a copy otherwise.
    pub fn new(geometry: &Geometry, (storage, layout): Arg<'a>) -> Result<Self> {
        let last = layout.dims().len() - 1;
        let dense = layout.dims()[last] == 1 || layout.stride()[last] == 1;
        let near = |strides: &[u64; 3]| strides[2] < MOST_STRIDE;
        let strides = strides(geometry, layout);
        let (operand, strides) = match dense && near(&strides) {
            true => (Operand::strided(storage, layout), strides),
            false => (
                Operand::contiguous(storage, layout)?,
                dense_strides(geometry, layout.dims()),
            ),
        };
        let vector = 4 * storage.dtype().size_in_bytes();
        let aligned = operand.is_aligned(vector) && strides.iter().all(|s| s.is_multiple_of(4));
        Ok(Rows {
            operand,
            strides,
            aligned,
        })
    }

    /// Whether every row may be read four elements at a time.
    pub fn is_aligned(&self) -> bool {
        self.aligned
    }

    /// Whether a tile's rows are within 32 bits of each other.
    pub fn is_near(&self) -> bool {
        self.strides[2] < MOST_STRIDE
    }
}

/// From batch row to batch row, head to head and place to place; 0 where there is one only.
fn strides(geometry: &Geometry, layout: &Layout) -> [u64; 3] {
    let (axes, dims) = (geometry.axes, layout.dims());
    let Strides {
        batch, head, seq, ..
    } = Strides::new(axes, layout);
    let many = |axis: usize, stride: usize| if dims[axis] > 1 { stride as u64 } else { 0 };
    [
        axes.batch.map_or(0, |axis| many(axis, batch)),
        many(axes.head, head),
        many(axes.seq, seq),
    ]
}

/// Those of a dense tensor.
pub fn dense_strides(geometry: &Geometry, dims: &[usize]) -> [u64; 3] {
    strides(geometry, &Layout::contiguous(dims))
}

/// A call of attention.
pub struct Call<'a> {
    pub geometry: Geometry,
    pub device: &'a MetalDevice,
    pub dtype: DType,
    pub q: Rows<'a>,
    pub k: Rows<'a>,
    pub v: Rows<'a>,
    pub mask: Option<Operand<'a>>,
    pub sinks: Option<Operand<'a>>,
    /// Numbers of keys, or ends of packed sequences.
    pub lengths: Option<Operand<'a>>,
    /// Batch rows, or packed sequences.
    pub segments: usize,
    pub most_queries: usize,
    pub most_keys: usize,
    pub params: Params,
}

impl<'a> Call<'a> {
    pub fn new(op: &Attend, args: Args<'a>) -> Result<Self> {
        let specs: Vec<Spec> = args
            .iter()
            .map(|&(storage, layout)| Spec {
                layout,
                dtype: storage.dtype(),
            })
            .collect();
        let geometry = op.geometry(NAME, &specs)?;
        let args = op.roles(args);
        let rows = (Rows::new(&geometry, args.k)?, Rows::new(&geometry, args.v)?);
        Call::with_rows(op, geometry, &args, rows)
    }

    /// Of the other arguments, which have been checked, and of rows of keys and values, which may be codes.
    pub fn with_rows(
        op: &Attend,
        geometry: Geometry,
        args: &Roles<Arg<'a>>,
        (k, v): (Rows<'a>, Rows<'a>),
    ) -> Result<Self> {
        let Roles {
            q,
            mask,
            sinks,
            key_lengths,
            ..
        } = *args;
        let (device, dtype) = (q.0.device(), q.0.dtype());
        let q = Rows::new(&geometry, q)?;
        let mut call = Call {
            params: Params::default(),
            segments: geometry.batch,
            most_queries: geometry.queries,
            most_keys: geometry.keys,
            mask: mask.map(|(storage, layout)| Operand::strided(storage, layout)),
            sinks: sinks
                .map(|(storage, layout)| Operand::contiguous(storage, layout))
                .transpose()?,
            lengths: key_lengths.map(|(storage, layout)| Operand::strided(storage, layout)),
            geometry,
            device,
            dtype,
            q,
            k,
            v,
        };
        if let Some(packed) = &op.packed {
            let ends = [packed.queries(), packed.keys()].concat();
            let buffer = device.new_buffer_builder().with_data(&ends).build()?;
            let most = |ends: &[u32]| ends.windows(2).map(|n| n[1] - n[0]).max().unwrap_or(0);
            call.lengths = Some(Operand::fresh(buffer, ends.len(), DType::U32));
            call.segments = packed.count();
            call.most_queries = most(packed.queries()) as usize;
            call.most_keys = most(packed.keys()) as usize;
        }
        call.params = call.params_of(op, mask, key_lengths);
        Ok(call)
    }

    fn params_of(&self, op: &Attend, mask: Option<Arg>, key_lengths: Option<Arg>) -> Params {
        let (g, rules) = (&self.geometry, &op.rules);
        let mut params = Params {
            q: self.q.strides,
            k: self.k.strides,
            v: self.v.strides,
            y: dense_strides(g, &g.output()),
            dq: dense_strides(g, &g.dims(g.heads, g.queries, g.dim)),
            dk: dense_strides(g, &g.dims(g.kv_heads, g.keys, g.dim)),
            dv: dense_strides(g, &g.dims(g.kv_heads, g.keys, g.value_dim)),
            dropout_row: g.dropout_row() as u64 / 4,
            batch: g.batch as u32,
            heads: g.heads as u32,
            kv_heads: g.kv_heads as u32,
            group: g.group() as u32,
            queries: g.queries as u32,
            keys: g.keys as u32,
            dim: g.dim as u32,
            value_dim: g.value_dim as u32,
            packed: op.packed.as_ref().map_or(0, |packed| packed.count() as u32),
            most_queries: self.most_queries as u32,
            has_sinks: u32::from(self.sinks.is_some()),
            has_left: u32::from(rules.window_left.is_some()),
            has_right: u32::from(rules.right().is_some()),
            left: rules.window_left.map_or(0, |n| n.min(MOST) as u32),
            right: rules.right().map_or(0, |n| n.min(MOST) as u32),
            aligned: u32::from([&self.q, &self.k, &self.v].iter().all(|rows| rows.aligned)),
            parts: 1,
            part: MOST as u32,
            keep: 1.0,
            scale: rules.scale(g.dim),
            softcap: rules.softcap.unwrap_or(0.0),
            ..Params::default()
        };
        if let Some((storage, layout)) = mask {
            let dims = layout.dims().iter().zip(layout.stride()).rev();
            params.mask_dims = [1; 4];
            for (i, (&dim, &stride)) in (0..4).rev().zip(dims) {
                params.mask_dims[i] = dim as u32;
                params.mask[i] = if dim == 1 { 0 } else { stride as u64 };
            }
            params.mask_kind = if storage.dtype() == DType::U8 { 2 } else { 1 };
        }
        if let Some((storage, layout)) = key_lengths {
            params.length_words = if storage.dtype() == DType::I64 { 2 } else { 1 };
            params.length_stride = layout.stride()[0].min(MOST) as u32;
        }
        if let Some(dropout) = rules.dropout {
            let mask = philox::Mask::new(dropout.p, dropout.seed);
            params.has_dropout = 1;
            params.seed_low = mask.seed as u32;
            params.seed_high = (mask.seed >> 32) as u32;
            params.threshold = mask.threshold;
            params.keep = mask.scale;
        }
        params
    }

    /// Whether the kernels' 32-bit numbers suffice. Calls beyond that, of more than a milliard of queries or keys, are composed.
    pub fn fits(&self) -> bool {
        let g = &self.geometry;
        let rows = g.batch as u128 * g.heads as u128 * g.queries as u128;
        let near = self.params.length_stride < MOST as u32;
        let rows_near = [&self.q, &self.k, &self.v].iter().all(|r| r.is_near());
        rows <= MOST as u128 && g.keys <= MOST && near && rows_near
    }

    /// Another tensor in the layout of the call, for the gradient of the result.
    pub fn add_grad(&mut self, rows: &Rows) {
        self.params.grad = rows.strides;
        self.params.aligned &= u32::from(rows.aligned);
    }

    pub fn launch(&self, source: &'static Source, kernel: &str) -> Result<Launch<'_>> {
        let dtype = dtype_name(self.dtype, NAME)?;
        Launch::new(self.device, source, &format!("{NAME}_{kernel}_{dtype}"))
    }

    pub fn additive_mask(&self) -> Option<&Operand<'a>> {
        self.mask.as_ref().filter(|mask| mask.dtype() != DType::U8)
    }

    /// The first five arguments: all that scores and weighted sums depend on.
    pub fn scored<'b>(&'b self, launch: Launch<'b>) -> Launch<'b> {
        let launch = launch.input(&self.q.operand);
        self.masked(launch.input(&self.k.operand).input(&self.v.operand))
    }

    /// The next two arguments: the masks.
    pub fn masked<'b>(&'b self, launch: Launch<'b>) -> Launch<'b> {
        let q = &self.q.operand;
        launch
            .input_or(self.additive_mask(), q)
            .input_or(self.mask.as_ref().filter(|m| m.dtype() == DType::U8), q)
    }

    /// The width of the tiles' columns: up to that many are made by one threadgroup.
    pub fn width(&self) -> usize {
        match self.geometry.dim.max(self.geometry.value_dim) {
            ..=64 => 64,
            _ => 128,
        }
    }

    /// A threadgroup for each 32 of `seq`, for each head and chunk of `dim`, and each segment.
    pub fn grid(&self, seq: usize, heads: usize, dim: usize) -> Grid {
        let chunks = dim.div_ceil(self.width());
        grid::counted([seq.div_ceil(BLOCK), heads * chunks, self.segments], 4)
    }
}
