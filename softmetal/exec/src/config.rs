//! How a dispatch is run.

use std::fmt;
use std::str::FromStr;

/// The order in which threadgroups, simdgroups and lanes get their turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    #[default]
    Ascending,
    Descending,
    /// A different order at every turn, the same for the same seed.
    Random(u64),
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "ascending" => Ok(Self::Ascending),
            "descending" => Ok(Self::Descending),
            _ => text
                .strip_prefix("random:")
                .and_then(|seed| seed.parse().ok())
                .map(Self::Random)
                .ok_or_else(|| {
                    format!("schedule `{text}`: expected ascending, descending or random:SEED")
                }),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ascending => f.write_str("ascending"),
            Self::Descending => f.write_str("descending"),
            Self::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

/// Stacks are mapped per thread of a group and worker: more workers than this would meet the kernel's
/// limit on mappings.
const MAX_THREADS: usize = 16;

#[derive(Clone, Debug)]
pub struct Config {
    /// Look at every access.
    pub check: bool,
    pub schedule: Schedule,
    /// What is undefined by the letter only stops a kernel too.
    pub notes_are_errors: bool,
    /// OS threads that run threadgroups.
    pub threads: usize,
    /// Count accesses even when they are not checked.
    pub trace: bool,
}

impl Default for Config {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            check: true,
            schedule: Schedule::Ascending,
            notes_are_errors: false,
            threads: threads.min(MAX_THREADS),
            trace: false,
        }
    }
}

impl Config {
    /// Reads `SOFTMETAL_CHECK` (0 or 1), `SOFTMETAL_SCHEDULE`, `SOFTMETAL_NOTES` (`error` or `note`),
    /// `SOFTMETAL_THREADS` and `SOFTMETAL_TRACE` (any value).
    pub fn from_env() -> Result<Self, String> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut config = Self::default();
        if let Some(value) = variable("SOFTMETAL_CHECK") {
            config.check = match value.as_str() {
                "0" => false,
                "1" => true,
                _ => return Err(format!("SOFTMETAL_CHECK is `{value}`: expected 0 or 1")),
            };
        }
        if let Some(value) = variable("SOFTMETAL_SCHEDULE") {
            config.schedule = value
                .parse()
                .map_err(|why| format!("SOFTMETAL_SCHEDULE: {why}"))?;
        }
        if let Some(value) = variable("SOFTMETAL_NOTES") {
            config.notes_are_errors = match value.as_str() {
                "error" => true,
                "note" => false,
                _ => {
                    return Err(format!(
                        "SOFTMETAL_NOTES is `{value}`: expected error or note"
                    ))
                }
            };
        }
        if let Some(value) = variable("SOFTMETAL_THREADS") {
            config.threads = match value.parse() {
                Ok(threads) if (1..=MAX_THREADS).contains(&threads) => threads,
                _ => {
                    let message =
                        format!("SOFTMETAL_THREADS is `{value}`: expected 1 to {MAX_THREADS}");
                    return Err(message);
                }
            };
        }
        config.trace = variable("SOFTMETAL_TRACE").is_some();
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Config, String> {
        Config::from_variables(|name| {
            pairs
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn variables_are_read() {
        let config = with(&[
            ("SOFTMETAL_CHECK", "0"),
            ("SOFTMETAL_SCHEDULE", "random:7"),
            ("SOFTMETAL_NOTES", "error"),
            ("SOFTMETAL_THREADS", "3"),
            ("SOFTMETAL_TRACE", "trace.json"),
        ])
        .expect("valid");
        assert!(!config.check && config.notes_are_errors && config.trace);
        assert_eq!((config.threads, config.schedule), (3, Schedule::Random(7)));
        assert!(with(&[]).expect("valid").check);
    }

    #[test]
    fn wrong_values_are_refused() {
        for (name, value) in [
            ("SOFTMETAL_CHECK", "yes"),
            ("SOFTMETAL_SCHEDULE", "random"),
            ("SOFTMETAL_NOTES", "off"),
            ("SOFTMETAL_THREADS", "0"),
        ] {
            let message = with(&[(name, value)]).expect_err("refused");
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn schedules_print_as_they_are_read() {
        for text in ["ascending", "descending", "random:42"] {
            assert_eq!(text.parse::<Schedule>().expect("valid").to_string(), text);
        }
    }
}
