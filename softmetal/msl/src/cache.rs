//! Files on disk that outlive the process, named by the hash of all that they are made from.

use crate::error::CompileError;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

/// A hash of texts, each kept apart from the next.
pub(crate) struct Key(Sha256);

impl Key {
    pub(crate) fn new(kind: &str) -> Self {
        Self(Sha256::new()).with(kind)
    }

    pub(crate) fn with(mut self, text: impl AsRef<[u8]>) -> Self {
        let bytes = text.as_ref();
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub(crate) fn name(self) -> String {
        self.0
            .finalize()
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
}

impl Cache {
    /// `$SOFTMETAL_CACHE`, the user's cache directory, or a temporary one.
    pub(crate) fn open() -> Result<&'static Self, CompileError> {
        static OPENED: OnceLock<Result<Cache, CompileError>> = OnceLock::new();
        OPENED
            .get_or_init(Self::create)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn create() -> Result<Self, CompileError> {
        let given = |name: &str| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        if let Some(dir) = given("SOFTMETAL_CACHE") {
            return Self::at(dir.clone()).map_err(|error| {
                CompileError::toolchain(format!("SOFTMETAL_CACHE={}: {error}", dir.display()))
            });
        }
        let usual = [
            given("XDG_CACHE_HOME").map(|dir| dir.join("softmetal")),
            given("HOME").map(|dir| dir.join(".cache/softmetal")),
            Some(std::env::temp_dir().join("softmetal")),
        ];
        let mut reason = String::new();
        for dir in usual.into_iter().flatten() {
            match Self::at(dir.clone()) {
                Ok(cache) => return Ok(cache),
                Err(error) => reason = format!("{}: {error}", dir.display()),
            }
        }
        Err(CompileError::toolchain(format!(
            "no directory to keep compiled kernels in ({reason}); set SOFTMETAL_CACHE"
        )))
    }

    fn at(dir: PathBuf) -> std::io::Result<Self> {
        fs::create_dir_all(&dir)?;
        let dir = fs::canonicalize(dir)?;
        let probe = dir.join(unique("probe"));
        fs::write(&probe, "")?;
        fs::remove_file(&probe)?;
        Ok(Self { dir })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// A file appears under its name only when it is whole.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, CompileError> {
        let path = self.path(name);
        self.make(&path, |temporary| {
            fs::write(temporary, text).map_err(CompileError::toolchain)
        })?;
        Ok(path)
    }

    /// Lets `fill` write a file and then moves it to `path`. Who comes second replaces it by the same.
    pub(crate) fn make(
        &self,
        path: &Path,
        fill: impl FnOnce(&Path) -> Result<(), CompileError>,
    ) -> Result<(), CompileError> {
        let parent = path.parent().unwrap_or(&self.dir);
        let failed = |error| CompileError::toolchain(format!("{}: {error}", path.display()));
        fs::create_dir_all(parent).map_err(failed)?;
        let temporary = parent.join(unique("part"));
        let result = fill(&temporary).and_then(|()| fs::rename(&temporary, path).map_err(failed));
        if result.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        result
    }
}

/// A name that no other thread or process uses.
fn unique(kind: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(".{kind}-{}-{number}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Cache {
        Cache::at(std::env::temp_dir().join(unique(name))).unwrap()
    }

    #[test]
    fn keys_tell_texts_apart() {
        let name = |a: &str, b: &str| Key::new("test").with(a).with(b).name();
        assert_eq!(name("ab", "c"), name("ab", "c"));
        assert_ne!(name("ab", "c"), name("a", "bc"));
        assert_eq!(name("", "").len(), 32);
    }

    #[test]
    fn files_are_written_whole_or_not_at_all() {
        let cache = scratch("cache-test");
        assert_eq!(cache.read("a.txt"), None);
        cache.write("a.txt", "one").unwrap();
        cache.write("a.txt", "two").unwrap();
        assert_eq!(cache.read("a.txt").as_deref(), Some("two"));
        let failed = cache.make(&cache.path("b"), |part| {
            fs::write(part, "half").unwrap();
            Err(CompileError::toolchain("no"))
        });
        assert!(failed.is_err());
        let names: Vec<_> = fs::read_dir(&cache.dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a.txt"]);
        fs::remove_dir_all(&cache.dir).unwrap();
    }

    #[test]
    fn a_file_is_no_directory() {
        assert!(Cache::at(PathBuf::from("/dev/null/cache")).is_err());
    }
}
