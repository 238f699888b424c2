//! The state of an optimiser as tensors, and as a safetensors file.

use super::AdamW;
use crate::check;
use crate::nn::replace_file;
use candle_core::{safetensors, DType, Device, Result, Tensor};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// The entry with the number of steps.
const STEP: &str = "step";

impl AdamW {
    /// Copies of what the optimiser keeps: `step`, and for each variable `NAME.m` and `NAME.v` (with 8-bit moments
    /// `NAME.m_codes`, `NAME.m_scale`, `NAME.v_codes`, `NAME.v_scale`) and, for a variable in 16 bits that is kept in f32,
    /// `NAME.master`. All but `step` are flat. Learning rate and other parameters are not part of it.
    ///
    /// ```
    /// use candle_core::{DType, Device, Result, Var};
    /// use candle_fused::nn::{AdamW, Optimizer};
    /// # fn main() -> Result<()> {
    /// let w = Var::ones(3, DType::F32, &Device::Cpu)?;
    /// let mut adam = AdamW::new_lr(vec![w.clone()], 1e-3)?;
    /// adam.backward_step(&w.sqr()?.sum_all()?)?;
    /// let state = adam.state()?;
    /// assert_eq!(state["0.m"].dims(), [3]);
    ///
    /// let mut resumed = AdamW::new_lr(vec![w], 1e-3)?;
    /// resumed.load_state(&state)?;
    /// assert_eq!(resumed.step_count(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn state(&self) -> Result<HashMap<String, Tensor>> {
        let step = i64::try_from(self.step_t).unwrap_or(i64::MAX);
        let step = Tensor::new(&[step], &Device::Cpu)?;
        let mut state = HashMap::from([(STEP.to_string(), step)]);
        for variable in &self.vars {
            for (part, tensor) in variable.state.copies()? {
                state.insert(format!("{}.{part}", variable.name), tensor);
            }
        }
        Ok(state)
    }

    /// Takes the state of an optimiser with the same variables and options: every entry must be there, of its dtype and length, and
    /// no other. After an error nothing has changed.
    pub fn load_state(&mut self, state: &HashMap<String, Tensor>) -> Result<()> {
        let name = "AdamW::load_state";
        let entry = |key: &str, like: &Tensor| -> Result<Tensor> {
            let tensor = state.get(key).ok_or_else(|| {
                let message = format_args!(
                    "got no tensor {key:?}, expected one: is the state of other variables or options?"
                );
                check::error(name, message)
            })?;
            let (got, expected) = ((tensor.dtype(), tensor.dims()), (like.dtype(), like.dims()));
            let message = format_args!("got {key:?} as {got:?}, expected {expected:?}");
            check::ensure(got == expected, name, message)?;
            Ok(tensor.clone())
        };
        let step = entry(STEP, &Tensor::zeros(1, DType::I64, &Device::Cpu)?)?;
        let step = step.to_vec1::<i64>()?[0];
        let step_t = usize::try_from(step)
            .map_err(|_| check::error(name, format_args!("got step {step}, expected 0 or more")))?;
        let mut known = BTreeSet::from([STEP.to_string()]);
        let mut loaded = Vec::new();
        for variable in &self.vars {
            let mut parts = Vec::new();
            for (part, like) in variable.state.parts_by_name()? {
                let key = format!("{}.{part}", variable.name);
                parts.push(entry(&key, &like)?);
                known.insert(key);
            }
            loaded.push(parts);
        }
        let unknown: BTreeSet<_> = state.keys().filter(|&key| !known.contains(key)).collect();
        let message = format_args!("got tensors {unknown:?} of no variable, expected none");
        check::ensure(unknown.is_empty(), name, message)?;
        for (variable, parts) in self.vars.iter().zip(&loaded) {
            variable.state.set_parts(parts)?;
        }
        self.step_t = step_t;
        Ok(())
    }

    /// Writes [`AdamW::state`] to a safetensors file. A file that was there before is replaced as a whole, or kept if saving fails or
    /// the process is killed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let failed = |error: &dyn std::fmt::Display| {
            check::error("AdamW::save", format_args!("{}: {error}", path.display()))
        };
        let bytes = ::safetensors::serialize(self.state()?, None).map_err(|e| failed(&e))?;
        replace_file::replace(path, &bytes).map_err(|e| failed(&e))
    }

    /// Reads the file of [`AdamW::save`], by the rules of [`AdamW::load_state`].
    pub fn load(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.load_state(&safetensors::load(path, &Device::Cpu)?)
    }
}
