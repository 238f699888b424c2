//! [`mod@candle_nn::embedding`] with a parallel backward.

use crate::ops;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

/// Looks up rows of a weight by integer ids of any shape. An id outside of the vocabulary is an error on the CPU and a row of NaN
/// on Metal, the largest number of the ids' dtype too, for which stock gives a row of zeros.
#[derive(Clone, Debug)]
pub struct Embedding {
    embeddings: Tensor,
    hidden_size: usize,
}

impl Embedding {
    /// With a weight `[vocabulary, hidden_size]`.
    pub fn new(embeddings: Tensor, hidden_size: usize) -> Self {
        Self {
            embeddings,
            hidden_size,
        }
    }

    /// The weight.
    pub fn embeddings(&self) -> &Tensor {
        &self.embeddings
    }

    /// The length of a row.
    pub fn hidden_size(&self) -> usize {
        self.hidden_size
    }
}

impl From<candle_nn::Embedding> for Embedding {
    fn from(stock: candle_nn::Embedding) -> Self {
        Self::new(stock.embeddings().clone(), stock.hidden_size())
    }
}

impl Module for Embedding {
    fn forward(&self, indexes: &Tensor) -> Result<Tensor> {
        let rows = ops::embedding(indexes, &self.embeddings)?;
        let shape = [indexes.dims(), &[self.hidden_size]].concat();
        match rows.dims() == shape {
            true => Ok(rows),
            false => rows.reshape(shape),
        }
    }
}

/// An embedding whose weight is `weight` of the `VarBuilder`.
pub fn embedding(in_size: usize, out_size: usize, vb: VarBuilder) -> Result<Embedding> {
    let init = Init::Randn {
        mean: 0.,
        stdev: 1.,
    };
    let embeddings = vb.get_with_hints((in_size, out_size), "weight", init)?;
    Ok(Embedding::new(embeddings, out_size))
}
