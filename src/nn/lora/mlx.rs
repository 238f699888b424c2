//! mlx-lm's `adapter_config.json`.

use super::{LoraConfig, PeftConfig, Targets};
use crate::check;
use candle_core::Result;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

const NAME: &str = "adapter_config.json";

/// mlx-lm's `adapter_config.json`, as far as it describes the adapter; other fields are kept.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct MlxConfig {
    /// `"lora"` or `"dora"`.
    #[serde(default = "lora")]
    pub fine_tune_type: String,
    /// The number of blocks, from the last, in which mlx-lm looks for `keys`; -1 for all.
    #[serde(default = "all_layers")]
    pub num_layers: i64,
    pub lora_parameters: MlxParameters,
    /// All other fields, as they were read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// mlx-lm's `lora_parameters`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct MlxParameters {
    pub rank: usize,
    /// The factor of the adapter's output: PEFT's alpha / rank.
    pub scale: f64,
    #[serde(default)]
    pub dropout: f64,
    /// The modules with an adapter, by their path in the model or in a block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
    /// All other fields, as they were read.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

fn lora() -> String {
    "lora".into()
}

fn all_layers() -> i64 {
    -1
}

impl MlxConfig {
    /// A config with which mlx-lm puts this adapter on these modules.
    pub(super) fn new(config: &LoraConfig, modules: Vec<String>) -> Self {
        MlxConfig {
            fine_tune_type: if config.use_dora { "dora" } else { "lora" }.into(),
            num_layers: all_layers(),
            lora_parameters: MlxParameters {
                rank: config.rank,
                scale: config.scale(),
                dropout: config.decimal_dropout(),
                keys: Some(modules),
                other: Map::new(),
            },
            other: Map::new(),
        }
    }

    /// The config of each module's adapter.
    pub fn lora(&self) -> Result<LoraConfig> {
        let use_dora = match self.fine_tune_type.as_str() {
            "lora" => false,
            "dora" => true,
            other => {
                let message =
                    format!("got fine_tune_type {other:?}, expected \"lora\" or \"dora\"");
                return Err(check::error(NAME, message));
            }
        };
        let MlxParameters {
            rank,
            scale,
            dropout,
            ..
        } = self.lora_parameters;
        Ok(LoraConfig {
            rank,
            alpha: scale * rank as f64,
            dropout: dropout as f32,
            use_rslora: false,
            use_dora,
        })
    }

    /// The PEFT config of the same adapter on these modules.
    pub(super) fn to_peft(&self, modules: Vec<String>) -> Result<PeftConfig> {
        Ok(PeftConfig::new(&self.lora()?, Targets::Suffixes(modules)))
    }
}
