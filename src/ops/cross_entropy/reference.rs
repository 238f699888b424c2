//! The compositions of stock ops that the losses over classes replace. Targets are read on the host.

use super::{token_config, CrossEntropy, CrossEntropyConfig, LossReduction};
use crate::check;
use candle_core::{DType, Device, Result, Tensor, D};

/// The composition of stock ops that [`cross_entropy`](super::cross_entropy()) replaces.
pub fn reference(logits: &Tensor, target: &Tensor, config: &CrossEntropyConfig) -> Result<Tensor> {
    let args = [Some(logits), Some(target), config.weight.as_ref()];
    composed(
        &config.into(),
        &args.into_iter().flatten().collect::<Vec<_>>(),
    )
}

/// The composition of stock ops that [`token_log_probs`](super::token_log_probs) replaces.
pub fn reference_token_log_probs(logits: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    reference(logits, tokens, &token_config())?.neg()
}

/// The composition of stock ops that [`nll`](super::nll()) replaces.
pub fn reference_nll(
    log_probs: &Tensor,
    target: &Tensor,
    config: &CrossEntropyConfig,
) -> Result<Tensor> {
    let x = log_probs.flatten_to_rows()?;
    let rows = Rows::new(&x, target, config.weight.as_ref(), config.ignore_index)?;
    let losses = (rows.at_target(&x)?.neg()? * &rows.weight)?;
    rows.reduce(losses, config.reduction, log_probs)
}

pub(crate) fn composed(op: &CrossEntropy, args: &[&Tensor]) -> Result<Tensor> {
    let (x, weight) = (args[0].flatten_to_rows()?, args.get(2).copied());
    let rows = Rows::new(&x, args[1], weight, op.ignore_index)?;
    let log_p = candle_nn::ops::log_softmax(&x, 1)?;
    let eps = f64::from(op.label_smoothing);
    let mut losses = (rows.at_target(&log_p)? * &rows.weight)?.affine(eps - 1.0, 0.0)?;
    if eps > 0.0 {
        let weighted = match weight {
            Some(weight) => log_p.broadcast_mul(weight)?,
            None => log_p,
        };
        let classes = x.dim(1)? as f64;
        losses = (losses + weighted.sum(1)?.affine(-eps / classes, 0.0)?)?;
    }
    if op.z_loss > 0.0 {
        let squares = (x.log_sum_exp(1)?.sqr()? * &rows.weight)?;
        losses = (losses + (squares * f64::from(op.z_loss))?)?;
    }
    rows.reduce(losses, op.reduction, args[0])
}

/// The targets of all rows.
struct Rows {
    /// `[rows, 1]` of u32, 0 for rows that don't count.
    class: Tensor,
    /// `[rows]` of u8, whether a row counts.
    counts: Tensor,
    /// `[rows]`, the weight of the target, 0 for rows that don't count.
    weight: Tensor,
}

impl Rows {
    fn new(
        x: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
    ) -> Result<Self> {
        let (device, classes) = (x.device(), x.dim(1)?);
        let target = target.to_device(&Device::Cpu)?.to_dtype(DType::I64)?;
        let target = target.flatten_all()?.to_vec1::<i64>()?;
        let counts = |t: &i64| Some(*t) != ignore_index;
        let unknown = |t: &&i64| counts(t) && !(0..classes as i64).contains(*t);
        if let Some(t) = target.iter().find(unknown) {
            let message = format!("got {t} as a target, expected an index below {classes}");
            return Err(check::error(super::NAME, message));
        }
        let class = target.iter().map(|t| if counts(t) { *t as u32 } else { 0 });
        let class = Tensor::from_iter(class, device)?;
        let counts = Tensor::from_iter(target.iter().map(|t| u8::from(counts(t))), device)?;
        let mask = counts.to_dtype(x.dtype())?;
        let weight = match weight {
            Some(weight) => (weight.index_select(&class, 0)? * mask)?,
            None => mask,
        };
        Ok(Rows {
            class: class.unsqueeze(1)?,
            counts,
            weight,
        })
    }

    /// The element of each row at its target.
    fn at_target(&self, x: &Tensor) -> Result<Tensor> {
        x.contiguous()?.gather(&self.class, 1)?.squeeze(1)
    }

    fn reduce(&self, losses: Tensor, reduction: LossReduction, x: &Tensor) -> Result<Tensor> {
        let losses = self.counts.where_cond(&losses, &losses.zeros_like()?)?;
        match reduction {
            LossReduction::None => losses.reshape(&x.dims()[..x.rank() - 1]),
            LossReduction::Sum => losses.sum_all(),
            LossReduction::Mean => losses.sum_all()? / self.weight.sum_all()?,
        }
    }
}

trait FlattenToRows {
    /// `[rows, classes]`
    fn flatten_to_rows(&self) -> Result<Tensor>;
}

impl FlattenToRows for Tensor {
    fn flatten_to_rows(&self) -> Result<Tensor> {
        let classes = self.dim(D::Minus1)?;
        self.reshape((self.elem_count() / classes.max(1), classes))
    }
}
