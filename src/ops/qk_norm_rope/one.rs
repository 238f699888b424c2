//! q, or k, alone: the pair's kernels, with a partner that has no heads.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, NormRope, NormRopeBwd, QkNormRope, NAME};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use crate::ops::rope::RopeLayout;
use candle_core::{Layout, Result, Tensor};

/// [`qk_norm_rope()`](super::qk_norm_rope()) of q, or of k, as a CustomOp of heads and weight. cos and sin are held, and get no
/// gradient. On Metal a head has up to 512 elements here; the function has no such limit.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{HeadNormRope, QkNormRope, Rope};
/// let q = Tensor::new(&[[[3f32, 4., 0., 0.]]], &Device::Cpu)?;
/// let weight = Tensor::new(&[1f32, 1., 1., 1.], &Device::Cpu)?;
/// let op = HeadNormRope {
///     norm: QkNormRope { eps: 1e-9, weight_offset: 0.0, rope: Rope::default() },
///     // A quarter turn for the first pair, none for the second.
///     cos: Tensor::new(&[[0f32, 1.]], &Device::Cpu)?,
///     sin: Tensor::new(&[[1f32, 0.]], &Device::Cpu)?,
/// };
/// let q = q.apply_op2(&weight, op)?;
/// assert_eq!(q.to_vec3::<f32>()?, [[[0., 1.6, 1.2, 0.]]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct HeadNormRope {
    /// The norm, and the rotation behind it.
    pub norm: QkNormRope,
    /// As for [`rope`](crate::ops::rope()).
    pub cos: Tensor,
    pub sin: Tensor,
}

impl HeadNormRope {
    fn op(&self) -> NormRope {
        NormRope::new(&self.norm)
    }

    /// Which dim counts heads.
    fn heads_dim(&self, dims: &[usize]) -> Result<usize> {
        let from_end = match self.norm.rope.layout {
            RopeLayout::HeadsFirst => 3,
            RopeLayout::PositionsFirst => 2,
        };
        let message = format_args!("got x of shape {dims:?}, expected three or four dims");
        check::ensure(matches!(dims.len(), 3 | 4), NAME, message)?;
        Ok(dims.len() - from_end)
    }

    /// x without its heads.
    fn without_heads(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.narrow(self.heads_dim(x.dims())?, 0, 0)?.detach())
    }
}

custom_op!(HeadNormRope: CustomOp2);

impl Op for HeadNormRope {
    signature!(NAME(x, weight));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (x, weight) = (args[0], args[1]);
        let [cos, sin] = [&self.cos, &self.sin].map(Spec::from);
        check::fits_in_memory(name, "cos", cos.dims())?;
        check::fits_in_memory(name, "sin", sin.dims())?;
        if let Some(ids) = self.norm.rope.ids() {
            check::fits_in_memory(name, "positions", ids.dims())?;
        }
        let args = [x, weight, cos, sin];
        check::same_floats(name, &["x", "weight", "cos", "sin"], &args)?;
        self.op().check_heads(name, ["x", "weight"], args)
    }
    fn held(&self) -> Vec<&Tensor> {
        let ids = self.norm.rope.ids();
        [&self.cos, &self.sin].into_iter().chain(ids).collect()
    }
    kernels!(self, args => {
        let x = args[0];
        let mut dims = x.1.dims().to_vec();
        dims[self.heads_dim(x.1.dims())?] = 0;
        let none = Layout::contiguous(dims);
        let [y, _] = op::with_storages(NAME, &[&self.cos, &self.sin], |tables| {
            self.norm.rope.with_tables(NAME, [tables[0], tables[1]], |tables| {
                let heads_and_weights = [x, (x.0, &none), args[1], args[1]];
                device::forward(&self.op(), &heads_and_weights, tables)
            })
        })?;
        Ok((y, x.1.shape().clone()))
    });
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, grad: &Tensor) -> Grads {
        let (x, weight) = (inputs[0], inputs[1]);
        let wanted = [x, weight].map(|t| t.track_op());
        let backward = NormRopeBwd {
            weights: wanted[1],
            forward: self.op(),
        };
        let (no_x, no_grad) = (self.without_heads(x)?, self.without_heads(grad)?);
        let frozen = weight.detach();
        let args = [
            x, &no_x, weight, &frozen, &self.cos, &self.sin, grad, &no_grad,
        ];
        let mut outputs = op::apply_multi(NAME, backward, &args)?.into_iter();
        let dx = outputs.next().filter(|_| wanted[0]);
        // dk is empty.
        let dweight = outputs.nth(1).filter(|_| wanted[1]);
        Ok(vec![dx, dweight])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        self.op().compose(args[0], args[1], &self.cos, &self.sin)
    }
}
