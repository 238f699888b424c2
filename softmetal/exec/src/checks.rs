//! What happens at every access in checked mode.

use std::sync::atomic::Ordering;

use crate::finding::Kind;
use crate::findings::Place;
use crate::order::{serial_of, thread_of, Memory, Relation, ATOMIC, PARTIAL};
use crate::race::{Accessor, Conflict};
use crate::region::{Region, Role};
use crate::worker::{Pending, Worker, CACHE};

impl Worker {
    /// An access by the current thread. Does not return if it must not happen.
    #[inline(always)]
    pub fn access<const STORE: bool>(&self, address: usize, size: usize, pc: usize, flags: u64) {
        if address & size.wrapping_sub(1) != 0 && size.is_power_of_two() && size <= 16 {
            self.misaligned(address, size, pc, STORE);
        }
        if address.wrapping_sub(self.stack_low.get()) < self.stack_len.get() || size == 0 {
            return;
        }
        self.settle();
        let Some(region) = self.region(address, size) else {
            return self.outside(address, size, pc, STORE);
        };
        let memory = region.memory as usize;
        if region.role != Role::Bytes {
            let count = &self.traffic.bytes[memory][usize::from(STORE)];
            count.set(count.get() + size as u64);
        }
        let offset = address - region.base;
        if STORE && !region.writable || region.role == Role::Unbound {
            self.forbidden(region, address, size, pc, STORE);
        }
        // SAFETY: the region holds the bytes, and its shadows have a byte or cell for each of them.
        unsafe {
            if !region.initialised.is_null() && !region.initialised.all(offset, size) {
                if STORE {
                    region.initialised.set(offset, size);
                } else {
                    self.uninitialised(region, address, size, pc);
                }
            }
            if let Some(recorder) = &region.recorder {
                if STORE {
                    recorder.write(offset, size);
                } else {
                    recorder.read(offset, size);
                }
            }
            if !region.cells.first.is_null() && self.tracking.get() {
                self.race::<STORE>(region, offset, size, pc, flags);
            }
        }
    }

    /// # Safety
    /// The region has cells, and holds the bytes.
    #[inline(always)]
    unsafe fn race<const STORE: bool>(
        &self,
        region: &Region,
        offset: usize,
        size: usize,
        pc: usize,
        mut flags: u64,
    ) {
        let shift = region.cells.shift;
        if (offset | size) & ((1 << shift) - 1) != 0 {
            flags |= PARTIAL;
        }
        let job = self.job();
        // SAFETY: the view is only changed between turns of threads.
        let view = unsafe { &*self.view.as_ptr() };
        let shared = job.shared && region.memory == Memory::Device;
        let by = Accessor {
            view,
            memory: region.memory,
            oldest: job.oldest(),
            flags,
            shared,
        };
        if STORE && shared {
            job.stores.announce(self.slot.get(), region.base + offset);
        }
        for index in offset >> shift..=(offset + size - 1) >> shift {
            // SAFETY: there is a cell for each granule of the region.
            let cell = unsafe { &*region.cells.first.add(index) };
            if STORE {
                let (write, read) = cell.write(&by);
                if write.is_some() || read.is_some() {
                    self.conflicts(region, index << shift, pc, flags, [write, read]);
                }
            } else if let Some(conflict) = cell.read(&by) {
                self.conflict(region, region.base + (index << shift), pc, false, conflict);
            }
        }
    }

    /// The region that holds all of the bytes.
    #[inline(always)]
    pub fn region(&self, address: usize, size: usize) -> Option<&Region> {
        let arena = self.arena();
        if arena.contains(address) {
            return arena
                .region(address)
                .filter(|region| region.holds(address, size));
        }
        let regions = &self.job().regions;
        let entry = &self.cache[(address >> 16) % CACHE];
        if let Some(region) = regions.sorted.get(usize::from(entry.get())) {
            if region.holds(address, size) {
                return Some(region);
            }
        }
        let found = regions.find(address)?;
        entry.set(found as u8);
        let region = &regions.sorted[found];
        region.holds(address, size).then_some(region)
    }

    /// Decides about a store that went before: two threads that write the same value race by the letter only.
    #[inline(always)]
    pub fn settle(&self) {
        self.job().stores.done(self.slot.get());
        if self.is_pending.get() {
            self.settle_pending();
        }
    }

    #[cold]
    fn settle_pending(&self) {
        if let Some(pending) = self.pending.take() {
            self.settle_store(pending);
        }
        self.is_pending.set(!self.deferred.borrow().is_empty());
        self.lose_patience();
    }

    fn settle_store(&self, pending: Pending) {
        let Some(region) = self.region(pending.address, pending.size) else {
            return;
        };
        let mut now = [0; 4];
        // SAFETY: the region holds the bytes.
        unsafe { read_bytes(pending.address, &mut now[..pending.size]) };
        let (kind, what) = if now == pending.before {
            (Kind::SameValueRace, "the same value")
        } else {
            (pending.kind, "another value")
        };
        let detail = || {
            format!(
                "{} of {} is written here, and with {what} by {}, in no order",
                place_in(region, pending.address),
                region.label,
                self.who(pending.earlier)
            )
        };
        self.complain(
            kind,
            Place::Code(pending.pc),
            region,
            pending.address,
            true,
            detail,
        );
    }

