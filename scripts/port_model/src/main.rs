//! The command line: see [`USAGE`].

use port_model::{edit, manifest, methods, port, tokens, Options};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: port_model [--write] [OPTIONS] PATH..

Ports Rust code from candle_nn to candle_fused::nn. PATH is a file, a folder of files, or the folder of a crate, whose
Cargo.toml is ported too. Prints a diff; changes nothing without --write.

  --write                 write the files
  --dependency TOML       Cargo.toml's entry for candle-fused, such as '{ path = \"..\" }' (default: '\"0.1\"')
  --paths-only            leave methods and compositions of ops alone
  --nn PATH               what takes candle_nn's place (default: candle_fused::nn)
  --quiet                 print no diff, only how many files changed
";

struct Args {
    write: bool,
    quiet: bool,
    dependency: String,
    options: Options,
    paths: Vec<PathBuf>,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Args, String> {
    let mut out = Args {
        write: false,
        quiet: false,
        dependency: "\"0.1\"".into(),
        options: Options::default(),
        paths: vec![],
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--write" => out.write = true,
            "--quiet" => out.quiet = true,
            "--paths-only" => out.options.fuse = false,
            "--dependency" => out.dependency = value()?,
            "--nn" => out.options.to = value()?,
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}\n\n{USAGE}")),
            _ => out.paths.push(arg.into()),
        }
    }
    match out.paths.is_empty() {
        true => Err(USAGE.into()),
        false => Ok(out),
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// All Rust files of a folder, without its `target` folders, which Cargo writes.
fn sources(path: &Path, out: &mut Vec<PathBuf>) -> Result<(), String> {
    if !path.is_dir() {
        out.push(path.to_path_buf());
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let skip = name.starts_with('.') || (name == "target" && path.is_dir());
        if !skip && (path.is_dir() || name.ends_with(".rs")) {
            sources(&path, out)?;
        }
    }
    Ok(())
}

/// Shows a change, and writes it if asked to. Says whether there is one.
fn finish(args: &Args, path: &Path, old: &str, edits: &[edit::Edit]) -> Result<bool, String> {
    if edits.is_empty() {
        return Ok(false);
    }
    if !args.quiet {
        let diff = edit::diff(&path.display().to_string(), old, edits);
        // A pager that was closed is no failure.
        let _ = std::io::stdout().write_all(diff.as_bytes());
    }
    if args.write {
        let new = edit::apply(old, edits);
        fs::write(path, new).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(true)
}

/// Ports a file, a folder or a crate; returns how many files change.
fn port_path(args: &Args, root: &Path) -> Result<usize, String> {
    let manifest_path = root.join("Cargo.toml");
    let manifest = manifest_path
        .is_file()
        .then(|| read(&manifest_path))
        .transpose()?;
    let mut options = args.options.clone();
    if let Some(name) = manifest.as_deref().and_then(manifest::crate_name) {
        options.from = name;
    }
    let mut paths = vec![];
    sources(root, &mut paths)?;
    let texts: Vec<String> = paths
        .iter()
        .map(|path| read(path))
        .collect::<Result<_, _>>()?;
    let mut defined = BTreeSet::new();
    for text in &texts {
        defined.extend(methods::defined(&tokens::tokens(text)));
    }
    let (mut changed, mut left) = (0, false);
    for (path, text) in paths.iter().zip(&texts) {
        let ported = port(text, &options, &defined);
        left |= ported.keeps_from;
        for remark in &ported.remarks {
            eprintln!("{}: {remark}", path.display());
        }
        changed += usize::from(finish(args, path, text, &ported.edits)?);
    }
    if !defined.is_empty() {
        eprintln!("left alone, since the code defines functions of these names: {defined:?}");
    }
    if let Some(manifest) = manifest {
        let new = manifest::rewrite(&manifest, &args.dependency, left);
        if new != manifest {
            let all = edit::Edit {
                range: 0..manifest.len(),
                text: new,
            };
            changed += usize::from(finish(args, &manifest_path, &manifest, &[all])?);
        }
    }
    Ok(changed)
}

fn main() -> ExitCode {
    let result = parse(std::env::args().skip(1)).and_then(|args| {
        let mut changed = 0;
        for path in &args.paths {
            changed += port_path(&args, path)?;
        }
        let done = if args.write {
            "changed"
        } else {
            "would change (--write does it)"
        };
        eprintln!("{changed} files {done}");
        Ok(())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
