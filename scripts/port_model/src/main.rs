//! The command line: see [`USAGE`].

use port_model::crates::{self, Crate};
use port_model::manifest::{Dependency, Manifest};
use port_model::{edit, methods, port, tokens, Options};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: port_model [--write] [OPTIONS] PATH..

Ports Rust code from candle_nn to candle_fused::nn. PATH is a file, a folder of files, or the folder of a crate or a
workspace, whose Cargo.toml is ported too, as are the crates in it. Prints a diff; changes nothing without --write.

  --write                 write the files
  --dependency TOML       Cargo.toml's entry for candle-fused, such as '{ path = \"..\" }', as seen from PATH
                          (default: '\"0.1\"')
  --paths-only            leave methods and compositions of ops alone
  --resizing TRAIT        call pooling and upsampling as methods of this trait (default: candle_fused::FusedTensorOps;
                          with --paths-only: not at all)
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
    let (mut args, mut resizing) = (args, None);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--write" => out.write = true,
            "--quiet" => out.quiet = true,
            "--paths-only" => out.options.fuse = false,
            "--resizing" => resizing = Some(value()?),
            "--dependency" => out.dependency = value()?,
            "--nn" => out.options.to = value()?,
            _ if arg.starts_with('-') => return Err(format!("unknown option {arg}\n\n{USAGE}")),
            _ => out.paths.push(arg.into()),
        }
    }
    if resizing.is_some() || !out.options.fuse {
        out.options.resizing = resizing;
    }
    match out.paths.is_empty() {
        true => Err(USAGE.into()),
        false => Ok(out),
    }
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

/// Ports a file, a folder, a crate or a workspace; returns how many files change.
fn port_path(args: &Args, root: &Path) -> Result<usize, String> {
    let crates = crates::find(root)?;
    let mut defined = BTreeSet::new();
    for (_, text) in crates.iter().flat_map(|found| &found.sources) {
        defined.extend(methods::defined(&tokens::tokens(text)));
    }
    if !defined.is_empty() {
        eprintln!("left alone, since the code defines functions of these names: {defined:?}");
    }
    let mut changed = 0;
    // Members before their workspace, which keeps what one of them still takes from it.
    let mut takers = BTreeSet::new();
    for found in crates.iter().rev() {
        let workspace = workspace_of(found, &crates);
        let shared = workspace.and_then(|w| Some(w.manifest.as_ref()?.shared()));
        let shared = shared.unwrap_or_default();
        let keep = port_sources(args, found, &shared, &defined, &mut changed)?;
        let Some(manifest) = &found.manifest else {
            continue;
        };
        let dependency = Dependency {
            source: &args.dependency,
            depth: found.depth_below(root),
            keep,
            keep_shared: takers.contains(&found.folder),
            shared: &shared,
        };
        let failed = |e| format!("{}: {e}", found.manifest_path().display());
        let mut new = manifest.ported(&dependency).map_err(failed)?;
        if Manifest::new(&new).map_err(failed)?.inherits(&shared) {
            let keep_shared = workspace.is_some_and(|w| w.folder == found.folder);
            let dependency = Dependency {
                keep_shared: keep_shared || dependency.keep_shared,
                ..dependency
            };
            new = manifest.ported(&dependency).map_err(failed)?;
            takers.extend(workspace.map(|w| w.folder.clone()));
        }
        let edits = edit::between(manifest.text(), &new);
        let path = found.manifest_path();
        changed += usize::from(finish(args, &path, manifest.text(), &edits)?);
    }
    Ok(changed)
}

/// The crate at or above this one that is a workspace.
fn workspace_of<'a>(member: &Crate, crates: &'a [Crate]) -> Option<&'a Crate> {
    let above = crates
        .iter()
        .filter(|c| member.folder.starts_with(&c.folder));
    let workspaces = above.filter(|c| c.manifest.as_ref().is_some_and(Manifest::is_workspace));
    workspaces.max_by_key(|c| c.folder.components().count())
}

/// Ports the sources of one crate. Says whether they still name `candle_nn`.
fn port_sources(
    args: &Args,
    found: &Crate,
    shared: &[String],
    defined: &BTreeSet<&str>,
    changed: &mut usize,
) -> Result<bool, String> {
    let mut options = args.options.clone();
    let mut only_tests = false;
    if let Some(manifest) = &found.manifest {
        let name = manifest.crate_name(shared);
        if name.is_none() && !manifest.has_fused() {
            let depends = "depends on neither candle-nn nor candle-fused";
            if !found.sources.is_empty() {
                eprintln!("{}: left alone: {depends}", found.folder.display());
            }
            return Ok(false);
        }
        only_tests = manifest.is_for_tests(shared);
        if let Some(feature) = manifest.implied_feature(shared) {
            let quoted = format!("feature = \"{feature}\"");
            for (path, _) in found.sources.iter().filter(|(_, t)| t.contains(&quoted)) {
                eprintln!("{}: {quoted} is of a dependency", path.display());
            }
        }
        options.from = name.unwrap_or(options.from);
    }
    let mut keep = false;
    for (path, text) in &found.sources {
        let mut options = options.clone();
        // The library itself cannot name what its tests alone depend on.
        let folder = path.strip_prefix(&found.folder).ok();
        let folder = folder.and_then(|p| p.components().next());
        let folder = folder.map(|first| first.as_os_str().to_string_lossy());
        let is_test = folder.is_some_and(|f| ["tests", "benches", "examples"].contains(&&*f));
        if only_tests && !is_test {
            (options.fuse, options.resizing) = (false, None);
        }
        let ported = port(text, &options, defined);
        keep |= ported.keeps_from;
        for remark in &ported.remarks {
            eprintln!("{}: {remark}", path.display());
        }
        *changed += usize::from(finish(args, path, text, &ported.edits)?);
    }
    Ok(keep)
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
