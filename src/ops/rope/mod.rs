//! Rotary position embedding: each pair (a, b) of a head's elements is rotated by an angle that its position decides,
//!
//! ```text
//! a' = a·cos − b·sin
//! b' = b·cos + a·sin
//! ```
//!
//! with the cos and sin of a table. Pairs are the two halves of the first R elements, or neighbours; the elements behind R
//! pass through. Backward: the gradient of x is rotated back, by −sin; the gradients of tables that track them are
//! `dcos = Σ ga·a + gb·b` and `dsin = Σ gb·a − ga·b` over the heads (and the batch) that use them. f16 and bf16 are computed
//! in f32 and rounded once.

mod config;
pub(crate) mod cpu;
pub(crate) mod geometry;
#[cfg(feature = "metal")]
pub(crate) mod metal;
mod qk;
mod reference;

pub(crate) use config::TableArgs;
pub use config::{Rope, RopeLayout, RopePairs, RopePositions, RopeSections};
pub(crate) use qk::check_pair;
pub use qk::rope_qk;
use reference::composed;
pub use reference::reference;

use crate::op::{self, custom_op, kernels, signature, Grads, InplaceOp, Op, Spec};
use candle_core::{Error, Result, Tensor, Var};

/// Rotates the heads of x by their positions.
///
/// x is `[batch, heads, positions, dim]` or, by [`Rope::layout`], `[batch, positions, heads, dim]`, with or without the
/// batch; views are read by their strides. cos and sin are `[rows, R/2]`, or `[batch, rows, R/2]` for tables that differ in
/// the batch, where R ≤ dim elements of a head are rotated. Row i belongs to position i, unless [`Rope::positions`] says
/// otherwise.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{rope, Rope, RopePairs, RopePositions};
/// let x = Tensor::new(&[[[1f32, 2., 3., 4.]]], &Device::Cpu)?;
/// let cos = Tensor::new(&[[1f32, 1.], [0., 0.]], &Device::Cpu)?;
/// let sin = Tensor::new(&[[0f32, 0.], [1., 1.]], &Device::Cpu)?;
/// // One token, at position 1.
/// let second = Rope {
///     positions: RopePositions::From(1),
///     ..Rope::default()
/// };
/// let y = rope(&x, &cos, &sin, &second)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[-3., -4., 1., 2.]]]);
/// let interleaved = Rope {
///     pairs: RopePairs::Interleaved,
///     ..second
/// };
/// let y = rope(&x, &cos, &sin, &interleaved)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[-2., 1., -4., 3.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor, rope: &Rope) -> Result<Tensor> {
    rope.check_device("rope", x)?;
    op::apply("rope", Rotation::new("rope", rope), &[x, cos, sin])
}

/// [`rope`] in x's own memory, for inference. A view is overwritten where it lies.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{rope_inplace, Rope};
/// let x = Tensor::new(&[[[1f32, 2.]]], &Device::Cpu)?;
/// let (cos, sin) = (Tensor::new(&[[0f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
/// rope_inplace(&x, &cos, &sin, &Rope::default())?;
/// assert_eq!(x.to_vec3::<f32>()?, [[[-2., 1.]]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn rope_inplace(x: &Tensor, cos: &Tensor, sin: &Tensor, rope: &Rope) -> Result<()> {
    let name = "rope_inplace";
    rope.check_device(name, x)?;
    op::apply_inplace(name, Rotation::new(name, rope), x, &[cos, sin])
}

/// A rotation, forth or back: the kernels of [`Rope`].
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    pub rope: Rope,
    /// Whether it turns back, as gradients do.
    pub inverse: bool,
    /// The function that was called.
    pub name: &'static str,
}

custom_op!(Rope, "rope": CustomOp3, InplaceOp3 => |rope| Rotation::new("rope", rope));

impl Rotation {
    pub fn new(name: &'static str, rope: &Rope) -> Self {
        Rotation {
            rope: rope.clone(),
            inverse: false,
            name,
        }
    }

    /// The rotation that undoes this one.
    pub fn back(&self) -> Self {
        Rotation {
            inverse: !self.inverse,
            ..self.clone()
        }
    }

    pub fn reference(&self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        match self.inverse {
            false => composed(self.name, x, cos, sin, &self.rope),
            true => composed(self.name, x, cos, &sin.neg()?, &self.rope),
        }
    }
}

impl Op for Rotation {
    signature!("rope"(x, cos, sin));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.rope.check_args(name, "x", [args[0], args[1], args[2]])
    }
    kernels!(self, args => self.rope.with_tables(self.name, [args[1], args[2]], |tables| {
        let out = device::forward(self, args[0], tables)?;
        Ok((out, args[0].1.shape().clone()))
    }));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let tables = [inputs[1], inputs[2]];
        let dx = || op::apply(self.name, self.back(), &[g, tables[0], tables[1]]);
        let dx = inputs[0].track_op().then(dx).transpose()?;
        let forward = |tables: &[Tensor; 2]| {
            let y = self.reference(&inputs[0].detach(), &tables[0], &tables[1])?;
            Ok(vec![y])
        };
        let [dcos, dsin] = table_gradients(self.name, tables, &[Some(g)], forward)?;
        Ok(vec![dx, dcos, dsin])
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        Rotation::reference(self, args[0], args[1], args[2])
    }
}

impl InplaceOp for Rotation {
    kernels!(in place: self, x, rest => self.rope.with_tables(self.name, [rest[0], rest[1]], |tables| {
        device::inplace(self, x, tables)
    }));
}

/// The gradients of cos and sin, for tables that track them: they are seldom trained, so that Candle's backward of the
/// composed op will do. `forward` makes the outputs from the tables, and `grads` are the outputs' gradients.
pub(crate) fn table_gradients(
    name: &'static str,
    tables: [&Tensor; 2],
    grads: &[Option<&Tensor>],
    forward: impl FnOnce(&[Tensor; 2]) -> Result<Vec<Tensor>>,
) -> Result<[Option<Tensor>; 2]> {
    if !tables.iter().any(|table| table.track_op()) {
        return Ok([None, None]);
    }
    // A graph of gradients would end here in silence.
    if grads.iter().flatten().any(|g| g.track_op()) {
        return Err(Error::BackwardNotSupported { op: name });
    }
    let [cos, sin] = tables.map(|table| Ok::<_, Error>(Var::from_tensor(table)?.into_inner()));
    let vars = [cos?, sin?];
    let mut losses = Vec::new();
    for (y, g) in forward(&vars)?.into_iter().zip(grads) {
        if let Some(g) = g {
            losses.push((y * *g)?.flatten_all()?);
        }
    }
    let store = Tensor::cat(&losses, 0)?.backward()?;
    let of = |i: usize| match (tables[i].track_op(), store.get(&vars[i])) {
        (false, _) => Ok(None),
        (true, Some(grad)) => Ok(Some(grad.clone())),
        (true, None) => tables[i].zeros_like().map(Some),
    };
    Ok([of(0)?, of(1)?])
}
