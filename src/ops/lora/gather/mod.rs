//! Many adapters in one batch: `y[i] = x[i]·Wᵀ + bias + scales[n] · (x[i]·A[n]ᵀ)·B[n]ᵀ` with `n = adapter_of_row[i]`.
//!
//! Backward: `dx` is the op itself with everything transposed; `dA[n]` and `dB[n]` are sums over the rows of adapter n:
//! `scales[n] · Σ (g[i]·B[n])ᵀ·x[i]` and `scales[n] · Σ g[i]ᵀ·(x[i]·A[n]ᵀ)`.

mod cpu;
#[cfg(feature = "metal")]
mod metal;
mod routes;

pub use routes::Routes;

use super::super::linear::{self, matrix, output_shape};
use crate::held::held;
use crate::{apply, check};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
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
/// use candle_fused::ops::lora::{lora_gather, NO_ADAPTER};
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
    linear::check_args(NAME, x, w, bias)?;
    check::alike(NAME, x, "a", a)?;
    check::alike(NAME, x, "b", b)?;
    check_stacks(x.layout(), w.dim(0)?, a.layout(), b.layout())?;
    let rows = x.dims()[..x.rank() - 1].iter().product();
    let routes = Routes::new(adapter_of_row, scales, rows, a.dim(0)?)?;
    if !check::served(x) {
        let (w, bias) = (w.detach(), bias.map(Tensor::detach));
        return reference(x, &w, bias.as_ref(), a, b, scales, adapter_of_row);
    }
    let op = LoraGather {
        weight: w.detach(),
        bias: bias.map(Tensor::detach),
        routes: Arc::new(routes),
    };
    apply::op3(x, a, b, op)
}

fn check_stacks(x: &Layout, out: usize, a: &Layout, b: &Layout) -> Result<()> {
    let cols = x.dims().last().copied().unwrap_or(1);
    match (a.dims(), b.dims()) {
        (&[n, rank, a_cols], &[b_n, b_out, b_rank])
            if (n, rank) == (b_n, b_rank) && (a_cols, b_out) == (cols, out) && rank > 0 =>
        {
            Ok(())
        }
        _ => {
            let (a, b) = (a.shape(), b.shape());
            let message = format!(
                "a has shape {a:?} and b {b:?}, [n, rank, {cols}] and [n, {out}, rank] with a rank of 1 or more accepted"
            );
            Err(check::error(NAME, message))
        }
    }
}

/// [`lora_gather`] as a CustomOp of x, A and B.
#[derive(Clone, Debug)]
pub struct LoraGather {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
    pub routes: Arc<Routes>,
}

impl LoraGather {
    fn check(&self, x: &Layout, a: &Layout, b: &Layout) -> Result<()> {
        let (w, bias) = (self.weight.layout(), self.bias.as_ref().map(Tensor::layout));
        linear::check_layouts(NAME, x, w, bias)?;
        check_stacks(x, w.dims()[0], a, b)?;
        self.routes.check(x, a.dims().first())
    }
}

/// The first of a stack of matrices.
fn first(stack: &Layout) -> Result<Layout> {
    match *stack.dims() {
        [_, rows, cols] => Ok(Layout::contiguous((rows, cols))),
        _ => {
            let shape = stack.shape();
            Err(check::error(
                NAME,
                format_args!("a has shape {shape:?}, [n, rank, in] accepted"),
            ))
        }
    }
}

impl CustomOp3 for LoraGather {
    fn name(&self) -> &'static str {
        NAME
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        a: &CpuStorage,
        al: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (w, bias) = (held(&self.weight), self.bias.as_ref().map(held));
        let bias = bias.as_ref().map(|b| b.cpu(NAME)).transpose()?;
        self.check(xl, al, bl)?;
        let out = cpu::forward(
            &self.routes,
            (x, xl),
            (w.cpu(NAME)?, bias),
            (a, al),
            (b, bl),
        )?;
        Ok((out, output_shape(xl, bl.dims()[1])))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        a: &MetalStorage,
        al: &Layout,
        b: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        let (w, bias) = (held(&self.weight), self.bias.as_ref().map(held));
        let bias = bias.as_ref().map(|b| b.metal(NAME)).transpose()?;
        self.check(xl, al, bl)?;
        let out = metal::forward(
            &self.routes,
            (x, xl),
            (w.metal(NAME)?, bias),
            (a, al),
            (b, bl),
        )?;
        Ok((out, output_shape(xl, bl.dims()[1])))
    }
    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let swapped = |t: &Tensor| t.detach().transpose(1, 2);
        let dx = || {
            let op = LoraGather {
                weight: self.weight.t()?,
                bias: None,
                routes: self.routes.clone(),
            };
            apply::op3(g, &swapped(b)?, &swapped(a)?, op)
        };
        let down = |x: &Tensor, a: &Tensor| apply::op2(x, a, GatherDown(self.routes.clone()));
        let outer = |p: &Tensor, q: &Tensor| apply::op2(p, q, GatherOuter(self.routes.clone()));
        let (rows, grads) = (matrix(&x.detach())?, matrix(g)?);
        let da = || outer(&down(&grads, &swapped(b)?)?, &rows);
        let db = || outer(&grads, &down(&rows, &a.detach())?);
        Ok((
            x.track_op().then(dx).transpose()?,
            a.track_op().then(da).transpose()?,
            b.track_op().then(db).transpose()?,
        ))
    }
}

