//! The Metal sources that must compile: candle's and our own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names and texts of candle's libraries, if cargo knows where candle is.
pub fn candle() -> Option<Vec<(String, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--features",
            "metal",
            "--manifest-path",
        ])
        .arg(root.join("Cargo.toml"))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let manifest = text
        .split('"')
        .find(|path| path.contains("candle-metal-kernels-0.11") && path.ends_with("Cargo.toml"))?
        .to_owned();
    let dir = Path::new(&manifest).parent()?.join("src/metal_src");
    let mut sources = read(&dir);
    sources.retain(|(name, _)| name != "utils");
    Some(sources)
}

/// Names and texts of our libraries, each behind its parts, as the crate lists them: `NAME = "file" + PART + ..`.
pub fn own() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let list = read(root.join("src/metal/sources.rs"));
    let lines: Vec<(&str, &str, Vec<&str>)> = list.lines().filter_map(listed).collect();
    let text = |file: &str| {
        let code = read(root.join("kernels").join(file).with_extension("metal"));
        format!("#line 1 \"{file}.metal\"\n{code}\n")
    };
    let part = |name: &&str| match lines.iter().find(|line| line.0 == *name) {
        Some(line) => text(line.1),
        None => panic!("no part {name}"),
    };
    lines
        .iter()
        .filter(|line| !line.1.starts_with("parts/"))
        .map(|(_, file, parts)| {
            let parts: String = ["COMMON"].iter().chain(parts).map(part).collect();
            (file.to_string(), parts + &text(file))
        })
        .collect()
}

/// A line's name, file and parts.
fn listed(line: &str) -> Option<(&str, &str, Vec<&str>)> {
    let (name, rest) = line.trim().strip_suffix(',')?.split_once(" = ")?;
    let mut words = rest.split(" + ");
    let file = words.next()?.strip_prefix('"')?.strip_suffix('"')?;
    let is_name = name
        .chars()
        .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    is_name.then(|| (name, file, words.collect()))
}

fn read(dir: &Path) -> Vec<(String, String)> {
    let files = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<PathBuf> = files
        .map(|file| file.expect("a readable directory").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "metal"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let name = path
                .file_stem()
                .expect("a file has a name")
                .to_string_lossy()
                .into_owned();
            (
                name,
                std::fs::read_to_string(&path).expect("a readable file"),
            )
        })
        .collect()
}
