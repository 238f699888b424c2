//! Which commands touched which bytes of a buffer, and whether they could have met.

use crate::order::{Clock, Fence, Stamp};
use crate::ranges::Ranges;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// What one command did to a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) stamp: Stamp,
    /// The command, for messages.
    pub(crate) by: Arc<str>,
    pub(crate) reads: Ranges,
    pub(crate) writes: Ranges,
}

/// Two commands that touch the same bytes in no order.
#[derive(Debug)]
pub(crate) struct Conflict {
    pub(crate) earlier: Access,
    pub(crate) bytes: Range<usize>,
    pub(crate) how: &'static str,
}

/// The accesses to a buffer that a later one may still conflict with.
#[derive(Debug, Default)]
pub(crate) struct History(Vec<Access>);

impl History {
    /// Adds an access; `ordered` tells whether an earlier command is finished when this one starts.
    pub(crate) fn add(
        &mut self,
        access: Access,
        ordered: impl Fn(&Stamp) -> bool,
    ) -> Option<Conflict> {
        let mut conflict = None;
        for earlier in &mut self.0 {
            if ordered(&earlier.stamp) {
                // Whoever comes after this access comes after the earlier one too, and whoever doesn't conflicts with
                // this access just as well.
                earlier.reads.subtract(&access.reads);
                earlier.reads.subtract(&access.writes);
                earlier.writes.subtract(&access.writes);
            } else if conflict.is_none() {
                conflict = meet(earlier, &access);
            }
        }
        self.0
            .retain(|earlier| !(earlier.reads.is_empty() && earlier.writes.is_empty()));
        if !(access.reads.is_empty() && access.writes.is_empty()) {
            self.0.push(access);
        }
        conflict
    }
}

fn meet(earlier: &Access, later: &Access) -> Option<Conflict> {
    let pairs = [
        (&earlier.writes, &later.reads, "reads what it writes"),
        (&earlier.writes, &later.writes, "writes what it writes"),
        (&earlier.reads, &later.writes, "writes what it reads"),
    ];
    pairs.into_iter().find_map(|(first, second, how)| {
        let bytes = first.overlap(second)?;
        Some(Conflict {
            earlier: earlier.clone(),
            bytes,
            how,
        })
    })
}

/// What the commands of one encoder may rely on.
#[derive(Debug)]
pub(crate) struct PassOrder {
    /// The place of the next command.
    pub(crate) next: Stamp,
    /// Commands of a serial encoder wait for those before them.
    serial: bool,
    clock: Clock,
    /// Commands before this place are finished.
    floor: u32,
    /// The same, for single buffers.
    floors: HashMap<u64, u32>,
}

impl PassOrder {
    pub(crate) fn new(start: Stamp, serial: bool, clock: Clock) -> Self {
        Self {
            next: start,
            serial,
            clock,
            floor: start.position,
            floors: HashMap::new(),
        }
    }

    /// The stamp of the command that is to run now.
    pub(crate) fn advance(&mut self) -> Stamp {
        let stamp = self.next;
        self.next.position += 1;
        if self.serial {
            self.floor = stamp.position;
        }
        stamp
    }

    /// A memory barrier for all buffers.
    pub(crate) fn barrier(&mut self) {
        self.floor = self.next.position;
    }

    /// A memory barrier for one buffer.
    pub(crate) fn barrier_for(&mut self, buffer: u64) {
        self.floors.insert(buffer, self.next.position);
    }

    /// A place of its own, so that fences updated before and after differ.
    pub(crate) fn wait(&mut self, fence: &Fence) {
        fence.join_into(&mut self.clock);
        self.next.position += 1;
    }

    pub(crate) fn update(&self, fence: &Fence) {
        fence.update(self.next, self.clock.clone());
    }

    /// Whether a command is finished when the present one touches a buffer. `tracked` buffers are ordered by Metal
    /// itself between the encoders of a queue.
    pub(crate) fn is_after(&self, earlier: &Stamp, buffer: u64, tracked: bool) -> bool {
        if earlier.pass == self.next.pass {
            let floor = self
                .floors
                .get(&buffer)
                .copied()
                .unwrap_or(0)
                .max(self.floor);
            return earlier.position < floor;
        }
        (tracked && earlier.queue == self.next.queue) || self.clock.covers(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(pass: u64, position: u32, reads: Range<usize>, writes: Range<usize>) -> Access {
        Access {
            stamp: Stamp {
                queue: 1,
                buffer: 1,
                pass,
                position,
            },
            by: "test".into(),
            reads: reads.into(),
            writes: writes.into(),
        }
    }

    #[test]
    fn reads_never_conflict() {
        let mut history = History::default();
        assert!(history.add(access(1, 0, 0..8, 0..0), |_| false).is_none());
        assert!(history.add(access(1, 1, 0..8, 0..0), |_| false).is_none());
        assert!(history.add(access(1, 2, 0..0, 8..9), |_| false).is_none());
        let conflict = history
            .add(access(1, 3, 0..0, 7..8), |_| false)
            .expect("a conflict");
        assert_eq!(
            (conflict.bytes, conflict.how),
            (7..8, "writes what it reads")
        );
    }

    #[test]
    fn an_ordered_write_replaces_what_came_before() {
        let mut history = History::default();
        history.add(access(1, 0, 0..4, 0..8), |_| true);
        history.add(access(1, 1, 0..0, 0..8), |_| true);
        assert_eq!(history.0.len(), 1);
        // An ordered read leaves the write in place: another reader may still be unordered with it.
        history.add(access(1, 2, 0..8, 0..0), |_| true);
        assert_eq!(history.0.len(), 2);
        assert!(history.add(access(2, 0, 4..8, 0..0), |_| false).is_some());
    }

    #[test]
    fn barriers_order_within_an_encoder() {
        let start = Stamp {
            queue: 1,
            buffer: 1,
            pass: 7,
            position: 0,
        };
        let mut order = PassOrder::new(start, false, Clock::default());
        let first = order.advance();
        order.advance();
        assert!(!order.is_after(&first, 3, true));
        order.barrier_for(3);
        order.advance();
        assert!(order.is_after(&first, 3, false));
        assert!(!order.is_after(&first, 4, false));
        order.barrier();
        assert!(order.is_after(&first, 4, false));
    }
}
