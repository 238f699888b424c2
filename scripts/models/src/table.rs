//! What is run: a model, its size in words, a dtype, and how close stock and ported must be.

use candle_core::DType;

pub struct Case {
    pub name: &'static str,
    pub about: &'static str,
    pub dtype: DType,
    /// max |stock − ported| / max |stock|.
    pub tolerance: f64,
    pub group: Group,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Encoder,
    Prefill,
    Decode,
    Recurrent,
    Convolutional,
    Other,
}

impl Case {
    /// `name` in f32, else `name:dtype`.
    pub fn id(&self) -> String {
        match self.dtype {
            DType::F32 => self.name.to_string(),
            dtype => format!("{}:{}", self.name, dtype.as_str()),
        }
    }
}

pub fn find(id: &str) -> Option<&'static Case> {
    CASES.iter().find(|case| case.id() == id)
}

const fn f32(name: &'static str, group: Group, about: &'static str) -> Case {
    Case {
        name,
        about,
        dtype: DType::F32,
        tolerance: 5e-5,
        group,
    }
}

const fn half(name: &'static str, dtype: DType, group: Group) -> Case {
    let tolerance = match dtype {
        DType::F16 => 1e-2,
        _ => 6e-2,
    };
    Case {
        name,
        about: "",
        dtype,
        tolerance,
        group,
    }
}

/// Ill-conditioned: their activations are rounded to 8 bits, or their attention is not scaled.
const fn loose(case: Case, tolerance: f64) -> Case {
    Case { tolerance, ..case }
}

use DType::{BF16, F16};
use Group::*;

