//! Threadgroup memory of one worker: variables and arguments, each with red zones around it.

use softmetal_abi::POISON;

use crate::dispatch::MAX_THREADGROUP_MEMORY;
use crate::mapping::Mapping;
use crate::race::Cell;
use crate::region::{granule_shift, Argument, Cells, Region, Role};
use crate::touched::ByteMap;

/// Blocks of memory variables and red zones are made of.
const BLOCK: usize = 64;
const CAPACITY: usize = 256 * 1024;
const NOBODY: u8 = u8::MAX;
/// Apple aligns threadgroup memory to this.
const UNIT: usize = 16;

pub(crate) struct Arena {
    memory: Mapping,
    initialised: Mapping,
    cells: Mapping,
    /// The region that each block belongs to.
    owners: Box<[u8; CAPACITY / BLOCK]>,
    regions: Vec<Region>,
    /// Slot, size and address of the variables.
    slots: Vec<(u32, usize, usize)>,
    /// Bytes of `memory` that are laid out.
    end: usize,
    /// Bytes as Metal counts them.
    used: usize,
}

impl Arena {
    pub fn new() -> Self {
        Self {
            memory: Mapping::new(CAPACITY),
            initialised: Mapping::new(CAPACITY),
            cells: Mapping::new(CAPACITY * size_of::<Cell>()),
            owners: Box::new([NOBODY; CAPACITY / BLOCK]),
            regions: Vec::new(),
            slots: Vec::new(),
            end: 0,
            used: 0,
        }
    }

    /// Forgets the variables of the last kernel.
    pub fn reset(&mut self) {
        self.owners[..self.end / BLOCK].fill(NOBODY);
        self.regions.clear();
        self.slots.clear();
        // Offset 0 stays free: what is written before the first variable is noticed.
        (self.end, self.used) = (BLOCK * 4, 0);
    }

    /// Forgets who accessed what: the serial numbers of groups start again.
    pub fn forget_accesses(&self) {
        self.cells.clear();
    }

    /// Gives every variable back its undefined contents, for the next group.
    pub fn poison(&self) {
        for region in &self.regions {
            self.poison_region(region);
        }
    }

    fn poison_region(&self, region: &Region) {
        // SAFETY: regions lie within the memory, and the map has a byte for each of its bytes.
        unsafe {
            (region.base as *mut u8).write_bytes(POISON, region.len);
            let offset = region.base - self.memory.address();
            self.initialised
                .data()
                .add(offset)
                .write_bytes(0, region.len);
        }
    }

    #[inline(always)]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.memory.address()) < CAPACITY
    }

    /// The region whose block an address of this arena is in.
    #[inline(always)]
    pub fn region(&self, address: usize) -> Option<&Region> {
        let owner = self.owners[(address - self.memory.address()) / BLOCK];
        self.regions.get(usize::from(owner))
    }

    pub fn nearest(&self, address: usize) -> Option<&Region> {
        self.regions.iter().min_by_key(|region| region.gap(address))
    }

    /// The address of a variable, laid out when it is first asked for.
    pub fn variable(
        &mut self,
        slot: u32,
        size: usize,
        align: usize,
        name: impl FnOnce() -> String,
    ) -> Result<usize, String> {
        if let Some(&(.., address)) = self
            .slots
            .iter()
            .find(|known| (known.0, known.1) == (slot, size))
        {
            return Ok(address);
        }
        let address = self.add(size, align, name(), None)?;
        self.slots.push((slot, size, address));
        Ok(address)
    }

    /// The address of a `[[threadgroup(n)]]` argument.
    pub fn argument(
        &mut self,
        size: usize,
        align: usize,
        index: u32,
        name: &str,
    ) -> Result<usize, String> {
        let argument = Argument {
            index,
            name: name.to_owned(),
            writable: true,
            offset: 0,
        };
        self.add(size, align, name.to_owned(), Some(argument))
    }

    fn add(
        &mut self,
        size: usize,
        align: usize,
        label: String,
        argument: Option<Argument>,
    ) -> Result<usize, String> {
        self.used += size.next_multiple_of(UNIT);
        let red_zone = size.clamp(256, 4096);
        let next = self.end + (size + red_zone).next_multiple_of(BLOCK);
        if self.used > MAX_THREADGROUP_MEMORY {
            let used = self.used;
            return Err(format!(
                "`{label}` brings threadgroup memory to {used} bytes, {MAX_THREADGROUP_MEMORY} are allowed"
            ));
        }
        if self.regions.len() == usize::from(NOBODY) || next > CAPACITY || align > BLOCK {
            return Err(format!("`{label}`: too many threadgroup variables"));
        }
        let offset = self.end;
        let mut region = Region::new(self.memory.address() + offset, size, Role::Threadgroup);
        region.writable = true;
        region.label = format!("threadgroup memory `{label}` of {size} bytes");
        region.arguments.extend(argument);
        // SAFETY: both maps cover the whole capacity.
        unsafe {
            region.initialised = ByteMap::new(self.initialised.data().add(offset));
            let first = self.cells.data().cast::<Cell>().add(offset);
            region.cells = Cells {
                first,
                shift: granule_shift(align),
            };
        }
        self.owners[offset / BLOCK..(offset + size).div_ceil(BLOCK)].fill(self.regions.len() as u8);
        self.poison_region(&region);
        let base = region.base;
        self.regions.push(region);
        self.end = next;
        Ok(base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_apart_and_stay_where_they_are() {
        let mut arena = Arena::new();
        arena.reset();
        let a = arena.variable(0, 100, 4, || "a".into()).expect("fits");
        let b = arena.variable(1, 12, 4, || "b".into()).expect("fits");
        assert_eq!(arena.variable(0, 100, 4, || "a".into()), Ok(a));
        assert!(b >= a + 100 + 256);
        let owner = |address| arena.region(address).map(|region| region.len);
        assert_eq!(owner(a + 99), Some(100));
        assert_eq!(owner(a + 192), None);
        assert_eq!(owner(b), Some(12));
        assert!(!arena.region(a).expect("a").holds(a + 98, 4));
    }

    #[test]
    fn the_limit_counts_variables_and_arguments() {
        let mut arena = Arena::new();
        arena.reset();
        arena.argument(16 * 1024, 16, 0, "shared").expect("fits");
        arena
            .variable(0, 16 * 1024, 16, || "tile".into())
            .expect("fits");
        let message = arena
            .variable(1, 1, 1, || "one".into())
            .expect_err("too much");
        assert!(
            message.contains("32784") && message.contains("one"),
            "{message}"
        );
        arena.reset();
        arena
            .variable(1, 1, 1, || "one".into())
            .expect("fits again");
    }
}
