//! All adapters of a model.

use super::target::Matcher;
use super::{Adapters, LoraConfig, MlxConfig, PeftConfig};
use crate::check;
use candle_core::{DType, Device, Result, Var};
use candle_nn::{VarBuilder, VarMap};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const NAME: &str = "LoraModel";

/// The error where the targets exist, but all of them are excluded.
pub(super) const NOTHING_ADAPTED: &str =
    "every module that target_modules names is excluded or in a layer that is not transformed";

/// All layers that a [`LoraBuilder`](super::LoraBuilder) built, to switch, merge, load and save their adapters together.
///
/// It shares the layers' state: what is changed here changes in the model.
#[derive(Debug)]
pub struct LoraModel {
    layers: Vec<Adapters>,
    device: Device,
    pub(super) dtype: DType,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    adapters: BTreeMap<String, Entry>,
    active: Option<String>,
}

/// An adapter's config, as it was given or read.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub peft: PeftConfig,
    pub mlx: Option<MlxConfig>,
}

/// The layers that get an adapter, and what it is made with.
pub(super) type Plan = Vec<(Adapters, LoraConfig)>;

impl LoraModel {
    pub(super) fn new(
        layers: Vec<Adapters>,
        (device, dtype): (Device, DType),
        (name, entry): (&str, Entry),
    ) -> Self {
        let known = Known {
            adapters: [(name.to_string(), entry)].into(),
            active: Some(name.to_string()),
        };
        LoraModel {
            layers,
            device,
            dtype,
            known: Mutex::new(known),
        }
    }

    /// All layers, with and without an adapter, in the order in which they were built.
    pub fn layers(&self) -> &[Adapters] {
        &self.layers
    }

    /// The names of all adapters.
    pub fn adapter_names(&self) -> Vec<String> {
        self.known().adapters.keys().cloned().collect()
    }

    pub(super) fn has_adapter(&self, name: &str) -> bool {
        self.known().adapters.contains_key(name)
    }

    /// The name of the active adapter.
    pub fn active_adapter(&self) -> Option<String> {
        self.known().active.clone()
    }

    /// The variables of all adapters, for an optimizer. It skips the variables of inactive adapters, which get no gradient.
    pub fn adapter_vars(&self) -> Vec<Var> {
        self.layers
            .iter()
            .flat_map(|layer| layer.adapter_vars())
            .collect()
    }

    /// Puts another adapter on the modules that its config names. It isn't active yet.
    pub fn add_adapter(&self, name: &str, config: &PeftConfig) -> Result<()> {
        let plan = self.plan(config, true)?;
        let entry = Entry {
            peft: config.clone(),
            mlx: None,
        };
        self.create(name, entry, &plan, self.dtype)
    }

    /// Removes an adapter from all layers.
    pub fn remove_adapter(&self, name: &str) -> Result<()> {
        let mut known = self.known();
        if !known.adapters.contains_key(name) {
            return Err(unknown(name, &known));
        }
        self.check_unmerged(&known, None)?;
        for layer in &self.layers {
            if layer.adapter(name).is_some() {
                let active = layer.active_adapter().filter(|active| active != name);
                layer.remove_adapter(name)?;
                layer.activate(active.as_deref())?;
            }
        }
        known.adapters.remove(name);
        known.active.take_if(|active| active == name);
        Ok(())
    }

    /// Makes this adapter active in all layers that have it; the others are their frozen base.
    pub fn set_adapter(&self, name: &str) -> Result<()> {
        let mut known = self.known();
        if !known.adapters.contains_key(name) {
            return Err(unknown(name, &known));
        }
        self.check_unmerged(&known, Some(name))?;
        for layer in &self.layers {
            layer.activate(layer.adapter(name).map(|_| name))?;
        }
        known.active = Some(name.to_string());
        Ok(())
    }

    /// Lets the active adapter take part again.
    pub fn enable(&self) {
        self.layers.iter().for_each(Adapters::enable);
    }

    /// Makes the model its frozen base.
    pub fn disable(&self) {
        self.layers.iter().for_each(Adapters::disable);
    }

    /// Merges the active adapter in all layers that have it, or in none if one of them can't.
    pub fn merge(&self) -> Result<()> {
        let mut layers = self
            .layers
            .iter()
            .filter(|layer| layer.active_adapter().is_some());
        let merged = layers.try_for_each(Adapters::merge);
        if merged.is_err() {
            self.unmerge();
        }
        merged
    }

    /// Goes back to the original weights with the adapter beside them.
    pub fn unmerge(&self) {
        self.layers.iter().for_each(Adapters::unmerge);
    }

    /// Seeds the dropout of all layers, each differently.
    pub fn set_seed(&self, seed: u64) {
        for (i, layer) in (0u64..).zip(&self.layers) {
            // A layer counts up from its seed: 2³² calls lie between two layers'.
            layer.set_seed(seed.wrapping_add(i << 32));
        }
    }

    pub(super) fn plan(&self, config: &PeftConfig, all_used: bool) -> Result<Plan> {
        let matcher = Matcher::new(config)?;
        let mut plan = vec![];
        for layer in &self.layers {
            if let Some(config) = matcher.config(layer.name(), layer.kind())? {
                layer.base().check(&config)?;
                plan.push((layer.clone(), config));
            }
        }
        if all_used || plan.is_empty() {
            let modules = self.layers.iter().map(|l| (l.name().to_string(), l.kind()));
            matcher.check_used(&modules.collect::<Vec<_>>())?;
        }
        if plan.is_empty() {
            return Err(check::error(NAME, NOTHING_ADAPTED));
        }
        Ok(plan)
    }

    pub(super) fn create(&self, name: &str, entry: Entry, plan: &Plan, dtype: DType) -> Result<()> {
        let mut known = self.known();
        // Before any layer is changed.
        let taken = |layer: &Adapters| layer.adapter(name).is_some();
        if known.adapters.contains_key(name) || plan.iter().any(|(layer, _)| taken(layer)) {
            let message = format!("there is an adapter {name:?} already");
            return Err(check::error(NAME, message));
        }
        for (layer, config) in plan {
            let active = layer.active_adapter();
            let vars = VarMap::new();
            layer.add_adapter(
                name,
                config,
                VarBuilder::from_varmap(&vars, dtype, &self.device),
            )?;
            layer.activate(active.as_deref())?;
        }
        known.adapters.insert(name.to_string(), entry);
        Ok(())
    }

    fn check_unmerged(&self, known: &Known, but: Option<&str>) -> Result<()> {
        let active = known.active.as_deref();
        if active != but && self.layers.iter().any(Adapters::is_merged) {
            let message = format!("adapter {active:?} is merged; unmerge it first");
            return Err(check::error(NAME, message));
        }
        Ok(())
    }

    pub(super) fn entry(&self, name: &str) -> Result<Entry> {
        let known = self.known();
        known
            .adapters
            .get(name)
            .cloned()
            .ok_or_else(|| unknown(name, &known))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(name: &str, known: &Known) -> candle_core::Error {
    let names: Vec<&String> = known.adapters.keys().collect();
    check::error(
        NAME,
        format_args!("got the unknown adapter {name:?}, expected one of {names:?}"),
    )
}
