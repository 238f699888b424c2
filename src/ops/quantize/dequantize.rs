//! Dequantisation: codes to the numbers they stand for, with gradients for scales and offsets.

#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, reference_dequantize, Levels, Quantized, ScaleScope, Scheme};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Grads, Op, Spec};
use crate::ops::reduce::{sum_last_dim, sum_to};
use candle_core::{DType, Result, Shape, Tensor};

const NAME: &str = "dequantize";

/// The numbers that codes stand for, in f32, f16 or bf16. Scales and offsets get gradients.
pub fn dequantize(q: &Quantized, dtype: DType) -> Result<Tensor> {
    let op = Dequantize {
        scheme: *q.scheme(),
        shape: q.shape().clone(),
        dtype,
    };
    op.check_dtype(NAME)?;
    // Codes are u8, so the scales say whether there is a kernel.
    if q.shape().elem_count() == 0 || !check::has_kernel(q.scales()) {
        return reference_dequantize(q, dtype);
    }
    match q.offsets() {
        Some(offsets) => op::apply_kernel(NAME, op, &[q.codes(), q.scales(), offsets]),
        None => op::apply_kernel(NAME, op, &[q.codes(), q.scales()]),
    }
}

impl Quantized {
    /// The numbers that the codes stand for, as by [`dequantize`].
    pub fn dequantize(&self, dtype: DType) -> Result<Tensor> {
        dequantize(self, dtype)
    }
}

/// [`dequantize`] as a CustomOp of codes and scales, or of codes, scales and offsets, all contiguous.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::Dequantize;
/// use candle_fused::quant::{ScaleScope, Scheme};
/// let codes = Tensor::new(&[[0b10_01_00_10u8]], &Device::Cpu)?;
/// let scales = Tensor::new(&[[0.75f32]], &Device::Cpu)?;
/// let scheme = Scheme::ternary(ScaleScope::Row);
/// let op = Dequantize { scheme, shape: (1, 4).into(), dtype: DType::F32 };
/// let x = codes.apply_op2(&scales, op)?;
/// assert_eq!(x.to_vec2::<f32>()?, [[0.75, -0.75, 0.0, 0.75]]);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct Dequantize {
    pub scheme: Scheme,
    /// The shape of the result.
    pub shape: Shape,
    /// The dtype of the result.
    pub dtype: DType,
}

custom_op!(Dequantize: CustomOp2, CustomOp3);

impl Op for Dequantize {
    signature!(NAME(codes, scales, offsets));
    const FLOATS: bool = false;

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        self.check_dtype(name)?;
        self.scheme.check(name, &self.shape)?;
        let codes = self.scheme.codes_shape(&self.shape)?;
        let scales = self.scheme.scales_shape(&self.shape)?;
        let expected = [
            (DType::U8, &codes),
            (DType::F32, &scales),
            (DType::F32, &scales),
        ];
        let count = if self.scheme.has_offsets() { 3 } else { 2 };
        if args.len() != count {
            let (got, expected) = (&Self::ARGS[..args.len()], &Self::ARGS[..count]);
            let message = format!(
                "got {got:?}, expected {expected:?} for {:?}",
                self.scheme.levels
            );
            return Err(check::error(name, message));
        }
        for ((arg, (dtype, shape)), what) in args.iter().zip(expected).zip(Self::ARGS) {
            let layout = arg.layout;
            if arg.dtype != dtype || layout.shape() != shape || !layout.is_contiguous() {
                let message = format!(
                    "got {what} of dtype {:?}, shape {:?} and strides {:?}, expected a contiguous {dtype:?} of {shape:?}",
                    arg.dtype,
                    layout.shape(),
                    layout.stride(),
                );
                return Err(check::error(name, message));
            }
        }
        Ok(())
    }
    kernels!(self, args => Ok((device::dequantize(self, args)?, self.shape.clone())));
    fn bwd(&self, inputs: &[&Tensor], _: &Tensor, g: &Tensor) -> Grads {
        let g = g.to_dtype(DType::F32)?;
        let wanted = |i: usize| inputs.get(i).is_some_and(|t| t.track_op());
        let dscales = wanted(1).then(|| self.grad_scales(inputs, &g));
        let doffsets = wanted(2).then(|| self.grad_offsets(inputs[1], &g));
        let mut grads = vec![None, dscales.transpose()?, doffsets.transpose()?];
        grads.truncate(inputs.len());
        Ok(grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let [codes, scales] = [args[0], args[1]].map(Tensor::clone);
        let offsets = args.get(2).map(|&offsets| offsets.clone());
        let q = Quantized::new(codes, scales, offsets, self.shape.clone(), self.scheme)?;
        reference_dequantize(&q, self.dtype)
    }
}

impl Dequantize {
    fn check_dtype(&self, name: &str) -> Result<()> {
        match self.dtype {
            DType::F32 | DType::F16 | DType::BF16 => Ok(()),
            dtype => Err(check::unsupported_dtype(name, dtype)),
        }
    }

    fn has_biases(&self) -> bool {
        matches!(self.scheme.levels, Levels::Affine { .. })
    }

    /// `Σ g · (code − zero)`: the second factor is the value at scale 1 and bias 0.
    fn grad_scales(&self, inputs: &[&Tensor], g: &Tensor) -> Result<Tensor> {
        let ones = inputs[1].ones_like()?.detach();
        let offsets = inputs.get(2).map(|offsets| match self.has_biases() {
            true => offsets.zeros_like(),
            false => Ok(offsets.detach()),
        });
        let (codes, shape) = (inputs[0].clone(), self.shape.clone());
        let at_scale_1 = Quantized::new(codes, ones, offsets.transpose()?, shape, self.scheme)?;
        self.sum_by_scale(&(g * dequantize(&at_scale_1, DType::F32)?)?)
    }

    /// `Σ g` for biases, `−scale · Σ g` for zero points.
    fn grad_offsets(&self, scales: &Tensor, g: &Tensor) -> Result<Tensor> {
        let sums = self.sum_by_scale(g)?;
        match self.has_biases() {
            true => Ok(sums),
            false => (sums * scales.detach())?.neg(),
        }
    }

    /// Sums over the elements that share a scale.
    fn sum_by_scale(&self, t: &Tensor) -> Result<Tensor> {
        let shape = self.scheme.scales_shape(&self.shape)?;
        match self.scheme.scope {
            ScaleScope::Tensor => sum_last_dim(&t.flatten_all()?)?.reshape(shape),
            ScaleScope::Row => sum_last_dim(t)?.reshape(shape),
            ScaleScope::Column => sum_to(t, &shape),
            ScaleScope::Group(group) => {
                let dims = [shape.dims(), &[group]].concat();
                sum_last_dim(&t.reshape(dims)?)?.reshape(shape)
            }
        }
    }
}
