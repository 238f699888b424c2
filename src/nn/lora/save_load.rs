//! Reading and writing a model's adapters.

use super::files::{common_dtype, Format, Slot, Tensors};
use super::model::{Entry, LoraModel, Plan};
use super::{Adapters, LoraConfig, MlxConfig};
use crate::check;
use candle_core::Result;
use std::path::Path;

const NAME: &str = "LoraModel";

impl LoraModel {
    /// Writes an adapter as PEFT does: `adapter_config.json` and `adapter_model.safetensors` in `dir`. An adapter that is
    /// there already is replaced as a whole: if the save fails or the process is killed, the old one still loads.
    pub fn save_peft(&self, name: &str, dir: impl AsRef<Path>) -> Result<()> {
        let entry = self.entry(name)?;
        Format::Peft.write(dir.as_ref(), &entry.peft, self.export(Format::Peft, name)?)
    }

    /// Reads an adapter that PEFT wrote. If the model has an adapter of this name, its variables are set to the file's
    /// values, which must be for the same modules, ranks and scales; where it is merged, it is merged again. Otherwise
    /// the adapter is added, and isn't active yet. If the files don't fit the model, nothing changes.
    pub fn load_peft(&self, name: &str, dir: impl AsRef<Path>) -> Result<()> {
        self.load(Format::Peft, name, dir.as_ref())
    }

    /// Writes an adapter as mlx-lm does: `adapter_config.json` and `adapters.safetensors` in `dir`. All modules must have
    /// the same rank and scale.
    pub fn save_mlx(&self, name: &str, dir: impl AsRef<Path>) -> Result<()> {
        let config = match self.entry(name)?.mlx {
            Some(config) => config,
            None => self.mlx_config(name)?,
        };
        Format::MlxLm.write(dir.as_ref(), &config, self.export(Format::MlxLm, name)?)
    }

    /// Reads an adapter that mlx-lm wrote, as [`load_peft`](Self::load_peft) does PEFT's.
    pub fn load_mlx(&self, name: &str, dir: impl AsRef<Path>) -> Result<()> {
        self.load(Format::MlxLm, name, dir.as_ref())
    }

    pub(super) fn load(&self, format: Format, name: &str, dir: &Path) -> Result<()> {
        let tensors = format.read_tensors(dir)?;
        let entry = Entry::read(format, dir, &tensors)?;
        let plan = self.plan(&entry.peft, false)?;
        let slots = plan
            .iter()
            .map(|(layer, config)| format.slots(layer.base(), config));
        let slots: Vec<Slot> = slots
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect();
        format.check(dir, &slots, &tensors)?;
        if self.has_adapter(name) {
            self.check_same(name, &plan)?;
        } else {
            let dtype = common_dtype(&tensors).unwrap_or(self.dtype);
            self.create(name, entry, &plan, dtype)?;
        }
        for (layer, _) in &plan {
            if let Some(adapter) = layer.adapter(name) {
                format.import(layer.base(), &adapter, &tensors)?;
                layer.refresh(name)?;
            }
        }
        Ok(())
    }

    /// An error unless the adapter is on these layers with these configs.
    fn check_same(&self, name: &str, plan: &Plan) -> Result<()> {
        let with = |layer: &&Adapters| layer.adapter(name).is_some();
        let ours: Vec<&str> = self
            .layers()
            .iter()
            .filter(with)
            .map(|l| l.name())
            .collect();
        let theirs: Vec<&str> = plan.iter().map(|(layer, _)| layer.name()).collect();
        if ours != theirs {
            let message = format!("adapter {name:?} is on {ours:?}, the file's on {theirs:?}; load it under a new name");
            return Err(check::error(NAME, message));
        }
        for (layer, config) in plan {
            let Some(adapter) = layer.adapter(name) else {
                continue;
            };
            let kind = |c: &LoraConfig| (c.rank, c.scale(), c.use_dora);
            let (ours, theirs) = (kind(adapter.config()), kind(config));
            if ours != theirs {
                let message = format!("adapter {name:?} has (rank, scale, DoRA) {ours:?}, the file's has {theirs:?}; load it under a new name");
                return Err(layer.base().error(message));
            }
        }
        Ok(())
    }

    fn export(&self, format: Format, name: &str) -> Result<Tensors> {
        let mut tensors = Tensors::new();
        for layer in self.layers() {
            if let Some(adapter) = layer.adapter(name) {
                tensors.extend(format.export(layer.base(), &adapter)?);
            }
        }
        Ok(tensors)
    }

    /// The one config of all modules.
    fn mlx_config(&self, name: &str) -> Result<MlxConfig> {
        let with = |layer: &Adapters| Some((layer.name().to_string(), layer.adapter(name)?));
        let all: Vec<_> = self.layers().iter().filter_map(with).collect();
        let Some((first, adapter)) = all.first() else {
            return Err(check::error(
                NAME,
                format_args!("no module has adapter {name:?}"),
            ));
        };
        let config = adapter.config();
        let kind = |c: &LoraConfig| (c.rank, c.scale(), c.use_dora);
        if let Some((module, adapter)) = all.iter().find(|(_, a)| kind(a.config()) != kind(config))
        {
            let (one, other) = (kind(config), kind(adapter.config()));
            let message = format!("mlx-lm has one rank and scale for all modules; {first} has (rank, scale, DoRA) {one:?}, {module} has {other:?}");
            return Err(check::error(NAME, message));
        }
        Ok(MlxConfig::new(
            config,
            all.iter().map(|(module, _)| module.clone()).collect(),
        ))
    }
}

impl Entry {
    pub fn read(format: Format, dir: &Path, tensors: &Tensors) -> Result<Self> {
        match format {
            Format::Peft => Ok(Entry {
                peft: format.read_config(dir)?,
                mlx: None,
            }),
            Format::MlxLm => {
                let mlx: MlxConfig = format.read_config(dir)?;
                let peft = mlx.to_peft(format.modules(tensors))?;
                Ok(Entry {
                    peft,
                    mlx: Some(mlx),
                })
            }
        }
    }
}
