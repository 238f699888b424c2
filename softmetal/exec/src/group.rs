//! Runs one threadgroup: its simdgroups by turns, from barrier to barrier.

use softmetal_abi::SIMD_WIDTH;

use crate::finding::Kind;
use crate::findings::Place;
use crate::order::Epochs;
use crate::schedule::{turns, Random};
use crate::worker::{Status, Worker};

impl Worker {
    pub fn run_group(&self, group: usize) {
        self.begin(group);
        let simdgroups = (self.size.get() as usize).div_ceil(SIMD_WIDTH);
        let mut order = Vec::with_capacity(simdgroups);
        let mut started = false;
        loop {
            self.mix(simdgroups, &mut order);
            for &simdgroup in &order {
                self.run_simdgroup(simdgroup, !started);
                if self.abandoned.get() {
                    return self.tear_down();
                }
            }
            started = true;
            if !self.meet_at_barrier(simdgroups) {
                break;
            }
        }
        if self.abandoned.get() {
            self.tear_down();
        }
    }

    fn begin(&self, group: usize) {
        let job = self.job();
        let position = job.geometry.group_position(group);
        let builtins = job.geometry.group_builtins(position);
        let size = builtins.threads_per_threadgroup.iter().product();
        self.group.set(group);
        self.builtins.set(builtins);
        self.size.set(size);
        self.tracking.set(true);
        self.abandoned.set(false);
        self.is_pending.set(false);
        self.pending.set(None);
        self.deferred.borrow_mut().clear();
        let epochs = Epochs::new(job.serial(group));
        self.epochs
            .iter()
            .for_each(|simdgroup| simdgroup.set(epochs));
        self.slots[..size as usize]
            .iter()
            .for_each(|slot| slot.status.set(Status::Fresh));
        if let crate::Schedule::Random(seed) = job.schedule {
            self.random
                .set(Random::new(seed ^ (group as u64).rotate_left(32)));
        }
        if job.check {
            self.arena().poison();
        }
        self.traffic.groups.set(self.traffic.groups.get() + 1);
        self.traffic
            .threads
            .set(self.traffic.threads.get() + u64::from(size));
    }

    fn mix(&self, count: usize, order: &mut Vec<u32>) {
        let mut random = self.random.get();
        turns(self.job().schedule, &mut random, count, order);
        self.random.set(random);
    }

    /// Threads of a simdgroup.
    pub fn lanes(&self, simdgroup: u32) -> std::ops::Range<u32> {
        let first = simdgroup * SIMD_WIDTH as u32;
        first..self.size.get().min(first + SIMD_WIDTH as u32)
    }

    /// Runs every lane until it waits at a threadgroup barrier or has ended.
    fn run_simdgroup(&self, simdgroup: u32, start: bool) {
        let lanes = self.lanes(simdgroup);
        let mut order = Vec::with_capacity(SIMD_WIDTH);
        if start {
            self.mix(lanes.len(), &mut order);
            let fresh = order.iter().rev().map(|lane| lanes.start + lane);
            self.fresh.borrow_mut().extend(fresh);
            while !self.fresh.borrow().is_empty() {
                let fiber = self.idle_fiber();
                self.resume(fiber);
                if self.abandoned.get() {
                    return;
                }
            }
        } else {
            self.resume_ready(simdgroup, &mut order);
        }
        while !self.abandoned.get() && self.meet_in_simdgroup(simdgroup) {
            self.resume_ready(simdgroup, &mut order);
        }
    }

    fn resume_ready(&self, simdgroup: u32, order: &mut Vec<u32>) {
        let lanes = self.lanes(simdgroup);
        self.mix(lanes.len(), order);
        for &lane in order.iter() {
            let thread = lanes.start + lane;
            let slot = &self.slots[thread as usize];
            if slot.status.get() == Status::Ready {
                slot.status.set(Status::Running);
                self.enter(thread);
                self.resume(slot.fiber.get());
                if self.abandoned.get() {
                    return;
                }
            }
        }
    }

    fn resume(&self, fiber: u32) {
        self.fiber.set(fiber);
        self.fibers()[fiber as usize].resume(self);
        let last = &self.slots[self.thread.get() as usize];
        if !self.abandoned.get() && last.status.get() == Status::Done {
            self.release_fiber(fiber);
        }
    }

    /// Discards what threads left on their stacks when the group was abandoned.
    fn tear_down(&self) {
        self.fresh.borrow_mut().clear();
        let mut busy: Vec<u32> = self.slots[..self.size.get() as usize]
            .iter()
            .filter(|slot| !matches!(slot.status.get(), Status::Fresh | Status::Done))
            .map(|slot| slot.fiber.get())
            .collect();
        busy.sort_unstable();
        busy.dedup();
        for index in busy {
            // SAFETY: this is the main stack.
            unsafe { self.fibers()[index as usize].discard(self) };
            self.release_fiber(index);
        }
        self.abandoned.set(false);
    }

    /// Lets the threads that wait at a threadgroup barrier go on; false if none does.
    fn meet_at_barrier(&self, simdgroups: usize) -> bool {
        let slots = &self.slots[..self.size.get() as usize];
        let waits = |index: &usize| slots[*index].status.get() == Status::AtBarrier;
        if self.judge_deferred() {
            self.abandoned.set(true);
            return false;
        }
        let Some(first) = (0..slots.len()).find(waits) else {
            return false;
        };
        let meeting = slots[first].meeting.get();
        let elsewhere = (0..slots.len())
            .find(|index| waits(index) && slots[*index].meeting.get().key != meeting.key);
        let ended = (0..slots.len()).find(|&index| slots[index].status.get() == Status::Done);
        // SAFETY: sites are constants of the kernel.
        let place = |index: usize| Place::of_site(unsafe { &*slots[index].meeting.get().site });
        if let (Some(other), true) = (elsewhere, self.job().check) {
            let (here, there) = (place(first), place(other));
            let detail = || {
                format!(
                "thread {:?} waits at the barrier in line {}, thread {:?} at the one in line {}",
                self.position(first as u32),
                here.line(),
                self.position(other as u32),
                there.line()
            )
            };
            self.diverge(Kind::BarrierDivergence, here, first, detail);
        } else if let (Some(other), true) = (ended, self.job().check) {
            let detail = || {
                format!(
                    "thread {:?} returned and never reaches the barrier that thread {:?} waits at",
                    self.position(other as u32),
                    self.position(first as u32)
                )
            };
            self.diverge(Kind::EarlyReturn, place(first), other, detail);
        }
        if self.abandoned.get() {
            return false;
        }
        for slot in slots
            .iter()
            .filter(|slot| slot.status.get() == Status::AtBarrier)
        {
            slot.status.set(Status::Ready);
        }
        for cell in &self.epochs[..simdgroups] {
            let mut epochs = cell.get();
            epochs.threadgroup_barrier(meeting.flags);
            self.set_epochs(cell, epochs);
        }
        self.traffic.barriers.set(self.traffic.barriers.get() + 1);
        true
    }

    pub fn set_epochs(&self, cell: &std::cell::Cell<Epochs>, epochs: Epochs) {
        if !epochs.in_range() {
            self.tracking.set(false);
        }
        cell.set(epochs);
    }

    /// Reports from the main stack; an error leaves the group to be torn down.
    pub fn diverge(
        &self,
        kind: Kind,
        place: Place,
        thread: usize,
        detail: impl FnOnce() -> String,
    ) {
        self.thread.set(thread as u32);
        if self.report(kind, place, None, detail) {
            self.abandoned.set(true);
        }
    }
}
