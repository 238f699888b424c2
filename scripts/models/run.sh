#!/usr/bin/env bash
# Ports candle-transformers into a scratch folder and compares it with itself as it is: see usage.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

version=0.11.1
scratch=${MODELS_SCRATCH:-$root/target/models}
fused=$(cd "${CANDLE_FUSED:-$root}" && pwd)
modules=(
    bert clip convnext dinov2 distilbert efficientnet falcon gemma2 gemma3 llama mamba mistral mobilenetv4 mobileone
    mixformer modernbert phi phi3 quantized_llama qwen2 qwen3 repvgg resnet rwkv_v5 segformer segment_anything
    stable_diffusion stable_lm t5 vit whisper with_tracing
)
quick=(
    "bert b1" "distilbert b1" "t5 encoder" "llama prefill" "llama decode" "qwen2 decode" "gemma3 prefill" "vit"
    "convnext atto" "mobilenetv4" "resnet18"
)
quick_gradients=(
    "bert train" "llama train" "vit train" "convnext atto train" "resnet18 train" "sd unet train"
)

usage() {
    cat <<EOF
usage: scripts/models/run.sh [--build | --quick | COMMAND ARGUMENT..]

Stock candle-transformers $version beside the same models ported by scripts/port_model, in one process with the same random
weights. The sources come from Cargo's registry and go to \$MODELS_SCRATCH (default: target/models).

  --build             only port and build
  --quick             eleven forward passes and six training steps, for agreement and gradients, without times;
                      exits with an error if one is wrong
  list                the cases
  forward CASE..      agreement and times
  gradients CASE..    gradients reached and right, times and peak memory of a training step with AdamW
  minilm FOLDER       with the weights of all-MiniLM-L6-v2 (model.safetensors)
  report FILE..       the tables of what the commands above have printed, as Markdown

\$CANDLE_FUSED is the candle-fused to port to (default: this one).
EOF
}

# The folder of candle-transformers in Cargo's registry, downloaded if it is not there.
registry_source() {
    mkdir -p "$scratch/fetch/src"
    : >"$scratch/fetch/src/lib.rs"
    cat >"$scratch/fetch/Cargo.toml" <<EOF
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"
[dependencies]
candle-transformers = "=$version"
[workspace]
EOF
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    cargo metadata --quiet --format-version 1 --filter-platform "$host" --manifest-path "$scratch/fetch/Cargo.toml" |
        grep -o '"manifest_path":"[^"]*candle-transformers-'"$version"'[^"]*"' | head -1 |
        sed 's/^"manifest_path":"//; s/\/Cargo.toml"$//'
}

# replace NEW OLD: moves a folder to another's place. What is equal keeps its time, so that Cargo builds no more than has changed.
replace() {
    local file
    mkdir -p "$2"
    (cd "$2" && find . -type f) | while read -r file; do
        [[ -f $1/$file ]] || rm "$2/$file"
    done
    (cd "$1" && find . -type f) | while read -r file; do
        cmp -s "$1/$file" "$2/$file" && continue
        mkdir -p "$(dirname "$2/$file")"
        cp "$1/$file" "$2/$file"
    done
    rm -rf "$1"
}

# variant NAME SOURCE DEPENDENCY: the modules that are run, as a crate.
variant() {
    local crate=$new/$1 file module
    mkdir -p "$crate/src/models"
    for file in object_detection.rs utils.rs quantized_nn.rs quantized_var_builder.rs; do cp "$2/src/$file" "$crate/src"; done
    for module in "${modules[@]}"; do
        if [[ -d $2/src/models/$module ]]; then
            cp -r "$2/src/models/$module" "$crate/src/models"
        else
            cp "$2/src/models/$module.rs" "$crate/src/models"
        fi
    done
    printf 'pub mod %s;\n' models object_detection quantized_nn quantized_var_builder utils >"$crate/src/lib.rs"
    printf 'pub mod %s;\n' "${modules[@]}" >"$crate/src/models/mod.rs"
    sed -e "s|@NAME@|models_$1|" -e "s|@DEPENDENCY@|$3|" "$here/variant.toml" >"$crate/Cargo.toml"
}

set_up() {
    mkdir -p "$scratch"
    scratch=$(cd "$scratch" && pwd)
    local source
    source=$(registry_source)
    [[ -d $source/src ]] || { echo "candle-transformers $version is not in Cargo's registry" >&2; exit 1; }
    new=$scratch/new
    rm -rf "$new"
    variant stock "$source" ''
    variant ported "$source" "candle-fused = { path = \"$fused\" }"
    variant composed "$source" 'composed = { path = "../composed_ops" }'
    local port=(cargo run --quiet --manifest-path "$root/scripts/port_model/Cargo.toml" --target-dir "$root/target" --)
    "${port[@]}" --quiet --write "$new/ported/src"
    "${port[@]}" --quiet --write --paths-only --nn composed::nn --resizing composed::FusedTensorOps "$new/composed/src"
    cp -r "$here/composed" "$new/composed_ops"
    mkdir -p "$new/harness"
    cp -r "$here/src" "$new/harness/src"
    sed "s|@FUSED@|$fused|" "$here/harness.toml" >"$new/harness/Cargo.toml"
    local crate
    for crate in stock ported composed composed_ops harness; do replace "$new/$crate" "$scratch/$crate"; done
    cmp -s "$here/workspace.toml" "$scratch/Cargo.toml" || cp "$here/workspace.toml" "$scratch/Cargo.toml"
    [[ -f $scratch/Cargo.lock ]] || cp "$root/Cargo.lock" "$scratch/Cargo.lock"
}

# build PROFILE
build() {
    set_up
    cargo build --quiet --profile "$1" --manifest-path "$scratch/Cargo.toml" --target-dir "$root/target" -p models
}

main() {
    case ${1:-} in
        '' | --help | -h) usage ;;
        --build) build release ;;
        --quick)
            build dev
            local status=0
            "$root/target/debug/models" forward --once "${quick[@]}" || status=$?
            "$root/target/debug/models" gradients --no-times "${quick_gradients[@]}" || status=$?
            return $status
            ;;
        *)
            # Reports and lists need nothing new.
            [[ $1 =~ ^(list|report)$ && -x $root/target/release/models ]] || build release
            "$root/target/release/models" "$@"
            ;;
    esac
}

main "$@"
