//! Random weights that depend on a variable's name and shape alone, so that every variant of a model has the same.

use candle_core::{DType, Device, Result, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Every variable that a model asked for, by name.
#[derive(Clone, Default)]
pub struct Variables {
    vars: Arc<Mutex<BTreeMap<String, Var>>>,
}

impl Variables {
    /// What a model is built from. Its variables can be trained.
    pub fn builder(&self, dtype: DType) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, Device::Cpu)
    }

    pub fn all(&self) -> BTreeMap<String, Var> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Var>> {
        self.vars.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl SimpleBackend for Variables {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let mut vars = self.lock();
        if let Some(var) = vars.get(name) {
            return Ok(var.as_tensor().clone());
        }
        let var = Var::from_tensor(
            &tensor(name, shape.dims())?
                .to_dtype(dtype)?
                .to_device(device)?,
        )?;
        vars.insert(name.to_string(), var.clone());
        Ok(var.as_tensor().clone())
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} has no shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// What a model is built from for inference.
pub struct Frozen;

impl Frozen {
    pub fn builder(dtype: DType) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(Frozen), dtype, Device::Cpu)
    }
}

impl SimpleBackend for Frozen {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        tensor(name, shape.dims())?
            .to_dtype(dtype)?
            .to_device(device)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} has no shape")
    }

    fn contains_tensor(&self, _: &str) -> bool {
        true
    }
}

/// Uniform values: matrices so that a layer keeps the size of its input, norms around 1, biases small.
///
/// No checkpoint has an empty tensor: models that can do without a layer ask for one and take the error for an answer.
pub fn tensor(name: &str, dims: &[usize]) -> Result<Tensor> {
    if dims.contains(&0) {
        candle_core::bail!("cannot find {name}");
    }
    let (centre, half_width) = match dims {
        _ if name.ends_with("running_var") => (1.0, 0.5),
        [] | [_] if name.ends_with("weight") => (1.0, 0.1),
        [] | [_] => (0.0, 0.1),
        [_, rest @ ..] => (
            0.0,
            (3.0 / rest.iter().product::<usize>().max(1) as f32).sqrt(),
        ),
    };
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let unit = ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1u32 << 24) as f32;
        centre + half_width * (2.0 * unit - 1.0)
    };
    let values: Vec<f32> = (0..dims.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(values, dims, &Device::Cpu)
}
