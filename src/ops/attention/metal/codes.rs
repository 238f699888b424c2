//! Launches of kernels/attention_codes.metal: keys and values are codes, with their scales and offsets.

use super::call::{Call, Rows};
use super::forward::compute;
use crate::check;
use crate::metal::Launch;
use crate::op::{Arg, Args, OpResult, Spec};
use crate::ops::attention::codes::{with_layouts, AttentionCodes, NAME};
use crate::ops::attention::geometry::{Geometry, Roles};
use crate::quant::{KvCodes, Levels};
use candle_core::backend::BackendStorage;
use candle_core::{MetalStorage, Result};

/// What kernels/attention_codes.metal calls `AttentionCodeParams`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CodeParams {
    k_scales: [u64; 3],
    k_offsets: [u64; 3],
    v_scales: [u64; 3],
    v_offsets: [u64; 3],
    bits: u32,
    k_group: u32,
    v_group: u32,
    k_shift: u32,
    v_shift: u32,
    k_flip: u32,
    v_flip: u32,
    k_kind: u32,
    v_kind: u32,
    k_aligned: u32,
    v_aligned: u32,
}

/// The scales of keys and of values, and their offsets where they have them.
pub struct Codes<'a> {
    keys: Scales<'a>,
    values: Scales<'a>,
    pub params: CodeParams,
}

struct Scales<'a> {
    scales: Rows<'a>,
    offsets: Option<Rows<'a>>,
}

impl<'a> Scales<'a> {
    fn new(geometry: &Geometry, args: &[Arg<'a, MetalStorage>]) -> Result<Self> {
        Ok(Scales {
            scales: Rows::new(geometry, args[1])?,
            offsets: args
                .get(2)
                .map(|&arg| Rows::new(geometry, arg))
                .transpose()?,
        })
    }

    /// Strides of the scales and of the offsets.
    fn strides(&self) -> [[u64; 3]; 2] {
        let offsets = self.offsets.as_ref().unwrap_or(&self.scales);
        [self.scales.strides, offsets.strides]
    }

    fn is_near(&self) -> bool {
        self.scales.is_near() && self.offsets.as_ref().is_none_or(|rows| rows.is_near())
    }

    fn bind<'b>(&'b self, launch: Launch<'b>) -> Launch<'b> {
        let offsets = self.offsets.as_ref().unwrap_or(&self.scales);
        launch.input(&self.scales.operand).input(&offsets.operand)
    }
}

impl Codes<'_> {
    /// The six arguments behind q.
    pub fn bind<'b>(&'b self, launch: Launch<'b>, call: &'b Call) -> Launch<'b> {
        let launch = self.keys.bind(launch.input(&call.k.operand));
        self.values.bind(launch.input(&call.v.operand))
    }
}

pub fn forward_codes(
    op: &AttentionCodes,
    q: Arg<MetalStorage>,
    held: Args<MetalStorage>,
) -> OpResult<MetalStorage> {
    let spec = Spec {
        layout: q.1,
        dtype: q.0.dtype(),
    };
    let geometry = op.geometry(NAME, spec)?;
    let [keys, values, rest] = op.parts(held);
    let attend = op.op();
    // `Attend` counts k and v behind q, which are rows of codes here.
    let args = [&[q, q, q][..], rest].concat();
    let roles: Roles<Arg<MetalStorage>> = attend.roles(&args);
    let (key_layouts, value_layouts) = (op.layouts(keys)?, op.layouts(values)?);
    let (keys, values) = (
        with_layouts(keys, &key_layouts),
        with_layouts(values, &value_layouts),
    );
    let rows = (
        Rows::new(&geometry, keys[0])?,
        Rows::new(&geometry, values[0])?,
    );
    let (k_aligned, v_aligned) = (rows.0.is_aligned(), rows.1.is_aligned());
    let mut call = Call::with_rows(&attend, geometry, &roles, rows)?;
    let mut codes = Codes {
        keys: Scales::new(&geometry, &keys)?,
        values: Scales::new(&geometry, &values)?,
        params: CodeParams::default(),
    };
    let message = "got over 2^30 rows of q or keys, or strides of 2^27 or more from token to token; expected fewer";
    let fits = call.fits() && codes.keys.is_near() && codes.values.is_near();
    check::ensure(fits, NAME, message)?;
    let ([k_scales, k_offsets], [v_scales, v_offsets]) =
        (codes.keys.strides(), codes.values.strides());
    let (k, v) = (Levelled::new(&op.keys), Levelled::new(&op.values));
    codes.params = CodeParams {
        k_scales,
        k_offsets,
        v_scales,
        v_offsets,
        bits: op.bits().unwrap_or(8),
        k_group: k.group,
        v_group: v.group,
        k_shift: k.shift,
        v_shift: v.shift,
        k_flip: k.flip,
        v_flip: v.flip,
        k_kind: k.kind,
        v_kind: v.kind,
        k_aligned: u32::from(k_aligned),
        v_aligned: u32::from(v_aligned),
    };
    let mut outputs = compute(&mut call, Some(&codes), false)?.into_iter();
    let message = "got no output, expected one";
    outputs.next().ok_or_else(|| check::error(NAME, message))
}

/// What the codes of a scheme stand for.
struct Levelled {
    group: u32,
    shift: u32,
    flip: u32,
    kind: u32,
}

impl Levelled {
    fn new(codes: &KvCodes) -> Self {
        let group = codes.group() as u32;
        Levelled {
            group,
            shift: match group.is_power_of_two() {
                true => group.trailing_zeros(),
                false => 32,
            },
            flip: match codes.scheme.levels {
                Levels::Int8 => 128,
                _ => 0,
            },
            kind: match codes.scheme.levels {
                Levels::ZeroPoint { .. } => 1,
                Levels::Affine { .. } => 2,
                _ => 0,
            },
        }
    }
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    CodeParams => "attention_codes" AttentionCodeParams {
        k_scales, k_offsets, v_scales, v_offsets, bits, k_group, v_group, k_shift, v_shift, k_flip, v_flip, k_kind, v_kind,
        k_aligned, v_aligned
    }
}
