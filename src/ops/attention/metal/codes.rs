//! Launches of kernels/attention_codes.metal: keys and values are codes, with their scales and offsets.

use super::call::{Call, Rows};
use super::forward::compute;
use crate::check;
use crate::metal::Launch;
use crate::op::on_metal::{Arg, Args, OpResult};
use crate::op::Spec;
use crate::ops::attention::codes::{with_layouts, AttentionCodes, NAME};
use crate::ops::attention::geometry::{Geometry, Roles};
use crate::quant::{KvCodes, Levels};
use candle_core::backend::BackendStorage;
use candle_core::Result;

/// `AttentionCodeRows` of attention_codes.metal: how the codes of keys, or of values, are stored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CodeRows {
    scales: [u64; 3],
    group: u32,
    shift: u32,
    offsets: [u64; 3],
    kind: u32,
    flip: u32,
    bits: u32,
    aligned: u32,
}

/// `AttentionCodeParams` of attention_codes.metal.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CodeParams {
    k: CodeRows,
    v: CodeRows,
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
    fn new(geometry: &Geometry, args: &[Arg<'a>]) -> Result<Self> {
        Ok(Scales {
            scales: Rows::new(geometry, args[1])?,
            offsets: args
                .get(2)
                .map(|&arg| Rows::new(geometry, arg))
                .transpose()?,
        })
    }

    /// Their strides, and what their `codes` stand for.
    fn params(&self, codes: &KvCodes, bits: u32, aligned: bool) -> CodeRows {
        let group = codes.group() as u32;
        CodeRows {
            scales: self.scales.strides,
            group,
            shift: match group.is_power_of_two() {
                true => group.trailing_zeros(),
                false => 32,
            },
            offsets: self.offsets.as_ref().unwrap_or(&self.scales).strides,
            kind: match codes.scheme.levels {
                Levels::ZeroPoint { .. } => 1,
                Levels::Affine { .. } => 2,
                _ => 0,
            },
            flip: match codes.scheme.levels {
                Levels::Int8 => 128,
                _ => 0,
            },
            bits,
            aligned: u32::from(aligned),
        }
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

pub fn forward_codes(op: &AttentionCodes, q: Arg, held: Args) -> OpResult {
    let spec = Spec {
        layout: q.1,
        dtype: q.0.dtype(),
    };
    let geometry = op.geometry(NAME, spec)?;
    let [keys, values, rest] = op.parts(held);
    let attend = op.op();
    // `Attend` counts k and v behind q, which are rows of codes here.
    let args = [&[q, q, q][..], rest].concat();
    let roles: Roles<Arg> = attend.roles(&args);
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
    let (keys, values) = (
        Scales::new(&geometry, &keys)?,
        Scales::new(&geometry, &values)?,
    );
    let message = "got over 2^30 rows of q or keys, or strides of 2^27 or more from token to token; expected fewer";
    let fits = call.fits() && keys.is_near() && values.is_near();
    check::ensure(fits, NAME, message)?;
    let bits = op.bits().unwrap_or(8);
    let params = CodeParams {
        k: keys.params(&op.keys, bits, k_aligned),
        v: values.params(&op.values, bits, v_aligned),
    };
    let codes = Codes {
        keys,
        values,
        params,
    };
    let mut outputs = compute(&mut call, Some(&codes), false)?.into_iter();
    let message = "got no output, expected one";
    outputs.next().ok_or_else(|| check::error(NAME, message))
}

#[cfg(test)]
crate::metal::mirror::assert_mirrors! {
    CodeRows => "attention_codes" AttentionCodeRows { scales, group, shift, offsets, kind, flip, bits, aligned }
    CodeParams => "attention_codes" AttentionCodeParams { k, v }
}
