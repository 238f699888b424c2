//! Attention over quantised keys and values, whose codes the kernels read where they lie.
//!
//! ```text
//! k[j] = codes[j] · scale + base      of the group that j belongs to; v likewise
//! y    = attention(q, k, v)
//! ```
//!
//! A number is made of its code in registers (few queries on either device), while keys and values are packed (many queries on the
//! CPU) or staged in threadgroup memory (on Metal): never a tensor of all keys or values. Codes of 8 and of 4 bits are read
//! this way; keys and values of other schemes, or with codes of different sizes, are dequantised first. Dequantised
//! keys and values stay in f32 here, where [`dequantize`](crate::ops::dequantize) would round them to q's dtype.
//!
//! Codes get no gradient, but q, an additive mask and sinks do, by way of dequantised keys and values.

use super::geometry::{Geometry, Roles};
#[cfg(feature = "metal")]
use super::metal;
use super::{cpu, Attend, Attention, AttentionConfig, AttentionLayout};
use crate::check;
use crate::op::{self, custom_op, kernels, signature, Arg, Args, Grads, Op, Spec};
use crate::quant::KvCodes;
use candle_core::{DType, Layout, Result, Tensor};

pub(super) const NAME: &str = "attention_codes";

/// [`attention`](super::attention) over quantised keys and values, as a
/// [`FixedKvCache`](crate::nn::kv_cache::FixedKvCache) holds them, without dequantising them as a whole. Their codes are
/// `[batch, heads, tokens, ..]` whatever the layout of q. The config takes no packed sequences.
///
/// Differentiable in q, an additive mask and the sinks.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::kv_cache::{FixedKvCache, FixedKvConfig};
/// use candle_fused::ops::{attention_codes, AttentionConfig};
/// let config = FixedKvConfig::new(1, 2, 64, 8).with_int8(32);
/// let mut cache = FixedKvCache::new(config, DType::F32, &Device::Cpu)?;
/// let tokens = Tensor::randn(0f32, 1., (1, 2, 8, 64), &Device::Cpu)?;
/// cache.append(&tokens, &tokens)?;
/// let (keys, values) = (cache.key_codes().unwrap(), cache.value_codes().unwrap());
/// let q = Tensor::randn(0f32, 1., (1, 4, 1, 64), &Device::Cpu)?;
/// let y = attention_codes(&q, &keys, &values, &AttentionConfig::default())?;
/// assert_eq!(y.dims(), [1, 4, 1, 64]);
/// # candle_core::Result::Ok(())
/// ```
pub fn attention_codes(
    q: &Tensor,
    keys: &KvCodes,
    values: &KvCodes,
    config: &AttentionConfig,
) -> Result<Tensor> {
    let op = AttentionCodes {
        keys: keys.clone(),
        values: values.clone(),
        config: config.clone(),
    };
    let held = op.held();
    let names = [
        ("k", keys.tensors().count()),
        ("v", values.tensors().count()),
    ];
    let names = names.map(|(name, count)| vec![name; count]).concat();
    let rest = op.op().arg_names().split_off(3);
    let names = [&["q"][..], &names, &rest].concat();
    check::same_device(NAME, &names, &[&[q][..], &held].concat())?;
    let tracks = q.track_op() || held.iter().any(|t| t.track_op());
    if op.bits().is_some() && !tracks && check::has_kernel(q) && q.elem_count() > 0 {
        return op::apply(NAME, op, &[q]);
    }
    op.geometry(NAME, q.into())?;
    op.dequantized(NAME, q)
}

/// [`attention_codes()`] as a CustomOp of q. The tensors that it holds get no gradient. Its backward dequantises the codes as they
/// are then: a cache must not be written before.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::ops::{quantize, AttentionCodes, AttentionConfig};
/// use candle_fused::quant::{KvCodes, Scheme};
/// let x = Tensor::ones((1, 1, 3, 32), DType::F32, &Device::Cpu)?;
/// let codes = quantize(&x, Scheme::mlx(4, 32))?;
/// let codes = KvCodes {
///     codes: codes.codes().clone(),
///     scales: codes.scales().clone(),
///     offsets: codes.offsets().cloned(),
///     scheme: *codes.scheme(),
///     head_dim: 32,
/// };
/// let op = AttentionCodes { keys: codes.clone(), values: codes, config: AttentionConfig::default() };
/// let y = x.narrow(2, 0, 1)?.apply_op1(op)?.flatten_all()?.to_vec1::<f32>()?;
/// assert!((y[0] - 1.).abs() < 1e-6);
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
pub struct AttentionCodes {
    pub keys: KvCodes,
    pub values: KvCodes,
    pub config: AttentionConfig,
}

custom_op!(AttentionCodes: CustomOp1);

impl Op for AttentionCodes {
    signature!(NAME(q));