    #[cold]
    fn conflicts(
        &self,
        region: &Region,
        offset: usize,
        pc: usize,
        flags: u64,
        [write, read]: [Option<Conflict>; 2],
    ) {
        let address = region.base + offset;
        if let Some(read) = read {
            self.conflict(region, address, pc, true, read);
        }
        let Some(write) = write else { return };
        let plain = (flags | write.earlier) & ATOMIC == 0;
        let kind = self.race_kind(write.relation);
        if !plain || kind == Kind::MemoryOrder {
            return self.conflict(region, address, pc, true, write);
        }
        let size = (1usize << region.cells.shift).min(region.len - offset);
        if kind == Kind::RaceBetweenGroups {
            self.job().stores.wait_for_others(self.slot.get(), address);
        }
        let mut before = [0; 4];
        // SAFETY: the region holds the bytes.
        unsafe { read_bytes(address, &mut before[..size]) };
        self.pending.set(Some(Pending {
            address,
            size,
            before,
            pc,
            earlier: write.earlier,
            kind,
        }));
        self.is_pending.set(true);
    }

    fn race_kind(&self, relation: Relation) -> Kind {
        match relation {
            Relation::Unfenced | Relation::Before => Kind::MemoryOrder,
            // Fences with atomics can order accesses, which is not followed here.
            _ if self.job().fenced.load(Ordering::Relaxed) => Kind::MemoryOrder,
            Relation::Concurrent => Kind::Race,
            Relation::OtherGroup => Kind::RaceBetweenGroups,
        }
    }

    #[cold]
    fn conflict(
        &self,
        region: &Region,
        address: usize,
        pc: usize,
        store: bool,
        conflict: Conflict,
    ) {
        let kind = self.race_kind(conflict.relation);
        let verb = |store| if store { "written" } else { "read" };
        let detail = || {
            format!(
                "{} of {} is {} here and was {} by {}, {}",
                place_in(region, address),
                region.label,
                verb(store),
                verb(conflict.wrote),
                self.who(conflict.earlier),
                match kind {
                    Kind::MemoryOrder => "with a barrier between that does not order this memory",
                    Kind::RaceBetweenGroups => "and nothing orders threadgroups",
                    _ => "without a barrier between",
                }
            )
        };
        self.complain(kind, Place::Code(pc), region, address, store, detail);
    }

    fn who(&self, word: u64) -> String {
        let job = self.job();
        let position = job.group_of_serial(serial_of(word));
        let mut builtins = job.geometry.group_builtins(position);
        job.geometry.place(&mut builtins, thread_of(word));
        format!(
            "thread {:?} of group {position:?}",
            builtins.thread_position_in_grid
        )
    }

    pub fn complain(
        &self,
        kind: Kind,
        place: Place,
        region: &Region,
        address: usize,
        store: bool,
        detail: impl FnOnce() -> String,
    ) {
        if matches!(kind, Kind::Race | Kind::RaceBetweenGroups) {
            self.race_explains(region);
        }
        if self.report(kind, place, Some((region, address, store)), detail) {
            self.abandon();
        }
    }

    #[cold]
    fn misaligned(&self, address: usize, size: usize, pc: usize, store: bool) {
        let detail = || format!("an object of {size} bytes must not lie at address {address:#x}");
        let region = self
            .region(address, 1)
            .map(|region| (region, address, store));
        if self.report(Kind::Misaligned, Place::Code(pc), region, detail) {
            self.abandon();
        }
    }

    #[cold]
    fn uninitialised(&self, region: &Region, address: usize, size: usize, pc: usize) {
        // SAFETY: the region holds the bytes.
        let missing = unsafe {
            region
                .initialised
                .first_missing(address - region.base, size)
        };
        self.defer(
            region,
            missing.map_or(address, |offset| region.base + offset),
            pc,
        );
    }

    #[cold]
    fn forbidden(&self, region: &Region, address: usize, size: usize, pc: usize, store: bool) {
        let unbound = region.role == Role::Unbound;
        let kind = if unbound {
            Kind::UnboundArgument
        } else {
            Kind::WriteToConstant
        };
        let detail = || match unbound {
            true => format!("nothing is bound to `{}`", names(region)),
            false => format!("{size} bytes of {} are written", region.label),
        };
        self.complain(kind, Place::Code(pc), region, address, store, detail);
    }

    #[cold]
    fn outside(&self, address: usize, size: usize, pc: usize, store: bool) {
        let kind = if store {
            Kind::OutOfBoundsWrite
        } else {
            Kind::OutOfBoundsRead
        };
        let nearest = if self.arena().contains(address) {
            self.arena().nearest(address)
        } else {
            self.job().regions.nearest(address)
        };
        let detail = || match nearest {
            None => format!("{size} bytes at {address:#x}, which is no memory of this kernel"),
            Some(region) if address < region.base => {
                format!(
                    "{size} bytes, {} before the start of {}",
                    region.base - address,
                    region.label
                )
            }
            Some(region) => {
                let end = region.base + region.len;
                let past = address + size - end;
                format!(
                    "{size} bytes, of which the last is {past} past the end of {}",
                    region.label
                )
            }
        };
        let access = nearest.map(|region| (region, address, store));
        if self.report(kind, Place::Code(pc), access, detail) {
            self.abandon();
        }
    }
}

/// # Safety
/// The bytes may be read.
unsafe fn read_bytes(address: usize, bytes: &mut [u8]) {
    for (offset, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: as promised; volatile, since other workers may write it now.
        *byte = unsafe { (address as *const u8).add(offset).read_volatile() };
    }
}

pub(crate) fn place_in(region: &Region, address: usize) -> String {
    format!("byte {}", address - region.base)
}

fn names(region: &Region) -> String {
    let names: Vec<_> = region
        .arguments
        .iter()
        .map(|argument| argument.name.as_str())
        .collect();
    names.join("` or `")
}
