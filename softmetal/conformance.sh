#!/usr/bin/env bash
# Runs Candle's own Metal tests on softmetal: the published sources of candle-metal-kernels, candle-core and candle-nn,
# as cargo downloads them, unmodified.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'EOF'
usage: softmetal/conformance.sh [--suite kernels|core|nn]... [--plain | --checked] [--filter TEXT] [--jobs N]

  --suite    only this suite; may be given more than once
  --plain    only the run without checks, which judges the numbers
  --checked  only the run with checks, which judges the kernels
  --filter   only tests whose name has this text; nothing is compared with the list of expected failures
  --jobs     tests at a time; as many as there are processors by default

Results are compared with conformance-expected.txt: a test that fails and is not listed there is an error, and so is
one that is listed and passes. The findings of the checked run are written to findings.txt, and what each test printed
to a log of its own; both are in target/conformance.
EOF
}

version=0.11.1
suites=()
modes=(plain checked)
filter=
jobs=$(getconf _NPROCESSORS_ONLN)
while (($# > 0)); do
    case $1 in
        --suite) suites+=("$2"); shift ;;
        --plain) modes=(plain) ;;
        --checked) modes=(checked) ;;
        --filter) filter=$2; shift ;;
        --jobs) jobs=$2; shift ;;
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

packages=(candle-metal-kernels candle-core candle-nn)
package() {
    case $1 in
        kernels) echo candle-metal-kernels ;;
        core | nn) echo "candle-$1" ;;
        *) echo "no suite is called $1" >&2; return 1 ;;
    esac
}
for suite in "${suites[@]}"; do package "$suite" >/dev/null; done

# A workspace of the packages as published, with the versions that ours has locked and the look-alike crates instead of
# the real ones.
workspace() {
    local metadata manifest name
    metadata=$(cargo metadata --manifest-path "$here/Cargo.toml" --format-version 1)
    for name in "${packages[@]}"; do
        manifest=$(grep -o "\"manifest_path\":\"[^\"]*/$name-$version/Cargo.toml\"" <<<"$metadata" |
            head -n 1 | cut -d'"' -f4)
        if [[ -z $manifest ]]; then
            echo "cargo does not know $name $version" >&2
            return 1
        fi
        if [[ ! -d $work/$name-$version ]]; then
            rm -rf "$work/copy"
            cp -R "$(dirname "$manifest")" "$work/copy"
            chmod -R u+w "$work/copy"
            mv "$work/copy" "$work/$name-$version"
        fi
    done
    {
        echo '[workspace]'
        echo 'resolver = "2"'
        printf 'members = ["%s", "%s", "%s"]\n' "${packages[@]/%/-$version}"
        echo '[patch.crates-io]'
        for name in "${packages[@]}"; do
            echo "$name.path = '$name-$version'"
        done
        for name in objc2 block2 objc2-foundation objc2-metal objc2-metal-performance-shaders; do
            echo "$name.path = '$here/$name'"
        done
        echo '[profile.dev]'
        echo 'debug = false'
        # What interprets kernels is too slow without optimisation, and nothing else takes time.
        for name in softmetal softmetal-abi softmetal-exec softmetal-msl sha2; do
            echo "[profile.dev.package.$name]"
            echo 'opt-level = 2'
        done
    } >"$work/Cargo.toml"
    [[ -f $work/Cargo.lock && ! $here/Cargo.lock -nt $work/Cargo.lock ]] || cp "$here/Cargo.lock" "$work/Cargo.lock"
}

