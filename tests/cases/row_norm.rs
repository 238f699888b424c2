use super::form::Form;
use super::refused::{Refused, Wrong};
use super::size::{size, variant, BATCH, COLS, ONE_ROW, ROWS, SQUARE, TINY};
use super::{call, zeros, Arg, Call, Fill, Kind, Measured, OpCase, Reject, Run};
use candle_core::{Result, Tensor};
use candle_fused::ops::{
    add_layer_norm, add_rms_norm, l2_norm, l2_norm_inplace, layer_norm, layer_norm_inplace,
    rms_norm, rms_norm_inplace, L2Norm, LayerNorm, RmsNorm,
};
use candle_fused::reference::row_norm::{reference_l2, reference_layer, reference_rms};

const OP: &str = "row_norm";
const EPS: f32 = 1e-5;
const X: Arg = Arg::matrix("x", Fill::Signal);
const RESIDUAL: Arg = Arg::matrix("residual", Fill::Addend);
const WEIGHT: Arg = Arg::vector("weight", Fill::Weight);
const BIAS: Arg = Arg::vector("bias", Fill::Addend);

const MAIN: [Measured; 7] = [
    TINY,
    ONE_ROW,
    ROWS,
    COLS,
    BATCH,
    size("2048x2048", &[2048, 2048]),
    SQUARE,
];
const FEW: [Measured; 3] = [TINY.run(&[Kind::Forward]), ONE_ROW, BATCH];

pub fn cases() -> Vec<OpCase> {
    let plain = [rms(), layer()].into_iter().flatten();
    let residual = with_residual().into_iter();
    // The two gradients of the sum are rounded before they are added.
    let residual = residual
        .map(OpCase::reduction)
        .map(OpCase::stepwise_gradients);
    plain.map(OpCase::reduction).chain(residual).collect()
}

fn rms() -> Vec<OpCase> {
    vec![
        OpCase::new(
            OP,
            "rms_norm",
            &[X, WEIGHT],
            |t| rms_norm(&t[0], Some(&t[1]), EPS),
            |t| reference_rms(&t[0], Some(&t[1]), EPS),
        )
        .stock(|t| candle_nn::ops::rms_norm(&t[0], &t[1], EPS))
        .sizes(MAIN)
        .in_place(|t| rms_norm_inplace(&t[0], Some(&t[1]), EPS)),
        OpCase::new(
            OP,
            "rms_norm_plain",
            &[X],
            |t| rms_norm(&t[0], None, EPS),
            |t| reference_rms(&t[0], None, EPS),
        )
        .stock_fast(|run| {
            with_affine(run, |ones, _| {
                call(move |t| candle_nn::ops::rms_norm(&t[0], &ones, EPS))
            })
        })
        .sizes(variant(BATCH))
        .in_place(|t| rms_norm_inplace(&t[0], None, EPS)),
        OpCase::new(
            OP,
            "l2_norm",
            &[X],
            |t| l2_norm(&t[0], EPS),
            |t| reference_l2(&t[0], EPS),
        )
        .sizes(FEW)
        .in_place(|t| l2_norm_inplace(&t[0], EPS)),
    ]
}

fn layer() -> Vec<OpCase> {
    vec![
        OpCase::new(
            OP,
            "layer_norm",
            &[X, WEIGHT, BIAS],
            |t| layer_norm(&t[0], Some(&t[1]), Some(&t[2]), EPS),
            |t| reference_layer(&t[0], [Some(&t[1]), Some(&t[2])], EPS),
        )
        .stock(|t| candle_nn::ops::layer_norm(&t[0], &t[1], &t[2], EPS))
        .sizes(MAIN)
        .in_place(|t| layer_norm_inplace(&t[0], Some(&t[1]), Some(&t[2]), EPS)),
        OpCase::new(
            OP,
            "layer_norm_no_bias",
            &[X, WEIGHT],
            |t| layer_norm(&t[0], Some(&t[1]), None, EPS),
            |t| reference_layer(&t[0], [Some(&t[1]), None], EPS),
        )
        .stock_fast(|run| {
            with_affine(run, |_, zeros| {
                call(move |t| candle_nn::ops::layer_norm(&t[0], &t[1], &zeros, EPS))
            })
        })
        .sizes(variant(BATCH))
        .in_place(|t| layer_norm_inplace(&t[0], Some(&t[1]), None, EPS)),
        OpCase::new(
            OP,
            "layer_norm_no_weight",
            &[X, BIAS],
            |t| layer_norm(&t[0], None, Some(&t[1]), EPS),
            |t| reference_layer(&t[0], [None, Some(&t[1])], EPS),
        )
        .stock_fast(|run| {
            with_affine(run, |ones, _| {
                call(move |t| candle_nn::ops::layer_norm(&t[0], &ones, &t[1], EPS))
            })
        })
        .sizes(variant(BATCH))
        .in_place(|t| layer_norm_inplace(&t[0], None, Some(&t[1]), EPS)),
        OpCase::new(
            OP,
            "layer_norm_plain",
            &[X],
            |t| layer_norm(&t[0], None, None, EPS),
            |t| reference_layer(&t[0], [None, None], EPS),
        )
        .stock_fast(|run| {
            with_affine(run, |ones, zeros| {
                call(move |t| candle_nn::ops::layer_norm(&t[0], &ones, &zeros, EPS))
            })
        })
        .sizes(variant(BATCH))
        .in_place(|t| layer_norm_inplace(&t[0], None, None, EPS)),
    ]
}

