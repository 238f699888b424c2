#!/usr/bin/env bash
# What candle-fused costs the one who builds with it: the CPU seconds to compile it, and the code it adds to a program.
#
#   benches/build_cost.sh [OP..]
#
# (a) CPU seconds (user + system) of a release build of this crate alone, its dependencies being built already, beside the
#     same of candle-core and candle-nn. A build that finds nothing to do is subtracted.
# (b) Bytes of code and of the whole file, stripped, of two programs: one trains a small layer with stock Candle, the other
#     does that and keeps every function of `candle_fused::ops`, or those that are named.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

manifest() { # name dependencies
    mkdir -p "$work/$1/src"
    printf '[package]\nname = "%s"\nversion = "0.0.0"\nedition = "2021"\n\n[workspace]\n\n[dependencies]\n%s\n' "$1" "$2" \
        >"$work/$1/Cargo.toml"
    cp Cargo.lock "$work/$1/Cargo.lock"
}

candle=$(sed -n '/^\[dependencies\]/,/^$/ { /^candle-\(core\|nn\) = /p }' Cargo.toml)
stock='
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Module, Optimizer, VarBuilder, VarMap};

fn train() -> Result<f32> {
    let vars = VarMap::new();
    let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
    let linear = candle_nn::linear(16, 16, vb.pp("linear"))?;
    let norm = candle_nn::layer_norm(16, 1e-5, vb.pp("norm"))?;
    let conv = candle_nn::conv2d(1, 2, 3, Default::default(), vb.pp("conv"))?;
    let x = Tensor::randn(0f32, 1., (16, 16), &Device::Cpu)?;
    let y = norm.forward(&linear.forward(&x)?.silu()?)?;
    let y = conv.forward(&candle_nn::ops::softmax(&y, 1)?.reshape((1, 1, 16, 16))?)?;
    let loss = y.sqr()?.mean_all()?;
    candle_nn::SGD::new(vars.all_vars(), 0.1)?.backward_step(&loss)?;
    loss.to_scalar()
}
'
manifest stock "$candle"
printf '%s\nfn main() {\n    println!("{:?}", train());\n}\n' "$stock" >"$work/stock/src/main.rs"

# The functions that `ops` exports. Those with a generic argument have no address: the program has functions of its own that
# call them.
ops=$(grep -v 'impl ' docs/public-api.txt | sed -n 's/^fn candle_fused::ops::\([a-z0-9_]*\)[(<].*/\1/p' | sort -u)
if (($#)); then ops=$*; fi
generic='
fn conv2d(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    use candle_fused::ops::{conv2d_with, Act, ConvAlgo};
    conv2d_with(x, w, None, candle_nn::Conv2dConfig::default(), Act::Silu, ConvAlgo::Auto)
}

fn softmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    candle_fused::ops::log_softmax(&candle_fused::ops::softmax(x, dim)?, dim)
}

fn reduced(x: &Tensor, dims: Vec<usize>) -> Result<Tensor> {
    use candle_fused::ops::{max, mean, sum};
    max(&mean(&sum(x, &dims[..1])?, &dims[1..2])?, &dims[2..])
}
'
manifest fused "$candle
candle-fused = { path = \"$root\" }"
{
    printf '%s%s\nfn main() {\n    println!("{:?}", train());\n' "$stock" "$generic"
    printf '    let ops: &[*const ()] = &[\n        conv2d as *const (),\n        softmax as *const (),\n        reduced as *const (),\n'
    for op in $ops; do printf '        candle_fused::ops::%s as *const (),\n' "$op"; done
    printf '    ];\n    println!("{:?}", std::hint::black_box(ops));\n}\n'
} >"$work/fused/src/main.rs"

# Quiet unless it fails.
run() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }

cpu_seconds() { # command...
    local TIMEFORMAT='%U %S'
    { time run "$@"; } 2>"$work/time" || { cat "$work/time" >&2; exit 1; }
    awk '{ printf "%.1f", $1 + $2 }' "$work/time"
}

build() { cargo build --release --target-dir "$target" --manifest-path "$work/$1/Cargo.toml"; }

# (b) comes first: it builds all dependencies.
run build stock
run build fused
size_of() { # program
    local file=$work/$1.stripped
    strip -o "$file" "$target/release/$1"
    size -A "$file" | awk -v bytes="$(wc -c <"$file")" '$1 == ".text" { printf "%.2f %.2f", $2 / 1e6, bytes / 1e6 }'
}
read -r stock_text stock_file <<<"$(size_of stock)"
read -r fused_text fused_file <<<"$(size_of fused)"

compile() { # package
    local idle cost
    run build fused
    idle=$(cpu_seconds build fused)
    run cargo clean --release --target-dir "$target" --manifest-path "$work/fused/Cargo.toml" -p "$1"
    cost=$(cpu_seconds cargo build --release --target-dir "$target" --manifest-path "$work/fused/Cargo.toml" -p "$1")
    awk -v cost="$cost" -v idle="$idle" 'BEGIN { printf "%.0f", cost - idle }'
}
core=$(compile candle-core)
nn=$(compile candle-nn)
fused=$(compile candle-fused)

printf 'CPU seconds to compile, release:   candle-core %s, candle-nn %s, candle-fused %s\n' "$core" "$nn" "$fused"
printf 'stripped program, MB of code/file: stock %s/%s, with every op %s/%s, added %s/%s\n' \
    "$stock_text" "$stock_file" "$fused_text" "$fused_file" \
    "$(awk "BEGIN { printf \"%.2f\", $fused_text - $stock_text }")" "$(awk "BEGIN { printf \"%.2f\", $fused_file - $stock_file }")"
