//! Stretches of memory that a kernel may touch, and what is recorded of each.

use crate::order::Memory;
use crate::race::Cell;
use crate::touched::{ByteMap, Recorder};

/// What a region is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A bound buffer.
    Buffer,
    /// `setBytes` data.
    Bytes,
    /// A threadgroup variable or argument.
    Threadgroup,
    /// Stands in for an argument that a function constant switches off.
    Disabled,
    /// Stands in for an argument that nothing is bound to.
    Unbound,
    /// Constant tables of the kernel.
    Image,
}

/// An argument that points into a region.
#[derive(Clone, Debug)]
pub(crate) struct Argument {
    pub index: u32,
    pub name: String,
    pub writable: bool,
    /// Where in the region it points.
    pub offset: usize,
}

/// How often and in what granules accesses are recorded for race detection.
#[derive(Clone, Copy)]
pub(crate) struct Cells {
    pub first: *const Cell,
    /// log2 of the bytes per cell.
    pub shift: u32,
}

impl Cells {
    pub const NONE: Self = Self {
        first: std::ptr::null(),
        shift: 0,
    };
}

/// Granule for elements of this alignment: accesses by different threads meet only in whole elements.
pub(crate) fn granule_shift(align: usize) -> u32 {
    align.max(1).trailing_zeros().min(2)
}

pub(crate) struct Region {
    pub base: usize,
    pub len: usize,
    pub role: Role,
    pub memory: Memory,
    pub writable: bool,
    /// Which bytes have been written; null: all of them.
    pub initialised: ByteMap,
    pub recorder: Option<Recorder>,
    pub cells: Cells,
    pub arguments: Vec<Argument>,
    /// What a person calls it.
    pub label: String,
}

// SAFETY: the pointers are to shadow memory that is accessed atomically and outlives the dispatch.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub fn new(base: usize, len: usize, role: Role) -> Self {
        Self {
            base,
            len,
            role,
            memory: if role == Role::Threadgroup {
                Memory::Threadgroup
            } else {
                Memory::Device
            },
            writable: false,
            initialised: ByteMap::new(std::ptr::null_mut()),
            recorder: None,
            cells: Cells::NONE,
            arguments: Vec::new(),
            label: String::new(),
        }
    }

    /// Whether all of the bytes lie inside.
    #[inline(always)]
    pub fn holds(&self, address: usize, size: usize) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset < self.len && size <= self.len - offset
    }

    /// Bytes between the region and an address outside.
    pub fn gap(&self, address: usize) -> usize {
        if address < self.base {
            self.base - address
        } else {
            address.saturating_sub(self.base + self.len)
        }
    }

    /// The argument through which an address was most likely reached.
    pub fn argument(&self, address: usize, store: bool) -> Option<&Argument> {
        let offset = address.wrapping_sub(self.base) as isize;
        self.arguments.iter().max_by_key(|argument| {
            let start = argument.offset as isize;
            let permitted = !store || argument.writable;
            (
                permitted,
                start <= offset,
                if start <= offset { start } else { -start },
            )
        })
    }
}

/// Regions in ascending order of address.
pub(crate) struct Regions {
    pub sorted: Vec<Region>,
}

impl Regions {
    pub fn new(mut regions: Vec<Region>) -> Self {
        regions.sort_by_key(|region| region.base);
        Self { sorted: regions }
    }

    /// The region that the address lies in.
    pub fn find(&self, address: usize) -> Option<usize> {
        let after = self.sorted.partition_point(|region| region.base <= address);
        let index = after.checked_sub(1)?;
        (address - self.sorted[index].base < self.sorted[index].len).then_some(index)
    }

    /// The region that starts at the address.
    pub fn find_base(&self, base: usize) -> Option<usize> {
        self.sorted.iter().position(|region| region.base == base)
    }

    /// The region that an address outside of all most likely was meant for.
    pub fn nearest(&self, address: usize) -> Option<&Region> {
        const FAR: usize = 1 << 20;
        self.sorted
            .iter()
            .filter(|region| region.role != Role::Image && region.gap(address) < FAR)
            .min_by_key(|region| region.gap(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Regions {
        Regions::new(vec![
            Region::new(0x9000, 0x100, Role::Buffer),
            Region::new(0x1000, 0x10, Role::Bytes),
        ])
    }

    #[test]
    fn finds_by_address() {
        let regions = regions();
        assert_eq!(regions.find(0xfff), None);
        assert_eq!(regions.find(0x1000), Some(0));
        assert_eq!(regions.find(0x100f), Some(0));
        assert_eq!(regions.find(0x1010), None);
        assert_eq!(regions.find(0x90ff), Some(1));
        assert!(regions.sorted[1].holds(0x90fc, 4) && !regions.sorted[1].holds(0x90fd, 4));
        assert!(!regions.sorted[1].holds(0x8fff, 4));
    }

    #[test]
    fn names_the_neighbour_of_a_wild_address() {
        let regions = regions();
        assert_eq!(
            regions.nearest(0x9200).map(|region| region.base),
            Some(0x9000)
        );
        assert_eq!(
            regions.nearest(0x1014).map(|region| region.base),
            Some(0x1000)
        );
        assert!(regions.nearest(0xdead_beef_0000).is_none());
    }

    #[test]
    fn picks_the_argument_at_or_below_the_address() {
        let mut region = Region::new(0x1000, 0x100, Role::Buffer);
        for (index, offset, writable) in [(0, 0, false), (1, 0x40, false), (2, 0, true)] {
            region.arguments.push(Argument {
                index,
                name: String::new(),
                writable,
                offset,
            });
        }
        let index = |address, store| region.argument(address, store).map(|found| found.index);
        assert_eq!(index(0x1050, false), Some(1));
        assert_eq!(index(0x1050, true), Some(2));
    }

    #[test]
    fn granules_follow_the_alignment_of_elements() {
        assert_eq!([1, 2, 4, 8, 16].map(granule_shift), [0, 1, 2, 2, 2]);
    }
}