/// `u[i] = x[i]·A[n]ᵀ`, 0 where there is no adapter.
#[derive(Clone, Debug)]
pub struct GatherDown(pub Arc<Routes>);

impl CustomOp2 for GatherDown {
    fn name(&self) -> &'static str {
        "lora_gather_down"
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        a: &CpuStorage,
        al: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.check(xl, al.dims().first())?;
        linear::check_layouts(NAME, xl, &first(al)?, None)?;
        let u = cpu::down(&self.0, (x, xl), (a, al))?;
        Ok((u, output_shape(xl, al.dims()[1])))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        a: &MetalStorage,
        al: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.0.check(xl, al.dims().first())?;
        linear::check_layouts(NAME, xl, &first(al)?, None)?;
        let u = metal::down(&self.0, (x, xl), (a, al))?;
        Ok((u, output_shape(xl, al.dims()[1])))
    }
}

/// `out[n] = scales[n] · Σ p[i]ᵀ·q[i]` over the rows of adapter n.
#[derive(Clone, Debug)]
pub struct GatherOuter(pub Arc<Routes>);

impl GatherOuter {
    fn check(&self, p: &Layout, q: &Layout) -> Result<()> {
        if p.dims().len() != 2 || q.dims().len() != 2 {
            let (p, q) = (p.shape(), q.shape());
            let message = format!("p has shape {p:?} and q {q:?}, matrices accepted");
            return Err(check::error(NAME, message));
        }
        self.0.check(p, None)?;
        self.0.check(q, None)
    }

    fn shape(&self, p: &Layout, q: &Layout) -> Shape {
        Shape::from((self.0.adapters(), p.dims()[1], q.dims()[1]))
    }
}

impl CustomOp2 for GatherOuter {
    fn name(&self) -> &'static str {
        "lora_gather_outer"
    }
    fn cpu_fwd(
        &self,
        p: &CpuStorage,
        pl: &Layout,
        q: &CpuStorage,
        ql: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check(pl, ql)?;
        Ok((cpu::outer(&self.0, (p, pl), (q, ql))?, self.shape(pl, ql)))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        p: &MetalStorage,
        pl: &Layout,
        q: &MetalStorage,
        ql: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.check(pl, ql)?;
        Ok((metal::outer(&self.0, (p, pl), (q, ql))?, self.shape(pl, ql)))
    }
}

/// The composition of stock ops that [`lora_gather`] replaces: one row after the other.
pub fn reference(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    a: &Tensor,
    b: &Tensor,
    scales: &Tensor,
    adapter_of_row: &Tensor,
) -> Result<Tensor> {
    let base = matrix(&linear::reference(x, w, bias)?)?;
    let rows = matrix(x)?;
    let scales = scales.to_device(x.device())?.to_dtype(x.dtype())?;
    let mut sums = Vec::new();
    for (i, n) in adapter_of_row
        .flatten_all()?
        .to_vec1::<u32>()?
        .into_iter()
        .enumerate()
    {
        let row = base.narrow(0, i, 1)?;
        if n == NO_ADAPTER {
            sums.push(row);
            continue;
        }
        let n = n as usize;
        let u = rows.narrow(0, i, 1)?.matmul(&a.get(n)?.t()?)?;
        let low = u.matmul(&b.get(n)?.t()?)?;
        sums.push((row + low.broadcast_mul(&scales.get(n)?)?)?);
    }
    if sums.is_empty() {
        return base.reshape(output_shape(x.layout(), w.dim(0)?));
    }
    Tensor::cat(&sums, 0)?.reshape(output_shape(x.layout(), w.dim(0)?))
}
