//! What a loss over classes can be told.

use candle_core::Tensor;

/// How the losses of the rows become the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossReduction {
    /// Their sum, divided by the sum of the target's weights over the rows that count: NaN where no row does.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// One loss for each row, 0 for rows that don't count.
    None,
}

/// How [`cross_entropy`](super::cross_entropy) is computed. The default is PyTorch's: the mean, with −100 for targets that
/// don't count.
///
/// ```
/// use candle_fused::ops::{CrossEntropyConfig, LossReduction};
/// let config = CrossEntropyConfig {
///     label_smoothing: 0.1,
///     reduction: LossReduction::Sum,
///     ..Default::default()
/// };
/// assert_eq!(config.ignore_index, Some(-100));
/// ```
#[derive(Clone, Debug)]
pub struct CrossEntropyConfig {
    /// The target of rows that don't count: neither in the loss nor in the mean's divisor, and their gradient is 0.
    pub ignore_index: Option<i64>,
    /// How much of the target's probability, from 0 to 1, is spread evenly over all classes.
    pub label_smoothing: f32,
    /// The factor of `(log Σ exp(logits))²`, which is added to a row's loss, times the weight of its target.
    pub z_loss: f32,
    /// How the losses of the rows become the result.
    pub reduction: LossReduction,
    /// A weight for each class, of the logits' dtype. It gets no gradient, so that one which tracks it is refused.
    pub weight: Option<Tensor>,
}

impl Default for CrossEntropyConfig {
    fn default() -> Self {
        CrossEntropyConfig {
            ignore_index: Some(-100),
            label_smoothing: 0.0,
            z_loss: 0.0,
            reduction: LossReduction::Mean,
            weight: None,
        }
    }
}
