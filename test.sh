#!/usr/bin/env bash
# All tests; the same command that CI runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
    cat <<'EOF'
usage: ./test.sh [--fast | --conformance | --help]

  (none)   format, lints, tests, docs; on Linux also CustomOps with
           AddressSanitizer, the tests on softmetal, a type-check for Apple
           with the Metal code, and the CPU tests on emulated ARM; on macOS the
           tests run with the Metal code instead
  --fast   the CPU tests alone
  --conformance
           Candle's own Metal tests on softmetal

On Debian, packages that the Linux-only steps need are installed when run as
root. Without them those steps are skipped, unless CI=true.
EOF
}

apple_packages=(cargo-web rustc-web rust-web-src rust-web-clippy)
arm_packages=(cargo-web rustc-web rust-web-src qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)

current=
skipped=()

# step NAME COMMAND..: a header, the command, how long it took.
step() {
    current=$1
    local start=$SECONDS
    shift
    printf '\n==> %s\n' "$current"
    "$@"
    printf '==> %s: ok, %d s\n' "$current" $((SECONDS - start))
    current=
}

# skip NAME REASON: in CI nothing may be left out.
skip() {
    printf '\n==> %s: SKIPPED, %s\n' "$1" "$2"
    if [[ ${CI:-} == true ]]; then
        current=$1
        exit 1
    fi
    skipped+=("$1")
}

report_failure() {
    local status=$?
    if ((status != 0)) && [[ -n $current ]]; then
        printf '\n==> %s: FAILED\n' "$current" >&2
    fi
}
trap report_failure EXIT

# docs/public-api.txt lists what users can name. A change of it is meant, or a mistake: the diff shows which.
public_api() {
    RUSTC_BOOTSTRAP=1 cargo rustdoc --locked --lib -- -Zunstable-options --output-format json
    if diff docs/public-api.txt <(python3 docs/public-api.py target/doc/candle_fused.json); then return; fi
    echo "if this is meant: python3 docs/public-api.py target/doc/candle_fused.json >docs/public-api.txt" >&2
    return 1
}

lint_tools() {
    if cargo fmt --version && cargo clippy --version; then return; fi
    if command -v rustup >/dev/null && rustup component add rustfmt clippy; then return; fi
    echo "rustfmt and clippy are needed; install them with: rustup component add rustfmt clippy" >&2
    return 1
}

