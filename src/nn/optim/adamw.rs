//! AdamW, one fused op for each variable.

use super::{check_gradient, AdamWOptions, Moments, Optimizer, ParamsAdamW, Rounding};
use crate::check;
use crate::op::storage_address;
use crate::ops::adamw::{self, adamw_steps, Coefficients, State, Step, Update};
use candle_core::backprop::GradStore;
use candle_core::{DType, Result, Tensor, Var};
use candle_nn::VarMap;
use std::collections::{HashMap, HashSet};

const NAME: &str = "AdamW";

/// Variables with fewer elements keep moments in f32, also with [`Moments::EightBit`].
const FEWEST_CODES: usize = 4096;

/// `candle_nn::AdamW` with the same constructors and numbers, in one pass over each variable, its gradient and its moments.
///
/// The moments are in f32 and computed in f32 for variables in f16 and bf16 too, which are kept in f32 besides:
/// [`AdamW::with_options`] offers other forms. Gradients may be in the variable's dtype or in f32, of any layout. A variable
/// without a gradient is left as it is, moments included, as in `candle_nn`. Variables in f64 and on CUDA take Candle's ops.
///
/// ```
/// use candle_core::{Device, Result, Var};
/// use candle_fused::nn::{AdamW, Optimizer, ParamsAdamW};
/// # fn main() -> Result<()> {
/// let w = Var::new(&[1f32, -2.], &Device::Cpu)?;
/// let params = ParamsAdamW { lr: 0.1, weight_decay: 0.0, ..Default::default() };
/// let mut adam = AdamW::new(vec![w.clone()], params)?;
/// adam.backward_step(&w.sqr()?.sum_all()?)?;
/// // The first step goes by the learning rate against the gradient's sign.
/// let w = w.to_vec1::<f32>()?;
/// assert!((w[0] - 0.9).abs() < 1e-6 && (w[1] + 1.9).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AdamW {
    pub(super) vars: Vec<Variable>,
    pub(super) step_t: usize,
    params: ParamsAdamW,
    options: AdamWOptions,
}

/// A variable, and the state that the optimiser keeps for it.
#[derive(Debug)]
pub(super) struct Variable {
    /// Of its tensors in a saved state.
    pub(super) name: String,
    pub(super) var: Var,
    pub(super) state: State,
}

impl Optimizer for AdamW {
    type Config = ParamsAdamW;

    fn new(vars: Vec<Var>, params: ParamsAdamW) -> Result<Self> {
        Self::with_options(vars, params, AdamWOptions::default())
    }

    fn step(&mut self, grads: &GradStore) -> Result<()> {
        // All gradients are looked at before the first variable changes.
        for Variable { name, var, .. } in &self.vars {
            if let Some(grad) = grads.get(var) {
                check_gradient(NAME, name, var, grad)?;
            }
        }
        let grads = self.apart_from_variables(grads)?;
        self.step_t += 1;
        let coefficients = self.coefficients();
        let updates = self.vars.iter().zip(&grads).enumerate();
        let updates = updates.filter_map(|(i, (variable, grad))| {
            Some(Update {
                step: Step {
                    coefficients,
                    rounding: self.rounding(i, &variable.state),
                },
                var: &variable.var,
                grad: grad.as_ref()?,
                state: &variable.state,
            })
        });
        adamw_steps(NAME, &updates.collect::<Vec<_>>())
    }

    fn learning_rate(&self) -> f64 {
        self.params.lr
    }

    fn set_learning_rate(&mut self, lr: f64) {
        self.params.lr = lr
    }
}

impl AdamW {
    /// With default parameters but for the learning rate.
    pub fn new_lr(vars: Vec<Var>, learning_rate: f64) -> Result<Self> {
        let params = ParamsAdamW {
            lr: learning_rate,
            ..ParamsAdamW::default()
        };
        Self::new(vars, params)
    }

