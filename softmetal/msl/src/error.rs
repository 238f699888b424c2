//! What went wrong with a source, in the words of a compiler.

use std::fmt;

/// A line of the author's source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub file: String,
    pub line: u32,
    pub column: u32,
    pub text: String,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: error: {}",
            self.file, self.line, self.column, self.text
        )
    }
}

/// Why there is no library or no function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The source is at fault.
    Source(Vec<Message>),
    /// The function can't be made from the constants given.
    Constants(String),
    /// The compiler, the linker or the cache is at fault.
    Toolchain(String),
}

/// As many as clang gives before it stops.
const MOST_MESSAGES: usize = 20;

impl CompileError {
    pub(crate) fn source(mut messages: Vec<Message>) -> Self {
        messages.truncate(MOST_MESSAGES);
        Self::Source(messages)
    }

    pub(crate) fn toolchain(what: impl fmt::Display) -> Self {
        Self::Toolchain(what.to_string())
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(messages) => {
                for (i, message) in messages.iter().enumerate() {
                    if i > 0 {
                        writeln!(f)?;
                    }
                    write!(f, "{message}")?;
                }
                Ok(())
            }
            Self::Constants(text) => write!(f, "{text}"),
            Self::Toolchain(text) => write!(f, "softmetal: {text}"),
        }
    }
}

impl std::error::Error for CompileError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_look_like_metals() {
        let message = |line, text: &str| Message {
            file: "program_source".into(),
            line,
            column: 7,
            text: text.into(),
        };
        let error = CompileError::Source(vec![message(3, "no"), message(9, "not that either")]);
        assert_eq!(
            error.to_string(),
            "program_source:3:7: error: no\nprogram_source:9:7: error: not that either"
        );
    }
}
