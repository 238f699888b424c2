//! Adapter files: a directory with a config and a safetensors file, by PEFT's or by mlx-lm's conventions.

use super::site::{Kind, Site};
use super::{LoraAdapter, LoraConfig};
use crate::check;
use candle_core::{DType, Device, Error, Result, Tensor, Var};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Whose conventions a directory follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `adapter_model.safetensors` with `base_model.model.<module>.lora_A.weight` `[rank, in]` and so on.
    Peft,
    /// `adapters.safetensors` with `<module>.lora_a` `[in, rank]`, `<module>.lora_b` `[rank, out]`, and DoRA's
    /// `<module>.m` `[out]`.
    MlxLm,
}

const CONFIG: &str = "adapter_config.json";

/// One tensor of an adapter in a file.
pub(super) struct Slot {
    pub key: String,
    dims: Vec<usize>,
    part: Part,
}

#[derive(Clone, Copy)]
enum Part {
    A,
    B,
    Magnitude,
}

impl Format {
    fn tensors(self) -> &'static str {
        match self {
            Format::Peft => "adapter_model.safetensors",
            Format::MlxLm => "adapters.safetensors",
        }
    }

    /// The tensors of this module's adapter.
    pub(super) fn slots(self, site: &Site, config: &LoraConfig) -> Result<Vec<Slot>> {
        let [a, b, m] = site.adapter_dims(config.rank);
        let names = match (self, site.kind) {
            (Format::Peft, Kind::Embedding) => [
                "lora_embedding_A",
                "lora_embedding_B",
                "lora_magnitude_vector",
            ],
            (Format::Peft, _) => ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"],
            (Format::MlxLm, Kind::Conv2d(_)) => {
                let message = "mlx-lm has no adapters for convolutions; PEFT's format takes it";
                return Err(site.error(message));
            }
            (Format::MlxLm, Kind::Embedding) if config.use_dora => {
                let message = "mlx-lm's DoRA has a magnitude for each entry of an embedding, this one for each column; PEFT's format takes it";
                return Err(site.error(message));
            }
            (Format::MlxLm, _) => ["lora_a", "lora_b", "m"],
        };
        let prefix = match self {
            Format::Peft => "base_model.model.",
            Format::MlxLm => "",
        };
        let slot = |(part, (mut dims, name)): (Part, (Vec<usize>, &str))| {
            if self.transposes(part) {
                dims.reverse();
            }
            let key = match site.name.as_str() {
                "" => format!("{prefix}{name}"),
                module => format!("{prefix}{module}.{name}"),
            };
            Slot { key, dims, part }
        };
        let parts = [Part::A, Part::B, Part::Magnitude];
        let count = if config.use_dora { 3 } else { 2 };
        let all = parts.into_iter().zip([a, b, m].into_iter().zip(names));
        Ok(all.take(count).map(slot).collect())
    }

    fn transposes(self, part: Part) -> bool {
        self == Format::MlxLm && !matches!(part, Part::Magnitude)
    }

    /// The modules that a file has tensors for.
    pub(super) fn modules(self, tensors: &Tensors) -> Vec<String> {
        let suffix = match self {
            Format::Peft => ".lora_A.weight",
            Format::MlxLm => ".lora_a",
        };
        let modules = tensors.keys().filter_map(|key| key.strip_suffix(suffix));
        modules.map(String::from).collect()
    }

    pub(super) fn read_config<C: DeserializeOwned>(self, dir: &Path) -> Result<C> {
        let path = dir.join(CONFIG);
        let text = std::fs::read_to_string(&path).map_err(|e| at(&path, e))?;
        serde_json::from_str(&text).map_err(|e| at(&path, e))
    }

    pub(super) fn read_tensors(self, dir: &Path) -> Result<Tensors> {
        let path = dir.join(self.tensors());
        let tensors = candle_core::safetensors::load(&path, &Device::Cpu);
        let tensors: Tensors = tensors.map_err(|e| at(&path, e))?.into_iter().collect();
        let float = |t: &Tensor| check::float("", t).is_ok();
        if let Some((key, t)) = tensors.iter().find(|(_, t)| !float(t)) {
            let message = format!("{key} has dtype {:?}, a float accepted", t.dtype());
            return Err(at(&path, message));
        }
        Ok(tensors)
    }

    /// Writes both files, into a directory that is made if it isn't there.
    pub(super) fn write<C: Serialize>(
        self,
        dir: &Path,
        config: &C,
        tensors: Tensors,
    ) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(|e| at(dir, e))?;
        let path = dir.join(CONFIG);
        let text = serde_json::to_string_pretty(config).map_err(|e| at(&path, e))?;
        std::fs::write(&path, text + "\n").map_err(|e| at(&path, e))?;
        let path = dir.join(self.tensors());
        let metadata = match self {
            Format::Peft => Some([("format".to_string(), "pt".to_string())].into()),
            Format::MlxLm => None,
        };
        safetensors::serialize_to_file(tensors, metadata, &path).map_err(|e| at(&path, e))
    }

    /// An adapter's tensors as the file has them.
    pub(super) fn export(
        self,
        site: &Site,
        adapter: &LoraAdapter,
    ) -> Result<Vec<(String, Tensor)>> {
        let slots = self.slots(site, adapter.config())?.into_iter();
        let export = |slot: Slot| {
            let value = variable(adapter, slot.part, site)?.as_detached_tensor();
            let value = match self.transposes(slot.part) {
                true => value.t()?,
                false => value,
            };
            Ok((slot.key, value.contiguous()?.to_device(&Device::Cpu)?))
        };
        slots.map(export).collect()
    }

    /// Sets an adapter's variables to what the file has.
    pub(super) fn import(
        self,
        site: &Site,
        adapter: &LoraAdapter,
        tensors: &Tensors,
    ) -> Result<()> {
        for slot in self.slots(site, adapter.config())? {
            let Some(value) = tensors.get(&slot.key) else {
                return Err(site.error(format_args!("{} is missing", slot.key)));
            };
            let var = variable(adapter, slot.part, site)?;
            let value = match self.transposes(slot.part) {
                true => value.t()?,
                false => value.clone(),
            };
            var.set(
                &value
                    .to_dtype(var.dtype())?
                    .contiguous()?
                    .to_device(var.device())?,
            )?;
        }
        Ok(())
    }

    /// An error unless the file has exactly these tensors, in these shapes. It names all that is wrong.
    pub(super) fn check(self, dir: &Path, slots: &[Slot], tensors: &Tensors) -> Result<()> {
        let expected: BTreeSet<&str> = slots.iter().map(|slot| slot.key.as_str()).collect();
        let missing = slots.iter().filter(|slot| !tensors.contains_key(&slot.key));
        let missing: Vec<&str> = missing.map(|slot| slot.key.as_str()).collect();
        let unexpected = tensors
            .keys()
            .filter(|key| !expected.contains(key.as_str()));
        let unexpected: Vec<&str> = unexpected.map(String::as_str).collect();
        let wrong = slots.iter().filter_map(|slot| {
            let got = tensors.get(&slot.key)?.dims();
            let (key, dims) = (&slot.key, &slot.dims);
            (got != dims).then(|| format!("{key} has shape {got:?}, {dims:?} accepted"))
        });
        let mut problems: Vec<String> = wrong.collect();
        if !missing.is_empty() {
            problems.push(format!("missing keys: {}", missing.join(", ")));
        }
        if !unexpected.is_empty() {
            problems.push(format!("unexpected keys: {}", unexpected.join(", ")));
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(at(&dir.join(self.tensors()), problems.join("; "))),
        }
    }
}

/// In the order of their names.
pub(super) type Tensors = BTreeMap<String, Tensor>;

/// The dtype of all, or f32 where they differ.
pub(super) fn common_dtype(tensors: &Tensors) -> Option<DType> {
    let mut dtypes = tensors.values().map(|t| t.dtype());
    let first = dtypes.next()?;
    Some(match dtypes.all(|dtype| dtype == first) {
        true => first,
        false => DType::F32,
    })
}

fn variable<'a>(adapter: &'a LoraAdapter, part: Part, site: &Site) -> Result<&'a Var> {
    match part {
        Part::A => Ok(adapter.a()),
        Part::B => Ok(adapter.b()),
        Part::Magnitude => {
            let missing = || site.error("the adapter has no magnitude, as DoRA's have");
            adapter.magnitude().ok_or_else(missing)
        }
    }
}

fn at(path: &Path, problem: impl std::fmt::Display) -> Error {
    check::error(&path.display().to_string(), problem)
}
