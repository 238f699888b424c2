#!/usr/bin/env bash
# Runs Candle's own Metal tests on softmetal: the published sources of candle-metal-kernels, candle-core and candle-nn,
# as cargo downloads them, unmodified.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'EOF'
usage: softmetal/conformance.sh [--suite kernels|core|nn]... [--plain | --checked] [--filter TEXT] [--threads N]

  --suite    only this suite; may be given more than once
  --plain    only the run without checks, which judges the numbers
  --checked  only the run with checks, which judges the kernels
  --filter   only tests whose name has this text; nothing is compared with the list of expected failures
  --threads  tests at a time, 2 by default

Results are compared with conformance-expected.txt: a test that fails and is not listed there is an error, and so is
one that is listed and passes. The findings of the checked run are written to findings.txt next to the logs.
EOF
}

version=0.11.1
suites=()
modes=(plain checked)
filter=
threads=2
while (($# > 0)); do
    case $1 in
        --suite) suites+=("$2"); shift ;;
        --plain) modes=(plain) ;;
        --checked) modes=(checked) ;;
        --filter) filter=$2; shift ;;
        --threads) threads=$2; shift ;;
        --help) usage; exit ;;
        *) usage >&2; exit 2 ;;
    esac
    shift
done
((${#suites[@]} > 0)) || suites=(kernels core nn)

work=${CARGO_TARGET_DIR:-$here/target}/conformance
mkdir -p "$work"
work=$(cd "$work" && pwd)
expected=$here/conformance-expected.txt

package() {
    case $1 in
        kernels) echo candle-metal-kernels ;;
        core) echo candle-core ;;
        nn) echo candle-nn ;;
        *) echo "no suite is called $1" >&2; return 1 ;;
    esac
}

# The look-alike crates instead of the real ones.
patches=()
for name in objc2 block2 objc2-foundation objc2-metal objc2-metal-performance-shaders; do
    patches+=(--config "patch.crates-io.$name.path='$here/$name'")
done
# What interprets kernels is a dependency here: without optimisation it is too slow.
patches+=(--config 'profile.dev.package."*".opt-level=2' --config profile.dev.debug=false)

# fetch PACKAGE: a copy of its published source, with the versions that the workspace has locked.
fetch() {
    local manifest
    manifest=$(cargo metadata --manifest-path "$here/Cargo.toml" --format-version 1 |
        grep -o "\"manifest_path\":\"[^\"]*/$1-$version/Cargo.toml\"" | head -n 1 | cut -d'"' -f4)
    if [[ -z $manifest ]]; then
        echo "cargo does not know $1 $version" >&2
        return 1
    fi
    rm -rf "${work:?}/$1"
    cp -R "$(dirname "$manifest")" "$work/$1"
    chmod -R u+w "$work/$1"
    # The lock inside the package pins versions that the look-alikes don't have.
    cp "$here/Cargo.lock" "$work/$1/Cargo.lock"
}

# build SUITE PACKAGE: compiles the tests; one line "NAME PATH" for each test program.
build() {
    local features=()
    [[ $1 == kernels ]] || features=(--features metal)
    (cd "$work/$2" && cargo "${patches[@]}" test --no-run --target-dir "$work/target" --lib --tests "${features[@]}" \
        --message-format json-render-diagnostics >"$work/$1.json")
    grep '"reason":"compiler-artifact"' "$work/$1.json" | grep '"executable":"' | grep '"test":true' |
        sed -E 's/.*"target":\{[^}]*"name":"([^"]*)".*"executable":"([^"]*)".*/\1 \2/' | grep "^[^ ]* $work" || true
}

# names SUITE PROGRAM PATH: the tests of a program that concern Metal.
names() {
    "$3" --list --format terse 2>/dev/null | sed -n 's/: test$//p' | {
        if [[ $1 == kernels || $2 == metal_concurrent_tests ]]; then cat; else grep -i metal || true; fi
    } | { if [[ -n $filter ]]; then grep -F -- "$filter" || true; else cat; fi; }
}

# run MODE SUITE PACKAGE PROGRAM PATH: one line "RESULT SUITE/PROGRAM::NAME" for each test.
run() {
    local mode=$1 suite=$2 package=$3 program=$4 path=$5
    local log=$work/$mode-$suite-$program.log wanted=$work/wanted
    names "$suite" "$program" "$path" >"$wanted"
    [[ -s $wanted ]] || return 0
    local check=0
    [[ $mode == plain ]] || check=1
    local arguments=()
    mapfile -t arguments <"$wanted"
    (cd "$work/$package" && SOFTMETAL_CHECK=$check "$path" --test-threads "$threads" --exact "${arguments[@]}") \
        >"$log" 2>&1 || true
    local name
    while read -r name; do
        # A test without a result went down with its program.
        if grep -q -F -x -- "test $name ... ok" "$log"; then
            echo "ok $suite/$program::$name"
        elif grep -q -F -x -- "test $name ... ignored" "$log"; then
            echo "ignored $suite/$program::$name"
        else
            echo "FAILED $suite/$program::$name"
        fi
    done <"$wanted"
}

# compare MODE RESULTS: whether everything went as expected.
compare() {
    local mode=$1 results=$2 status=0 name
    while read -r name; do
        if grep -E -q "^(both|$mode) $name( |$)" "$expected"; then
            echo "  expected to fail: $name"
        else
            echo "  FAILED: $name"
            status=1
        fi
    done < <(sed -n 's/^FAILED //p' "$results")
    while read -r name; do
        if grep -E -q "^(both|$mode) $name( |$)" "$expected"; then
            echo "  PASSED, but is listed in conformance-expected.txt: $name"
            status=1
        fi
    done < <(sed -n 's/^ok //p' "$results")
    return $status
}

status=0
for suite in "${suites[@]}"; do
    name=$(package "$suite")
    printf '==> building the tests of %s %s\n' "$name" "$version"
    fetch "$name"
    build "$suite" "$name" >"$work/$suite.programs"
done
for mode in "${modes[@]}"; do
    results=$work/$mode.results
    : >"$results"
    start=$SECONDS
    for suite in "${suites[@]}"; do
        name=$(package "$suite")
        while read -r program path; do
            run "$mode" "$suite" "$name" "$program" "$path" >>"$results"
        done <"$work/$suite.programs"
    done
    printf '==> %s: %d passed, %d failed, %d ignored, %d s\n' "$mode" "$(grep -c '^ok ' "$results" || true)" \
        "$(grep -c '^FAILED ' "$results" || true)" "$(grep -c '^ignored ' "$results" || true)" $((SECONDS - start))
    if [[ -n $filter ]]; then
        grep '^FAILED ' "$results" || true
    else
        compare "$mode" "$results" || status=1
    fi
done
if [[ " ${modes[*]} " == *" checked "* ]]; then
    cat "$work"/checked-*.log 2>/dev/null | grep -o 'softmetal: \(error\|note\) .*' | sort | uniq -c | sort -rn >"$work/findings.txt" || true
    printf '==> %d different findings in %s\n' "$(wc -l <"$work/findings.txt")" "$work/findings.txt"
fi
exit $status
