//! Two files of one directory that replace their predecessors together, whenever the process is killed.
//!
//! Both are first written in full beside the old ones, as `<name>.new`, and flushed to disk. Then each takes its place by a
//! rename, which the file system does at once or not at all. The state of a directory shows how far a save came:
//!
//! | `.new` files | the save | what counts |
//! |---|---|---|
//! | none | is finished | both files |
//! | of the data, or of both | was killed while it wrote | both files: the `.new` files may be incomplete |
//! | of the config alone | was killed between the renames | the data file, and the config's `.new` file |

use crate::nn::replace_file::{flush_directory, new, write};
use std::fs::{remove_file, rename};
use std::io::Result;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A data file and the config that describes it.
pub(super) struct FilePair {
    pub data: PathBuf,
    pub config: PathBuf,
}

impl FilePair {
    /// Where the config is that belongs to the data file.
    pub fn current_config(&self) -> PathBuf {
        let new = new(&self.config);
        match new.exists() && !self::new(&self.data).exists() {
            true => new,
            false => self.config.clone(),
        }
    }

    /// Replaces both files. If it fails, or the process is killed, the directory holds the old pair or the new one.
    /// Processes must not save to one directory at the same time; threads of one process may.
    pub fn replace(&self, data: &[u8], config: &[u8]) -> Result<()> {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        self.finish_last()?;
        STEPS.iter().try_for_each(|step| step(self, data, config))
    }

    /// Finishes a save that was killed between its renames, or clears away one that was killed before.
    fn finish_last(&self) -> Result<()> {
        if self.current_config() != self.config {
            return rename(new(&self.config), &self.config);
        }
        // The config first: alone, it would count.
        for path in [&self.config, &self.data].map(|path| new(path)) {
            if path.exists() {
                remove_file(path)?;
            }
        }
        Ok(())
    }
}

type Step = fn(&FilePair, data: &[u8], config: &[u8]) -> Result<()>;

const STEPS: [Step; 5] = [
    |pair, data, _| write(&new(&pair.data), data),
    |pair, _, config| write(&new(&pair.config), config),
    |pair, _, _| rename(new(&pair.data), &pair.data),
    |pair, _, _| rename(new(&pair.config), &pair.config),
    |pair, _, _| flush_directory(&pair.config),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::read;

    fn pair(name: &str) -> FilePair {
        let id = std::process::id();
        let dir = std::env::temp_dir().join(format!("candle-fused-pair-{name}-{id}"));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        FilePair {
            data: dir.join("data"),
            config: dir.join("config"),
        }
    }

    fn contents(pair: &FilePair) -> (Vec<u8>, Vec<u8>) {
        let config = read(pair.current_config()).unwrap();
        (read(&pair.data).unwrap(), config)
    }

    /// After every step, and with the file that the next step writes cut short, there is a whole pair; and the next save
    /// works.
    #[test]
    fn a_save_that_is_killed_leaves_the_old_pair_or_the_new_one() {
        for steps in 0..=STEPS.len() {
            let pair = pair(&format!("steps-{steps}"));
            pair.replace(b"old data", b"old config").unwrap();
            for step in &STEPS[..steps] {
                step(&pair, b"new data", b"new config").unwrap();
            }
            match steps {
                0 => write(&new(&pair.data), b"new").unwrap(),
                1 => write(&new(&pair.config), b"n").unwrap(),
                _ => {}
            }
            let (data, config) = match steps {
                0..=2 => (&b"old data"[..], &b"old config"[..]),
                _ => (&b"new data"[..], &b"new config"[..]),
            };
            assert_eq!(contents(&pair), (data.into(), config.into()), "{steps}");
            pair.replace(b"third data", b"third config").unwrap();
            let third = (b"third data".to_vec(), b"third config".to_vec());
            assert_eq!(contents(&pair), third, "{steps}");
            assert!(!new(&pair.data).exists() && !new(&pair.config).exists());
            std::fs::remove_dir_all(pair.data.parent().unwrap()).unwrap();
        }
    }
}
