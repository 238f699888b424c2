//! In-place forms: the bits of the out-of-place form in the view, and nothing else changed.

use super::check::{self, all, at, Verdict};
use super::layout::{Layout, LAYOUTS};
use super::Point;
use candle_core::Result;

/// Finite, so that a stray write shows: an op would turn a NaN into a NaN.
const SENTINEL: f32 = 77.0;

pub fn changes_only_its_view(point: &Point) -> Result<Verdict> {
    let Some(in_place) = &point.case.in_place else {
        return Ok(Ok(()));
    };
    let inputs = point.inputs()?;
    let expected = point.expected(&inputs)?.is_some();
    let writable = LAYOUTS.into_iter().filter(|&l| l != Layout::Broadcast);
    all(writable, |layout| {
        let outputs = point.outputs(&inputs, expected)?;
        let Some(output) = outputs.first() else {
            return Ok(Ok(()));
        };
        let base = layout.base(&inputs[0], SENTINEL)?;
        let mut args = vec![layout.view(&base, inputs[0].dims())?];
        for x in &inputs[1..] {
            args.push(layout.view(&layout.base(x, f32::NAN)?, x.dims())?);
        }
        in_place(&args)?;
        let want = layout.base(output, SENTINEL)?;
        Ok(at(format!("{layout:?}"), check::identical(&base, &want)?))
    })
}
