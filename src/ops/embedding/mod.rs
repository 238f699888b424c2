//! Looking up rows of a weight: `y[i] = weight[ids[i]]`.
//!
//! Backward: `dweight[v] = Σ g[i]` over the positions i whose id is v, added up in f32 in the order of the positions and
//! rounded once, so that it has the same bits on every run; rows that no id names are 0. The positions are sorted by their
//! ids, so that equal ids are a segment. On the CPU they are sorted by counting, and the threads share out the segments. On
//! Metal blocks of 1024 are sorted by a threadgroup each, then merged; each row of the weight, which has to be written anyway,
//! finds its segment by a binary search and adds it up.

mod cpu;
#[cfg(feature = "metal")]
mod metal;

use super::targets;
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use candle_core::{Result, Shape, Tensor};

const NAME: &str = "embedding";

/// Row `id` of the weight `[vocabulary, hidden]` for each of the integers `ids` (u8, u32 or i64, of any shape): a tensor of
/// shape `[ids.., hidden]`. Differentiable in the weight.
///
/// An id outside of the vocabulary is an error on the CPU. On Metal, where the ids are not looked at before the kernel runs,
/// it gives a row of NaN, and no gradient.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::embedding;
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
/// let y = embedding(&Tensor::new(&[2u32, 0, 2], &Device::Cpu)?, &weight)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[5., 6.], [1., 2.], [5., 6.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn embedding(ids: &Tensor, weight: &Tensor) -> Result<Tensor> {
    check::same_device(NAME, &["weight", "ids"], &[weight, ids])?;
    op::apply(NAME, Embedding { ids: ids.detach() }, &[weight])
}

/// [`embedding()`] as a CustomOp of the weight.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::Embedding;
/// let weight = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let ids = Tensor::new(&[1u32], &Device::Cpu)?;
/// assert_eq!(weight.apply_op1(Embedding { ids })?.to_vec2::<f32>()?, [[3., 4.]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The rows to look up.
    pub ids: Tensor,
}

impl Embedding {
    /// The looked-up rows.
    fn shape(&self, hidden: usize) -> Shape {
        [self.ids.dims(), &[hidden]].concat().into()
    }
}

/// `[vocabulary, hidden]`
fn check_weight(name: &'static str, dims: &[usize]) -> Result<()> {
    let message = format_args!("got weight of shape {dims:?}, expected [vocabulary, hidden]");
    check::ensure(dims.len() == 2, name, message)
}

fn check_ids(name: &'static str, ids: &Tensor, hidden: usize) -> Result<()> {
    targets::check_dtype(name, "ids", ids.into())?;
    let (rows, count) = ([ids.dims(), &[hidden]].concat(), ids.elem_count());
    let message = format_args!("got {count} ids, expected less than 2^32");
    check::ensure(u32::try_from(count).is_ok(), name, message)?;
    check::fits_in_memory(name, "the looked-up rows", &rows)
}

custom_op!(Embedding: CustomOp1);

impl Op for Embedding {
    signature!(NAME(weight));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check_weight(name, args[0].dims())?;
        check_ids(name, &self.ids, args[0].dims()[1])
    }
    fn held(&self) -> Vec<&Tensor> {
        vec![&self.ids]
    }
    kernels!(self, args => {
        let shape = self.shape(args[0].1.dims()[1]);
        let rows = op::with_storages(NAME, &[&self.ids], |ids| device::forward(args[0], ids[0]))?;
        Ok((rows, shape))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        let op = EmbeddingBwd {
            ids: self.ids.clone(),
            vocabulary: inputs[0].dims()[0],
        };
        op::grads(
            inputs,
            &[&|| op::apply("embedding_bwd", op.clone(), &[grad])],
        )
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(&self.ids, args[0])
    }
}

/// The gradient of the rows → the gradient of the weight.
#[derive(Clone)]
struct EmbeddingBwd {
    ids: Tensor,
    vocabulary: usize,
}

impl Op for EmbeddingBwd {
    signature!("embedding_bwd"(grad_out));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::has_dims(name, args[0].layout)?;
        let hidden = args[0].dims()[args[0].rank() - 1];
        check_ids(name, &self.ids, hidden)?;
        let expected = [self.ids.dims(), &[hidden]].concat();
        check::has_shape(name, "grad_out", args[0].layout, &expected)?;
        check::fits_in_memory(name, "the gradient", &[self.vocabulary, hidden])
    }
    fn held(&self) -> Vec<&Tensor> {
        vec![&self.ids]
    }
    kernels!(self, args => {
        let dims = args[0].1.dims();
        let shape = Shape::from((self.vocabulary, dims[dims.len() - 1]));
        let grad = op::with_storages(NAME, &[&self.ids], |ids| {
            device::backward(args[0], ids[0], self.vocabulary)
        })?;
        Ok((grad, shape))
    });
}

/// The composition of stock ops that [`embedding()`] replaces.
pub fn reference(ids: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let shape = [ids.dims(), &weight.dims()[1..]].concat();
    // Stock's lookup takes the largest number of a dtype for padding.
    let ids = targets::read_tensor(NAME, "ids", ids, weight.dim(0)?, None)?;
    let ids = Tensor::from_vec(
        ids,
        shape[..shape.len() - 1].iter().product::<usize>(),
        weight.device(),
    )?;
    weight.index_select(&ids, 0)?.reshape(shape)
}
