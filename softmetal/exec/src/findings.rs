//! Findings while a dispatch runs: folded by kind and place, located at the end.

use std::collections::HashMap;
use std::ffi::{c_char, CStr};

use softmetal_abi::{Function, Location, Site};

use crate::finding::{Finding, Kind, Severity};

/// Places of notes that are kept.
const MAX_PLACES: usize = 100;

/// Where in a kernel something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The call that a code address returns to.
    Code(usize),
    /// A site: the address of its file's name, line and column.
    Site(usize, u32, u32),
    /// Before the kernel started.
    Host,
}

impl Place {
    pub fn of_site(site: &Site) -> Self {
        Self::Site(site.file as usize, site.line, site.column)
    }

    pub fn line(self) -> u32 {
        match self {
            Self::Site(_, line, _) => line,
            _ => 0,
        }
    }

    fn locate(self, function: &Function) -> Option<Location> {
        match self {
            Self::Code(address) => (function.locate)(address.wrapping_sub(1)),
            Self::Site(file, line, column) => {
                // SAFETY: sites name their file by a constant of the kernel, which is loaded.
                let file = unsafe { CStr::from_ptr(file as *const c_char) };
                Some(Location {
                    file: file.to_string_lossy().into_owned(),
                    line,
                    column,
                })
            }
            Self::Host => None,
        }
    }
}

#[derive(Default)]
pub(crate) struct Findings {
    list: Vec<(Place, Finding)>,
    known: HashMap<(Kind, Place), usize>,
}

impl Findings {
    /// Counts a finding at a place; `make` is called for the first one there.
    pub fn add(
        &mut self,
        kind: Kind,
        severity: Severity,
        place: Place,
        make: impl FnOnce() -> Finding,
    ) {
        if let Some(&index) = self.known.get(&(kind, place)) {
            self.list[index].1.count += 1;
        } else if self.list.len() < MAX_PLACES || severity == Severity::Error {
            self.known.insert((kind, place), self.list.len());
            self.list.push((place, make()));
        }
    }

    /// Errors first, then notes; one finding per kind and source line.
    pub fn finish(self, function: &Function) -> Vec<Finding> {
        let mut folded: Vec<Finding> = Vec::new();
        for (place, mut finding) in self.list {
            finding.location = place.locate(function);
            let same = folded.iter_mut().find(|other| {
                other.kind == finding.kind
                    && other.location == finding.location
                    && other.location.is_some()
            });
            match same {
                Some(other) => other.count += finding.count,
                None => folded.push(finding),
            }
        }
        folded.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        folded
    }
}
