//! Findings while a dispatch runs: folded by kind and place, located at the end.

use std::collections::HashMap;

use softmetal_abi::{Function, Location, Site};

use crate::finding::{Finding, Kind};

/// Places that are kept; what comes after is counted only.
const MAX_PLACES: usize = 100;

/// Where in a kernel something happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The call that a code address returns to.
    Code(usize),
    Source(Location),
    /// Before the kernel started.
    Host,
}

impl Place {
    pub fn of_site(site: &Site) -> Self {
        Self::Source(location_of(site))
    }

    fn locate(self, function: &Function) -> Option<Location> {
        match self {
            Self::Code(address) => (function.locate)(address.wrapping_sub(1)),
            Self::Source(location) => Some(location),
            Self::Host => None,
        }
    }
}

pub(crate) fn location_of(site: &Site) -> Location {
    // SAFETY: sites are constants of the kernel, with a terminated string as file.
    let file = unsafe { std::ffi::CStr::from_ptr(site.file) };
    Location {
        file: file.to_string_lossy().into_owned(),
        line: site.line,
        column: site.column,
    }
}

#[derive(Default)]
pub(crate) struct Findings {
    list: Vec<(Place, Finding)>,
    known: HashMap<(Kind, Place), usize>,
}

impl Findings {
    /// Counts a finding at a place; `make` is called for the first one there.
    pub fn add(&mut self, kind: Kind, place: Place, make: impl FnOnce() -> Finding) {
        if let Some(&index) = self.known.get(&(kind, place.clone())) {
            self.list[index].1.count += 1;
        } else if self.list.len() < MAX_PLACES {
            self.known.insert((kind, place.clone()), self.list.len());
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
