//! Stores that are about to happen.
//!
//! Kernels call a hook *before* they store. Who finds that another group has written the same bytes, and wants to
//! know whether it was the same value, must not look before that store has happened.

use std::sync::atomic::{AtomicUsize, Ordering};

/// One cache line for each worker, so that announcing a store costs no more than a store.
#[repr(align(64))]
#[derive(Default)]
struct Slot(AtomicUsize);

/// Where each worker is about to store, 0 for nowhere.
pub(crate) struct Stores {
    slots: Box<[Slot]>,
    claimed: AtomicUsize,
}

/// How far a store may reach beyond where it begins.
const REACH: usize = 4096;

impl Stores {
    pub fn new(workers: usize) -> Self {
        Self {
            slots: std::iter::repeat_with(Slot::default)
                .take(workers)
                .collect(),
            claimed: AtomicUsize::new(0),
        }
    }

    /// A slot for a worker that joins.
    pub fn claim(&self) -> usize {
        self.claimed.fetch_add(1, Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn announce(&self, slot: usize, address: usize) {
        self.slots[slot].0.store(address, Ordering::Release);
    }

    /// The store that was announced has happened, or never will.
    #[inline(always)]
    pub fn done(&self, slot: usize) {
        self.slots[slot].0.store(0, Ordering::Release);
    }

    /// Waits until no other worker is about to store to `address`. Whoever waits announces nothing meanwhile, so
    /// that two don't wait for each other.
    pub fn wait_for_others(&self, slot: usize, address: usize) {
        self.done(slot);
        let others = self
            .slots
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != slot);
        for (_, other) in others {
            let near = |at: usize| at != 0 && at < address + 4 && address < at + REACH;
            while near(other.0.load(Ordering::Acquire)) {
                std::hint::spin_loop();
            }
        }
        self.announce(slot, address);
    }
}
