//! The sizes of a case: those that the tests ask for, and those that `compare` and the benches measure, with their names.

use candle_core::{DType, Device};

/// What the shapes of a case's arguments are made of: rows and columns, or as many dims as the op needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub &'static [usize]);

/// Sizes to test.
pub type Grid = &'static [&'static [usize]];

impl Size {
    pub fn dims(self) -> &'static [usize] {
        self.0
    }

    /// All dims but the last.
    pub fn leading(self) -> &'static [usize] {
        &self.0[..self.0.len() - 1]
    }

    pub fn rows(self) -> usize {
        self.leading().iter().product()
    }

    pub fn cols(self) -> usize {
        self.0[self.0.len() - 1]
    }

    pub fn count(self) -> usize {
        self.0.iter().product()
    }
}

/// `3x1025`
impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let dims: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&dims.join("x"))
    }
}

/// How an op is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Forward,
    InPlace,
    /// Forward and backward.
    Train,
}

use Kind::{Forward, InPlace, Train};

/// A size to measure.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub label: &'static str,
    pub size: Size,
    /// How it is run, where the op has these forms.
    pub kinds: &'static [Kind],
    pub dtypes: &'static [DType],
    /// Whether it is part of the quick run too.
    pub quick: bool,
}

/// What stock's side of a row is made for.
pub struct Run<'a> {
    pub size: Size,
    pub kind: Kind,
    pub dtype: DType,
    pub device: &'a Device,
}

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

pub const ALL: &[Kind] = &[Forward, InPlace, Train];

/// Forward only, and not in the quick run.
pub const fn size(label: &'static str, dims: &'static [usize]) -> Measured {
    Measured {
        label,
        size: Size(dims),
        kinds: &[Forward],
        dtypes: &DTYPES,
        quick: false,
    }
}

/// For a case whose shapes the size doesn't change.
pub const fn only(label: &'static str) -> Measured {
    size(label, &[1, 1])
}

impl Measured {
    pub const fn run(self, kinds: &'static [Kind]) -> Measured {
        Measured { kinds, ..self }
    }

    pub const fn of(self, dtypes: &'static [DType]) -> Measured {
        Measured { dtypes, ..self }
    }

    /// For the full run only.
    pub const fn slow(self) -> Measured {
        Measured {
            quick: false,
            ..self
        }
    }

    pub const fn quick(self) -> Measured {
        Measured {
            quick: true,
            ..self
        }
    }
}

// Tiny, many short rows, few long rows, large, and the shapes of common models.
pub const TINY: Measured = size("1x64", &[1, 64]).run(&[Forward, Train]).quick();
pub const ROWS: Measured = size("65536x32", &[65536, 32]);
pub const COLS: Measured = size("4x262144", &[4, 262144]);
pub const ONE_M: Measured = size("1M", &[1024, 1024]).run(ALL).quick();
pub const SIXTEEN_M: Measured = size("16M", &[4096, 4096]);
pub const ONE_ROW: Measured = size("1x4096", &[1, 4096]);
pub const BATCH: Measured = size("512x4096", &[512, 4096]).run(ALL).quick();
pub const SQUARE: Measured = size("4096x4096", &[4096, 4096]);
pub const HEADS: Measured = size("8x32x128x128", &[8, 32, 128, 128]).run(ALL).quick();
pub const LOGITS: Measured = size("1x32000", &[1, 32000]);

/// What a variant of an op's main call is measured at.
pub fn variant(size: Measured) -> Vec<Measured> {
    vec![
        TINY.run(&[Forward]),
        size.run(&[Forward]).of(&[DType::F32]),
        size.run(&[Forward]).of(&[DType::F16, DType::BF16]).slow(),
        size.run(&[Train]).of(&[DType::F32]).slow(),
    ]
}
