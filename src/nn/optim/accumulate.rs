//! Gradients of several batches for one step.

use super::check_gradient;
use crate::check;
use crate::ops::grads::{add_inplace, scale_inplace};
use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var};

/// Adds up the gradients of several backward passes, in f32 and in one place, and hands an optimiser their mean.
///
/// The sums are in f32 for variables in f16 and bf16 too (and in f64 for f64), and so is the mean: this crate's
/// [`AdamW`](super::AdamW) takes it as it is.
///
/// ```
/// use candle_core::{Device, Result, Var};
/// use candle_fused::nn::GradAccumulator;
/// # fn main() -> Result<()> {
/// let w = Var::new(&[1f32, 2.], &Device::Cpu)?;
/// let mut sum = GradAccumulator::new(&[w.clone()])?;
/// for scale in [1.0, 3.0] {
///     sum.add(&(w.sum_all()? * scale)?.backward()?)?;
/// }
/// let grads = sum.finish()?;
/// assert_eq!(grads.get(&w).unwrap().to_vec1::<f32>()?, [2., 2.]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GradAccumulator {
    vars: Vec<Var>,
    /// None before the first gradient of a variable.
    sums: Vec<Option<Tensor>>,
    passes: usize,
}

impl GradAccumulator {
    /// For these variables, with nothing added up. Integers, which get no gradients, are left out.
    pub fn new(vars: &[Var]) -> Result<Self> {
        let name = "GradAccumulator::new";
        let vars: Vec<Var> = vars
            .iter()
            .filter(|var| var.dtype().is_float())
            .cloned()
            .collect();
        for (i, var) in vars.iter().enumerate() {
            check::is_float(name, var.as_tensor())?;
            let message = format_args!("got variable {i} twice, expected each once");
            let is_new = vars[..i].iter().all(|other| other.id() != var.id());
            check::ensure(is_new, name, message)?;
        }
        Ok(GradAccumulator {
            sums: vec![None; vars.len()],
            vars,
            passes: 0,
        })
    }

    /// Adds the gradients of a pass. A variable without one is an error, and then nothing is added.
    pub fn add(&mut self, grads: &GradStore) -> Result<()> {
        let name = "GradAccumulator::add";
        let missing = self.missing(grads);
        let count = self.vars.len();
        let message = format_args!(
            "got no gradient for the variables {missing:?} of {count}, expected one for each; add_found adds those that are there"
        );
        check::ensure(missing.is_empty(), name, message)?;
        self.add_those(name, grads)
    }

    /// Adds the gradients of a pass that does not reach all variables, and returns the numbers of the variables that it has not reached. They
    /// count as zeros in the mean; a variable that no pass has reached has no gradient in the end.
    #[must_use = "these variables got no gradient"]
    pub fn add_found(&mut self, grads: &GradStore) -> Result<Vec<usize>> {
        let missing = self.missing(grads);
        self.add_those("GradAccumulator::add_found", grads)?;
        Ok(missing)
    }

    /// The passes that have been added since the last [`GradAccumulator::finish`].
    pub fn passes(&self) -> usize {
        self.passes
    }

    /// The mean over all passes, by variable. What is added next begins anew.
    pub fn finish(&mut self) -> Result<GradStore> {
        let name = "GradAccumulator::finish";
        check::ensure(
            self.passes > 0,
            name,
            "got no gradients, expected at least one pass",
        )?;
        let factor = 1.0 / std::mem::take(&mut self.passes) as f64;
        let mut grads = GradStore::default();
        for (var, sum) in self.vars.iter().zip(&mut self.sums) {
            let Some(sum) = sum.take() else { continue };
            let mean = match check::has_kernel(&sum) {
                true => {
                    scale_inplace(name, &sum, factor)?;
                    sum
                }
                false => (sum * factor)?,
            };
            grads.insert(var, mean);
        }
        Ok(grads)
    }

    fn missing(&self, grads: &GradStore) -> Vec<usize> {
        let vars = self.vars.iter().enumerate();
        let missing = vars.filter(|(_, var)| grads.get(var).is_none());
        missing.map(|(i, _)| i).collect()
    }

    fn add_those(&mut self, name: &'static str, grads: &GradStore) -> Result<()> {
        for (i, var) in self.vars.iter().enumerate() {
            if let Some(grad) = grads.get(var) {
                check_gradient(name, i, var, grad)?;
            }
        }
        for (var, sum) in self.vars.iter().zip(&mut self.sums) {
            let Some(grad) = grads.get(var) else { continue };
            match sum {
                Some(total) => {
                    if let Some(new) = add_inplace(name, total, grad)? {
                        *sum = Some(new);
                    }
                }
                None => {
                    let wide = check::accumulator_dtype(var.dtype());
                    *sum = Some(match grad.elem_count() {
                        // Candle's cast of nothing panics on Metal.
                        0 => Tensor::zeros(grad.shape(), wide, grad.device())?,
                        // A copy in any case: the sum is overwritten.
                        _ => grad.detach().to_dtype(wide)?.force_contiguous()?,
                    });
                }
            }
        }
        self.passes += 1;
        Ok(())
    }
}
