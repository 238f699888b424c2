//! What is measured: each op's sizes, in every dtype, in every way it runs.

use crate::cases::OpCase;
use crate::sizes::{sizes, Size};
use candle_core::DType;

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// One line of the table.
pub struct Row<'a> {
    pub case: &'a OpCase,
    pub size: Size,
    pub dtype: DType,
    pub kind: Kind,
}

/// How an op is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Forward,
    InPlace,
    /// Forward and backward.
    Train,
}

impl Row<'_> {
    /// `module/op/case/dtype/pass`
    pub fn key(&self) -> String {
        format!(
            "{}/{}/{}/{}/{}",
            self.case.op,
            self.case.name,
            self.label(),
            self.dtype.as_str(),
            self.pass()
        )
    }

    pub fn label(&self) -> String {
        match self.kind {
            Kind::InPlace => format!("{} inplace", self.size.label),
            _ => self.size.label.to_string(),
        }
    }

    pub fn pass(&self) -> &'static str {
        match self.kind {
            Kind::Train => "fwd_bwd",
            _ => "fwd",
        }
    }
}

/// Every row of the full run, or of the quick one.
pub fn rows(cases: &[OpCase], quick: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for case in cases {
        for size in sizes(case).into_iter().filter(|size| size.quick || !quick) {
            for dtype in DTYPES {
                let row = |kind| Row {
                    case,
                    size,
                    dtype,
                    kind,
                };
                rows.extend(kinds(case, size).into_iter().map(row));
            }
        }
    }
    rows
}

fn kinds(case: &OpCase, size: Size) -> Vec<Kind> {
    let mut kinds = vec![Kind::Forward];
    if size.in_place && case.in_place.is_some() {
        kinds.push(Kind::InPlace);
    }
    if size.train && case.trains() {
        kinds.push(Kind::Train);
    }
    kinds
}
