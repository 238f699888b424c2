//! Adapter files: a directory with a config and a safetensors file, by PEFT's or by mlx-lm's conventions.

use super::file_pair::FilePair;
use super::frozen_base::{FrozenBase, Kind};
use super::{LoraAdapter, LoraConfig};
use crate::check;
use candle_core::{DType, Device, Error, Result, Tensor, Var};
use serde::de::DeserializeOwned;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The package whose conventions a directory follows.
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

impl Slot {
    /// The error if the file's tensor has another shape.
    fn problem(&self, tensors: &Tensors) -> Option<String> {
        let (key, got, expected) = (&self.key, tensors.get(&self.key)?.dims(), &self.dims);
        (got != expected).then(|| format!("got {key} of shape {got:?}, expected {expected:?}"))
    }
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
    pub(super) fn slots(self, base: &FrozenBase, config: &LoraConfig) -> Result<Vec<Slot>> {
        let [a, b, m] = base.adapter_dims(config.rank);
        let names = match (self, base.kind) {
            (Format::Peft, Kind::Embedding) => [
                "lora_embedding_A",
                "lora_embedding_B",
                "lora_magnitude_vector",
            ],
            (Format::Peft, _) => ["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"],
            (Format::MlxLm, Kind::Conv2d(_)) => {
                let message = "mlx-lm has no adapters for convolutions; PEFT's format takes it";
                return Err(base.error(message));
            }
            (Format::MlxLm, Kind::Embedding) if config.use_dora => {
                let message = "mlx-lm's DoRA has a magnitude for each entry of an embedding, this one for each column; PEFT's format takes it";
                return Err(base.error(message));
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
            let key = match base.name.as_str() {
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
        let path = self.pair(dir).current_config();
        let text = std::fs::read_to_string(&path).map_err(|e| at(&path, e))?;
        serde_json::from_str(&text).map_err(|e| at(&path, e))
    }

    pub(super) fn read_tensors(self, dir: &Path) -> Result<Tensors> {
        let path = dir.join(self.tensors());
        let tensors = candle_core::safetensors::load(&path, &Device::Cpu);
        let tensors: Tensors = tensors.map_err(|e| at(&path, e))?.into_iter().collect();
        let float = |t: &Tensor| check::is_float("", t).is_ok();
        if let Some((key, t)) = tensors.iter().find(|(_, t)| !float(t)) {
            let message = format!("got {key} of dtype {:?}, expected a float", t.dtype());
            return Err(at(&path, message));
        }
        Ok(tensors)
    }

    fn pair(self, dir: &Path) -> FilePair {
        FilePair {
            data: dir.join(self.tensors()),
            config: dir.join(CONFIG),
        }
    }

    /// Writes both files, into a directory that is made if it isn't there. An adapter that was there before is replaced
    /// as a whole, or kept if the save fails.
    pub(super) fn write<C: Serialize>(
        self,
        dir: &Path,
        config: &C,
        tensors: Tensors,
    ) -> Result<()> {
        let pair = self.pair(dir);
        let text = serde_json::to_string_pretty(config).map_err(|e| at(&pair.config, e))?;
        let metadata = match self {
            Format::Peft => Some([("format".to_string(), "pt".to_string())].into()),
            Format::MlxLm => None,
        };
        let data = safetensors::serialize(tensors, metadata).map_err(|e| at(&pair.data, e))?;
        std::fs::create_dir_all(dir).map_err(|e| at(dir, e))?;
        let replaced = pair.replace(&data, (text + "\n").as_bytes());
        replaced.map_err(|e| at(dir, e))
    }

    /// An adapter's tensors as the file has them.
    pub(super) fn export(
        self,
        base: &FrozenBase,
        adapter: &LoraAdapter,
    ) -> Result<Vec<(String, Tensor)>> {
        let slots = self.slots(base, adapter.config())?.into_iter();
        let export = |slot: Slot| {
            let value = variable(adapter, slot.part, base)?.as_detached_tensor();
            let value = match self.transposes(slot.part) {
                true => value.t()?,
                false => value,
            };
            Ok((slot.key, value.contiguous()?.to_device(&Device::Cpu)?))
        };
        slots.map(export).collect()
    }

    /// Sets an adapter's variables to the file's tensors.
    pub(super) fn import(
        self,
        base: &FrozenBase,
        adapter: &LoraAdapter,
        tensors: &Tensors,
    ) -> Result<()> {
        for slot in self.slots(base, adapter.config())? {
            let Some(value) = tensors.get(&slot.key) else {
                return Err(base.error(format_args!("{} is missing", slot.key)));
            };
            let var = variable(adapter, slot.part, base)?;
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

    /// An error if the file has tensors for this layer in other shapes than its config says: before anything of these
    /// shapes is allocated.
    pub(super) fn check_shapes(
        self,
        base: &FrozenBase,
        config: &LoraConfig,
        tensors: &Tensors,
    ) -> Result<()> {
        let slots = self.slots(base, config)?;
        match slots.iter().find_map(|slot| slot.problem(tensors)) {
            Some(problem) => Err(base.error(problem)),
            None => Ok(()),
        }
    }

    /// An error unless the file has exactly these tensors in these shapes. It lists everything that is wrong.
    pub(super) fn check(self, dir: &Path, slots: &[Slot], tensors: &Tensors) -> Result<()> {
        let expected: BTreeSet<&str> = slots.iter().map(|slot| slot.key.as_str()).collect();
        let missing = slots.iter().filter(|slot| !tensors.contains_key(&slot.key));
        let missing: Vec<&str> = missing.map(|slot| slot.key.as_str()).collect();
        let unexpected = tensors
            .keys()
            .filter(|key| !expected.contains(key.as_str()));
        let unexpected: Vec<&str> = unexpected.map(String::as_str).collect();
        let wrong = slots.iter().filter_map(|slot| slot.problem(tensors));
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

/// Tensors sorted by name.
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

fn variable<'a>(adapter: &'a LoraAdapter, part: Part, base: &FrozenBase) -> Result<&'a Var> {
    match part {
        Part::A => Ok(adapter.a()),
        Part::B => Ok(adapter.b()),
        Part::Magnitude => {
            let missing = || base.error("the adapter has no magnitude, as DoRA's have");
            adapter.magnitude().ok_or_else(missing)
        }
    }
}

fn at(path: &Path, problem: impl std::fmt::Display) -> Error {
    check::error(&path.display().to_string(), problem)
}
