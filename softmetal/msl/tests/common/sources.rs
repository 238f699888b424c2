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

/// Names and texts of our libraries, put together as the host layer does.
pub fn own() -> Vec<(String, String)> {
    let sources = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels"));
    let part = |name: &str, code: &str| format!("#line 1 \"{name}.metal\"\n{code}\n");
    let common = sources
        .iter()
        .find(|(name, _)| name == "common")
        .map(|(name, code)| part(name, code));
    let common = common.expect("kernels/common.metal is there");
    let ops = sources.iter().filter(|(name, _)| name != "common");
    ops.map(|(name, code)| (name.clone(), common.clone() + &part(name, code)))
        .collect()
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
