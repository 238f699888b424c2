//! Queries and keys rotated together: both share positions and tables, which are read once for the heads of both.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, table_gradients, Rope, Rotation};
use crate::check;
use crate::op::{self, kernels, Grads, MultiOp, Spec};
use candle_core::{Result, Tensor};

/// [`rope`](super::rope) of q and k by one op. They may have different numbers of heads.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{rope_qk, Rope};
/// let q = Tensor::new(&[[[1f32, 2.]], [[3., 4.]]], &Device::Cpu)?;
/// let k = Tensor::new(&[[[5f32, 6.]]], &Device::Cpu)?;
/// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
/// let (q, k) = rope_qk(&q, &k, &cos, &sin, &Rope::default())?;
/// assert_eq!(q.to_vec3::<f32>()?, [[[-2., 1.]], [[-4., 3.]]]);
/// assert_eq!(k.to_vec3::<f32>()?, [[[-6., 5.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn rope_qk(
    q: &Tensor,
    k: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    rope: &Rope,
) -> Result<(Tensor, Tensor)> {
    let name = "rope_qk";
    rope.check_device(name, q)?;
    let pair = RotatePair(Rotation::new(name, rope));
    let args = [q, k, cos, sin];
    if q.device().is_cpu() && check::has_kernel(q) && !args.iter().any(|x| x.track_op()) {
        // Two calls take less time than one op of four tensors takes to read them.
        check::same_device(name, RotatePair::ARGS, &args)?;
        pair.check(name, &args.map(Spec::from))?;
        let q = op::apply_kernel(name, pair.0.clone(), &[q, cos, sin])?;
        return Ok((q, op::apply_kernel(name, pair.0, &[k, cos, sin])?));
    }
    op::apply_multi_pair(name, pair, &args)
}

/// q and k have the same dims but for the number of heads.
pub(crate) fn check_pair(name: &str, rope: &Rope, q: Spec<'_>, k: Spec<'_>) -> Result<()> {
    let [a, b] = [q, k].map(|x| {
        let mut dims = x.dims().to_vec();
        let heads = match rope.layout {
            super::RopeLayout::HeadsFirst => 3,
            super::RopeLayout::PositionsFirst => 2,
        };
        if dims.len() >= heads {
            let at = dims.len() - heads;
            dims.remove(at);
        }
        dims
    });
    let (got, expected) = (k.dims(), q.dims());
    let message = format_args!(
        "got k of shape {got:?}, expected q's {expected:?} but for the number of heads"
    );
    check::ensure(q.rank() == k.rank() && a == b, name, message)
}

/// `(q, k, cos, sin)` → `(q, k)`
struct RotatePair(Rotation);

impl RotatePair {
    /// Of q, or of k alone.
    fn one(&self, x: &Tensor, tables: [&Tensor; 2]) -> Result<Tensor> {
        op::apply(self.0.name, self.0.clone(), &[x, tables[0], tables[1]])
    }
}

impl MultiOp for RotatePair {
    const ARGS: &'static [&'static str] = &["q", "k", "cos", "sin"];

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        check::same_floats(name, Self::ARGS, args)?;
        let rope = &self.0.rope;
        rope.check_args(name, "q", [args[0], args[2], args[3]])?;
        check_pair(name, rope, args[0], args[1])
    }
    kernels!(many: self, args => self.0.rope.with_tables(self.0.name, [args[2], args[3]], |tables| {
        let [q, k] = device::forward_pair(&self.0, [args[0], args[1]], tables)?;
        Ok(vec![(q, args[0].1.shape().clone()), (k, args[1].1.shape().clone())])
    }));
    fn bwd(&self, inputs: &[Tensor], _: &[Tensor], grads: &[Option<Tensor>]) -> Grads {
        let (name, tables) = (self.0.name, [&inputs[2], &inputs[3]]);
        let back = RotatePair(self.0.back());
        let wanted = |i: usize| grads[i].as_ref().filter(|_| inputs[i].track_op());
        let (dq, dk) = match (wanted(0), wanted(1)) {
            (Some(q), Some(k)) => {
                let args = [q, k, tables[0], tables[1]];
                let (dq, dk) = op::apply_multi_pair(name, back, &args)?;
                (Some(dq), Some(dk))
            }
            (Some(q), None) => (Some(back.one(q, tables)?), None),
            (None, Some(k)) => (None, Some(back.one(k, tables)?)),
            (None, None) => (None, None),
        };
        let forward = |tables: &[Tensor; 2]| {
            let of = |x: &Tensor| self.0.reference(&x.detach(), &tables[0], &tables[1]);
            inputs[..2].iter().map(of).collect()
        };
        let grads = [grads[0].as_ref(), grads[1].as_ref()];
        let [dcos, dsin] = table_gradients(name, tables, &grads, forward)?;
        Ok(vec![dq, dk, dcos, dsin])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Vec<Tensor>> {
        let of = |x: &&Tensor| self.0.reference(x, args[2], args[3]);
        args[..2].iter().map(of).collect()
    }
}