# These files have no `mod` line that rustfmt could follow: they stand behind a macro's list, or in no workspace.
all_formatted() {
    cargo fmt --check
    rustfmt --check --edition 2021 tests/cases/*.rs scripts/models/src/{,cases/}*.rs scripts/models/composed/src/*.rs
}

# have_packages PACKAGE..: whether the packages are there, once the missing ones have been installed if possible.
have_packages() {
    local missing=() package
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then return 0; fi
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then return 1; fi
    printf '\n==> installing %s\n' "${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && apt-get install -q -y --no-install-recommends --no-remove "${missing[@]}"
}

# Debian's own toolchain comes with the source of std, so it can build for targets that have no prebuilt one.
debian_cargo() {
    PATH=/usr/bin:$PATH RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc RUSTC_BOOTSTRAP=1 /usr/bin/cargo "$@"
}

# softmetal_cargo COMMAND ARGUMENT..: in softmetal's workspace. Most dependencies are the same, so they share a folder.
softmetal_cargo() {
    local command=$1
    shift
    cargo "$command" --locked --manifest-path softmetal/Cargo.toml --target-dir target "$@"
}

softmetal_lints() {
    cargo fmt --manifest-path softmetal/Cargo.toml --all --check
    softmetal_cargo clippy --workspace --all-targets -- -D warnings
}

# softmetal_grid SCHEDULE ARGUMENT..: the crate's own tests on the software device, and a list of their results. What is
# undefined by the letter only is an error in our kernels (Candle's have no file name).
softmetal_grid() {
    CANDLE_FUSED_TEST_DEVICES=metal CANDLE_FUSED_TEST_DIGESTS=$PWD/target/digests-$1.txt \
        SOFTMETAL_SCHEDULE=$1 SOFTMETAL_THREADS=1 SOFTMETAL_NOTES=error SOFTMETAL_NOTES_IN=.metal \
        softmetal_cargo test --quiet -p candle-fused --test main -- --test-threads 1 "${@:2}"
}

# kernels_that_never_ran FILE: those of ours, by what softmetal has listed.
kernels_that_never_ran() {
    comm -23 <(sed -n 's/^made \([^ ]*\.metal\)/\1/p' "$1" | sort -u) <(sed -n 's/^ran //p' "$1" | sort -u)
}

# The whole grid in one order, halved for two cores, and the reduced one in two others, with the same results.
softmetal_tests() {
    softmetal_cargo test --workspace --exclude candle-fused
    softmetal_cargo test -p candle-fused --lib -- metal::
    softmetal_cargo test -p candle-fused --test work

    local coverage=$PWD/target/softmetal-coverage.txt other status=0
    rm -f "$coverage" target/digests-*.txt
    SOFTMETAL_COVERAGE=$coverage softmetal_grid ascending attention norm softmax &
    other=$!
    SOFTMETAL_COVERAGE=$coverage softmetal_grid ascending --skip attention --skip norm --skip softmax || status=$?
    wait $other || status=$?
    CANDLE_FUSED_TEST_GRID=reduced softmetal_grid descending &
    other=$!
    CANDLE_FUSED_TEST_GRID=reduced softmetal_grid random:7 || status=$?
    wait $other || status=$?
    ((status == 0)) || return $status

    grep -q '^made [^ ]*\.metal ' "$coverage"
    nothing "kernels that no test runs" "$(kernels_that_never_ran "$coverage")"
    local schedule
    for schedule in descending random:7; do
        nothing "results that the order changes" \
            "$(comm -13 <(sort target/digests-ascending.txt) <(sort "target/digests-$schedule.txt"))"
    done
    echo "outputs and gradients that are the same in every order: $(wc -l <target/digests-descending.txt)"
}

# nothing WHAT LINES: fails unless there are no lines.
nothing() {
    [[ -n $2 ]] || return 0
    printf '%s:\n%s\n' "$1" "$2" >&2
    return 1
}

have_clang() {
    local name
    for name in clang-{19,18,17,16}; do
        if command -v "$name" >/dev/null; then return 0; fi
    done
    [[ -n ${SOFTMETAL_CLANG:-} ]]
}

# softmetal_step NAME COMMAND: what needs clang.
softmetal_step() {
    if have_clang || have_packages clang-19; then
        step "$@"
    else
        skip "$1" "it needs clang, 16 or newer (on Debian: apt-get install clang-19)"
    fi
}

# These two have a subshell for a body, so that what they export stays theirs.

# Cargo caps the lints of std and of dependencies, so denied warnings are ours alone.
apple_check() (
    local options=(--features metal --target aarch64-apple-darwin --target-dir target-apple)
    export RUSTFLAGS=-Dwarnings RUSTDOCFLAGS=-Dwarnings CARGO_PROFILE_DEV_OPT_LEVEL=0
    # Nothing is linked, so the C code of dependencies needs no Apple compiler.
    export CC_aarch64_apple_darwin=true AR_aarch64_apple_darwin=true
    debian_cargo clippy --all-targets "${options[@]}" -Zbuild-std=std,panic_abort,test
    debian_cargo doc --no-deps "${options[@]}" -Zbuild-std=std,panic_abort,test
)

arm_tests() (
    export CANDLE_FUSED_TEST_GRID=reduced
    # Tests that start processes pass where they cannot.
    export CANDLE_FUSED_TEST_EMULATED=1
    # gemm's assembly needs half-precision enabled when it is built with debug assertions.
    export RUSTFLAGS="-Ctarget-feature=+fp16,+fhm"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu max"
    # Not tests/memory.rs: it counts bytes, of which there are as many on any CPU, and takes ten minutes in emulation.
    debian_cargo test --lib --test main --test custom_ops --test kept_memory --example bitnet --example conv2d_algorithms \
        --target aarch64-unknown-linux-gnu --target-dir target-arm -Zbuild-std=std,panic_unwind,test
)

# What runs on an x86-64 CPU without AVX2: the references, by every route.
tests_without_kernels() {
    CANDLE_FUSED_CPU_KERNELS=off cargo test --test custom_ops
}

# Accesses out of bounds of public CustomOps, whatever they are applied to. Needs a build of its own, of one test.
sanitizer_tests() {
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
        cargo test --test custom_ops --target "$(rustc -vV | sed -n 's/^host: //p')" --target-dir target-asan
}

# The tool that ports models.
port_tool() {
    cargo fmt --manifest-path scripts/port_model/Cargo.toml --check
    cargo clippy --manifest-path scripts/port_model/Cargo.toml --all-targets --target-dir target -- -D warnings
    cargo test --quiet --manifest-path scripts/port_model/Cargo.toml --target-dir target
}

# debian_step NAME COMMAND PACKAGE..
debian_step() {
    local name=$1 command=$2
    shift 2
    if have_packages "$@"; then
        step "$name" "$command"
    else
        skip "$name" "on Debian it needs: apt-get install $*"
    fi
}

linux_only() {
    step "CustomOps with AddressSanitizer" sanitizer_tests
    step "softmetal: format and clippy" softmetal_lints
    softmetal_step "tests on softmetal" softmetal_tests
    debian_step "Apple type-check" apple_check "${apple_packages[@]}"
    if [[ $(uname -m) == aarch64 ]]; then return; fi # the tests above ran on ARM
    debian_step "tests on emulated ARM" arm_tests "${arm_packages[@]}"
}

full() {
    local features=
    if [[ $(uname) == Darwin ]]; then features=metal; fi

    step "lint tools" lint_tools
    step "format" all_formatted
    step "clippy" cargo clippy --locked --all-targets --features "$features" -- -D warnings
    step "tests" cargo test --features "$features"
    step "tests without CPU kernels" tests_without_kernels
    step "port_model" port_tool
    step "ported models" scripts/models/run.sh --quick
    step "docs" env RUSTDOCFLAGS=-Dwarnings cargo doc --no-deps --features "$features"
    if [[ $(uname) == Linux ]]; then debian_step "public API" public_api python3; fi
    if [[ $(uname) == Linux ]]; then linux_only; fi
}

main() {
    case "$#:${1:-}" in
        0:) full ;;
        1:--fast) step "tests" cargo test ;;
        1:--conformance) softmetal_step "Candle's tests on softmetal" softmetal/conformance.sh ;;
        1:--help | 1:-h) usage; return ;;
        *) usage >&2; exit 2 ;;
    esac
    printf '\n==> passed in %d s' "$SECONDS"
    if ((${#skipped[@]})); then printf ', SKIPPED: %s' "${skipped[*]}"; fi
    echo
}

main "$@"
