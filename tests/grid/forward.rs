//! Outputs: near the reference, and the same from any layout and on every run.

use super::check::{self, all, at, Verdict};
use super::digest;
use super::layout::{Layout, LAYOUTS};
use super::tolerance::{tolerance, Tolerance};
use super::Point;
use crate::cases::Class;
use candle_core::{Device, Result, Tensor};

impl Point<'_> {
    pub fn inputs(&self) -> Result<Vec<Tensor>> {
        self.case.inputs(self.size, self.dtype, self.device)
    }

    /// The exact outputs, or nothing where stock Candle has none, as for the maximum of an empty row.
    pub fn expected(&self, inputs: &[Tensor]) -> Result<Option<Vec<Tensor>>> {
        let outputs = (self.case.reference)(&check::exact(inputs)?);
        match outputs {
            Err(_) if inputs[0].elem_count() == 0 => Ok(None),
            outputs => outputs.map(Some),
        }
    }

    /// The op's outputs. Where stock has none, an error will do.
    pub fn outputs(&self, inputs: &[Tensor], expected: bool) -> Result<Vec<Tensor>> {
        match (self.case.fused)(inputs) {
            Err(_) if !expected => Ok(vec![]),
            outputs => outputs,
        }
    }
}

impl Point<'_> {
    /// Of outputs. On Metal a product of many rows is rounded by Candle's GEMM before the rest is added.
    pub fn tolerance(&self) -> Tolerance {
        let rounds = self.case.product.is_some() && self.device.is_metal();
        let class = match self.case.composed || rounds {
            true => Class::Stepwise,
            false => self.case.class,
        };
        tolerance(self.dtype, class)
    }

    /// The same bits, or what may differ in the order of a sum.
    pub fn same(&self, got: &Tensor, want: &Tensor, tolerance: Tolerance) -> Result<Verdict> {
        if self.case.product.is_none() {
            return check::identical(got, want);
        }
        // Both have the error of one.
        let Tolerance { rel, abs, scale } = tolerance;
        let (rel, abs) = (2.0 * rel, 2.0 * abs);
        check::close(got, want, Tolerance { rel, abs, scale })
    }
}

pub fn agrees_with_reference(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    let expected = point.expected(&inputs)?;
    let outputs = point.outputs(&inputs, expected.is_some())?;
    let Some(expected) = expected else {
        return Ok(Ok(()));
    };
    let tolerance = point.tolerance();
    all(outputs.iter().zip(&expected).enumerate(), |(i, (o, e))| {
        if o.dtype() != point.dtype {
            return Ok(Err(format!("output {i} has dtype {:?}", o.dtype())));
        }
        digest::record(point, format!("output {i}"), o)?;
        Ok(at(format!("output {i}"), check::close(o, e, tolerance)?))
    })
}

/// Which layout each argument gets: all the same, then a different one each.
pub fn layouts(count: usize) -> Vec<Vec<Layout>> {
    let apart = if count > 1 { 0..LAYOUTS.len() } else { 0..0 };
    let same = LAYOUTS.iter().map(|&layout| vec![layout; count]);
    let mixed = apart.map(|first| {
        let nth = |i| LAYOUTS[(first + i) % LAYOUTS.len()];
        (0..count).map(nth).collect()
    });
    same.chain(mixed).collect()
}

pub fn ignores_layout(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    all(layouts(inputs.len()), |layouts| {
        let views = inputs
            .iter()
            .zip(&layouts)
            .map(|(x, layout)| layout.view(&layout.base(x, f32::NAN)?, x.dims()))
            .collect::<Result<Vec<_>>>()?;
        let copies = copied(&views)?;
        let expected = point.expected(&copies)?.is_some();
        let got = point.outputs(&views, expected)?;
        let want = point.outputs(&copies, expected)?;
        all(got.iter().zip(&want), |(got, want)| {
            Ok(at(
                format!("{layouts:?}"),
                point.same(got, want, point.tolerance())?,
            ))
        })
    })
}

/// Contiguous copies, made on the CPU as layouts are.
pub fn copied(views: &[Tensor]) -> Result<Vec<Tensor>> {
    let copy = |view: &Tensor| {
        let copy = view.to_device(&Device::Cpu)?.force_contiguous()?;
        copy.to_device(view.device())
    };
    views.iter().map(copy).collect()
}

pub fn repeats(point: &Point) -> Result<Verdict> {
    let inputs = point.inputs()?;
    let expected = point.expected(&inputs)?.is_some();
    let first = point.outputs(&inputs, expected)?;
    let second = point.outputs(&inputs, expected)?;
    all(first.iter().zip(&second), |(a, b)| check::identical(a, b))
}
