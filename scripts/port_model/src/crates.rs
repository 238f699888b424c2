//! The crates in a folder, with their sources.

use crate::manifest::Manifest;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder with a manifest, or what was asked for if that has none.
pub struct Crate {
    pub folder: PathBuf,
    pub manifest: Option<Manifest>,
    /// The Rust files that belong to no crate further down, with their text.
    pub sources: Vec<(PathBuf, String)>,
}

impl Crate {
    pub fn manifest_path(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// How many folders the crate is below another.
    pub fn depth_below(&self, folder: &Path) -> usize {
        let below = self.folder.strip_prefix(folder);
        below.map_or(0, |path| path.components().count())
    }
}

/// The crates at and below a path, which may be a file: a folder's own before those in it. One further down whose manifest cannot
/// be read, such as a template, is left out with a message.
pub fn find(root: &Path) -> Result<Vec<Crate>, String> {
    let mut files = Files::default();
    files.walk(root)?;
    files.follow_links()?;
    let (mut out, mut unread) = (vec![], vec![]);
    for folder in &files.crates {
        let path = folder.join("Cargo.toml");
        let failed = |e| format!("{}: {e}", path.display());
        let manifest = read(&path).and_then(|text| Manifest::new(&text).map_err(failed));
        if let (Err(message), true) = (&manifest, folder != root) {
            eprintln!("left alone: {message}");
            unread.push(folder.clone());
        }
        let is_read = !unread.contains(folder);
        out.push(Crate {
            folder: folder.clone(),
            manifest: is_read.then_some(manifest).transpose()?,
            sources: vec![],
        });
    }
    if out.iter().all(|found| found.folder != root) {
        out.push(Crate {
            folder: root.to_path_buf(),
            manifest: None,
            sources: vec![],
        });
    }
    out.sort_by(|a, b| a.folder.cmp(&b.folder));
    for path in files.sources {
        let owners = out.iter_mut().filter(|c| path.starts_with(&c.folder));
        let owner = owners.max_by_key(|c| c.folder.components().count());
        if let Some(owner) = owner {
            let text = read(&path)?;
            owner.sources.push((path, text));
        }
    }
    out.retain(|found| !unread.contains(&found.folder));
    Ok(out)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

#[derive(Default)]
struct Files {
    sources: Vec<PathBuf>,
    /// Folders with a manifest.
    crates: Vec<PathBuf>,
    /// Links, which are followed where they lead to something new.
    links: Vec<PathBuf>,
    seen: BTreeSet<PathBuf>,
}

impl Files {
    /// Finds the files and folders in a folder, except hidden ones and `target`, which Cargo writes.
    fn walk(&mut self, path: &Path) -> Result<(), String> {
        let failed = |e| format!("{}: {e}", path.display());
        if !self.seen.insert(fs::canonicalize(path).map_err(failed)?) {
            return Ok(());
        }
        if !path.is_dir() {
            self.sources.push(path.to_path_buf());
            return Ok(());
        }
        if path.join("Cargo.toml").is_file() {
            self.crates.push(path.to_path_buf());
        }
        let entries = fs::read_dir(path).map_err(failed)?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_folder = path.is_dir();
            let skip = name.starts_with('.') || (name == "target" && is_folder);
            if skip || !(is_folder || (name.ends_with(".rs") && path.exists())) {
                continue;
            }
            match path.is_symlink() {
                true => self.links.push(path),
                false => self.walk(&path)?,
            }
        }
        Ok(())
    }

    /// Last, so that whatever is in the folder itself is found by its own path.
    fn follow_links(&mut self) -> Result<(), String> {
        while let Some(link) = self.links.pop() {
            self.walk(&link)?;
        }
        Ok(())
    }
}
