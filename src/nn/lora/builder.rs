//! Building a model with adapters on its target modules.

use super::files::{common_dtype, Format, Tensors};
use super::model::{Entry, LoraModel, NOTHING_ADAPTED};
use super::target::Matcher;
use super::{
    Adapters, LoraConfig, LoraConv2d, LoraEmbedding, LoraLinear, PeftConfig, Targets,
    DEFAULT_ADAPTER,
};
use crate::check;
use crate::nn::quantized::PackedLinear;
use candle_core::quantized::QTensor;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Conv2dConfig, Init, Linear, VarBuilder, VarMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const NAME: &str = "LoraBuilder";

/// A `VarBuilder` whose layers have an adapter where their path is a target, and are frozen elsewhere.
///
/// A model that is written with `candle_nn`'s functions changes its `use` lines: [`linear`](super::linear()),
/// [`embedding`](super::embedding()) and the others have the same names and arguments here. [`vb`](Self::vb) returns the
/// `VarBuilder` for all other layers.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_fused::nn::lora::{linear, linear_no_bias, LoraBuilder, LoraConfig, LoraLinear};
/// use candle_fused::nn::{layer_norm, LayerNorm, Module, VarBuilder, VarMap};
///
/// struct Mlp { norm: LayerNorm, up: LoraLinear, down: LoraLinear }
///
/// impl Mlp {
///     fn new(vb: LoraBuilder) -> candle_core::Result<Self> {
///         Ok(Self {
///             norm: layer_norm(8, 1e-5, vb.pp("norm").vb())?,
///             up: linear(8, 32, vb.pp("up"))?,
///             down: linear_no_bias(32, 8, vb.pp("down"))?,
///         })
///     }
///     fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
///         self.down.forward(&self.up.forward(&self.norm.forward(x)?)?.gelu()?)
///     }
/// }
///
/// // Usually from a checkpoint's safetensors.
/// let weights = VarMap::new();
/// let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
///
/// let lb = LoraBuilder::new(vb, &LoraConfig::default(), ["down"])?;
/// let mlp = Mlp::new(lb.pp("mlp"))?;
/// let lora = lb.finish()?;
///
/// let x = Tensor::randn(0f32, 1., (2, 8), &Device::Cpu)?;
/// let grads = mlp.forward(&x)?.sqr()?.sum_all()?.backward()?;
/// assert_eq!(lora.adapter_vars().len(), 2); // A and B of mlp.down
/// assert!(lora.adapter_vars().iter().all(|var| grads.get(var).is_some()));
///
/// let dir = std::env::temp_dir().join("candle-fused-doc-adapter");
/// lora.save_peft("default", &dir)?;
/// # std::fs::remove_dir_all(&dir)?;
/// # candle_core::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct LoraBuilder<'a> {
    vb: VarBuilder<'a>,
    dtype: DType,
    shared: Arc<Shared>,
}

struct Shared {
    entry: Entry,
    matcher: Matcher,
    source: Option<Source>,
    layers: Mutex<Vec<Adapters>>,
}

/// The files that the adapter's values come from.
struct Source {
    format: Format,
    dir: PathBuf,
    tensors: Tensors,
}

