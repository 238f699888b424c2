//! One adapter: A, B and, with DoRA, the magnitude.

use super::frozen_base::{FrozenBase, Kind};
use super::LoraConfig;
use crate::ops::lora::AdapterDropout;
use candle_core::{DType, Result, Tensor, Var};
use candle_nn::{Init, VarBuilder};

/// The variables of one adapter, in PEFT's orientation, and its configuration.
///
/// | layer | A | B | magnitude |
/// |---|---|---|---|
/// | linear | `[rank, in]` | `[out, rank]` | `[out]` |
/// | embedding | `[rank, entries]` | `[width, rank]` | `[width]` |
/// | conv2d | `[rank, in, height, width]` | `[out, rank / groups, 1, 1]` | `[1, out, 1, 1]` |
#[derive(Clone, Debug)]
pub struct LoraAdapter {
    config: LoraConfig,
    a: Var,
    b: Var,
    magnitude: Option<Var>,
}

impl LoraAdapter {
    /// The variables come from `vb` under PEFT's names. One that isn't there yet starts so that the layer's output is
    /// the base's: B zero (an embedding's A), the other one random, the magnitude the weight's own.
    pub(super) fn new(
        base: &FrozenBase,
        squares: impl FnOnce() -> Result<Tensor>,
        name: &str,
        config: &LoraConfig,
        vb: &VarBuilder,
    ) -> Result<Self> {
        base.check(config)?;
        let device = base.weight.device();
        if !vb.device().same_device(&device) {
            let (got, expected) = (vb.device().location(), device.location());
            let message =
                format!("got a VarBuilder on {got:?}, expected the weight's {expected:?}");
            return Err(base.error(message));
        }
        let [a_dims, b_dims, magnitude_dims] = base.adapter_dims(config.rank);
        let [a, b, magnitude] = local_names(base.kind, name);
        let fan_in = a_dims[1..].iter().product::<usize>() as f64;
        // Kaiming-uniform with a = √5, as PEFT has it: √(6 / ((1 + a²)·fan_in)).
        let bound = fan_in.powf(-0.5);
        let (a_init, b_init) = match base.kind {
            Kind::Embedding => (
                Init::Const(0.),
                Init::Randn {
                    mean: 0.,
                    stdev: 1.,
                },
            ),
            _ => (
                Init::Uniform {
                    lo: -bound,
                    up: bound,
                },
                Init::Const(0.),
            ),
        };
        let variable = |dims: &[usize], name: &str, init| {
            Var::from_tensor(&vb.get_with_hints(dims, name, init)?)
        };
        let a = variable(&a_dims, &a, a_init)?;
        let b = variable(&b_dims, &b, b_init)?;
        let magnitude = match config.use_dora {
            true => {
                let stored = vb.contains_tensor(&magnitude);
                let var = variable(&magnitude_dims, &magnitude, Init::Const(1.))?;
                if !stored {
                    let norms = squares()?.sqrt()?.to_dtype(var.dtype())?;
                    var.set(&norms.reshape(magnitude_dims)?)?;
                }
                Some(var)
            }
            false => None,
        };
        let config = config.clone();
        Ok(Self {
            config,
            a,
            b,
            magnitude,
        })
    }

    /// Its rank, scale and so on.
    pub fn config(&self) -> &LoraConfig {
        &self.config
    }

    /// The first factor, which x is multiplied by.
    pub fn a(&self) -> &Var {
        &self.a
    }

    /// The second factor.
    pub fn b(&self) -> &Var {
        &self.b
    }

    /// DoRA's magnitude of each output.
    pub fn magnitude(&self) -> Option<&Var> {
        self.magnitude.as_ref()
    }

    /// All its variables, for an optimizer.
    pub fn vars(&self) -> Vec<Var> {
        let magnitude = self.magnitude.iter();
        [&self.a, &self.b]
            .into_iter()
            .chain(magnitude)
            .cloned()
            .collect()
    }

    /// A and B in the dtype of the input.
    pub(super) fn factors(&self, dtype: DType) -> Result<(Tensor, Tensor)> {
        Ok((self.a.to_dtype(dtype)?, self.b.to_dtype(dtype)?))
    }

    pub(super) fn dropout(
        &self,
        seed: impl FnOnce() -> u64,
        train: bool,
    ) -> Option<AdapterDropout> {
        let p = self.config.dropout;
        (train && p > 0.0).then(|| AdapterDropout { p, seed: seed() })
    }
}

/// The names of A, B and the magnitude within a module, as PEFT has them in memory: with the adapter's name.
fn local_names(kind: Kind, adapter: &str) -> [String; 3] {
    let [a, b] = match kind {
        Kind::Embedding => ["A", "B"].map(|x| format!("lora_embedding_{x}.{adapter}")),
        _ => ["A", "B"].map(|x| format!("lora_{x}.{adapter}.weight")),
    };
    [a, b, format!("lora_magnitude_vector.{adapter}.weight")]
}
