//! An embedding with adapters.

use super::adapters::{adapted_layer, Adapters, Run};
use super::frozen_base::{FrozenBase, Kind};
use super::linear::magnified;
use super::LoraConfig;
use crate::nn::embedding::Embedding;
use crate::ops::lora::up_add;
use candle_core::{DType, ModuleT, Result, Tensor};
use candle_nn::VarBuilder;

/// A frozen embedding with a low-rank adapter: `y = W[ids] + scale · Aᵀ[ids]·Bᵀ`, with A `[rank, entries]` and B
/// `[width, rank]`, as in PEFT. A starts at zero and B at random.
///
/// With DoRA there is a magnitude for each column of the table.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::lora::{LoraConfig, LoraEmbedding};
/// use candle_fused::nn::{Embedding, VarBuilder, VarMap};
///
/// let base = Embedding::new(Tensor::randn(0f32, 1., (10, 4), &Device::Cpu)?, 4);
/// let vars = VarMap::new();
/// let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
/// let layer = LoraEmbedding::new(base, &LoraConfig { rank: 2, ..Default::default() }, vb)?;
/// let ids = Tensor::new(&[[1u32, 3], [9, 1]], &Device::Cpu)?;
/// assert_eq!(layer.forward(&ids)?.dims(), [2, 2, 4]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LoraEmbedding {
    adapters: Adapters,
}

impl LoraEmbedding {
    /// Without an adapter: a frozen embedding. `name` is its path in a model.
    pub fn plain(base: impl Into<Embedding>, name: impl Into<String>) -> Result<Self> {
        let table = base.into().embeddings().clone();
        Ok(Self {
            adapters: Adapters::new(FrozenBase::new(name.into(), Kind::Embedding, table)?),
        })
    }

    /// The width of a row.
    pub fn hidden_size(&self) -> usize {
        self.adapters.base().dims.0
    }

    /// A stock layer with the active adapter merged into its table.
    pub fn to_stock(&self) -> Result<candle_nn::Embedding> {
        Ok(candle_nn::Embedding::new(
            self.adapters.merged_weight()?,
            self.hidden_size(),
        ))
    }

    /// The rows of the table for `ids`, `[.., width]`. There is no dropout: training and evaluation are the same.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        if !matches!(ids.dtype(), DType::U8 | DType::U32 | DType::I64) {
            let message = format!(
                "got ids of dtype {:?}, expected u8, u32 or i64",
                ids.dtype()
            );
            return Err(self.adapters.base().error(message));
        }
        let mut dims = ids.dims().to_vec();
        dims.push(self.hidden_size());
        let ids = ids.flatten_all()?.contiguous()?;
        self.rows(&ids)?.reshape(dims)
    }

    /// `[ids, width]`
    fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        let table = self.adapters.base().dense()?;
        let adapter = match self.adapters.run() {
            Run::Base => return table.index_select(ids, 0),
            Run::Merged(table) => return table.index_select(ids, 0),
            Run::Adapter(adapter) => adapter,
        };
        let rows = table.index_select(ids, 0)?;
        // Converted after the lookup: the rows are fewer than the table's.
        let low = adapter
            .a()
            .index_select(ids, 1)?
            .t()?
            .to_dtype(rows.dtype())?;
        let b = adapter.b().to_dtype(rows.dtype())?;
        let rows = up_add(&rows, &low, &b, adapter.config().scale() as f32)?;
        match self.adapters.magnitude_factor(&adapter)? {
            None => Ok(rows),
            Some(factor) => magnified(&rows, &factor, None),
        }
    }
}

adapted_layer!(LoraEmbedding, of Embedding);

impl ModuleT for LoraEmbedding {
    fn forward_t(&self, ids: &Tensor, _train: bool) -> Result<Tensor> {
        self.forward(ids)
    }
}
