//! The sizes that each op is measured at: tiny, many short rows, few long rows, large, and the shapes
//! of common models.

use crate::cases::OpCase;
use crate::plan::Kind::{self, Forward, InPlace, Train};
use candle_core::DType;

#[derive(Clone, Copy)]
pub struct Size {
    pub label: &'static str,
    /// The dims of a rows × cols argument, whose last is cols.
    pub dims: &'static [usize],
    /// How it is run, where the op has these forms.
    pub kinds: &'static [Kind],
    pub dtypes: &'static [DType],
    /// Whether it is part of the quick run too.
    pub quick: bool,
}

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

const ALL: &[Kind] = &[Forward, InPlace, Train];

/// Forward only, and not in the quick run.
const fn size(label: &'static str, dims: &'static [usize]) -> Size {
    Size {
        label,
        dims,
        kinds: &[Forward],
        dtypes: &DTYPES,
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

    const fn run(self, kinds: &'static [Kind]) -> Size {
        Size { kinds, ..self }
    }

    const fn of(self, dtypes: &'static [DType]) -> Size {
        Size { dtypes, ..self }
    }

    /// For the full run only.
    const fn slow(self) -> Size {
        Size {
            quick: false,
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

const TINY: Size = size("1x64", &[1, 64]).run(&[Forward, Train]).quick();
const ROWS: Size = size("65536x32", &[65536, 32]);
const COLS: Size = size("4x262144", &[4, 262144]);
const ONE_M: Size = size("1M", &[1024, 1024]).run(ALL).quick();
const SIXTEEN_M: Size = size("16M", &[4096, 4096]);
const ONE_ROW: Size = size("1x4096", &[1, 4096]);
const BATCH: Size = size("512x4096", &[512, 4096]).run(ALL).quick();
const SQUARE: Size = size("4096x4096", &[4096, 4096]);
const HEADS: Size = size("8x32x128x128", &[8, 32, 128, 128]).run(ALL).quick();
const LOGITS: Size = size("1x32000", &[1, 32000]);

/// What a variant of an op's main call is measured at.
fn variant(size: Size) -> Vec<Size> {
    vec![
        TINY.run(&[Forward]),
        size.run(&[Forward]).of(&[DType::F32]),
        size.run(&[Forward]).of(&[DType::F16, DType::BF16]).slow(),
        size.run(&[Train]).of(&[DType::F32]).slow(),
    ]
}

/// The only shape of a case that has one, whatever the dims.
fn own(label: &'static str) -> Size {
    let own = size(label, &[1, 1]);
    match label {
        "64c3x3_56" => own.run(&[Forward, Train]).quick(),
        // Stock takes seconds for the other dtypes.
        "512x4096x4096" => own.of(&[DType::F32]),
        "tiny" | "stem7x7s2" | "256c3x3_14" | "dw128_3x3_56" | "1x1_256to64_56" | "1x4096x4096" => {
            own.quick()
        }
        _ => own,
    }
}

/// The main calls of an op get every size, the others a few.
pub fn sizes(case: &OpCase) -> Vec<Size> {
    if let Some(label) = case.at {
        return vec![own(label)];
    }
    match (case.op, case.name.as_str()) {
        ("activation", "silu") => vec![TINY, ONE_M, SIXTEEN_M, SIXTEEN_M.run(&[InPlace]).quick()],
        ("activation", "relu") => vec![TINY, ONE_M, SIXTEEN_M.run(&[Forward, InPlace])],
        ("activation", "gelu" | "gelu_erf" | "sigmoid" | "tanh")
        | ("binary_act", "add_relu")
        | ("dropout", "dropout")
        | ("glu", "swiglu") => vec![TINY, ONE_M, SIXTEEN_M],
        ("affine_act", "affine_silu") | ("binary_act", "bias_gelu") => {
            vec![TINY, ROWS, COLS, ONE_M]
        }
        // Of 4 channels and 5 rows.
        ("conv2d", _) => vec![
            size("1x4x5x64", &[1, 64]).run(&[Forward, Train]).quick(),
            size("64x4x5x256", &[64, 256]).run(&[Forward, Train]),
        ],
        // Of 4 channels, and in the plain form of two spatial dims.
        ("group_norm", "group_norm_plain") => vec![size("64x4x2x2048", &[64, 2048])],
        ("group_norm", "group_norm_by_channel") => vec![size("64x4x4096", &[64, 4096]).run(ALL)],
        ("group_norm", _) => vec![
            size("1x4x64", &[1, 64]).run(&[Forward, Train]).quick(),
            size("2048x4x128", &[2048, 128]),
            size("1x4x262144", &[1, 262144]),
            size("64x4x4096", &[64, 4096]).run(ALL).quick(),
            size("64x4x16384", &[64, 16384]),
        ],
        ("lora", "lora_square_8" | "lora_square_64") => vec![
            TINY,
            ONE_ROW.run(&[Forward, Train]).quick(),
            size("8x4096", &[8, 4096]).run(&[Forward, Train]),
            size("16x4096", &[16, 4096]),
            size("32x4096", &[32, 4096]),
            size("64x1024", &[64, 1024]).run(&[Forward, Train]),
            size("512x4096", &[512, 4096])
                .run(&[Forward, Train])
                .of(&[DType::F32])
                .quick(),
            size("512x4096", &[512, 4096]).of(&[DType::F16, DType::BF16]),
        ],
        ("linear" | "lora", _) => vec![
            TINY,
            ONE_ROW,
            BATCH.run(&[Forward, Train]).of(&[DType::F32]).slow(),
        ],
        // Of y as wide as x.
        ("matmul_act", "square_gelu" | "square_relu") => vec![
            size("1x1", &[1, 1]),
            TINY.slow(),
            size("64x64", &[64, 64]).run(&[Forward, Train]).quick(),
            size("256x256", &[256, 256]).of(&[DType::F32]),
            ONE_M.run(&[Forward, Train]).of(&[DType::F32]),
            ONE_M.run(&[Forward]).of(&[DType::F16, DType::BF16]).slow(),
            ONE_ROW,
            size("4x16x1024", &[4, 16, 1024]).of(&[DType::F32]),
        ],
        // So many products of a matrix, or of a row, of so many columns.
        ("matmul_act", "heads_gelu") => vec![
            size("8x32", &[256, 64])
                .run(&[Forward, Train])
                .of(&[DType::F32])
                .quick(),
            size("8x32", &[256, 64]).of(&[DType::F16]),
            size("2", &[2, 512]).of(&[DType::F32]),
        ],
        ("matmul_act", "vectors_gelu") => vec![
            size("3x5", &[3, 5]).of(&[DType::F32]),
            size("8x32", &[256, 64]).of(&[DType::F32, DType::F16]),
        ],
        ("matmul_act", "matmul_gelu") => vec![size("3x5", &[3, 5]), TINY],
        ("matmul_act", _) => vec![TINY.run(&[Forward]), ONE_ROW],
        ("reduce", "sum_last_dim" | "max_last_dim" | "sum_all") => {
            vec![TINY, LOGITS, ROWS, COLS, BATCH, SQUARE]
        }
        ("row_norm", "rms_norm" | "layer_norm") => vec![
            TINY,
            ONE_ROW,
            ROWS,
            COLS,
            BATCH,
            size("2048x2048", &[2048, 2048]),
            SQUARE,
        ],
        ("row_norm", "l2_norm" | "add_rms_norm" | "add_layer_norm") => {
            vec![TINY.run(&[Forward]), ONE_ROW, BATCH]
        }
        ("softmax", "softmax_last_dim") => vec![
            TINY,
            LOGITS,
            size("32x1024", &[32, 1024]),
            ROWS,
            COLS,
            HEADS,
            size("512x32000", &[512, 32000]),
            SQUARE.run(&[Forward, InPlace]),
        ],
        ("softmax", "softmax_middle_dim" | "log_softmax_middle_dim") => {
            vec![size("2x128x4096", &[4096, 128]).run(&[Forward, Train])]
        }
        // It masks a whole row, which is NaN in stock Candle.
        ("softmax", "masked_softmax_by_matrix") => vec![],
        ("softmax", "log_softmax") => [variant(HEADS), vec![LOGITS]].concat(),
        ("softmax", _) => variant(HEADS),
        ("reduce" | "row_norm", _) => variant(BATCH),
        _ => variant(ONE_M),
    }
}
