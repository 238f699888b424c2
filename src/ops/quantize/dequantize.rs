//! Codes to numbers, with gradients to scales and offsets.

use super::cpu;
#[cfg(feature = "metal")]
use super::metal;
use super::{dequantize, Grid, Per, Quantized, Scheme};
use crate::check;
use crate::ops::reduce::{sum_last_dim, sum_to};
#[cfg(feature = "metal")]
use candle_core::MetalStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor};

/// [`dequantize`] as a CustomOp: of codes and scales, or of these and offsets.
#[derive(Clone, Debug)]
pub struct Dequantize {
    pub scheme: Scheme,
    /// Of the result.
    pub shape: Shape,
    pub dtype: DType,
}

impl Dequantize {
    /// The shapes, for those who apply the CustomOp themselves too.
    fn check(&self, codes: &Layout, scales: &Layout, offsets: Option<&Layout>) -> Result<()> {
        let op = "dequantize";
        self.scheme.check(op, &self.shape)?;
        let accept = |name: &str, layout: &Layout, accepted: Shape| {
            if layout.shape() != &accepted || !layout.is_contiguous() {
                let message = format!(
                    "{name} is {:?} with strides {:?}, a contiguous {accepted:?} accepted",
                    layout.shape(),
                    layout.stride(),
                );
                return Err(check::error(op, message));
            }
            Ok(())
        };
        accept("codes", codes, self.scheme.codes_shape(&self.shape))?;
        accept("scales", scales, self.scheme.scales_shape(&self.shape))?;
        match (offsets, self.scheme.has_offsets()) {
            (Some(offsets), true) => {
                accept("offsets", offsets, self.scheme.scales_shape(&self.shape))
            }
            (None, false) => Ok(()),
            (given, accepted) => Err(check::error(
                op,
                format!(
                    "offsets given: {}, accepted for {:?}: {accepted}",
                    given.is_some(),
                    self.scheme.grid,
                ),
            )),
        }
    }

    fn gradients(
        &self,
        codes: &Tensor,
        scales: &Tensor,
        offsets: Option<&Tensor>,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let affine = matches!(self.scheme.grid, Grid::Affine { .. });
        let g = g.to_dtype(DType::F32)?;
        let dscales = || {
            let ones = scales.ones_like()?.detach();
            let zeros = |offsets: &Tensor| match affine {
                true => offsets.zeros_like(),
                false => Ok(offsets.detach()),
            };
            let offsets = offsets.map(zeros).transpose()?;
            let unit = Quantized::new(
                codes.clone(),
                ones,
                offsets,
                self.shape.clone(),
                self.scheme,
            )?;
            self.unit_sums(&(&g * dequantize(&unit, DType::F32)?)?)
        };
        let doffsets = |offsets: &Tensor| {
            let sums = self.unit_sums(&g)?;
            let doffsets = match affine {
                true => Ok(sums),
                false => (sums * scales.detach())?.neg(),
            };
            offsets.track_op().then_some(doffsets).transpose()
        };
        Ok((
            scales.track_op().then(dscales).transpose()?,
            offsets.map(doffsets).transpose()?.flatten(),
        ))
    }

    /// Σ over each unit.
    fn unit_sums(&self, t: &Tensor) -> Result<Tensor> {
        let shape = self.scheme.scales_shape(&self.shape);
        match self.scheme.per {
            Per::Tensor => sum_last_dim(&t.flatten_all()?)?.reshape(shape),
            Per::Row => sum_last_dim(t)?.reshape(shape),
            Per::Column => sum_to(t, &shape),
            Per::Group(group) => {
                let dims = [shape.dims(), &[group]].concat();
                sum_last_dim(&t.reshape(dims)?)?.reshape(shape)
            }
        }
    }
}

impl CustomOp2 for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }
    fn cpu_fwd(
        &self,
        codes: &CpuStorage,
        cl: &Layout,
        scales: &CpuStorage,
        sl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check(cl, sl, None)?;
        let out = cpu::dequantize(self, (codes, cl), (scales, sl), None)?;
        Ok((out, self.shape.clone()))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        codes: &MetalStorage,
        cl: &Layout,
        scales: &MetalStorage,
        sl: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.check(cl, sl, None)?;
        let out = metal::dequantize(self, (codes, cl), (scales, sl), None)?;
        Ok((out, self.shape.clone()))
    }
    fn bwd(
        &self,
        codes: &Tensor,
        scales: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dscales, _) = self.gradients(codes, scales, None, g)?;
        Ok((None, dscales))
    }
}

impl CustomOp3 for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }
    fn cpu_fwd(
        &self,
        codes: &CpuStorage,
        cl: &Layout,
        scales: &CpuStorage,
        sl: &Layout,
        offsets: &CpuStorage,
        ol: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check(cl, sl, Some(ol))?;
        let out = cpu::dequantize(self, (codes, cl), (scales, sl), Some((offsets, ol)))?;
        Ok((out, self.shape.clone()))
    }
    #[cfg(feature = "metal")]
    fn metal_fwd(
        &self,
        codes: &MetalStorage,
        cl: &Layout,
        scales: &MetalStorage,
        sl: &Layout,
        offsets: &MetalStorage,
        ol: &Layout,
    ) -> Result<(MetalStorage, Shape)> {
        self.check(cl, sl, Some(ol))?;
        let out = metal::dequantize(self, (codes, cl), (scales, sl), Some((offsets, ol)))?;
        Ok((out, self.shape.clone()))
    }
    fn bwd(
        &self,
        codes: &Tensor,
        scales: &Tensor,
        offsets: &Tensor,
        _: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (dscales, doffsets) = self.gradients(codes, scales, Some(offsets), g)?;
        Ok((None, dscales, doffsets))
    }
}
