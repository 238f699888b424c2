//! The kernel sources: one line for each `kernels/<op>.metal`, with the parts of `kernels/parts/` that it is built on.

use super::options::Options;
use std::io;
use std::path::Path;

/// The text of one library; it is compiled behind its parts.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    parts: &'static [&'static Source],
}

impl Source {
    /// A library of a test's own.
    #[cfg(all(test, feature = "metal"))]
    pub(crate) const fn for_test(name: &'static str, code: &'static str) -> Self {
        const PARTS: &[&Source] = &[&COMMON];
        Source {
            name,
            code,
            parts: PARTS,
        }
    }

    /// All that the compiler gets to see. `#line` lets it name the file in its messages.
    pub(crate) fn text(&self, options: &Options) -> io::Result<String> {
        let mut text = String::new();
        for (name, value) in &options.defines {
            text += &format!("#define {name} {value}\n");
        }
        for &part in self.parts.iter().chain([&self]) {
            let code = match &options.source_dir {
                Some(dir) => part.read_in(dir)?,
                None => None,
            };
            let code = code.as_deref().unwrap_or(part.code);
            text += &format!("#line 1 \"{}.metal\"\n{code}\n", part.name);
        }
        Ok(text)
    }

    fn read_in(&self, dir: &Path) -> io::Result<Option<String>> {
        match std::fs::read_to_string(dir.join(self.name).with_extension("metal")) {
            Ok(code) => Ok(Some(code)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

macro_rules! parts {
    ($($name:ident = $file:literal),* $(,)?) => {
        $(static $name: Source = Source {
            name: $file,
            code: include_str!(concat!("../../kernels/", $file, ".metal")),
            parts: &[],
        };)*
    };
}

macro_rules! sources {
    ($($name:ident = $file:literal $(+ $part:ident)*),* $(,)?) => {
        $(pub(crate) static $name: Source = Source {
            name: $file,
            code: include_str!(concat!("../../kernels/", $file, ".metal")),
            parts: &[&COMMON $(, &$part)*],
        };)*

        /// All libraries, for warming up.
        pub(crate) static SOURCES: &[&Source] = &[$(&$name),*];
    };
}

parts! {
    ATTENTION_BWD_TILES = "parts/attention_bwd",
    ATTENTION_FEW = "parts/attention_few",
    ATTENTION_FORWARD = "parts/attention_forward",
    ATTENTION_RULES = "parts/attention",
    ATTENTION_TILES = "parts/attention_tiles",
    CHANNELS = "parts/channels",
    CODES = "parts/codes",
    COMMON = "parts/common",
    CONV2D_PARAMS = "parts/conv2d_params",
    INDICES = "parts/indices",
    LEVELS = "parts/levels",
    ROTARY = "parts/rotary",
    ROWS = "parts/rows",
    TILES = "parts/tiles",
}

sources! {
    ACTIVATION = "activation",
    ADAMW = "adamw",
    AFFINE_ACT = "affine_act",
    ATTENTION = "attention" + ATTENTION_RULES + ATTENTION_TILES + ATTENTION_FORWARD,
    ATTENTION_BWD = "attention_bwd" + ATTENTION_RULES + ATTENTION_TILES + ATTENTION_BWD_TILES,
    ATTENTION_BWD_REST = "attention_bwd_rest" + ATTENTION_RULES + ATTENTION_TILES + ATTENTION_BWD_TILES,
    ATTENTION_CODES = "attention_codes" + ATTENTION_RULES + ATTENTION_TILES + ATTENTION_FORWARD + ATTENTION_FEW,
    ATTENTION_DECODE = "attention_decode" + ATTENTION_RULES + ATTENTION_FEW,
    BATCH_NORM = "batch_norm" + ROWS + CHANNELS,
    BINARY_ACT = "binary_act",
    BITLINEAR = "bitlinear" + TILES + CODES,
    CONV2D = "conv2d" + CONV2D_PARAMS,
    CONV2D_GEMM = "conv2d_gemm" + CONV2D_PARAMS + TILES,
    CONV2D_MPS = "conv2d_mps" + CONV2D_PARAMS,
    COPY = "copy",
    CROSS_ENTROPY = "cross_entropy" + ROWS + INDICES,
    DEQUANTIZE = "dequantize",
    DROPOUT = "dropout",
    EMBEDDING = "embedding" + ROWS + INDICES,
    GLU = "glu",
    GRADS = "grads",
    GROUP_NORM = "group_norm" + ROWS + CHANNELS,
    KL_DIV = "kl_div" + ROWS,
    KV_APPEND = "kv_append",
    LINEAR = "linear" + TILES,
    LORA_GATHER = "lora_gather",
    MATMUL_ACT = "matmul_act" + TILES,
    MIXED_MATMUL = "mixed_matmul" + TILES + CODES,
    POOL2D = "pool2d",
    QK_NORM_ROPE = "qk_norm_rope" + ROTARY,
    QUANTIZE = "quantize" + LEVELS,
    REDUCE = "reduce" + ROWS,
    ROPE = "rope" + ROTARY,
    ROW_NORM = "row_norm" + ROWS,
    SOFTMAX = "softmax" + ROWS,
    UPSAMPLE = "upsample",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for (i, source) in SOURCES.iter().enumerate() {
            assert!(
                SOURCES[..i].iter().all(|other| other.name != source.name),
                "{}",
                source.name
            );
            assert!(
                !source.code.contains("#include"),
                "{}: parts/common.metal includes for all",
                source.name
            );
        }
    }

    #[test]
    fn text_is_defines_then_parts_then_the_op() {
        let text = COPY
            .text(&Options::default().with_define("WIDTH", "4"))
            .unwrap();
        let at = |needle: &str| {
            text.find(needle)
                .unwrap_or_else(|| panic!("no {needle} in the text"))
        };
        assert_eq!(at("#define WIDTH 4\n"), 0);
        assert!(at("#line 1 \"parts/common.metal\"\n") < at("#line 1 \"copy.metal\"\n"));
        assert!(text.contains(COMMON.code) && text.contains(COPY.code));
    }

    #[test]
    fn a_source_dir_overrides_file_by_file() {
        let dir = std::env::temp_dir().join(format!("candle-fused-sources-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("copy.metal"), "// edited").unwrap();
        let text = COPY
            .text(&Options::default().with_source_dir(&dir))
            .unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(
            text.contains("// edited") && !text.contains(COPY.code) && text.contains(COMMON.code)
        );
    }
}
