//! Many adapters in one batch: `y[i] = x[i]·Wᵀ + bias + scales[n] · (x[i]·A[n]ᵀ)·B[n]ᵀ` with `n = adapter_of_row[i]`.
//!
//! All terms are added in f32 and rounded once. Backward: `dx` is the op itself with everything transposed; `dA[n]` and
//! `dB[n]` are sums over the rows of adapter n: `scales[n] · Σ (g[i]·B[n])ᵀ·x[i]` and `scales[n] · Σ g[i]ᵀ·(x[i]·A[n]ᵀ)`.

mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod routes;

use super::linear::{self, flatten_rows, output_shape};
use super::lora::{check_adapted, check_factors, check_rank, with_bias};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Args, Grads, Op, Spec};
use candle_core::{Result, Shape, Tensor};
use routes::Routes;
use std::sync::Arc;

const NAME: &str = "lora_gather";

/// In `adapter_of_row`: this row has no adapter.
pub const NO_ADAPTER: u32 = u32::MAX;

/// A linear layer where each row of x `[.., in]` has an adapter of its own: A `[n, rank, in]`, B `[n, out, rank]` and
/// the f32 `scales` `[n]` hold n of them, and the u32 `adapter_of_row`, with as many elements as x has rows, says which
/// one, or [`NO_ADAPTER`]. Differentiable in x, A and B; W and bias are frozen.
///
/// `adapter_of_row` and `scales` are read on the host: leave them on the CPU, and no device has to be waited for.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::{lora_gather, NO_ADAPTER};
/// let x = Tensor::new(&[[1f32], [2.], [3.]], &Device::Cpu)?;
/// let w = Tensor::new(&[[1f32]], &Device::Cpu)?;
/// let a = Tensor::new(&[[[1f32]], [[10.]]], &Device::Cpu)?;
/// let scales = Tensor::new(&[1f32, 1.], &Device::Cpu)?;
/// let adapter_of_row = Tensor::new(&[1u32, NO_ADAPTER, 0], &Device::Cpu)?;
/// let y = lora_gather(&x, &w, None, &a, &a, &scales, &adapter_of_row)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[101.], [2.], [6.]]);
/// # candle_core::Result::Ok(())
/// ```
pub fn lora_gather(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    a: &Tensor,
    b: &Tensor,
    scales: &Tensor,
    adapter_of_row: &Tensor,
) -> Result<Tensor> {
    linear::same_device(NAME, x, w, bias)?;
    let op = LoraGather::new(w, bias, scales, adapter_of_row)?;
    op::apply(NAME, op, &[x, a, b])
}

/// [`lora_gather()`] as a CustomOp of x, A and B.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_fused::ops::LoraGather;
/// let (x, w) = (Tensor::new(&[[3f32]], &Device::Cpu)?, Tensor::new(&[[1f32]], &Device::Cpu)?);
/// let a = Tensor::new(&[[[10f32]]], &Device::Cpu)?;
/// let scales = Tensor::new(&[1f32], &Device::Cpu)?;
/// let op = LoraGather::new(&w, None, &scales, &Tensor::new(&[0u32], &Device::Cpu)?)?;
/// assert_eq!(x.apply_op3(&a, &a, op)?.to_vec2::<f32>()?, [[303.]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct LoraGather {
    weight: Tensor,
    bias: Option<Tensor>,
    routes: Arc<Routes>,
}

impl LoraGather {
    /// With the frozen W and bias. `scales` and `adapter_of_row`, as of [`lora_gather()`], are read and checked here.
    pub fn new(
        w: &Tensor,
        bias: Option<&Tensor>,
        scales: &Tensor,
        adapter_of_row: &Tensor,
    ) -> Result<Self> {
        Ok(LoraGather {
            weight: w.detach(),
            bias: bias.map(Tensor::detach),
            routes: Arc::new(Routes::new(adapter_of_row, scales)?),
        })
    }
}

custom_op!(LoraGather: CustomOp3);