fn with_residual() -> Vec<OpCase> {
    vec![
        OpCase::new(
            OP,
            "add_rms_norm",
            &[X, RESIDUAL, WEIGHT],
            |t| add_rms_norm(&t[0], &t[1], Some(&t[2]), EPS),
            |t| {
                let sum = (&t[0] + &t[1])?;
                let normed = reference_rms(&sum, Some(&t[2]), EPS)?;
                Ok((sum, normed))
            },
        )
        .stock(|t| {
            let sum = (&t[0] + &t[1])?;
            let normed = candle_nn::ops::rms_norm(&sum, &t[2], EPS)?;
            Ok((sum, normed))
        })
        .sizes(FEW),
        OpCase::new(
            OP,
            "add_layer_norm",
            &[X, RESIDUAL, WEIGHT, BIAS],
            |t| add_layer_norm(&t[0], &t[1], Some(&t[2]), Some(&t[3]), EPS),
            |t| {
                let sum = (&t[0] + &t[1])?;
                let normed = reference_layer(&sum, [Some(&t[2]), Some(&t[3])], EPS)?;
                Ok((sum, normed))
            },
        )
        .stock(|t| {
            let sum = (&t[0] + &t[1])?;
            let normed = candle_nn::ops::layer_norm(&sum, &t[2], &t[3], EPS)?;
            Ok((sum, normed))
        })
        .sizes(FEW),
        OpCase::new(
            OP,
            "add_rms_norm_plain",
            &[X, RESIDUAL],
            |t| add_rms_norm(&t[0], &t[1], None, EPS),
            |t| {
                let sum = (&t[0] + &t[1])?;
                let normed = reference_rms(&sum, None, EPS)?;
                Ok((sum, normed))
            },
        )
        .sizes(variant(BATCH)),
        OpCase::new(
            OP,
            "add_layer_norm_no_bias",
            &[X, RESIDUAL, WEIGHT],
            |t| add_layer_norm(&t[0], &t[1], Some(&t[2]), None, EPS),
            |t| {
                let sum = (&t[0] + &t[1])?;
                let normed = reference_layer(&sum, [Some(&t[2]), None], EPS)?;
                Ok((sum, normed))
            },
        )
        .sizes(variant(BATCH)),
        OpCase::new(
            OP,
            "add_layer_norm_plain",
            &[X, RESIDUAL],
            |t| add_layer_norm(&t[0], &t[1], None, None, EPS),
            |t| {
                let sum = (&t[0] + &t[1])?;
                let normed = reference_layer(&sum, [None, None], EPS)?;
                Ok((sum, normed))
            },
        )
        .stock_fast(|run| {
            with_affine(run, |ones, zeros| {
                call(move |t| {
                    let sum = (&t[0] + &t[1])?;
                    let normed = candle_nn::ops::layer_norm(&sum, &ones, &zeros, EPS)?;
                    Ok((sum, normed))
                })
            })
        })
        .sizes(variant(BATCH)),
    ]
}

/// Stock's fused norm, which can't train, with ones and zeros for the weight and bias that a case doesn't have.
fn with_affine(run: &Run, make: impl Fn(Tensor, Tensor) -> Call) -> Result<Option<Call>> {
    if run.kind == Kind::Train {
        return Ok(None);
    }
    let ones = Tensor::ones(run.size.cols(), run.dtype, run.device)?;
    Ok(Some(make(ones.clone(), ones.zeros_like()?)))
}

