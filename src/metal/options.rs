//! Process-wide choices about how kernels are compiled.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

/// A version of the Metal Shading Language.
///
/// Where the operating system knows only older ones, the newest that it knows is used instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LanguageVersion {
    /// macOS 12.
    V2_4,
    /// macOS 13.
    V3_0,
    /// macOS 14, the first with bf16.
    #[default]
    V3_1,
    /// macOS 15.
    V3_2,
}

impl LanguageVersion {
    pub(crate) fn older(self) -> Option<Self> {
        match self {
            Self::V3_2 => Some(Self::V3_1),
            Self::V3_1 => Some(Self::V3_0),
            Self::V3_0 => Some(Self::V2_4),
            Self::V2_4 => None,
        }
    }
}

/// How kernels are compiled. Set with [`set_options`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Let the compiler assume that there are no NaNs and infinities, and use its fast, less exact functions.
    /// Off by default: results are then those of the CPU within rounding, specials included.
    pub fast_math: bool,
    /// The newest language version to compile for.
    pub language_version: LanguageVersion,
    /// Names and values of preprocessor macros, defined ahead of every source.
    pub defines: Vec<(String, String)>,
    /// For development: `<dir>/<op>.metal` and `<dir>/parts/<part>.metal` are read from here where they exist, instead of
    /// the text built into the crate. After an edit call [`clear_cache`](super::clear_cache).
    pub source_dir: Option<PathBuf>,
}

impl Options {
    const DEFAULT: Self = Self {
        fast_math: false,
        language_version: LanguageVersion::V3_1,
        defines: Vec::new(),
        source_dir: None,
    };

    pub fn with_fast_math(mut self, fast_math: bool) -> Self {
        self.fast_math = fast_math;
        self
    }

    pub fn with_language_version(mut self, version: LanguageVersion) -> Self {
        self.language_version = version;
        self
    }

    pub fn with_define(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.defines.push((name.into(), value.into()));
        self
    }

    pub fn with_source_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.source_dir = Some(dir.into());
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The options and how often they have changed; the count is part of every cache key.
static CURRENT: RwLock<(u64, Options)> = RwLock::new((0, Options::DEFAULT));

/// The options that kernels are compiled with from now on.
pub fn options() -> Options {
    snapshot().1
}

/// Changes the options for the whole process. Kernels compiled under other options are compiled anew when next used.
pub fn set_options(options: Options) {
    let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
    if current.1 != options {
        *current = (current.0 + 1, options);
    }
}

pub(crate) fn generation() -> u64 {
    CURRENT.read().unwrap_or_else(PoisonError::into_inner).0
}

pub(crate) fn snapshot() -> (u64, Options) {
    CURRENT
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

/// Held by tests that change options or count compilations.
#[cfg(test)]
pub(crate) static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_change_counts() {
        let _lock = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, saved) = snapshot();
        set_options(saved.clone());
        assert_eq!(generation(), before);
        set_options(saved.clone().with_define("ONLY_A_CHANGE_COUNTS", "1"));
        assert_eq!(generation(), before + 1);
        assert_eq!(options().defines.last().unwrap().0, "ONLY_A_CHANGE_COUNTS");
        set_options(saved.clone());
        assert_eq!(snapshot(), (before + 2, saved));
    }

    #[test]
    fn versions_end_at_the_oldest() {
        let mut version = LanguageVersion::V3_2;
        while let Some(older) = version.older() {
            assert!(older < version);
            version = older;
        }
        assert_eq!(version, LanguageVersion::V2_4);
        assert_eq!(
            LanguageVersion::default(),
            Options::default().language_version
        );
    }
}
