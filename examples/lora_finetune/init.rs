//! What a model begins its training with.

use crate::rng::Rng;
use candle_core::Result;
use candle_fused::nn::VarMap;
use std::collections::BTreeMap;

/// Fills the variables of a transformer of so many layers from our seed.
pub fn fill(vars: &VarMap, layers: usize, rng: &mut Rng) -> Result<()> {
    // In the order of their names: that of a HashMap differs between runs.
    let data = vars.data().lock().expect("no thread has panicked");
    let sorted: BTreeMap<_, _> = data.iter().collect();
    for (name, var) in sorted {
        let stdev = match *var.dims() {
            // Norms stay at 1.
            [_] => continue,
            _ if name.contains("embed") => 0.2,
            [_, _] if name.contains("lm_head") => 0.02,
            [_, inputs] => (inputs as f64).powf(-0.5) / (2.0 * layers as f64).sqrt(),
            _ => candle_core::bail!("{name} has shape {:?}", var.shape()),
        };
        var.set(&rng.normal(var.shape(), stdev)?)?;
    }
    Ok(())
}
