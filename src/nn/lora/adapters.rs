//! The named adapters of one layer: which of them is active, and whether it is merged.

use super::frozen_base::{FrozenBase, Kind};
use super::{LoraAdapter, LoraConfig};
use crate::nn::ops::fresh_seed;
use crate::ops::FrozenWeight;
use candle_core::{Result, Tensor, Var};
use candle_nn::VarBuilder;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The adapters of a layer: what the `adapters()` of [`LoraLinear`](super::LoraLinear),
/// [`LoraEmbedding`](super::LoraEmbedding) and [`LoraConv2d`](super::LoraConv2d) give.
///
/// One adapter is active; the first to be added is, until [`set_adapter`](Self::set_adapter) says otherwise. Without an
/// active adapter, and while [`disable`](Self::disable)d, the layer is its frozen base. A clone shares all of this with
/// its original, and so does the [`LoraModel`](super::LoraModel) of a model.
#[derive(Clone, Debug)]
pub struct Adapters(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    base: FrozenBase,
    squares: OnceLock<Tensor>,
    seed: AtomicU64,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    adapters: BTreeMap<String, Arc<LoraAdapter>>,
    active: Option<String>,
    enabled: bool,
    merged: Option<Tensor>,
}

/// What a forward pass computes: the frozen base, the merged weight, or the base with an adapter.
pub(super) enum Run {
    Base,
    Merged(Tensor),
    Adapter(Arc<LoraAdapter>),
}

impl Adapters {
    pub(super) fn new(base: FrozenBase) -> Self {
        let state = State {
            adapters: BTreeMap::new(),
            active: None,
            enabled: true,
            merged: None,
        };
        Adapters(Arc::new(Shared {
            base,
            squares: OnceLock::new(),
            seed: AtomicU64::new(fresh_seed()),
            state: RwLock::new(state),
        }))
    }

    /// Adds an adapter. Its variables come from `vb`, under PEFT's names: `lora_A.<name>.weight` and so on. With a
    /// `VarMap` behind it they are that map's; from any other source they are read once and then variables of their own.
    /// They may have another dtype than the layer, and are converted to its input's at each call.
    pub fn add_adapter(&self, name: &str, config: &LoraConfig, vb: VarBuilder) -> Result<()> {
        if name.is_empty() || name.contains('.') {
            let message = format!("got the adapter name {name:?}, expected one without dots");
            return Err(self.error(message));
        }
        if self.adapter(name).is_some() {
            return Err(self.error(format!("there is an adapter {name:?} already")));
        }
        let adapter = LoraAdapter::new(&self.0.base, || self.squares(), name, config, &vb)?;
        let mut state = self.write();
        state.adapters.insert(name.to_string(), Arc::new(adapter));
        state.active.get_or_insert_with(|| name.to_string());
        Ok(())
    }

    /// Removes an adapter. If it was active, the first of the remaining ones becomes active.
    pub fn remove_adapter(&self, name: &str) -> Result<()> {
        let mut state = self.write();
        let active = state.active.as_deref() == Some(name);
        if active && state.merged.is_some() {
            drop(state);
            return Err(self.error(format!("adapter {name:?} is merged; unmerge it first")));
        }
        if state.adapters.remove(name).is_none() {
            drop(state);
            return Err(self.unknown(name));
        }
        if active {
            state.active = state.adapters.keys().next().cloned();
        }
        Ok(())
    }

    /// Makes this adapter the active one.
    pub fn set_adapter(&self, name: &str) -> Result<()> {
        if self.adapter(name).is_none() {
            return Err(self.unknown(name));
        }
        self.activate(Some(name))
    }

    /// Makes this adapter, or none, the active one.
    pub(super) fn activate(&self, name: Option<&str>) -> Result<()> {
        let mut state = self.write();
        if state.merged.is_some() && state.active.as_deref() != name {
            let message = format!(
                "adapter {:?} is merged; unmerge it before another is set",
                state.active
            );
            drop(state);
            return Err(self.error(message));
        }
        state.active = name.map(String::from);
        Ok(())
    }

    /// The name of the active adapter.
    pub fn active_adapter(&self) -> Option<String> {
        self.read().active.clone()
    }

    /// The names of all adapters, sorted.
    pub fn adapter_names(&self) -> Vec<String> {
        self.read().adapters.keys().cloned().collect()
    }

    /// The adapter of this name, if there is one.
    pub fn adapter(&self, name: &str) -> Option<Arc<LoraAdapter>> {
        self.read().adapters.get(name).cloned()
    }

    /// The variables of all adapters, for an optimizer.
    pub fn adapter_vars(&self) -> Vec<Var> {
        let state = self.read();
        state
            .adapters
            .values()
            .flat_map(|adapter| adapter.vars())
            .collect()
    }

    /// Lets the active adapter, merged or not, take part again.
    pub fn enable(&self) {
        self.write().enabled = true;
    }

    /// Makes the layer its frozen base, also while an adapter is merged.
    pub fn disable(&self) {
        self.write().enabled = false;
    }

    /// Whether the active adapter takes part.
    pub fn is_enabled(&self) -> bool {
        self.read().enabled
    }

    /// Adds the active adapter to a copy of the weight; the layer then runs as a plain frozen one. Training the adapter
    /// has no effect until the next `merge`. Loading other values from a file merges again.
    ///
    /// The weight itself is kept: [`unmerge`](Self::unmerge) restores it bit for bit. A layer's `to_stock` returns a
    /// stock layer that holds the merged weight alone.
    pub fn merge(&self) -> Result<()> {
        let merged = self.merged_weight()?;
        self.write().merged = Some(merged);
        Ok(())
    }

