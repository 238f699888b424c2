#!/usr/bin/env bash
# What a busy machine costs: a small Llama's tokens per second through stock Candle and through candle-fused.
#
#   benches/busy.sh [SECONDS FOR EACH FIGURE]
#
# (a) one token after the other on a quiet machine;
# (b) the same beside one and two programs that never rest: `ratio` is ours over stock's, `of alone` ours over (a);
# (c) 1, 2, 4 and 8 threads that read prompts of 16 tokens, all together.
#
# Every figure is the median of five rounds, in which stock and ours take turns. The programs beside it are this example's own
# children and end with it, however it ends. `CANDLE_FUSED_POOL=own` keeps Candle's thread pool out of it.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --release --quiet --example busy
target=${CARGO_TARGET_DIR:-target}
exec "$target/release/examples/busy" "${1:-1}" decode={0,1,2} prompts={1,2,4,8}