# Compiles the tests of the suites, of those programs that mention Metal; writes "SUITE PROGRAM PATH" lines.
build() {
    local selection=(--lib) suite name file
    for suite in "${suites[@]}"; do
        name=$(package "$suite")
        selection+=(-p "$name")
        [[ $suite == kernels ]] || selection+=(--features "$name/metal")
        [[ -d $work/$name-$version/tests ]] || continue
        while read -r file; do
            selection+=(--test "$(basename "$file" .rs)")
        done < <(grep -l -i metal "$work/$name-$version"/tests/*.rs)
    done
    (cd "$work" && cargo test --no-run --target-dir "$work/target" "${selection[@]}" \
        --message-format json-render-diagnostics >"$work/build.json")
    for suite in "${suites[@]}"; do
        grep '"reason":"compiler-artifact"' "$work/build.json" |
            grep -F "\"manifest_path\":\"$work/$(package "$suite")-$version/Cargo.toml\"" |
            grep '"executable":"' | grep '"test":true' |
            sed -E "s/.*\"target\":\{[^}]*\"name\":\"([^\"]*)\".*\"executable\":\"([^\"]*)\".*/$suite \1 \2/"
    done >"$work/programs"
}

# The tests that concern Metal, by their names or as they exist with its feature only: "SUITE PROGRAM NAME PATH" lines.
tests() {
    local suite program path name file only
    while read -r suite program path; do
        file=$work/$(package "$suite")-$version/tests/$program.rs
        only=$({ grep -A 3 '^#\[cfg(feature = "metal")\]' "$file" 2>/dev/null || true; } |
            sed -n 's/^fn \([a-z0-9_]*\).*/\1/p')
        while read -r name; do
            [[ $suite == kernels || $program == metal_* || ${name,,} == *metal* ]] ||
                grep -q -x -F -- "$name" <<<"$only" || continue
            [[ $name == *"$filter"* ]] || continue
            echo "$suite $program $name $path"
        done < <("$path" --list --format terse 2>/dev/null | sed -n 's/: test$//p')
    done <"$work/programs"
}

# one "MODE SUITE PROGRAM NAME PATH": a test in a process of its own, as one that panics inside Candle poisons the lock
# that all others need. Prints "RESULT SUITE/PROGRAM::NAME".
one() {
    local mode suite program name path result=FAILED check=1
    read -r mode suite program name path <<<"$1"
    [[ $mode == checked ]] || check=0
    local log=$work/logs/$mode/$suite-$program-${name//::/-}.log
    (cd "$work/$(package "$suite")-$version" &&
        SOFTMETAL_CHECK=$check timeout 600 "$path" --nocapture --exact "$name") >"$log" 2>&1 || true
    ! grep -q 'test result: ok. 1 passed' "$log" || result=ok
    ! grep -q 'test result: ok. 0 passed; 0 failed; 1 ignored' "$log" || result=ignored
    echo "$result $suite/$program::$name"
}
export -f one package
export work version

# compare MODE RESULTS: whether everything went as expected.
compare() {
    local status=0 mode result name
    local -A listed=()
    while read -r mode name _; do
        if [[ $mode == "$1" || $mode == both ]] && [[ " ${suites[*]} " == *" ${name%%/*} "* ]]; then
            listed[$name]=yes
        fi
    done <"$expected"
    while read -r result name; do
        case $result-${listed[$name]:-no} in
            FAILED-yes) echo "  expected to fail: $name" ;;
            FAILED-no) echo "  FAILED: $name"; status=1 ;;
            *-yes) echo "  $result, but listed in conformance-expected.txt: $name"; status=1 ;;
        esac
        unset "listed[$name]"
    done <"$2"
    for name in "${!listed[@]}"; do
        echo "  listed in conformance-expected.txt, but there is no such test: $name"
        status=1
    done
    return $status
}

start=$SECONDS
printf '==> building the tests of Candle %s\n' "$version"
workspace
build
tests >"$work/tests"
for suite in "${suites[@]}"; do
    if [[ -z $filter ]] && ! grep -q "^$suite " "$work/tests"; then
        echo "no tests were found in $(package "$suite")" >&2
        exit 1
    fi
done
printf '==> built %d tests in %d s\n' "$(wc -l <"$work/tests")" $((SECONDS - start))
status=0
for mode in "${modes[@]}"; do
    results=$work/$mode.results
    start=$SECONDS
    rm -rf "$work/logs/$mode"
    mkdir -p "$work/logs/$mode"
    sed "s/^/$mode /" "$work/tests" | xargs -d '\n' -P "$jobs" -n 1 bash -c 'one "$1"' one | sort -k 2 >"$results"
    for suite in "${suites[@]}"; do
        printf '==> %s %s: %d passed, %d failed, %d ignored\n' "$mode" "$suite" \
            "$(grep -c "^ok $suite/" "$results")" "$(grep -c "^FAILED $suite/" "$results")" \
            "$(grep -c "^ignored $suite/" "$results")"
    done
    printf '==> %s: %d s\n' "$mode" $((SECONDS - start))
    if [[ -n $filter ]]; then
        grep '^FAILED ' "$results" || true
    else
        compare "$mode" "$results" || status=1
    fi
done
if [[ " ${modes[*]} " == *" checked "* ]]; then
    # One line for each kind, kernel and place: how many tests, and the finding as the first of them met it.
    (cd "$work/logs/checked" && grep -h -o '^softmetal: \(error\|note\) .*' ./*.log || true) | sed 's/^softmetal: //' |
        awk '{ key = $0; sub(/, (byte|thread) .*/, "", key)
               if (match($0, /, [^ ]*:[0-9]+:[0-9]+: /)) key = key substr($0, RSTART, RLENGTH)
               if (!(key in first)) first[key] = $0
               tests[key]++ }
             END { for (key in first) printf "%5d %s\n", tests[key], first[key] }' | sort -k 2 >"$work/findings.txt"
    printf '==> %d different findings in %s\n' "$(wc -l <"$work/findings.txt")" "$work/findings.txt"
fi
exit $status
