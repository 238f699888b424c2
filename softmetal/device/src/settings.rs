//! What can be chosen from outside.

use crate::finding::{Finding, Severity};
use crate::limits::THREADS_PER_GROUP;
use softmetal_exec::Config;
use std::path::PathBuf;

/// How a device behaves. [`Settings::from_env`] reads what a user has set:
///
/// | variable | meaning |
/// |---|---|
/// | `SOFTMETAL_CHECK=0` | no checks: faster, and wrong programs do what they do |
/// | `SOFTMETAL_ARCHITECTURE` | the architecture's name; its last letter is `g` (base, Pro), `s` (Max) or `d` (Ultra) |
/// | `SOFTMETAL_MAX_THREADS` | threads per threadgroup that a pipeline allows unless its kernel says so, 1024 by default |
/// | `SOFTMETAL_NOTES=error` | notes fail the command buffer |
/// | `SOFTMETAL_NOTES_IN=TEXT,…` | … but only those in source files whose name has one of the texts |
/// | `SOFTMETAL_TRACE=FILE` | write the counters of every dispatch to FILE as JSON; `%p` in it is the process id |
/// | `SOFTMETAL_COVERAGE=FILE` | add to FILE which kernels libraries have, and which ran |
///
/// `SOFTMETAL_SCHEDULE` and `SOFTMETAL_THREADS` are read by the execution crate, `SOFTMETAL_CLANG` and
/// `SOFTMETAL_CACHE` by the compiler crate.
#[derive(Clone, Debug)]
pub struct Settings {
    pub check: bool,
    pub architecture: String,
    pub max_threads: usize,
    pub notes: Notes,
    pub trace: Option<PathBuf>,
    pub coverage: Option<PathBuf>,
    pub execution: Config,
}

/// Which notes count as errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notes {
    /// None of them.
    Tell,
    /// All of them.
    Fail,
    /// Those of source files whose name has one of these texts.
    FailIn(Vec<String>),
}

impl Settings {
    /// The settings of the environment.
    ///
    /// Panics if one of them makes no sense: there is nobody to return an error to when a device is first asked for.
    pub fn from_env() -> Self {
        let set = |name| {
            std::env::var(name)
                .ok()
                .filter(|value: &String| !value.is_empty())
        };
        let execution = Config::from_env().unwrap_or_else(|error| panic!("softmetal: {error}"));
        let notes = match (execution.notes_are_errors, set("SOFTMETAL_NOTES_IN")) {
            (false, _) => Notes::Tell,
            (true, None) => Notes::Fail,
            (true, Some(texts)) => Notes::FailIn(texts.split(',').map(str::to_string).collect()),
        };
        let max_threads = set("SOFTMETAL_MAX_THREADS").map(|value| {
            let threads = value.parse().ok().filter(|threads| (32..=THREADS_PER_GROUP).contains(threads));
            threads.unwrap_or_else(|| {
                panic!("softmetal: SOFTMETAL_MAX_THREADS is `{value}`: expected 32 to {THREADS_PER_GROUP}")
            })
        });
        Self {
            check: execution.check,
            architecture: set("SOFTMETAL_ARCHITECTURE")
                .unwrap_or_else(|| "applegpu_g13g".to_string()),
            max_threads: max_threads.unwrap_or(THREADS_PER_GROUP),
            notes,
            trace: set("SOFTMETAL_TRACE")
                .map(|file| file.replace("%p", &std::process::id().to_string()).into()),
            coverage: set("SOFTMETAL_COVERAGE").map(PathBuf::from),
            execution: Config {
                notes_are_errors: false,
                ..execution
            },
        }
    }

    /// Everything checked and nothing written, whatever the environment says: for tests of the device itself.
    pub fn checked() -> Self {
        let mut settings = Self::from_env();
        settings.check = true;
        settings.execution.check = true;
        settings.notes = Notes::Tell;
        settings.trace = None;
        settings.coverage = None;
        settings.max_threads = THREADS_PER_GROUP;
        settings
    }
}

impl Notes {
    /// Makes an error of a note in this file, if that is wanted.
    pub(crate) fn judge(&self, finding: &mut Finding, file: Option<&str>) {
        let fail = match self {
            Notes::Tell => false,
            Notes::Fail => true,
            Notes::FailIn(texts) => {
                file.is_some_and(|file| texts.iter().any(|text| file.contains(text)))
            }
        };
        if fail && finding.severity == Severity::Note {
            finding.severity = Severity::Error;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::kind;

    #[test]
    fn notes_fail_where_that_is_wanted() {
        let ours = Notes::FailIn(vec![".metal".into()]);
        for (notes, file, fails) in [
            (&Notes::Tell, Some("a.metal"), false),
            (&Notes::Fail, None, true),
            (&ours, Some("a.metal"), true),
            (&ours, Some("program_source"), false),
            (&ours, None, false),
        ] {
            let mut finding = Finding::new(kind::EMPTY, "nothing").note();
            notes.judge(&mut finding, file);
            assert_eq!(finding.is_error(), fails, "{notes:?} {file:?}");
        }
    }
}