    /// With another form of the moments, or another treatment of variables in 16 bits. In a saved state the variables
    /// bear their numbers as names, so that it must be loaded by an optimiser of the same variables in the same order; the
    /// order of `VarMap::all_vars` changes from run to run, and [`AdamW::from_varmap`] goes by names.
    ///
    /// ```
    /// use candle_core::{DType, Device, Result, Var};
    /// use candle_fused::nn::{AdamW, AdamWOptions, Moments, Optimizer, ParamsAdamW, Rounding};
    /// # fn main() -> Result<()> {
    /// let w = Var::ones(8192, DType::BF16, &Device::Cpu)?;
    /// let options = AdamWOptions {
    ///     moments: Moments::EightBit,
    ///     rounding: Rounding::Stochastic { seed: 42 },
    /// };
    /// let mut adam = AdamW::with_options(vec![w.clone()], ParamsAdamW::default(), options)?;
    /// adam.backward_step(&w.sqr()?.mean_all()?)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_options(
        vars: Vec<Var>,
        params: ParamsAdamW,
        options: AdamWOptions,
    ) -> Result<Self> {
        let vars = vars.into_iter().enumerate();
        Self::named(vars.map(|(i, var)| (i.to_string(), var)), params, options)
    }

    /// For all variables of a map, under their names in a saved state.
    pub fn from_varmap(vars: &VarMap, params: ParamsAdamW, options: AdamWOptions) -> Result<Self> {
        let vars = vars.data().lock();
        let vars =
            vars.map_err(|_| check::error(NAME, "got a map that a panic has left locked"))?;
        let mut vars: Vec<_> = vars.iter().map(|(n, v)| (n.clone(), v.clone())).collect();
        vars.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self::named(vars, params, options)
    }

    /// For variables under names of your own in a saved state.
    pub fn named(
        vars: impl IntoIterator<Item = (String, Var)>,
        params: ParamsAdamW,
        options: AdamWOptions,
    ) -> Result<Self> {
        let mut made: Vec<Variable> = Vec::new();
        let (mut names, mut places) = (HashMap::new(), HashMap::new());
        for (name, var) in vars {
            // As in candle_nn, integers are not trained.
            if !var.dtype().is_float() {
                continue;
            }
            check::is_float(NAME, var.as_tensor())?;
            let message = format_args!("got two variables of the name {name:?}, expected one");
            check::ensure(names.insert(name.clone(), ()).is_none(), NAME, message)?;
            if let Some(other) = places.insert(storage_address(&var), name.clone()) {
                let message = format_args!(
                    "got variables {other} and {name} in the same memory, expected each variable once: it would be updated twice"
                );
                return Err(check::error(NAME, message));
            }
            let state = Self::state_for(&name, &var, options)?;
            made.push(Variable { name, var, state });
        }
        Ok(AdamW {
            vars: made,
            step_t: 0,
            params,
            options,
        })
    }

    /// The gradient of each variable. One in the memory of a variable is copied: the step overwrites that, maybe before the gradient
    /// is read.
    fn apart_from_variables(&self, grads: &GradStore) -> Result<Vec<Option<Tensor>>> {
        let addresses = self.vars.iter().map(|v| storage_address(&v.var));
        let variables: HashSet<usize> = addresses.collect();
        let apart = |grad: &Tensor| match variables.contains(&storage_address(grad)) {
            true if grad.elem_count() > 0 => grad.detach().force_contiguous(),
            _ => Ok(grad.clone()),
        };
        let grads = self.vars.iter().map(|v| grads.get(&v.var).map(apart));
        grads.map(Option::transpose).collect()
    }

    fn state_for(name: &str, var: &Var, options: AdamWOptions) -> Result<State> {
        let is_half = matches!(var.dtype(), DType::F16 | DType::BF16);
        let eight_bit = options.moments == Moments::EightBit
            && var.elem_count() >= FEWEST_CODES
            && var.dtype() != DType::F64;
        let by_chance = is_half && matches!(options.rounding, Rounding::Stochastic { .. });
        if (eight_bit || by_chance) && !check::has_kernel(var) {
            let location = var.device().location();
            let message = format_args!(
                "got variable {name} on {location:?} without kernels, expected moments in f32 and no stochastic rounding there"
            );
            return Err(check::error(NAME, message));
        }
        let has_master = is_half && options.rounding == Rounding::Master;
        State::new(var, eight_bit, has_master)
    }

    /// The parameters that `candle_nn`'s AdamW has too.
    pub fn params(&self) -> &ParamsAdamW {
        &self.params
    }

    /// Changes them from the next step on.
    pub fn set_params(&mut self, params: ParamsAdamW) {
        self.params = params;
    }

    /// What this optimiser was made with.
    pub fn options(&self) -> AdamWOptions {
        self.options
    }

    /// The steps that have been taken.
    pub fn step_count(&self) -> usize {
        self.step_t
    }

    /// The numbers of the current step.
    fn coefficients(&self) -> Coefficients {
        let ParamsAdamW {
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
        } = self.params;
        // A count that does not fit would leave the powers at 0 in any case.
        let t = i32::try_from(self.step_t).unwrap_or(i32::MAX);
        Coefficients {
            decay: 1.0 - lr * weight_decay,
            beta1,
            beta2,
            rate: lr / (1.0 - beta1.powi(t)),
            scale_v: 1.0 / (1.0 - beta2.powi(t)),
            eps,
        }
    }

    /// How variable number i is rounded in the current step.
    fn rounding(&self, i: usize, state: &State) -> adamw::Rounding {
        match self.options.rounding {
            _ if state.has_master => adamw::Rounding::Master,
            Rounding::Stochastic { seed } => {
                let seed = mixed(mixed(seed ^ mixed(self.step_t as u64)) ^ i as u64);
                adamw::Rounding::Stochastic { seed }
            }
            _ => adamw::Rounding::Nearest,
        }
    }
}

/// A permutation of the 64-bit numbers that leaves no pattern between neighbours (the finaliser of SplitMix64).
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
