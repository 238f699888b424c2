//! What is made of a weight once and kept for the next call.

use super::winograd::TransformedWeights;
use crate::cpu::element::Element;
use crate::ops::conv2d::shape::Conv2dShape;
use std::sync::{Arc, Mutex, PoisonError};

/// The transformed weights of the last call that needed some.
#[derive(Debug, Default)]
pub struct WeightCache {
    winograd: Mutex<Option<Arc<TransformedWeights>>>,
}

impl WeightCache {
    /// The kept ones if they are of these weights; else new ones, which are kept from now on.
    pub fn winograd<T: Element>(
        &self,
        shape: &Conv2dShape,
        weights: &[T],
    ) -> Arc<TransformedWeights> {
        let lock = || self.winograd.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().clone();
        match kept.filter(|kept| kept.are_of(shape, weights)) {
            Some(kept) => kept,
            None => {
                let made = Arc::new(TransformedWeights::new(shape, weights));
                *lock() = Some(made.clone());
                made
            }
        }
    }
}
