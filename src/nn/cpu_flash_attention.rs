//! [`candle_nn::cpu_flash_attention`], which is deprecated: use [`nn::attention`](super::attention).

pub use super::attention::cpu_flash::standard::run_flash_attn_cpu;
