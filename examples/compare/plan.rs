//! What is measured: each op's sizes, in every dtype, in every way it runs.

pub use crate::cases::Kind;
use crate::cases::{Measured, OpCase};
use candle_core::DType;

/// One line of the table.
pub struct Row<'a> {
    pub case: &'a OpCase,
    pub size: Measured,
    pub dtype: DType,
    pub kind: Kind,
}

impl Row<'_> {
    /// Whether the op has this form.
    fn exists(&self) -> bool {
        match self.kind {
            Kind::Forward => true,
            Kind::InPlace => self.case.in_place.is_some(),
            Kind::Train => self.case.trains(),
        }
    }

    fn is_quick(&self) -> bool {
        self.size.quick && (self.dtype == DType::F32 || self.kind == Kind::Forward)
    }

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

/// Every row of the full run, or of the quick one. A variant would measure the same loop again.
pub fn rows(cases: &[OpCase], quick: bool) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    for case in cases.iter().filter(|case| !case.variant) {
        for &size in &case.sizes {
            for &dtype in size.dtypes {
                rows.extend(size.kinds.iter().map(|&kind| Row {
                    case,
                    size,
                    dtype,
                    kind,
                }));
            }
        }
    }
    rows.retain(|row| row.exists() && (row.is_quick() || !quick));
    rows
}