    /// Goes back to the original weight with the adapter beside it.
    pub fn unmerge(&self) {
        self.write().merged = None;
    }

    /// After the variables of this adapter have been replaced: where it is merged, merges it again.
    pub(super) fn refresh(&self, name: &str) -> Result<()> {
        let merged = {
            let state = self.read();
            state.merged.is_some() && state.active.as_deref() == Some(name)
        };
        match merged {
            true => self.merge(),
            false => Ok(()),
        }
    }

    /// Whether the active adapter is merged.
    pub fn is_merged(&self) -> bool {
        self.read().merged.is_some()
    }

    /// The seed of the next call's dropout in training; each call takes the next number. It starts differently in each
    /// layer and process.
    pub fn set_seed(&self, seed: u64) {
        self.0.seed.store(seed, Ordering::Relaxed);
    }

    /// The weight with the active adapter added, as [`merge`](Self::merge) uses it.
    pub fn merged_weight(&self) -> Result<Tensor> {
        let active = self.active_adapter();
        let Some(adapter) = active.and_then(|name| self.adapter(&name)) else {
            let known = self.adapter_names();
            return Err(self.error(format!("no active adapter to merge, there are {known:?}")));
        };
        let factor = self.magnitude_factor(&adapter)?.map(|f| f.detach());
        self.0.base.merged(&adapter, factor.as_ref())
    }

    /// The frozen weight, unless it is quantised.
    pub fn weight(&self) -> Option<&Tensor> {
        match &self.0.base.weight {
            FrozenWeight::Dense(w) => Some(w),
            _ => None,
        }
    }

    /// The layer's kind.
    pub fn kind(&self) -> Kind {
        self.0.base.kind
    }

    /// The layer's path in its model, or "".
    pub fn name(&self) -> &str {
        &self.0.base.name
    }

    pub(super) fn base(&self) -> &FrozenBase {
        &self.0.base
    }

    pub(super) fn run(&self) -> Run {
        let state = self.read();
        let active = state.active.as_ref();
        match (
            &state.merged,
            active.and_then(|name| state.adapters.get(name)),
        ) {
            _ if !state.enabled => Run::Base,
            (Some(merged), _) => Run::Merged(merged.clone()),
            (None, Some(adapter)) => Run::Adapter(adapter.clone()),
            (None, None) => Run::Base,
        }
    }

    pub(super) fn next_seed(&self) -> u64 {
        self.0.seed.fetch_add(1, Ordering::Relaxed)
    }

    /// DoRA's `m / ‖W + s·B·A‖` for each output, with the norm outside the graph.
    pub(super) fn magnitude_factor(&self, adapter: &LoraAdapter) -> Result<Option<Tensor>> {
        let Some(magnitude) = adapter.magnitude() else {
            return Ok(None);
        };
        let norms = self.0.base.norms(&self.squares()?, adapter)?;
        // Rounded as the magnitude is, so that the factor starts at exactly 1.
        let dtype = norms.dtype();
        let norms = norms.to_dtype(magnitude.dtype())?.to_dtype(dtype)?;
        let factor = magnitude.flatten_all()?.to_dtype(dtype)?.div(&norms)?;
        Ok(Some(factor))
    }

    /// ‖W_o‖² of each output, computed once.
    fn squares(&self) -> Result<Tensor> {
        if let Some(squares) = self.0.squares.get() {
            return Ok(squares.clone());
        }
        let squares = self.0.base.squares()?;
        Ok(self.0.squares.get_or_init(|| squares).clone())
    }

    fn unknown(&self, name: &str) -> candle_core::Error {
        let known = self.adapter_names();
        self.error(format!(
            "got the unknown adapter {name:?}, expected one of {known:?}"
        ))
    }

    fn error(&self, message: impl std::fmt::Display) -> candle_core::Error {
        self.0.base.error(message)
    }

    // A lock that a panic has poisoned is taken all the same: no code leaves the state half changed.

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The methods of the layers that have a field `adapters`, and that [`plain`](super::LoraLinear::plain) makes of a base.
macro_rules! adapted_layer {
    ($layer:ty, of $base:ty) => {
        impl $layer {
            /// With one adapter, "default", whose variables come from `vb`.
            pub fn new(
                base: impl Into<$base>,
                config: &LoraConfig,
                vb: VarBuilder,
            ) -> Result<Self> {
                Self::plain(base, vb.prefix())?.with_default(config, vb)
            }

            fn with_default(self, config: &LoraConfig, vb: VarBuilder) -> Result<Self> {
                self.adapters
                    .add_adapter(super::DEFAULT_ADAPTER, config, vb)?;
                Ok(self)
            }

            /// The layer's adapters: to add, choose, enable, merge and inspect them.
            pub fn adapters(&self) -> &Adapters {
                &self.adapters
            }

            /// The variables of all adapters, for an optimizer.
            pub fn adapter_vars(&self) -> Vec<candle_core::Var> {
                self.adapters.adapter_vars()
            }

            /// Runs with the active adapter added to a copy of the weight: see [`Adapters::merge`].
            pub fn merge(&self) -> Result<()> {
                self.adapters.merge()
            }

            /// Goes back to the original weight with the adapter beside it.
            pub fn unmerge(&self) {
                self.adapters.unmerge()
            }
        }
    };
}
pub(super) use adapted_layer;