    fn check(&self, name: &'static str, args: &[Spec<'_>]) -> Result<()> {
        let message = format_args!(
            "got keys by {:?} and values by {:?}, expected codes of 4 bits or of 8 bits for both",
            self.keys.scheme, self.values.scheme
        );
        self.geometry(name, args[0])?;
        check::ensure(self.bits().is_some(), name, message)
    }
    fn held(&self) -> Vec<&Tensor> {
        let codes = self.keys.tensors().chain(self.values.tensors());
        codes.chain(self.config.tensors()).collect()
    }
    kernels!(self, args => op::with_storages(NAME, &self.held(), |held| {
        device::forward_codes(self, args[0], held)
    }));
    fn bwd(&self, inputs: &[&Tensor], y: &Tensor, grad: &Tensor) -> Grads {
        let (k, v) = self.numbers(inputs[0].dtype())?;
        let op = Attention {
            config: self.config.clone(),
        };
        let mut grads = op.bwd(&[inputs[0], &k, &v], y, grad)?;
        grads.truncate(1);
        Ok(grads)
    }
    fn reference(&self, args: &[&Tensor]) -> Result<Tensor> {
        let (k, v) = self.numbers(args[0].dtype())?;
        super::reference(args[0], &k, &v, &self.config)
    }
}

/// The arguments with other layouts.
pub(crate) fn with_layouts<'a, S>(args: Args<'a, S>, layouts: &'a [Layout]) -> Vec<Arg<'a, S>> {
    let args = args.iter().zip(layouts);
    args.map(|(&(storage, _), layout)| (storage, layout))
        .collect()
}

impl AttentionCodes {
    /// The bits of a code, if the kernels read codes of this size: 4 or 8.
    pub(crate) fn bits(&self) -> Option<u32> {
        let [keys, values] = [&self.keys, &self.values].map(KvCodes::kernel_bits);
        keys.filter(|_| keys == values)
    }

    /// What attention is told beside q, k and v.
    pub(crate) fn op(&self) -> Attend {
        Attend::new(&self.config, false)
    }

    /// The sizes of the call, if q goes with what the op holds.
    pub(crate) fn geometry(&self, name: &'static str, q: Spec<'_>) -> Result<Geometry> {
        let packed = self.config.packed.is_none();
        let message = "got packed sequences, expected a batch for quantised keys and values";
        check::ensure(packed, name, message)?;
        check::is_float(name, q)?;
        let layout = |called: &str, codes: &KvCodes| -> Result<Layout> {
            self.oriented(&Layout::contiguous(codes.check(name, called)?))
        };
        let (k, v) = (layout("keys", &self.keys)?, layout("values", &self.values)?);
        let numbers = |layout| Spec {
            layout,
            dtype: q.dtype,
        };
        let args = Roles {
            q,
            k: numbers(&k),
            v: numbers(&v),
            mask: self.config.mask.as_ref().map(Spec::from),
            sinks: self.config.sinks.as_ref().map(Spec::from),
            key_lengths: self.config.key_lengths.as_ref().map(Spec::from),
        };
        Geometry::new(name, &self.op().rules, None, &args)
    }

    /// The layout `[batch, heads, tokens, ..]` of codes, scales or offsets, with its dims in the order of q's.
    fn oriented(&self, layout: &Layout) -> Result<Layout> {
        match self.config.layout {
            AttentionLayout::Bhsd => Ok(layout.clone()),
            AttentionLayout::Bshd => layout.transpose(1, 2),
        }
    }

    /// The layouts of all of these arguments, as `oriented` makes them.
    pub(crate) fn layouts<S>(&self, args: Args<S>) -> Result<Vec<Layout>> {
        args.iter()
            .map(|(_, layout)| self.oriented(layout))
            .collect()
    }

    /// The held arguments in three parts: the tensors of the keys' codes, the tensors of the values' codes, and the config's mask,
    /// sinks and key lengths.
    pub(crate) fn parts<'a, S>(&self, held: Args<'a, S>) -> [Args<'a, S>; 3] {
        let (keys, rest) = held.split_at(self.keys.tensors().count());
        let (values, rest) = rest.split_at(self.values.tensors().count());
        [keys, values, rest]
    }

    /// Keys and values as tensors in the layout of q.
    fn numbers(&self, dtype: DType) -> Result<(Tensor, Tensor)> {
        let numbers = |codes: &KvCodes| -> Result<Tensor> {
            let codes = codes.quantized()?;
            let x = match dtype {
                DType::F64 => codes.dequantize(DType::F32)?.to_dtype(DType::F64)?,
                dtype => codes.dequantize(dtype)?,
            };
            match self.config.layout {
                AttentionLayout::Bhsd => Ok(x),
                AttentionLayout::Bshd => x.transpose(1, 2),
            }
        };
        Ok((numbers(&self.keys)?, numbers(&self.values)?))
    }

    /// By way of dequantised keys and values, differentiable in all tensors of the call. It computes 16 bits in f32, so that the
    /// numbers are not rounded here either. (An empty tensor stays as it is: Candle cannot convert it on Metal.)
    fn dequantized(&self, name: &'static str, q: &Tensor) -> Result<Tensor> {
        let dtype = q.dtype();
        if !matches!(dtype, DType::F16 | DType::BF16) || q.elem_count() == 0 {
            let (k, v) = self.numbers(dtype)?;
            return super::attention_for(name, q, &k, &v, &self.config);
        }
        let wide = |t: &Option<Tensor>| match t {
            Some(t) if t.dtype() == dtype => t.to_dtype(DType::F32).map(Some),
            other => Ok(other.clone()),
        };
        let config = AttentionConfig {
            mask: wide(&self.config.mask)?,
            sinks: wide(&self.config.sinks)?,
            ..self.config.clone()
        };
        let (k, v) = self.numbers(DType::F32)?;
        let y = super::attention_for(name, &q.to_dtype(DType::F32)?, &k, &v, &config)?;
        y.to_dtype(dtype)
    }
}
