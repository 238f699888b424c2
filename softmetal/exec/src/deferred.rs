//! Reads of memory that nobody had written, until it is clear why.
//!
//! Where a barrier is missing, the reader may come before the writer. Then the bytes are not initialised yet, but
//! the defect is a race. So the verdict waits for the next barrier or the end of the group: if by then a race was
//! found in the same region, that is the finding.

use crate::checks::place_in;
use crate::finding::Kind;
use crate::findings::Place;
use crate::region::Region;
use crate::worker::{Deferred, Worker};

/// Reads that are remembered at a time.
const MAX_DEFERRED: usize = 16;
/// Garbage may be the bound of a loop: after so many accesses a verdict is due.
const PATIENCE: u32 = 10_000_000;

impl Worker {
    pub fn defer(&self, region: &Region, address: usize, pc: usize) {
        if !self.job().check {
            return;
        }
        let mut deferred = self.deferred.borrow_mut();
        if deferred.is_empty() {
            self.patience.set(PATIENCE);
        }
        let known = deferred
            .iter()
            .any(|other| (other.pc, other.region) == (pc, region.base));
        if !known && deferred.len() < MAX_DEFERRED {
            let thread = self.thread.get();
            deferred.push(Deferred {
                region: region.base,
                address,
                pc,
                thread,
            });
        }
        self.is_pending.set(true);
    }

    /// A race in a region explains why something there was not written yet.
    pub fn race_explains(&self, region: &Region) {
        self.deferred
            .borrow_mut()
            .retain(|read| read.region != region.base);
    }

    /// Called at accesses while a verdict is open, on the stack of a fiber.
    pub fn lose_patience(&self) {
        if self.deferred.borrow().is_empty() {
            return;
        }
        self.patience.set(self.patience.get().saturating_sub(1));
        if self.patience.get() == 0 && self.judge_deferred() {
            self.abandon();
        }
    }

    /// Reports the reads that no race has explained; true if the kernel has to stop.
    pub fn judge_deferred(&self) -> bool {
        let mut stop = false;
        let current = self.thread.get();
        for read in self.deferred.take() {
            let Some(region) = self.region(read.address, 1) else {
                continue;
            };
            let detail = || {
                format!(
                    "{} of {} was never written",
                    place_in(region, read.address),
                    region.label
                )
            };
            let access = Some((region, read.address, false));
            self.thread.set(read.thread);
            stop |= self.report(
                Kind::UninitialisedRead,
                Place::Code(read.pc),
                access,
                detail,
            );
        }
        self.thread.set(current);
        self.is_pending.set(self.pending.get().is_some());
        stop
    }
}