impl Op for LoraGather {
    signature!(NAME(x, a, b));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (weight, bias) = (&self.weight, self.bias.as_ref());
        check_adapted(name, args, weight, bias, STACK)?;
        self.routes
            .check(name, args[0].dims(), Some(args[1].dims()[0]))
    }

    kernels!(self, args => {
        let held = with_bias(&self.weight, self.bias.as_ref());
        let run = |held: Args<_>| device::forward(&self.routes, args, held);
        let out = op::with_storages(NAME, &held, run)?;
        Ok((out, output_shape(args[0].1, self.weight.dims()[0])))
    });

    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let (x, a, b) = (inputs[0], inputs[1], inputs[2]);
        let swapped = |t: &Tensor| t.detach().transpose(1, 2);
        let dx = || {
            let op = LoraGather {
                weight: self.weight.t()?,
                bias: None,
                routes: self.routes.clone(),
            };
            op::apply(NAME, op, &[g, &swapped(b)?, &swapped(a)?])
        };
        let down = |x: &Tensor, a: &Tensor| op::apply(NAME, Down(self.routes.clone()), &[x, a]);
        let outer = |p: &Tensor, q: &Tensor| op::apply(NAME, Outer(self.routes.clone()), &[p, q]);
        let (rows, grads) = (flatten_rows(&x.detach())?, flatten_rows(g)?);
        let da = || outer(&down(&grads, &swapped(b)?)?, &rows);
        let db = || outer(&grads, &down(&rows, &a.detach())?);
        op::grads(inputs, &[&dx, &da, &db])
    }

    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        reference(args[0], args[1], args[2], self)
    }
}

/// What errors call the dims of A.
const STACK: &[&str] = &["n", "rank", "in"];

/// `u[i] = x[i]·A[n]ᵀ` in x's dtype, 0 where there is no adapter. For gradients.
struct Down(Arc<Routes>);

impl Op for Down {
    signature!(NAME(x, a));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (x, a) = (args[0].dims(), args[1].dims());
        check_rank(name, args[0], a, STACK)?;
        check_factors(name, x, 0, a, &[a[0], 0, a[1]])?;
        self.0.check(name, x, Some(a[0]))
    }

    kernels!(self, args => {
        let shape = output_shape(args[0].1, args[1].1.dims()[1]);
        Ok((device::down(&self.0, args[0], args[1])?, shape))
    });
}

/// `out[n] = scales[n] · Σ p[i]ᵀ·q[i]` over the rows of adapter n. For gradients.
struct Outer(Arc<Routes>);

impl Outer {
    fn shape(&self, p: &[usize], q: &[usize]) -> Shape {
        Shape::from((self.0.adapters(), p[1], q[1]))
    }
}

impl Op for Outer {
    signature!(NAME(p, q));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let (p, q) = (args[0].dims(), args[1].dims());
        let message = format_args!("got p of shape {p:?} and q of {q:?}, expected matrices");
        check::ensure(p.len() == 2 && q.len() == 2, name, message)?;
        self.0.check(name, p, None)?;
        self.0.check(name, q, None)?;
        check::fits_in_memory(name, "the gradient", self.shape(p, q).dims())
    }

    kernels!(self, args => {
        let shape = self.shape(args[0].1.dims(), args[1].1.dims());
        Ok((device::outer(&self.0, args[0], args[1])?, shape))
    });
}

/// The composition of stock ops that [`lora_gather()`] replaces: one row after the other. `op` holds the frozen weight and which
/// adapter each row has.
#[doc(hidden)]
pub fn reference(x: &Tensor, a: &Tensor, b: &Tensor, op: &LoraGather) -> Result<Tensor> {
    let (w, routes) = (&op.weight, &op.routes);
    let base = flatten_rows(&linear::reference(x, w, op.bias.as_ref())?)?;
    let rows = flatten_rows(x)?;
    let mut sums = Vec::new();
    for (i, &n) in routes.adapter_of_row().iter().enumerate() {
        let row = base.narrow(0, i, 1)?;
        if n == NO_ADAPTER {
            sums.push(row);
            continue;
        }
        let n = n as usize;
        let u = rows.narrow(0, i, 1)?.matmul(&a.get(n)?.t()?)?;
        let low = u.matmul(&b.get(n)?.t()?)?;
        sums.push((row + (low * f64::from(routes.scales()[n]))?)?);
    }
    let y = match sums.is_empty() {
        true => base,
        false => Tensor::cat(&sums, 0)?,
    };
    y.reshape(output_shape(x.layout(), w.dim(0)?))
}
