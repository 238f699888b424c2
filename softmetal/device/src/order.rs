//! What is known to be finished when something starts.
//!
//! A queue runs its command buffers first to last here, but Metal promises less: command buffers of a queue and
//! encoders of a command buffer may overlap, unless something orders them. What does, is recorded in clocks: fences,
//! events, and the host seeing that a command buffer has completed before it commits another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a command stands in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) queue: u64,
    /// The command buffer: the first of a queue is 1.
    pub(crate) buffer: u64,
    /// The encoder, unique in the process.
    pub(crate) pass: u64,
    /// The place in the encoder.
    pub(crate) position: u32,
}

/// How far a queue has got, as the host has seen it.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) queue: u64,
    observed: AtomicU64,
}

impl Progress {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            queue: NEXT.fetch_add(1, Ordering::Relaxed),
            observed: AtomicU64::new(0),
        }
    }

    /// The host knows that this command buffer has completed, and so have all before it.
    pub(crate) fn observe(&self, buffer: u64) {
        self.observed.fetch_max(buffer, Ordering::AcqRel);
    }

    pub(crate) fn observed(&self) -> u64 {
        self.observed.load(Ordering::Acquire)
    }
}

pub(crate) fn next_pass() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A set of commands that are finished, closed under what they themselves waited for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// By queue: all command buffers up to this one.
    buffers: HashMap<u64, u64>,
    /// By pass: a stamp; the commands before its position are finished.
    passes: HashMap<u64, Stamp>,
}

impl Clock {
    /// What the host has seen to be finished.
    pub(crate) fn observed<'a>(queues: impl Iterator<Item = &'a Progress>) -> Self {
        let buffers = queues
            .map(|queue| (queue.queue, queue.observed()))
            .collect();
        Self {
            buffers,
            passes: HashMap::new(),
        }
    }

    pub(crate) fn covers(&self, stamp: &Stamp) -> bool {
        let next = Stamp {
            position: stamp.position + 1,
            ..*stamp
        };
        self.reaches(&next)
    }

    /// Whether the commands of a pass before this place are finished.
    fn reaches(&self, stamp: &Stamp) -> bool {
        self.has_buffer(stamp.queue, stamp.buffer)
            || self
                .passes
                .get(&stamp.pass)
                .is_some_and(|reach| stamp.position <= reach.position)
    }

    fn has_buffer(&self, queue: u64, buffer: u64) -> bool {
        self.buffers
            .get(&queue)
            .is_some_and(|reach| buffer <= *reach)
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (&queue, &reach) in &other.buffers {
            self.finish_buffers(queue, reach);
        }
        for reach in other.passes.values() {
            self.finish_before(*reach);
        }
        let buffers = &self.buffers;
        self.passes.retain(|_, reach| {
            let known = buffers.get(&reach.queue);
            known.is_none_or(|known| reach.buffer > *known)
        });
    }

    /// Adds the commands of a pass before the position of `stamp`.
    pub(crate) fn finish_before(&mut self, stamp: Stamp) {
        if self.has_buffer(stamp.queue, stamp.buffer) {
            return;
        }
        let reach = self.passes.entry(stamp.pass).or_insert(stamp);
        reach.position = reach.position.max(stamp.position);
    }

    /// Adds all command buffers of a queue up to this one.
    pub(crate) fn finish_buffers(&mut self, queue: u64, buffer: u64) {
        let known = self.buffers.entry(queue).or_default();
        *known = (*known).max(buffer);
    }
}

/// `MTLFence`
#[derive(Debug, Default)]
pub struct Fence {
    passed: Mutex<Option<Passed>>,
}

/// What is finished once a fence is passed.
#[derive(Debug)]
struct Passed {
    /// The commands of the updating pass before this one, and all that the pass had waited for.
    reach: Stamp,
    clock: Clock,
}

impl Fence {
    pub(crate) fn update(&self, reach: Stamp, mut clock: Clock) {
        clock.finish_before(reach);
        *self.lock() = Some(Passed { reach, clock });
    }

    /// Adds what is finished once the fence is passed; nothing if it was never updated.
    ///
    /// Candle keeps fences for long, and waits for all of them: one whose pass is known to be finished adds nothing, for
    /// clocks are closed.
    pub(crate) fn join_into(&self, clock: &mut Clock) {
        if let Some(passed) = &*self.lock() {
            if !clock.reaches(&passed.reach) {
                clock.join(&passed.clock);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Passed>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(buffer: u64, pass: u64, position: u32) -> Stamp {
        Stamp {
            queue: 1,
            buffer,
            pass,
            position,
        }
    }

    #[test]
    fn covers_what_came_before() {
        let mut clock = Clock::default();
        clock.finish_before(stamp(5, 9, 3));
        assert!(clock.covers(&stamp(5, 9, 2)));
        assert!(!clock.covers(&stamp(5, 9, 3)));
        assert!(!clock.covers(&stamp(5, 8, 0)));
        clock.finish_buffers(1, 4);
        assert!(clock.covers(&stamp(4, 7, 100)));
    }

    #[test]
    fn a_fence_brings_what_its_pass_waited_for() {
        let mut waited = Clock::default();
        waited.finish_before(stamp(5, 8, 3));
        let fence = Fence::default();
        fence.update(stamp(5, 9, 1), waited);
        let mut clock = Clock::default();
        fence.join_into(&mut clock);
        assert!(clock.covers(&stamp(5, 9, 0)) && !clock.covers(&stamp(5, 9, 1)));
        assert!(clock.covers(&stamp(5, 8, 2)) && !clock.covers(&stamp(5, 8, 3)));
    }

    #[test]
    fn joining_forgets_what_is_implied() {
        let mut clock = Clock::default();
        clock.finish_before(stamp(5, 9, 3));
        let mut later = Clock::default();
        later.finish_buffers(1, 5);
        clock.join(&later);
        assert!(clock.passes.is_empty());
        assert!(clock.covers(&stamp(5, 9, 7)));
    }
}
