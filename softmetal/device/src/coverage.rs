//! `SOFTMETAL_COVERAGE`: which kernels there are, and which of them ran.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A list of lines, each written once: `made FILE NAME` for the kernels of each library, `ran FILE NAME` for those dispatched.
/// Processes add to the same file.
pub(crate) struct Coverage(Mutex<Option<Lines>>);

struct Lines {
    file: File,
    written: HashSet<String>,
}

impl Coverage {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        let lines = path.and_then(|path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            match file {
                Ok(file) => Some(Lines {
                    file,
                    written: HashSet::new(),
                }),
                Err(error) => {
                    eprintln!("softmetal: no coverage in {}: {error}", path.display());
                    None
                }
            }
        });
        Self(Mutex::new(lines))
    }

    pub(crate) fn made(&self, file: &str, kernels: &[String]) {
        self.add(kernels.iter().map(|name| format!("made {file} {name}\n")));
    }

    pub(crate) fn ran(&self, file: &str, kernel: &str) {
        self.add(std::iter::once_with(|| format!("ran {file} {kernel}\n")));
    }

    fn add(&self, new: impl IntoIterator<Item = String>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = &mut *lines else { return };
        if let Err(error) = known.add(new) {
            eprintln!("softmetal: the coverage ends here: {error}");
            *lines = None;
        }
    }
}

impl Lines {
    fn add(&mut self, new: impl IntoIterator<Item = String>) -> io::Result<()> {
        for line in new {
            if self.written.insert(line.clone()) {
                self.file.write_all(line.as_bytes())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_written_once() {
        let path = std::env::temp_dir().join(format!("softmetal-coverage-{}", std::process::id()));
        let coverage = Coverage::new(Some(&path));
        for _ in 0..2 {
            coverage.made("a.metal", &["f".into(), "g".into()]);
            coverage.ran("a.metal", "g");
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(text, "made a.metal f\nmade a.metal g\nran a.metal g\n");
    }
}
