//! What the API answers when something fails.

use crate::finding::Finding;
use std::fmt;

/// The content of an `NSError`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub domain: &'static str,
    pub code: isize,
    pub description: String,
}

impl Error {
    pub(crate) fn compile(description: impl Into<String>) -> Self {
        Self {
            domain: "MTLLibraryErrorDomain",
            code: 3,
            description: description.into(),
        }
    }

    pub(crate) fn function_not_found(description: impl Into<String>) -> Self {
        Self {
            domain: "MTLLibraryErrorDomain",
            code: 5,
            description: description.into(),
        }
    }

    pub(crate) fn pipeline(description: impl Into<String>) -> Self {
        Self {
            domain: "AGXMetal",
            code: 3,
            description: description.into(),
        }
    }

    /// A command buffer that failed because of these findings.
    pub(crate) fn command_buffer(findings: &[Finding]) -> Self {
        const INVALID_RESOURCE: isize = 9;
        let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
        Self {
            domain: "MTLCommandBufferErrorDomain",
            code: INVALID_RESOURCE,
            description: lines.join("\n"),
        }
    }

    pub(crate) fn internal(description: impl Into<String>) -> Self {
        Self {
            domain: "MTLCommandBufferErrorDomain",
            code: 1,
            description: description.into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.description)
    }
}

impl std::error::Error for Error {}
