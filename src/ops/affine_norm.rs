//! The CustomOps of norms with an optional weight and bias: (x), (x, weight) or (x, weight, bias), out of place and in
//! place, and one op for all gradients.

use crate::apply;
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3, Layout,
    Result, Shape, Tensor,
};
use std::sync::{Mutex, PoisonError};

/// A tensor as an op gets to see it.
pub type Arg<'a, S> = (&'a S, &'a Layout);

/// What follows x: weight, then bias.
pub type Vectors<'a, S> = [Option<Arg<'a, S>>; 2];

/// The kernels of a norm.
///
/// `*_bwd` returns `[dx, dweight, dbias]` one after the other in a flat tensor, of the vectors' gradients only the first
/// `vectors`: one op reads x and the gradient once for all of them.
pub trait AffineNorm: Copy + Send + Sync + 'static {
    /// The op's name in errors.
    fn name(&self) -> &'static str;
    /// The name of the op that computes its gradients.
    fn bwd_name(&self) -> &'static str;

    /// The norm of x.
    fn cpu_fwd(
        &self,
        x: Arg<CpuStorage>,
        vectors: Vectors<CpuStorage>,
    ) -> Result<(CpuStorage, Shape)>;
    /// The norm of x, written to x.
    fn cpu_inplace(
        &self,
        x: (&mut CpuStorage, &Layout),
        vectors: Vectors<CpuStorage>,
    ) -> Result<()>;
    /// The packed gradients.
    fn cpu_bwd(
        &self,
        x: Arg<CpuStorage>,
        grad_out: Arg<CpuStorage>,
        weight: Option<Arg<CpuStorage>>,
        vectors: usize,
    ) -> Result<(CpuStorage, Shape)>;

    /// The norm of x.
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: Arg<MetalStorage>,
        vectors: Vectors<MetalStorage>,
    ) -> Result<(MetalStorage, Shape)>;
    /// The norm of x, written to x.
    #[cfg(feature = "metal")]
    fn metal_inplace(&self, x: Arg<MetalStorage>, vectors: Vectors<MetalStorage>) -> Result<()>;
    /// The packed gradients.
    #[cfg(feature = "metal")]
    fn metal_bwd(
        &self,
        x: Arg<MetalStorage>,
        grad_out: Arg<MetalStorage>,
        weight: Option<Arg<MetalStorage>>,
        vectors: usize,
    ) -> Result<(MetalStorage, Shape)>;
}

/// A weight of ones for `bias`. The last one is kept: a layer asks for the same at every step.
pub fn ones_like(bias: &Tensor) -> Result<Tensor> {
    // Candle can't fill an empty tensor on Metal.
    if bias.elem_count() == 0 {
        return Ok(bias.detach());
    }
    static LAST: Mutex<Option<Tensor>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ones) = &*last {
        let alike = ones.dims() == bias.dims() && ones.dtype() == bias.dtype();
        if alike && ones.device().same_device(bias.device()) {
            return Ok(ones.clone());
        }
    }
    Ok(last.insert(bias.detach().ones_like()?).clone())
}

/// A norm as a CustomOp.
#[derive(Clone, Copy, Debug)]
pub struct Affine<N>(pub N);

impl<N: AffineNorm> Affine<N> {
    /// The norm of `x` with weight and bias. A bias without a weight gets a weight of ones.
    pub fn apply(self, x: &Tensor, vectors: [Option<&Tensor>; 2]) -> Result<Tensor> {
        match vectors {
            [None, None] => apply::op1(x, self),
            [Some(weight), None] => apply::op2(x, weight, self),
            [Some(weight), Some(bias)] => apply::op3(x, weight, bias, self),
            [None, Some(bias)] => apply::op3(x, &ones_like(bias)?, bias, self),
        }
    }

    /// As [`Affine::apply`], in x's own memory.
    pub fn apply_inplace(self, x: &Tensor, vectors: [Option<&Tensor>; 2]) -> Result<()> {
        match vectors {
            [None, None] => apply::inplace1(x, self),
            [Some(weight), None] => apply::inplace2(x, weight, self),
            [Some(weight), Some(bias)] => apply::inplace3(x, weight, bias, self),
            [None, Some(bias)] => apply::inplace3(x, &ones_like(bias)?, bias, self),
        }
    }

