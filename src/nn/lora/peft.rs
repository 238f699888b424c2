//! PEFT's `adapter_config.json`.

use super::{LoraConfig, Targets};
use crate::check;
use candle_core::Result;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};
use std::marker::PhantomData;

const NAME: &str = "adapter_config.json";

/// PEFT's `adapter_config.json`. Fields that are unknown here are kept; fields that would change the result and aren't
/// supported are refused when the config is used, never ignored.
///
/// ```
/// use candle_fused::nn::lora::{LoraConfig, PeftConfig, Targets};
/// let mut config = PeftConfig::new(&LoraConfig::default(), Targets::from(["q_proj", "v_proj"]));
/// config.rank_pattern.insert("layers.0.q_proj", 16);
/// config.other.insert("base_model_name_or_path".into(), "my/model".into());
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct PeftConfig {
    pub r: usize,
    #[serde(serialize_with = "number")]
    pub lora_alpha: f64,
    #[serde(default, deserialize_with = "or_default")]
    pub lora_dropout: f64,
    #[serde(default, deserialize_with = "or_default")]
    pub use_rslora: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub use_dora: bool,
    #[serde(default)]
    pub target_modules: Option<Targets>,
    #[serde(default)]
    pub exclude_modules: Option<Targets>,
    /// Ranks of modules that differ from `r`. A key is a regex for the end of a path; the first that matches counts.
    #[serde(default, deserialize_with = "or_default")]
    pub rank_pattern: Patterns<usize>,
    /// Alphas of modules that differ from `lora_alpha`, as in `rank_pattern`.
    #[serde(default, deserialize_with = "or_default", serialize_with = "numbers")]
    pub alpha_pattern: Patterns<f64>,
    /// How the original model stores its weights. Adapters don't depend on it, and Candle's layers always have
    /// `[out, in]`; [`LoraBuilder::linear_transposed`](super::LoraBuilder::linear_transposed) reads the other order.
    #[serde(default, deserialize_with = "or_default")]
    pub fan_in_fan_out: bool,
    /// All other fields, as they were read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Fields that would change the result, and aren't supported: an error where one is set.
const REFUSED: [&str; 14] = [
    "modules_to_save",
    "lora_bias",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "alora_invocation_string",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "megatron_config",
    "ensure_weight_tying",
    "monteclora_config",
    "kasa_config",
];

/// Initialisations that don't change the base.
const PLAIN_INITS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

impl PeftConfig {
    /// A config as PEFT writes it for inference.
    pub fn new(config: &LoraConfig, targets: Targets) -> Self {
        let other = json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": null,
            "inference_mode": true,
            "bias": "none",
            "init_lora_weights": true,
            "modules_to_save": null,
        });
        PeftConfig {
            r: config.rank,
            lora_alpha: config.alpha,
            lora_dropout: config.decimal_dropout(),
            use_rslora: config.use_rslora,
            use_dora: config.use_dora,
            target_modules: Some(targets),
            exclude_modules: None,
            rank_pattern: Patterns::default(),
            alpha_pattern: Patterns::default(),
            fan_in_fan_out: false,
            other: match other {
                Value::Object(map) => map,
                _ => Map::new(),
            },
        }
    }

    /// The config of a module that no pattern names.
    pub fn lora(&self) -> LoraConfig {
        LoraConfig {
            rank: self.r,
            alpha: self.lora_alpha,
            dropout: self.lora_dropout as f32,
            use_rslora: self.use_rslora,
            use_dora: self.use_dora,
        }
    }

    /// An error if a field is set that would change the result and isn't supported.
    pub fn check(&self) -> Result<()> {
        let get = |field: &str| self.other.get(field).unwrap_or(&Value::Null);
        match get("peft_type") {
            Value::String(kind) if kind == "LORA" => {}
            other => return Err(refused("peft_type", other, "\"LORA\"")),
        }
        match get("bias") {
            Value::Null => {}
            Value::String(bias) if bias == "none" => {}
            other => return Err(refused("bias", other, "\"none\"")),
        }
        match get("init_lora_weights") {
            // PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA change the base's weights too.
            Value::String(init) if !PLAIN_INITS.contains(&init.as_str()) => {
                let expected = "a boolean, \"gaussian\", \"eva\" or \"orthogonal\"";
                return Err(refused(
                    "init_lora_weights",
                    get("init_lora_weights"),
                    expected,
                ));
            }
            _ => {}
        }
        let is_number = |v: &Value| v.as_u64().is_some();
        match (get("layers_to_transform"), &self.target_modules) {
            (Value::Null, _) => {}
            (layers, Some(Targets::Suffixes(_)) | None) => {
                let list = layers.as_array();
                if !is_number(layers) && !list.is_some_and(|list| list.iter().all(is_number)) {
                    return Err(refused(
                        "layers_to_transform",
                        layers,
                        "a number or a list of them",
                    ));
                }
            }
            (layers, Some(_)) => {
                let expected = "null beside target_modules that are a string";
                return Err(refused("layers_to_transform", layers, expected));
            }
        }
        let unset = "nothing (null, false or empty)";
        match REFUSED.into_iter().find(|field| is_set(get(field))) {
            Some(field) => Err(refused(field, get(field), unset)),
            None => Ok(()),
        }
    }

    /// The numbers of the layers, where only some are meant.
    pub(super) fn layers_to_transform(&self) -> Option<Vec<usize>> {
        let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        match self.other.get("layers_to_transform")? {
            Value::Array(list) if list.is_empty() => None,
            Value::Array(list) => Some(list.iter().filter_map(number).collect()),
            value => number(value).map(|n| vec![n]),
        }
    }

    pub(super) fn layers_pattern(&self) -> Vec<String> {
        let text = |v: &Value| v.as_str().filter(|s| !s.is_empty()).map(String::from);
        match self.other.get("layers_pattern") {
            Some(Value::Array(list)) => list.iter().filter_map(text).collect(),
            Some(value) => text(value).into_iter().collect(),
            None => vec![],
        }
    }
}

fn refused(field: &str, value: &Value, expected: &str) -> candle_core::Error {
    check::error(
        NAME,
        format_args!("got {field} = {value}, expected {expected}"),
    )
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    }
}

/// A whole number without a point, as Python writes an int.
fn plain(x: f64) -> Value {
    match x as i64 {
        whole if whole as f64 == x => whole.into(),
        _ => x.into(),
    }
}

fn number<S: Serializer>(x: &f64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    plain(*x).serialize(serializer)
}

fn numbers<S: Serializer>(
    patterns: &Patterns<f64>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_map(patterns.iter().map(|(key, x)| (key, plain(x))))
}

/// null stands for the default.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A map in the order of its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Patterns<T>(Vec<(String, T)>);

impl<T> Default for Patterns<T> {
    fn default() -> Self {
        Patterns(vec![])
    }
}

impl<T: Copy> Patterns<T> {
    /// Adds a pattern, or replaces its value.
    pub fn insert(&mut self, key: impl Into<String>, value: T) {
        let key = key.into();
        match self.0.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, T)> {
        self.0.iter().map(|(key, value)| (key.as_str(), *value))
    }
}

impl<T: Serialize> Serialize for Patterns<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, T: Deserialize<'de> + Copy> Deserialize<'de> for Patterns<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct InOrder<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Copy> Visitor<'de> for InOrder<T> {
            type Value = Patterns<T>;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a map from module patterns to numbers")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Self::Value, A::Error> {
                let mut patterns = Patterns::default();
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    patterns.insert(key, value);
                }
                Ok(patterns)
            }
        }
        deserializer.deserialize_map(InOrder(PhantomData))
    }
}
