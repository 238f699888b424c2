//! The sizes that each op is measured at: tiny, many short rows, few long rows, large, and the shapes
//! of common models.

use crate::cases::OpCase;

#[derive(Clone, Copy)]
pub struct Size {
    pub label: &'static str,
    /// The dims of x.
    pub dims: &'static [usize],
    /// Also measured in place, where the op has that form.
    pub in_place: bool,
    /// Also measured with its backward, where the op has one.
    pub train: bool,
    /// Part of the quick run.
    pub quick: bool,
}

const fn size(label: &'static str, dims: &'static [usize]) -> Size {
    Size {
        label,
        dims,
        in_place: false,
        train: false,
        quick: false,
    }
}

impl Size {
    pub fn cols(&self) -> usize {
        self.dims[self.dims.len() - 1]
    }

    pub fn rows(&self) -> usize {
        self.dims[..self.dims.len() - 1].iter().product()
    }

    /// In every form that the op has, in the quick run too.
    const fn main(self) -> Size {
        Size {
            in_place: true,
            train: true,
            quick: true,
            ..self
        }
    }

    const fn in_place(self) -> Size {
        Size {
            in_place: true,
            ..self
        }
    }

    const fn train(self) -> Size {
        Size {
            train: true,
            ..self
        }
    }

    const fn quick(self) -> Size {
        Size {
            quick: true,
            ..self
        }
    }
}

const TINY: Size = size("1x64", &[1, 64]).train().quick();
const ROWS: Size = size("65536x32", &[65536, 32]);
const COLS: Size = size("4x262144", &[4, 262144]);
const ONE_M: Size = size("1M", &[1024, 1024]);
const SIXTEEN_M: Size = size("16M", &[4096, 4096]);
const SQUARE: Size = size("4096x4096", &[4096, 4096]);
const ONE_ROW: Size = size("1x4096", &[1, 4096]);
const BATCH: Size = size("512x4096", &[512, 4096]);
const HEADS: Size = size("8x32x128x128", &[8, 32, 128, 128]);
const VOCABULARY: Size = size("1x32000", &[1, 32000]);
const VOCABULARIES: Size = size("512x32000", &[512, 32000]);

/// The op's first calls get every size, their variants a few.
pub fn sizes(case: &OpCase) -> Vec<Size> {
    match (case.op, case.name.as_str()) {
        ("activation", "silu") => vec![TINY, ONE_M.main(), SIXTEEN_M.in_place().quick()],
        ("activation", "relu" | "gelu") => vec![TINY, ONE_M.main(), SIXTEEN_M.in_place()],
        ("activation", "gelu_erf" | "sigmoid" | "tanh")
        | ("binary_act", "add_relu")
        | ("glu", "swiglu")
        | ("dropout", "dropout") => vec![TINY, ONE_M.main(), SIXTEEN_M],
        ("softmax", "softmax_last_dim") => vec![
            TINY,
            VOCABULARY,
            size("32x1024", &[32, 1024]),
            ROWS,
            COLS,
            HEADS.main(),
            VOCABULARIES,
            SQUARE.in_place(),
        ],
        ("softmax", _) => vec![TINY, VOCABULARY, HEADS.main()],
        ("row_norm", "rms_norm" | "layer_norm") => vec![
            TINY,
            ONE_ROW,
            ROWS,
            COLS,
            BATCH.main(),
            size("2048x2048", &[2048, 2048]),
            SQUARE.in_place(),
        ],
        ("row_norm", _) => vec![TINY, ONE_ROW, BATCH.main()],
        ("reduce", _) => vec![TINY, VOCABULARY, ROWS, COLS, BATCH.main(), SQUARE],
        ("affine_act", _) => vec![TINY, ROWS, COLS, ONE_M.main()],
        _ => vec![TINY, ONE_M.main()],
    }
}
