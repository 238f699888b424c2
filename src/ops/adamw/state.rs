//! What AdamW keeps of a parameter between steps.

use super::codes::BLOCK;
use crate::check;
use candle_core::{DType, Result, Tensor};

/// The moments of a parameter of n elements, and its value in f32 where that is kept. Flat tensors, which nobody else holds:
///
/// ```text
///                 floats                              codes
/// moments in f32  m, v (n each), master (n)           none
/// 8-bit moments   scales of m, of v, master (n)       m, v (n bytes each)
/// ```
#[derive(Debug)]
pub(crate) struct State {
    /// f32; f64 for a parameter in f64.
    pub floats: Tensor,
    pub codes: Option<Tensor>,
    pub has_master: bool,
    count: usize,
}

impl State {
    /// Zero moments for a parameter.
    pub(crate) fn new(param: &Tensor, eight_bits: bool, has_master: bool) -> Result<Self> {
        let (count, device) = (param.elem_count(), param.device());
        let dtype = check::accumulator_dtype(param.dtype());
        let moment = if eight_bits {
            count.div_ceil(BLOCK)
        } else {
            count
        };
        let master = if has_master { count } else { 0 };
        let floats = Tensor::zeros(2 * moment + master, dtype, device)?;
        if master > 0 {
            let param = param.detach().flatten_all()?.to_dtype(dtype)?;
            floats.slice_set(&param.contiguous()?, 0, 2 * moment)?;
        }
        let codes = match eight_bits {
            true => Some(Tensor::zeros(2 * count, DType::U8, device)?),
            false => None,
        };
        Ok(State {
            floats,
            codes,
            has_master,
            count,
        })
    }

    /// Elements of a moment among the floats: its values or its scales.
    fn moment_len(&self) -> usize {
        match self.codes {
            Some(_) => self.count.div_ceil(BLOCK),
            None => self.count,
        }
    }

    /// How many tensors the floats hold, one behind the other.
    pub(super) fn parts(&self) -> usize {
        2 + usize::from(self.has_master)
    }

    /// Copies of all parts by name, flat.
    pub(crate) fn copies(&self) -> Result<Vec<(&'static str, Tensor)>> {
        // `Tensor::copy` would copy all that lies beside a part too, and on Metal share the memory.
        let copy = |part: Tensor| match part.elem_count() {
            0 => Tensor::zeros(0, part.dtype(), part.device()),
            _ => part.force_contiguous(),
        };
        let parts = self.parts_by_name()?.into_iter();
        parts.map(|(name, part)| Ok((name, copy(part)?))).collect()
    }

    /// All parts by name, flat, where they lie.
    pub(crate) fn parts_by_name(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let (len, count) = (self.moment_len(), self.count);
        let mut parts = Vec::new();
        let floats = match self.codes {
            Some(_) => ["m_scale", "v_scale"],
            None => ["m", "v"],
        };
        parts.push((floats[0], self.floats.narrow(0, 0, len)?));
        parts.push((floats[1], self.floats.narrow(0, len, len)?));
        if let Some(codes) = &self.codes {
            parts.push(("m_codes", codes.narrow(0, 0, count)?));
            parts.push(("v_codes", codes.narrow(0, count, count)?));
        }
        if self.has_master {
            parts.push(("master", self.floats.narrow(0, 2 * len, count)?));
        }
        Ok(parts)
    }

    /// Takes the values of the parts, in the order of [`State::parts_by_name`], whose dtypes and lengths have been checked.
    pub(crate) fn set_parts(&self, parts: &[Tensor]) -> Result<()> {
        let own = self.parts_by_name()?;
        let (mut float, mut code) = (0, 0);
        for ((_, own), part) in own.iter().zip(parts) {
            let part = part.to_device(self.floats.device())?.contiguous()?;
            let (target, at) = match (own.dtype(), &self.codes) {
                (DType::U8, Some(codes)) => (codes, &mut code),
                _ => (&self.floats, &mut float),
            };
            if own.elem_count() > 0 {
                target.slice_set(&part, 0, *at)?;
            }
            *at += own.elem_count();
        }
        Ok(())
    }
}
