//! The compositions of stock ops that the losses over classes replace. Targets are read on the host. f16 and bf16 are computed
//! in f32 and rounded once.

use super::nll::NAME as NLL;
use super::{token_config, CrossEntropy, CrossEntropyConfig, LossReduction, TOKENS};
use crate::ops::targets::{self, IGNORED};
use crate::ops::widen::widened;
use candle_core::{Result, Tensor, D};

/// The composition of stock ops that [`cross_entropy`](super::cross_entropy()) replaces.
pub fn reference(logits: &Tensor, target: &Tensor, config: &CrossEntropyConfig) -> Result<Tensor> {
    let args = [Some(logits), Some(target), config.weight.as_ref()];
    composed(
        super::NAME,
        &config.into(),
        &args.into_iter().flatten().collect::<Vec<_>>(),
    )
}

/// The composition of stock ops that [`token_log_probs`](super::token_log_probs) replaces.
pub fn reference_token_log_probs(logits: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    composed(TOKENS, &(&token_config()).into(), &[logits, tokens])?.neg()
}

/// The composition of stock ops that [`nll`](super::nll()) replaces.
pub fn reference_nll(
    log_probs: &Tensor,
    target: &Tensor,
    config: &CrossEntropyConfig,
) -> Result<Tensor> {
    let (x, weight) = (log_probs.flatten_to_rows()?, config.weight.as_ref());
    let weight = weight.map(widened).transpose()?;
    let rows = Rows::new(NLL, &x, target, weight.as_ref(), config.ignore_index)?;
    let losses = (rows.at_target(&x)?.neg()? * &rows.weight)?;
    rows.reduce(losses, config.reduction, log_probs)
}

/// On behalf of the function `name`.
pub(crate) fn composed(name: &str, op: &CrossEntropy, args: &[&Tensor]) -> Result<Tensor> {
    let (x, weight) = (args[0].flatten_to_rows()?, args.get(2));
    let weight = weight.map(|w| widened(w)).transpose()?;
    let rows = Rows::new(name, &x, args[1], weight.as_ref(), op.ignore_index)?;
    let log_p = candle_nn::ops::log_softmax(&x, 1)?;
    let eps = f64::from(op.label_smoothing);
    let mut losses = (rows.at_target(&log_p)? * &rows.weight)?.affine(eps - 1.0, 0.0)?;
    if eps > 0.0 {
        let weighted = match &weight {
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
        name: &str,
        x: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
    ) -> Result<Self> {
        let (device, classes) = (x.device(), x.dim(1)?);
        let called = match name {
            TOKENS => "tokens",
            _ => "target",
        };
        let target = targets::read_tensor(name, called, target, classes, ignore_index)?;
        let class = target.iter().map(|&t| if t == IGNORED { 0 } else { t });
        let class = Tensor::from_iter(class, device)?;
        let counts = target.iter().map(|&t| u8::from(t != IGNORED));
        let counts = Tensor::from_iter(counts, device)?;
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
        let result = match reduction {
            LossReduction::None => losses.reshape(&x.dims()[..x.rank() - 1]),
            LossReduction::Sum => losses.sum_all(),
            LossReduction::Mean => losses.sum_all()? / self.weight.sum_all()?,
        };
        result?.to_dtype(x.dtype())
    }
}

trait FlattenToRows {
    /// `[rows, classes]`, 16-bit numbers in f32.
    fn flatten_to_rows(&self) -> Result<Tensor>;
}

impl FlattenToRows for Tensor {
    fn flatten_to_rows(&self) -> Result<Tensor> {
        let classes = self.dim(D::Minus1)?;
        widened(self)?.reshape((self.elem_count() / classes.max(1), classes))
    }
}