/// Methods that make a convolution with the variables that `candle_nn`'s function of the same name takes.
macro_rules! convolutions {
    ($($(#[$doc:meta])* $function:ident;)*) => {$(
        $(#[$doc])*
        pub fn $function(
            &self,
            in_channels: usize,
            out_channels: usize,
            kernel_size: usize,
            config: Conv2dConfig,
        ) -> Result<LoraConv2d> {
            let vb = self.vb();
            let base = candle_nn::$function(in_channels, out_channels, kernel_size, config, vb)?;
            let layer = LoraConv2d::plain(base, self.prefix())?;
            self.register(layer.adapters())?;
            Ok(layer)
        }
    )*};
}

impl<'a> LoraBuilder<'a> {
    /// Puts an adapter, "default", with this config on the modules that `targets` name: suffixes of their paths, a regex
    /// for the whole path, or all linear layers.
    pub fn new(
        vb: VarBuilder<'a>,
        config: &LoraConfig,
        targets: impl Into<Targets>,
    ) -> Result<Self> {
        Self::from_config(vb, PeftConfig::new(config, targets.into()))
    }

    /// As [`new`](Self::new), with a whole PEFT config, which can for example set the ranks of single modules.
    pub fn from_config(vb: VarBuilder<'a>, config: PeftConfig) -> Result<Self> {
        let entry = Entry {
            peft: config,
            mlx: None,
        };
        Self::make(vb, entry, None, None)
    }

    /// Puts the adapter, "default", that PEFT wrote into `dir` on the model; [`finish`](Self::finish) reads its values.
    pub fn from_peft(vb: VarBuilder<'a>, dir: impl AsRef<Path>) -> Result<Self> {
        Self::from_dir(vb, Format::Peft, dir.as_ref())
    }

    /// As [`from_peft`](Self::from_peft), with an adapter that mlx-lm wrote.
    pub fn from_mlx(vb: VarBuilder<'a>, dir: impl AsRef<Path>) -> Result<Self> {
        Self::from_dir(vb, Format::MlxLm, dir.as_ref())
    }

    fn from_dir(vb: VarBuilder<'a>, format: Format, dir: &Path) -> Result<Self> {
        let tensors: Tensors = format.read_tensors(dir)?;
        let entry = Entry::read(format, dir, &tensors)?;
        let dtype = common_dtype(&tensors);
        let dir = dir.to_path_buf();
        let source = Source {
            format,
            dir,
            tensors,
        };
        Self::make(vb, entry, Some(source), dtype)
    }

    fn make(
        vb: VarBuilder<'a>,
        entry: Entry,
        source: Option<Source>,
        dtype: Option<DType>,
    ) -> Result<Self> {
        let default = match vb.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let matcher = Matcher::new(&entry.peft)?;
        let layers = Mutex::new(vec![]);
        let shared = Arc::new(Shared {
            entry,
            matcher,
            source,
            layers,
        });
        Ok(Self {
            vb,
            dtype: dtype.unwrap_or(default),
            shared,
        })
    }

    /// The dtype of the adapters' variables. Otherwise it is that of the file, or f32: small steps of an optimizer are
    /// lost in 16 bits. Layers convert to the dtype of their input.
    pub fn adapter_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    /// One step down the path, as `VarBuilder::pp`.
    pub fn pp<S: ToString>(&self, name: S) -> Self {
        Self {
            vb: self.vb.pp(name),
            ..self.clone()
        }
    }

    /// The same as [`pp`](Self::pp).
    pub fn push_prefix<S: ToString>(&self, name: S) -> Self {
        self.pp(name)
    }

    /// The `VarBuilder` at this path, for all layers that adapters don't go on.
    pub fn vb(&self) -> VarBuilder<'a> {
        self.vb.clone()
    }

    /// The path.
    pub fn prefix(&self) -> String {
        self.vb.prefix()
    }

    /// The device of the layers.
    pub fn device(&self) -> &Device {
        self.vb.device()
    }

    /// The dtype of the layers.
    pub fn dtype(&self) -> DType {
        self.vb.dtype()
    }

    /// Finishes building. An error if a target matched no module, or if the files of [`from_peft`](Self::from_peft) don't
    /// fit the model.
    pub fn finish(&self) -> Result<LoraModel> {
        let layers = self.layers().clone();
        let Shared {
            entry,
            matcher,
            source,
            ..
        } = &*self.shared;
        let modules: Vec<_> = layers
            .iter()
            .map(|l| (l.name().to_string(), l.kind()))
            .collect();
        // A config that was read from a file may name modules that this model lacks; the file's tensors are checked below.
        let adapted = layers.iter().any(|layer| !layer.adapter_names().is_empty());
        if source.is_none() || !adapted {
            matcher.check_used(&modules)?;
        }
        if !adapted {
            return Err(check::error(NAME, NOTHING_ADAPTED));
        }
        let place = (self.device().clone(), self.dtype);
        let model = LoraModel::new(layers, place, (DEFAULT_ADAPTER, entry.clone()));
        if let Some(Source { format, dir, .. }) = source {
            model.load(*format, DEFAULT_ADAPTER, dir)?;
        }
        Ok(model)
    }

    /// A linear layer with a bias.
    pub fn linear(&self, in_dim: usize, out_dim: usize) -> Result<LoraLinear> {
        self.add_linear(candle_nn::linear(in_dim, out_dim, self.vb())?)
    }

    /// A linear layer without a bias.
    pub fn linear_no_bias(&self, in_dim: usize, out_dim: usize) -> Result<LoraLinear> {
        self.add_linear(candle_nn::linear_no_bias(in_dim, out_dim, self.vb())?)
    }

    /// A linear layer with a bias whose weight is stored as `[in, out]`, like GPT-2's: PEFT's `fan_in_fan_out`.
    pub fn linear_transposed(&self, in_dim: usize, out_dim: usize) -> Result<LoraLinear> {
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let weight = self.vb.get_with_hints((in_dim, out_dim), "weight", init)?;
        let bias = self.vb.get_with_hints(out_dim, "bias", Init::Const(0.))?;
        self.add_linear(Linear::new(weight.t()?, Some(bias)))
    }

    /// A linear layer with a weight in one of Candle's GGUF types.
    pub fn linear_quantized(
        &self,
        weight: Arc<QTensor>,
        bias: Option<Tensor>,
    ) -> Result<LoraLinear> {
        let layer = LoraLinear::plain_quantized(weight, bias, self.prefix())?;
        self.register(layer.adapters())?;
        Ok(layer)
    }

    /// A linear layer with a packed weight: a [`PackedBitLinear`](crate::nn::PackedBitLinear) or a
    /// [`QuantLinear`](crate::nn::QuantLinear).
    pub fn linear_packed(&self, base: impl Into<PackedLinear>) -> Result<LoraLinear> {
        let layer = LoraLinear::plain_packed(base, self.prefix())?;
        self.register(layer.adapters())?;
        Ok(layer)
    }

    /// An embedding.
    pub fn embedding(&self, in_size: usize, out_size: usize) -> Result<LoraEmbedding> {
        let base = candle_nn::embedding(in_size, out_size, self.vb())?;
        let layer = LoraEmbedding::plain(base, self.prefix())?;
        self.register(layer.adapters())?;
        Ok(layer)
    }

    convolutions! {
        /// A convolution with a bias.
        conv2d;
        /// A convolution without a bias.
        conv2d_no_bias;
    }

    fn add_linear(&self, base: Linear) -> Result<LoraLinear> {
        let layer = LoraLinear::plain(base, self.prefix())?;
        self.register(layer.adapters())?;
        Ok(layer)
    }

    /// Adds a layer to the model, with an adapter if it is a target.
    fn register(&self, layer: &Adapters) -> Result<()> {
        let name = layer.name();
        if self.layers().iter().any(|other| other.name() == name) {
            let message = format!("module {name:?} is built twice; clone the layer to share it");
            return Err(check::error(NAME, message));
        }
        if let Some(config) = self.shared.matcher.config(name, layer.kind())? {
            if let Some(source) = &self.shared.source {
                let tensors = &source.tensors;
                source.format.check_shapes(layer.base(), &config, tensors)?;
            }
            let vars = VarMap::new();
            let vb = VarBuilder::from_varmap(&vars, self.dtype, self.device());
            layer.add_adapter(DEFAULT_ADAPTER, &config, vb)?;
        }
        self.layers().push(layer.clone());
        Ok(())
    }

    fn layers(&self) -> MutexGuard<'_, Vec<Adapters>> {
        self.shared
            .layers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
