//! Finding clang and running it.

use crate::error::CompileError;
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const OLDEST: u32 = 16;

#[derive(Debug)]
pub(crate) struct Clang {
    path: PathBuf,
    /// The first line of `--version`, part of every cache key.
    pub(crate) version: String,
}

impl Clang {
    /// `$SOFTMETAL_CLANG`, or the newest of those known by name.
    pub(crate) fn find() -> Result<&'static Self, CompileError> {
        static FOUND: OnceLock<Result<Clang, CompileError>> = OnceLock::new();
        FOUND
            .get_or_init(Self::search)
            .as_ref()
            .map_err(Clone::clone)
    }

    fn search() -> Result<Self, CompileError> {
        if let Some(path) = std::env::var_os("SOFTMETAL_CLANG") {
            return Self::at(Path::new(&path)).map_err(|why| {
                CompileError::toolchain(format!(
                    "SOFTMETAL_CLANG={}: {why}",
                    path.to_string_lossy()
                ))
            });
        }
        let names = ["clang-19", "clang-18", "clang-17", "clang-16", "clang"];
        let mut reasons = Vec::new();
        for name in names {
            match Self::at(Path::new(name)) {
                Ok(clang) => return Ok(clang),
                Err(why) => reasons.push(format!("{name}: {why}")),
            }
        }
        Err(CompileError::toolchain(format!(
            "no clang of version {OLDEST} or newer ({}); install one (Debian: apt-get install clang-19) or set SOFTMETAL_CLANG",
            reasons.join("; ")
        )))
    }

    fn at(path: &Path) -> Result<Self, String> {
        let output = Command::new(path)
            .arg("--version")
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().next().unwrap_or_default();
        match major_version(line) {
            Some(version) if version >= OLDEST => Ok(Self {
                path: path.to_owned(),
                version: line.to_owned(),
            }),
            Some(version) => Err(format!("version {version} is older than {OLDEST}")),
            None => Err(format!("no version number in {line:?}")),
        }
    }

    /// Runs clang with the given text on its standard input.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &self,
        arguments: &[A],
        input: &str,
    ) -> Result<Output, CompileError> {
        let failed =
            |error| CompileError::toolchain(format!("can't run {}: {error}", self.path.display()));
        let mut child = Command::new(&self.path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut pipe = child.stdin.take();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A compiler that stops early closes the pipe; its messages say why.
                if let Some(pipe) = &mut pipe {
                    let _ = pipe.write_all(input.as_bytes());
                }
                drop(pipe);
            });
            child.wait_with_output().map_err(failed)
        })
    }
}

fn major_version(line: &str) -> Option<u32> {
    let rest = &line[line.find("version ")? + "version ".len()..];
    rest.split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(
            major_version("Debian clang version 19.1.7 (3~deb12u1)"),
            Some(19)
        );
        assert_eq!(major_version("Apple clang version 15.0.0"), Some(15));
        assert_eq!(major_version("bash: no"), None);
    }

    #[test]
    fn what_is_not_clang_is_refused() {
        assert!(Clang::at(Path::new("/nonexistent/clang")).is_err());
        assert!(Clang::at(Path::new("true")).is_err());
    }
}
