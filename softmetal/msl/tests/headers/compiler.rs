//! Runs clang as kernels are compiled, with the execution headers in front.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How the compiler instruments kernels in checked mode.
pub const INSTRUMENT: &[&str] = &[
    "-fsanitize=kernel-address,array-bounds",
    "-fstrict-flex-arrays=3",
    "-mllvm",
    "-asan-instrumentation-with-call-threshold=0",
    "-mllvm",
    "-asan-stack=0",
    "-mllvm",
    "-asan-globals=0",
    "-mllvm",
    "-asan-opt=0",
    "-mllvm",
    "-asan-kernel-mem-intrinsic-prefix=1",
];

fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn clang() -> Command {
    let chosen = std::env::var("SOFTMETAL_CLANG").ok();
    let names = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"];
    let found = chosen
        .into_iter()
        .chain(names.map(String::from))
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .output()
                .is_ok_and(|output| output.status.success())
        });
    let mut command = Command::new(found.expect("clang 16 or newer must be installed"));
    command.args([
        "-std=c++17",
        "-x",
        "c++",
        "-nostdinc",
        "-nostdinc++",
        "-include",
        "softmetal/msl.h",
    ]);
    command.args([
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-math-errno",
        "-ffp-contract=on",
        "-fsigned-char",
    ]);
    command.args([
        "-Xclang",
        "-ffloat16-excess-precision=none",
        "-Xclang",
        "-fbfloat16-excess-precision=none",
        "-fno-vectorize",
        "-fno-slp-vectorize",
    ]);
    if cfg!(target_arch = "x86_64") {
        command.arg("-march=x86-64-v3");
    }
    command.arg("-I").arg(include_dir());
    command
}

pub fn scratch(suffix: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!(
        "softmetal-headers-{}-{n}{suffix}",
        std::process::id()
    ))
}

pub fn compile(source: &str, arguments: &[&str]) -> Result<(), String> {
    let file = scratch(".cpp");
    std::fs::write(&file, source).map_err(|error| error.to_string())?;
    let output = clang()
        .args(arguments)
        .arg(&file)
        .output()
        .map_err(|error| error.to_string())?;
    std::fs::remove_file(&file).map_err(|error| error.to_string())?;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(messages)
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |end| end + 1)
}

/// What the compiler says against each of `bodies`, which stand under `using namespace metal`; empty if nothing.
pub fn complaints(bodies: &[&str]) -> Vec<String> {
    let source: String = bodies
        .iter()
        .enumerate()
        .map(|(i, body)| {
            format!(
                "namespace body_{i} {{ using namespace metal;\n#line 1 \"body_{i}\"\n{body}\n}}\n"
            )
        })
        .collect();
    let options = ["-fsyntax-only", "-fno-caret-diagnostics", "-ferror-limit=0"];
    let messages = compile(&source, &options).err().unwrap_or_default();
    let mut all = vec![String::new(); bodies.len()];
    // An error inside of the headers names the body in a note behind it.
    let starts: Vec<usize> = messages
        .match_indices(": error:")
        .map(|(at, _)| line_start(&messages, at))
        .collect();
    for (i, start) in starts.iter().enumerate() {
        let block = &messages[*start..starts.get(i + 1).copied().unwrap_or(messages.len())];
        let named = block.lines().find_map(|line| {
            line.strip_prefix("body_")?
                .split(':')
                .next()?
                .parse::<usize>()
                .ok()
        });
        all[named.unwrap_or_else(|| panic!("an error of no body: {block}"))].push_str(block);
    }
    all
}