pub const CASES: &[Case] = &[
    f32(
        "bert b1",
        Encoder,
        "MiniLM-L6: 6 layers, 384 wide, 12 heads, 1×128",
    ),
    f32("bert b32", Encoder, "the same, 32×128"),
    f32(
        "distilbert b1",
        Encoder,
        "6 layers, 768 wide, 12 heads, 1×128",
    ),
    f32("distilbert b8", Encoder, "the same, 8×128"),
    f32(
        "modernbert",
        Encoder,
        "6 layers, 768 wide, 12 heads, geglu 1152, 1×128",
    ),
    loose(
        f32(
            "t5 encoder",
            Encoder,
            "t5-small: 6 layers, 512 wide, relu, 1×128",
        ),
        1e-3,
    ),
    loose(
        f32(
            "flan-t5 encoder",
            Encoder,
            "flan-t5-small: 8 layers, 512 wide, gated gelu 1024, 1×128",
        ),
        5e-3,
    ),
    f32(
        "llama prefill",
        Prefill,
        "4 layers, 1024 wide, 16/4 heads, mlp 2816, vocab 32000, 128 tokens",
    ),
    f32("llama decode", Decode, "the same, 1 token after 128"),
    f32(
        "qwen2 prefill",
        Prefill,
        "4 layers, 896 wide, 14/2 heads, mlp 4864, 128 tokens",
    ),
    f32("qwen2 decode", Decode, "the same, 1 token after 128"),
    f32(
        "qwen3 prefill",
        Prefill,
        "4 layers, 1024 wide, 16/8 heads of 128, mlp 3072, 128 tokens",
    ),
    f32("qwen3 decode", Decode, "the same, 1 token after 128"),
    f32(
        "mistral prefill",
        Prefill,
        "4 layers, 1024 wide, 16/4 heads, mlp 3584, 128 tokens",
    ),
    f32("mistral decode", Decode, "the same, 1 token after 128"),
    f32(
        "phi prefill",
        Prefill,
        "4 layers, 1024 wide, 16 heads, gelu_new 4096, 128 tokens",
    ),
    f32("phi decode", Decode, "the same, 1 token after 128"),
    f32(
        "phi3 prefill",
        Prefill,
        "4 layers, 1024 wide, 16 heads, mlp 2816 packed, 128 tokens",
    ),
    f32("phi3 decode", Decode, "the same, 1 token after 128"),
    f32(
        "gemma2 prefill",
        Prefill,
        "4 layers, 1024 wide, 4/2 heads of 256, geglu 4096, softcap, 128 tokens",
    ),
    f32("gemma2 decode", Decode, "the same, 1 token after 128"),
    f32(
        "gemma3 prefill",
        Prefill,
        "6 layers, 640 wide, 4/1 heads of 256, geglu 2048, 128 tokens",
    ),
    f32("gemma3 decode", Decode, "the same, 1 token after 128"),
    f32(
        "falcon prefill",
        Prefill,
        "4 layers, 1024 wide, 16/1 heads, gelu 4096, 128 tokens",
    ),
    f32("falcon decode", Decode, "the same, 1 token after 128"),
    f32(
        "stablelm prefill",
        Prefill,
        "4 layers, 1024 wide, 16 heads, mlp 2816, 128 tokens",
    ),
    f32("mamba", Recurrent, "8 layers, 768 wide, 8 steps of 1 token"),
    f32("rwkv5", Recurrent, "6 layers, 768 wide, 8 steps of 1 token"),
    f32(
        "whisper encoder",
        Encoder,
        "base: 6 layers, 512 wide, 8 heads, 3000 frames",
    ),
    f32(
        "whisper decoder",
        Encoder,
        "base: 6 layers, 16 tokens, audio of 1500 cached",
    ),
    f32(
        "clip vision",
        Encoder,
        "ViT-B/32, 6 layers, 768 wide, 224×224",
    ),
    f32("clip text", Encoder, "6 layers, 512 wide, 4×77"),
    f32(
        "vit",
        Encoder,
        "ViT-S/16: 12 layers, 384 wide, 6 heads, 224×224",
    ),
    f32(
        "dinov2",
        Encoder,
        "ViT-S/14 with 3 layers, 518×518 (1370 tokens)",
    ),
    f32("convnext atto", Convolutional, "224×224"),
    f32("convnext tiny", Convolutional, "224×224"),
    f32("efficientnet", Convolutional, "b0, 224×224"),
    f32("mobilenetv4", Convolutional, "small, 224×224"),
    f32("mobileone", Convolutional, "s0, 224×224"),
    f32("repvgg", Convolutional, "a0, 224×224"),
    f32("resnet18", Convolutional, "224×224"),
    f32("resnet50", Convolutional, "224×224"),
    f32("segformer", Convolutional, "b0, 224×224"),
    f32(
        "sd unet",
        Convolutional,
        "channels 128/256/512, 1 layer per block, latent 32×32",
    ),
    f32(
        "sd vae decoder",
        Convolutional,
        "channels 64/128/256/256, latent 16×16 to 128×128",
    ),
    f32(
        "sam encoder",
        Other,
        "ViT: 4 layers, 384 wide, 6 heads, window 14, 448×448",
    ),
    f32("sam tiny vit", Convolutional, "tiny_vit_5m, 1024×1024"),
    loose(
        f32(
            "quantized_llama prefill",
            Other,
            "Q4_K, 4 layers, 1024 wide, 16/4 heads, 128 tokens",
        ),
        1e-1,
    ),
    loose(
        f32(
            "quantized_llama decode",
            Other,
            "the same, 1 token after 128",
        ),
        1e-1,
    ),
    half("bertenc b1", F16, Encoder),
    half("bertenc b1", BF16, Encoder),
    f32(
        "bertenc b1",
        Encoder,
        "BertEncoder of MiniLM-L6 without the mask, 1×128",
    ),
    half("bertenc b8", F16, Encoder),
    half("bertenc b8", BF16, Encoder),
    f32("bertenc b8", Encoder, "the same, 8×128"),
    half("llama prefill", F16, Prefill),
    half("llama prefill", BF16, Prefill),
    half("llama decode", F16, Decode),
    half("llama decode", BF16, Decode),
    half("qwen2 prefill", F16, Prefill),
    half("qwen2 prefill", BF16, Prefill),
    half("qwen2 decode", F16, Decode),
    half("qwen2 decode", BF16, Decode),
    half("vit", F16, Encoder),
    half("vit", BF16, Encoder),
    half("resnet18", F16, Convolutional),
    half("resnet18", BF16, Convolutional),
];

/// The models that are trained for one step.
pub const TRAINED: &[(&str, &str)] = &[
    ("bert train", "MiniLM-L6, 8×64"),
    (
        "llama train",
        "4 layers, 512 wide, 8/2 heads, mlp 1408, vocab 8000, 1×128, last logits",
    ),
    ("t5 encoder train", "t5-small encoder, 1×128"),
    ("vit train", "ViT-S/16, 224×224"),
    ("convnext atto train", "1×64×64"),
    ("resnet18 train", "2×112×112, norms in eval mode"),
    ("efficientnet train", "b0, 1×64×64, norms in eval mode"),
    ("sd unet train", "channels 128/256/512, latent 8×8"),
];
