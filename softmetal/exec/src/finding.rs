//! What the checks have to say.

use std::fmt;

use softmetal_abi::Location;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Undefined by the letter, harmless on the hardware that is known.
    Note,
    /// Stops the kernel.
    Error,
}

macro_rules! kinds {
    ($($variant:ident $name:literal $severity:ident,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($variant,)* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$variant,)*];

            /// The stable name.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name,)* }
            }

            pub fn severity(self) -> Severity {
                match self { $(Kind::$variant => Severity::$severity,)* }
            }
        }
    };
}

kinds! {
    OutOfBoundsRead "out-of-bounds-read" Error,
    OutOfBoundsWrite "out-of-bounds-write" Error,
    ArrayBounds "array-bounds" Error,
    Misaligned "misaligned" Error,
    UninitialisedRead "uninitialised-read" Error,
    Race "race" Error,
    RaceBetweenGroups "race-between-groups" Error,
    SameValueRace "same-value-race" Note,
    MemoryOrder "memory-order" Note,
    BarrierDivergence "barrier-divergence" Error,
    EarlyReturn "early-return" Note,
    PartialSimdgroup "partial-simdgroup" Error,
    NonUniformArgument "non-uniform-argument" Error,
    InactiveLane "inactive-lane" Note,
    WriteToConstant "write-to-constant" Error,
    UnboundArgument "unbound-argument" Error,
    Limit "limit" Error,
    Undefined "undefined" Error,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One defect. Occurrences at the same place are folded into the first.
#[derive(Clone, Debug)]
pub struct Finding {
    pub severity: Severity,
    pub kind: Kind,
    pub kernel: String,
    /// Index and name of the argument through which the memory was reached.
    pub argument: Option<(u32, String)>,
    /// Bytes from where the argument points.
    pub offset: Option<usize>,
    /// Position in the grid.
    pub thread: [u32; 3],
    pub group: [u32; 3],
    pub location: Option<Location>,
    pub detail: String,
    /// How often this happened at this place.
    pub count: usize,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Note => "note",
        };
        if let Some(place) = &self.location {
            write!(f, "{}:{}:{}: ", place.file, place.line, place.column)?;
        }
        write!(f, "{severity}: {}: {}", self.kind, self.detail)?;
        write!(f, " [kernel {}", self.kernel)?;
        if let Some((index, name)) = &self.argument {
            write!(f, ", argument {index} `{name}`")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", byte {offset}")?;
        }
        write!(f, ", thread {:?} of group {:?}]", self.thread, self.group)?;
        if self.count > 1 {
            write!(f, " ({} times)", self.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kebab_case_and_unique() {
        let names: std::collections::HashSet<_> =
            Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        assert!(names
            .iter()
            .all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }

    #[test]
    fn a_finding_is_one_line() {
        let finding = Finding {
            severity: Severity::Error,
            kind: Kind::OutOfBoundsRead,
            kernel: "copy".into(),
            argument: Some((1, "x".into())),
            offset: Some(64),
            thread: [16, 0, 0],
            group: [2, 0, 0],
            location: Some(Location {
                file: "program_source".into(),
                line: 7,
                column: 3,
            }),
            detail: "4 bytes, 0 past the end of 64".into(),
            count: 3,
        };
        assert_eq!(
            finding.to_string(),
            "program_source:7:3: error: out-of-bounds-read: 4 bytes, 0 past the end of 64 \
             [kernel copy, argument 1 `x`, byte 64, thread [16, 0, 0] of group [2, 0, 0]] (3 times)"
        );
    }
}
