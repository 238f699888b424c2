//! What was found wrong, in kernels and in the use of the API.

use softmetal_abi::Location;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use softmetal_exec::Severity;

/// Kinds of findings in the use of the API. Those in kernels have the names that `softmetal_exec` gives them.
pub mod kind {
    /// A call that the state of the encoder or command buffer does not permit.
    pub const STATE: &str = "encoder-state";
    /// More than the hardware has.
    pub const LIMIT: &str = "limit";
    /// A parameter of the kernel has nothing bound to it.
    pub const UNBOUND: &str = "unbound-argument";
    /// What is bound to a parameter starts at an address that its type does not permit.
    pub const MISALIGNED_OFFSET: &str = "misaligned-offset";
    /// What is bound to a reference is smaller than its type.
    pub const SHORT_BINDING: &str = "short-binding";
    /// An offset or a range beyond the end of a buffer, in an API call, or a write beyond what its label says is in use.
    pub const BOUNDS: &str = "buffer-bounds";
    /// Nothing to bind, copy or allocate: legal at best, and of no use.
    pub const EMPTY: &str = "empty";
    /// Two dispatches of a concurrent encoder touch the same bytes with no barrier between them.
    pub const MISSING_BARRIER: &str = "missing-barrier";
    /// Two encoders touch the same bytes of an untracked buffer with no fence between them.
    pub const MISSING_FENCE: &str = "missing-fence";
    /// Two queues touch the same bytes with no event and no wait between them.
    pub const MISSING_EVENT: &str = "missing-event";
    /// The host reaches for memory that a command buffer may still be using.
    pub const IN_FLIGHT: &str = "in-flight-access";
    /// The host reaches for memory of a private buffer.
    pub const PRIVATE: &str = "private-contents";
    /// A Metal Performance Shader reads what nobody wrote; kernels have the same name for it.
    pub const UNINITIALISED: &str = "uninitialised-read";
    /// A documented condition of a Metal Performance Shader is not met.
    pub const MPS: &str = "mps-precondition";
}

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Finding {
    pub severity: Severity,
    /// A stable name, such as `out-of-bounds-read`; see [`kind`].
    pub kind: &'static str,
    pub kernel: Option<String>,
    /// The argument's index and name.
    pub argument: Option<(u32, String)>,
    /// A byte offset into the argument.
    pub offset: Option<usize>,
    pub thread: Option<[u32; 3]>,
    pub group: Option<[u32; 3]>,
    pub location: Option<Location>,
    pub detail: String,
    /// How often it was met at this place.
    pub count: usize,
}

impl Finding {
    pub(crate) fn new(kind: &'static str, detail: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            kind,
            kernel: None,
            argument: None,
            offset: None,
            thread: None,
            group: None,
            location: None,
            detail: detail.into(),
            count: 1,
        }
    }

    pub(crate) fn note(mut self) -> Self {
        self.severity = Severity::Note;
        self
    }

    pub(crate) fn in_kernel(mut self, kernel: &str) -> Self {
        self.kernel = Some(kernel.to_string());
        self
    }

    pub(crate) fn of_argument(mut self, index: u32, name: &str) -> Self {
        self.argument = Some((index, name.to_string()));
        self
    }

    pub(crate) fn at_offset(mut self, offset: usize) -> Self {
        self.offset = Some(offset);
        self
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Findings with the same key are the same mistake, met again. Where there is no line to tell, the text does,
    /// whatever the numbers in it.
    fn key(&self) -> String {
        let Self {
            severity,
            kind,
            kernel,
            argument,
            location,
            ..
        } = self;
        let mut key = format!("{severity:?}|{kind}|{kernel:?}|{argument:?}|{location:?}|");
        if location.is_none() {
            let digits = |c: char| c.is_ascii_digit();
            key.extend(self.detail.split(digits).filter(|part| !part.is_empty()));
        }
        key
    }
}

impl From<softmetal_exec::Finding> for Finding {
    fn from(finding: softmetal_exec::Finding) -> Self {
        Self {
            severity: finding.severity,
            kind: finding.kind.name(),
            kernel: Some(finding.kernel),
            argument: finding.argument,
            offset: finding.offset,
            thread: Some(finding.thread),
            group: Some(finding.group),
            location: finding.location,
            detail: finding.detail,
            count: finding.count,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        write!(f, "{severity} [{}]", self.kind)?;
        if let Some(kernel) = &self.kernel {
            write!(f, " in kernel {kernel}")?;
        }
        if let Some((index, name)) = &self.argument {
            write!(f, ", argument {index} `{name}`")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset}")?;
        }
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread:?}")?;
        }
        if let Some(group) = self.group {
            write!(f, ", threadgroup {group:?}")?;
        }
        if let Some(Location { file, line, column }) = &self.location {
            write!(f, ", {file}:{line}:{column}")?;
        }
        write!(f, ": {}", self.detail)?;
        if self.count > 1 {
            write!(f, " ({} times)", self.count)?;
        }
        Ok(())
    }
}

/// At most so many different findings are kept; the rest is only counted.
const KEPT: usize = 1000;

/// The findings of a device.
#[derive(Default)]
pub(crate) struct Log {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    kept: Vec<(String, Finding)>,
    told: HashSet<String>,
}

impl Log {
    /// Keeps a finding, and tells about it on the standard error output if it is the first of its kind and place.
    pub(crate) fn add(&self, finding: &Finding) {
        let key = finding.key();
        let mut entries = self.entries();
        if entries.told.insert(key.clone()) {
            eprintln!("softmetal: {finding}");
        }
        if let Some((_, known)) = entries.kept.iter_mut().find(|(other, _)| *other == key) {
            known.count += finding.count;
        } else if entries.kept.len() < KEPT {
            entries.kept.push((key, finding.clone()));
        }
    }

    pub(crate) fn all(&self) -> Vec<Finding> {
        self.entries()
            .kept
            .iter()
            .map(|(_, finding)| finding.clone())
            .collect()
    }

    pub(crate) fn take(&self) -> Vec<Finding> {
        let kept = std::mem::take(&mut self.entries().kept);
        kept.into_iter().map(|(_, finding)| finding).collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
