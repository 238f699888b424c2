//! Meetings inside a simdgroup: simd and quad functions, and simdgroup barriers.
//!
//! When every lane waits or has ended, the lanes that wait at the lowest place in the source meet and go on.
//! So lanes that leave a loop early wait behind it for the others, as on the hardware.
//!
//! The order is that of lines, not of calls: if lanes diverge around a simd function and the next one they all reach
//! is in a helper that is defined further up, the helper's goes first, with a part of the lanes.

use softmetal_abi::{gather, POISON, SIMD_WIDTH};

use crate::finding::Kind;
use crate::findings::Place;
use crate::worker::{Status, Worker};

impl Worker {
    /// Lets one meeting of the simdgroup take place; false if no lane waits for one.
    pub fn meet_in_simdgroup(&self, simdgroup: u32) -> bool {
        let lanes = self.lanes(simdgroup);
        let first = lanes.start;
        let slot = |lane: u32| &self.slots[(first + lane) as usize];
        let count = lanes.len() as u32;
        let lowest = (0..count)
            .filter(|&lane| {
                matches!(
                    slot(lane).status.get(),
                    Status::AtGather | Status::AtSimdBarrier
                )
            })
            .min_by_key(|&lane| slot(lane).meeting.get().key);
        let Some(lowest) = lowest else {
            return false;
        };
        let (status, meeting) = (slot(lowest).status.get(), slot(lowest).meeting.get());
        let mut mask = 0u32;
        for lane in 0..count {
            let other = slot(lane);
            if other.status.get() == status && other.meeting.get().key == meeting.key {
                mask |= 1 << lane;
            }
        }
        self.traffic.gathers.set(self.traffic.gathers.get() + 1);
        if status == Status::AtSimdBarrier {
            self.check_simd_barrier(first, mask, count);
            let cell = &self.epochs[simdgroup as usize];
            let mut epochs = cell.get();
            epochs.simdgroup_barrier(meeting.flags);
            self.set_epochs(cell, epochs);
        } else {
            self.check_gather(first, mask);
            self.fill(first, mask, meeting.size as usize);
        }
        for lane in 0..count {
            if mask & (1 << lane) != 0 {
                let quad = 0b1111 << (lane & !3);
                slot(lane).mask.set(if meeting.width == 4 {
                    mask & quad
                } else {
                    mask
                });
                slot(lane).status.set(Status::Ready);
            }
        }
        true
    }

    /// Copies the lanes' values side by side.
    fn fill(&self, first: u32, mask: u32, size: usize) {
        // SAFETY: lanes look at it only between a meeting and their next suspension.
        let gathered = unsafe { &mut *self.gathered.get() };
        for lane in 0..SIMD_WIDTH {
            let values = &mut gathered.values[lane];
            if mask & (1 << lane) == 0 {
                values.fill(POISON);
                continue;
            }
            let value = self.slots[first as usize + lane].meeting.get().value;
            // SAFETY: the value lies on the lane's stack, which waits; the hook has checked the size.
            unsafe { value.copy_to_nonoverlapping(values.as_mut_ptr(), size) };
        }
    }

    fn check_simd_barrier(&self, first: u32, mask: u32, count: u32) {
        let everyone = u32::MAX >> (32 - count);
        if mask == everyone || !self.job().check {
            return;
        }
        let absent = (everyone & !mask).trailing_zeros();
        let (waiting, missing) = (first + mask.trailing_zeros(), first + absent);
        let (kind, how) = match self.slots[missing as usize].status.get() {
            Status::Done => (Kind::EarlyReturn, "returned"),
            _ => (Kind::BarrierDivergence, "took another way"),
        };
        let detail = || {
            format!(
            "thread {:?} {how} and never reaches the simdgroup barrier that thread {:?} waits at",
            self.position(missing),
            self.position(waiting)
        )
        };
        self.diverge(kind, self.place_of(waiting), missing as usize, detail);
    }

    fn check_gather(&self, first: u32, mask: u32) {
        if !self.job().check {
            return;
        }
        let leader = first + mask.trailing_zeros();
        let meeting = self.slots[leader as usize].meeting.get();
        if meeting.kind == gather::MATRIX && mask != u32::MAX {
            let detail = || {
                format!(
                    "{} of 32 lanes take part in a simdgroup_matrix operation",
                    mask.count_ones()
                )
            };
            return self.diverge(
                Kind::PartialSimdgroup,
                self.place_of(leader),
                leader as usize,
                detail,
            );
        }
        if meeting.kind == gather::SHUFFLE_UNIFORM {
            let odd = (0..32u32)
                .filter(|lane| mask & (1 << lane) != 0)
                .find(|lane| {
                    self.slots[(first + lane) as usize].meeting.get().argument != meeting.argument
                });
            if let Some(lane) = odd {
                let other = self.slots[(first + lane) as usize].meeting.get().argument;
                let detail = || {
                    format!(
                    "lane {} passes {} and lane {lane} passes {other} where all lanes must agree",
                    leader - first,
                    meeting.argument
                )
                };
                let place = self.place_of(leader);
                self.diverge(
                    Kind::NonUniformArgument,
                    place,
                    (first + lane) as usize,
                    detail,
                );
            }
        }
    }

    fn place_of(&self, thread: u32) -> Place {
        // SAFETY: sites are constants of the kernel.
        Place::of_site(unsafe { &*self.slots[thread as usize].meeting.get().site })
    }
}