/// The CustomOps, with fields that suit and that don't.
pub fn custom_ops() -> Result<Vec<Form>> {
    let eps = 1e-5;
    Ok(forms! {
        L2Norm { eps } => CustomOp1 InplaceOp1;
        L2Norm { eps: f32::NAN } => CustomOp1 InplaceOp1;
        LayerNorm { eps } => CustomOp1 CustomOp2 CustomOp3 InplaceOp1 InplaceOp2 InplaceOp3;
        RmsNorm { eps } => CustomOp1 CustomOp2 InplaceOp1 InplaceOp2;
        RmsNorm { eps: 0.0 } => CustomOp1 CustomOp2 InplaceOp1 InplaceOp2;
    })
}

pub fn rejects() -> Vec<Reject> {
    vec![
        Reject::new(
            "rms_norm",
            "a weight of another length",
            &["weight", "512", "1024"],
            |d| rms_norm(&zeros((2, 1024), d)?, Some(&zeros(512, d)?), EPS).map(drop),
        ),
        Reject::new(
            "layer_norm",
            "a bias of another length",
            &["bias", "3", "4"],
            |d| layer_norm(&zeros((2, 4), d)?, None, Some(&zeros(3, d)?), EPS).map(drop),
        ),
        Reject::new(
            "layer_norm",
            "a weight of rank 2",
            &["weight", "[2, 4]", "4"],
            |d| layer_norm_inplace(&zeros((2, 4), d)?, Some(&zeros((2, 4), d)?), None, EPS),
        ),
        Reject::new("rms_norm", "eps = 0", &["eps", "0", "positive"], |d| {
            rms_norm(&zeros((2, 4), d)?, None, 0.0).map(drop)
        }),
        Reject::new(
            "layer_norm",
            "a negative eps",
            &["eps", "-0.00", "positive"],
            |d| layer_norm(&zeros((2, 4), d)?, None, None, -1e-5).map(drop),
        ),
        Reject::new("l2_norm", "a NaN eps", &["eps", "NaN", "positive"], |d| {
            l2_norm(&zeros((2, 4), d)?, f32::NAN).map(drop)
        }),
        Reject::new(
            "rms_norm",
            "eps = 0 in place",
            &["eps", "0", "positive"],
            |d| rms_norm_inplace(&zeros((2, 4), d)?, None, 0.0),
        ),
        Reject::new("rms_norm", "a scalar", &["rank 0", "rank 1"], |d| {
            rms_norm(&zeros((), d)?, None, EPS).map(drop)
        }),
        Reject::new("l2_norm", "a scalar in place", &["rank 0", "rank 1"], |d| {
            l2_norm_inplace(&zeros((), d)?, EPS)
        }),
        Reject::new(
            "add_rms_norm",
            "a residual of another shape",
            &["residual", "[4]"],
            |d| add_rms_norm(&zeros((2, 4), d)?, &zeros(4, d)?, None, EPS).map(drop),
        ),
        Reject::new(
            "add_layer_norm",
            "eps = 0",
            &["eps", "0", "positive"],
            |d| add_layer_norm(&zeros(4, d)?, &zeros(4, d)?, None, None, 0.0).map(drop),
        ),
    ]
}

#[rustfmt::skip]
pub fn refused(w: &Wrong) -> Vec<Refused> {
    refused! {
        add_layer_norm(&w.x, &w.three, None, None, 1e-5);
        add_layer_norm(&w.x, &w.x, Some(&w.three), None, 1e-5);
        add_rms_norm(&w.x, &w.three, None, 1e-5);
        add_rms_norm(&w.x, &w.x, Some(&w.three), 1e-5);
        l2_norm(&w.x, 0.0);
        l2_norm(&w.scalar, 1e-5);
        l2_norm_inplace(&w.x, 0.0);
        layer_norm(&w.x, Some(&w.three), None, 1e-5);
        layer_norm(&w.x, None, None, 0.0);
        layer_norm_inplace(&w.x, None, Some(&w.three), 1e-5);
        rms_norm(&w.x, Some(&w.three), 1e-5);
        rms_norm(&w.x, None, 0.0);
        rms_norm(&w.integers, None, 1e-5);
        rms_norm_inplace(&w.x, Some(&w.three), 1e-5);
    }
}
