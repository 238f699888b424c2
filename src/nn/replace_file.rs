//! A file that takes the place of its predecessor at once, whenever the process is killed: it is written in full beside it, as
//! `<name>.new`, flushed to disk, and renamed.

use std::fs::{rename, File};
use std::io::{Result, Write};
use std::path::{Path, PathBuf};

/// Replaces the file, or makes it. If it fails, or the process is killed, the old file is as it was.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    STEPS.iter().try_for_each(|step| step(path, bytes))
}

type Step = fn(&Path, bytes: &[u8]) -> Result<()>;

const STEPS: [Step; 3] = [
    |path, bytes| write(&new(path), bytes),
    |path, _| rename(new(path), path),
    |path, _| flush_directory(path),
];

/// The path with `.new` behind its name.
pub(super) fn new(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Writes a file in full, on disk.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the renames last. Only Unix can open a directory for that.
pub(super) fn flush_directory(file: &Path) -> Result<()> {
    match file.parent() {
        // Of a bare name: the working directory.
        Some(dir) if cfg!(unix) && dir.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(dir) if cfg!(unix) => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{read, remove_file};

    /// After every step, and with the new file cut short, the old file or the new one is there; and the next save works.
    #[test]
    fn a_save_that_is_killed_leaves_the_old_file_or_the_new_one() {
        let name = format!("candle-fused-replace-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for steps in 0..=STEPS.len() {
            replace(&path, b"old").unwrap();
            match steps {
                0 => write(&new(&path), b"n").unwrap(),
                _ => STEPS[..steps]
                    .iter()
                    .for_each(|step| step(&path, b"new").unwrap()),
            }
            let expected: &[u8] = if steps < 2 { b"old" } else { b"new" };
            assert_eq!(read(&path).unwrap(), expected, "{steps}");
            replace(&path, b"third").unwrap();
            assert_eq!(read(&path).unwrap(), b"third", "{steps}");
            assert!(!new(&path).exists());
        }
        remove_file(&path).unwrap();
        // A bare name stands in the working directory.
        flush_directory(Path::new("name")).unwrap();
    }
}