    /// The gradients of those arguments that track them.
    fn gradients(
        &self,
        x: &Tensor,
        vectors: [Option<&Tensor>; 2],
        grad_out: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let tracked = vectors.map(|v| v.filter(|v| v.track_op()));
        let count = tracked
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |i| i + 1);
        let op = AffineBwd {
            norm: self.0,
            vectors: count,
        };
        let packed = match vectors[0] {
            None => apply::op2(x, grad_out, op)?,
            Some(weight) => apply::op3(x, grad_out, weight, op)?,
        };
        let n = x.elem_count();
        let mut out = [None, None, None];
        if x.track_op() {
            out[0] = Some(packed.narrow(0, 0, n)?.reshape(x.shape())?);
        }
        for (i, v) in tracked.into_iter().enumerate() {
            if let Some(v) = v {
                let len = v.elem_count();
                out[i + 1] = Some(packed.narrow(0, n + i * len, len)?);
            }
        }
        Ok(out)
    }
}

impl<N: AffineNorm> CustomOp1 for Affine<N> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn cpu_fwd(&self, x: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd((x, l), [None, None])
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &MetalStorage, l: &Layout) -> Result<(MetalStorage, Shape)> {
        self.0.metal_fwd((x, l), [None, None])
    }
    fn bwd(&self, x: &Tensor, _: &Tensor, grad_out: &Tensor) -> Result<Option<Tensor>> {
        let [dx, ..] = self.gradients(x, [None, None], grad_out)?;
        Ok(dx)
    }
}

impl<N: AffineNorm> CustomOp2 for Affine<N> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd((x, xl), [Some((w, wl)), None])
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.0.metal_fwd((x, xl), [Some((w, wl)), None])
    }
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        grad_out: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, _] = self.gradients(x, [Some(weight), None], grad_out)?;
        Ok((dx, dweight))
    }
}

impl<N: AffineNorm> CustomOp3 for Affine<N> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.0.cpu_fwd((x, xl), [Some((w, wl)), Some((b, bl))])
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
        b: &MetalStorage,
        bl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.0.metal_fwd((x, xl), [Some((w, wl)), Some((b, bl))])
    }
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _: &Tensor,
        grad_out: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, dbias] = self.gradients(x, [Some(weight), Some(bias)], grad_out)?;
        Ok((dx, dweight, dbias))
    }
}

impl<N: AffineNorm> InplaceOp1 for Affine<N> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, l: &Layout) -> Result<()> {
        self.0.cpu_inplace((x, l), [None, None])
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(&self, x: &mut MetalStorage, l: &Layout) -> Result<()> {
        self.0.metal_inplace((x, l), [None, None])
    }
}

impl<N: AffineNorm> InplaceOp2 for Affine<N> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn cpu_fwd(&self, x: &mut CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<()> {
        self.0.cpu_inplace((x, xl), [Some((w, wl)), None])
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &mut MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
    ) -> Result<()> {
        self.0.metal_inplace((x, xl), [Some((w, wl)), None])
    }
}

impl<N: AffineNorm> InplaceOp3 for Affine<N> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn cpu_fwd(
        &self,
        x: &mut CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<()> {
        self.0.cpu_inplace((x, xl), [Some((w, wl)), Some((b, bl))])
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &mut MetalStorage,
        xl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
        b: &MetalStorage,
        bl: &Layout,
    ) -> Result<()> {
        self.0
            .metal_inplace((x, xl), [Some((w, wl)), Some((b, bl))])
    }
}

/// `(x, grad_out[, weight])` → the packed gradients, see [`AffineNorm`].
#[derive(Clone, Copy, Debug)]
pub struct AffineBwd<N> {
    /// The norm.
    pub norm: N,
    /// How many of dweight and dbias are wanted.
    pub vectors: usize,
}

impl<N: AffineNorm> CustomOp2 for AffineBwd<N> {
    fn name(&self) -> &'static str {
        self.norm.bwd_name()
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.norm.cpu_bwd((x, xl), (g, gl), None, self.vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.norm.metal_bwd((x, xl), (g, gl), None, self.vectors)
    }
}

impl<N: AffineNorm> CustomOp3 for AffineBwd<N> {
    fn name(&self) -> &'static str {
        self.norm.bwd_name()
    }
    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        g: &CpuStorage,
        gl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let weight = Some((w, wl));
        self.norm.cpu_bwd((x, xl), (g, gl), weight, self.vectors)
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        x: &MetalStorage,
        xl: &Layout,
        g: &MetalStorage,
        gl: &Layout,
        w: &MetalStorage,
        wl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        let weight = Some((w, wl));
        self.norm.metal_bwd((x, xl), (g, gl), weight, self.vectors)
    }
}
