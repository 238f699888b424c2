//! What a user of stock Candle would write, where that is faster than what the op's declaration says
//! (whose reference has to be right in every corner).

use crate::cases::Call;
use crate::plan::{Kind, Row};
use candle_core::{Device, Result, Tensor, D};
use candle_nn::ops;

/// As in the declarations; where these differ, the results do and the row fails.
const EPS: f32 = 1e-5;
const SCALE: f64 = 0.125;

/// Stock Candle's side of the row.
pub fn call<'a>(row: &Row<'a>, device: &Device) -> Result<Stock<'a>> {
    let case = row.case;
    if let Some(own) = own(row, device)? {
        return Ok(Stock::Own(own));
    }
    Ok(Stock::Declared(match &case.stock {
        // Stock's fused ops lose the gradient; its dropout is composed, and its convolutions have one at these shapes.
        Some(stock) if row.kind != Kind::Train || case.op == "dropout" || case.at.is_some() => {
            stock
        }
        _ => &case.reference,
    }))
}

pub enum Stock<'a> {
    Declared(&'a Call),
    Own(Call),
}

impl std::ops::Deref for Stock<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        match self {
            Stock::Declared(call) => call,
            Stock::Own(call) => call,
        }
    }
}

fn own(row: &Row, device: &Device) -> Result<Option<Call>> {
    match (row.case.op, row.kind) {
        ("activation", _) => Ok(softplus(row)),
        ("row_norm", Kind::Forward | Kind::InPlace) => norm(row, device),
        ("softmax", _) => masked(row, device),
        _ => Ok(None),
    }
}

/// Overflows where x is large, but takes half the ops.
fn softplus(row: &Row) -> Option<Call> {
    (row.case.name == "softplus").then(|| one(|t| (t[0].exp()? + 1.0)?.log()))
}

/// The fused norms, with ones and zeros for the weight and bias that the case doesn't have.
fn norm(row: &Row, device: &Device) -> Result<Option<Call>> {
    let cols = row.size.cols();
    let ones = Tensor::ones(cols, row.dtype, device)?;
    let zeros = Tensor::zeros(cols, row.dtype, device)?;
    Ok(Some(match row.case.name.as_str() {
        "rms_norm_plain" => one(move |t| ops::rms_norm(&t[0], &ones, EPS)),
        "layer_norm_plain" => one(move |t| ops::layer_norm(&t[0], &ones, &zeros, EPS)),
        "layer_norm_no_bias" => one(move |t| ops::layer_norm(&t[0], &t[1], &zeros, EPS)),
        "layer_norm_no_weight" => one(move |t| ops::layer_norm(&t[0], &ones, &t[1], EPS)),
        "add_layer_norm_plain" => Box::new(move |t| {
            let sum = (&t[0] + &t[1])?;
            let normed = ops::layer_norm(&sum, &ones, &zeros, EPS)?;
            Ok(vec![sum, normed])
        }),
        _ => return Ok(None),
    }))
}

/// Softmax of the masked scores: fused, or composed in order to train. Fully masked rows give NaN.
fn masked(row: &Row, device: &Device) -> Result<Option<Call>> {
    let softmax = match row.kind {
        Kind::Train => |scores: Tensor| ops::softmax(&scores, D::Minus1),
        _ => |scores: Tensor| ops::softmax_last_dim(&scores),
    };
    Ok(Some(match row.case.name.as_str() {
        "scaled_softmax" => one(move |t| softmax((&t[0] * SCALE)?)),
        "masked_softmax" => one(move |t| softmax((&t[0] * SCALE)?.broadcast_add(&t[1])?)),
        "causal_softmax" => {
            let mask = causal_mask(row, device)?;
            one(move |t| softmax((&t[0] * SCALE)?.broadcast_add(&mask)?))
        }
        _ => return Ok(None),
    }))
}

/// `[queries, keys]`, made once as models do; the last query sees every key.
fn causal_mask(row: &Row, device: &Device) -> Result<Tensor> {
    let dims = row.size.dims;
    let (queries, keys) = (dims[dims.len() - 2], dims[dims.len() - 1]);
    let mask: Vec<f32> = (0..queries * keys)
        .map(|i| match i % keys + queries <= i / keys + keys {
            true => 0.0,
            false => f32::NEG_INFINITY,
        })
        .collect();
    Tensor::from_vec(mask, (queries, keys), device)?.to_dtype(row.dtype)
}

fn one(call: impl Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static) -> Call {
    Box::new(move |t| Ok(vec![call(t)?]))
}
