//! Which steps of a session must wait for those before.

use std::ops::Range;

/// Bytes of a buffer that a step reads, or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The address of the buffer's object.
    pub(crate) buffer: usize,
    pub(crate) bytes: Range<usize>,
    pub(crate) writes: bool,
}

impl Access {
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        let overlap = self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end;
        self.buffer == other.buffer && overlap && (self.writes || other.writes)
    }
}

/// What the steps since the last wait have read and written.
#[derive(Debug, Default)]
pub(crate) struct Order {
    since: Vec<Access>,
}

impl Order {
    /// Takes note of a step, and tells whether it must wait for those before.
    pub(crate) fn must_wait(&mut self, step: Vec<Access>) -> bool {
        let conflict = |access: &Access| self.since.iter().any(|before| access.conflicts(before));
        let wait = step.iter().any(conflict);
        if wait {
            self.since.clear();
        }
        step.into_iter().for_each(|access| self.add(access));
        wait
    }

    /// Many small pieces are soon one, so that the list stays short.
    fn add(&mut self, access: Access) {
        let Range { start, end } = access.bytes;
        let touches = |before: &&mut Access| {
            let same = (before.buffer, before.writes) == (access.buffer, access.writes);
            same && before.bytes.start <= end && start <= before.bytes.end
        };
        match self.since.iter_mut().find(touches) {
            Some(before) => before.bytes = before.bytes.start.min(start)..before.bytes.end.max(end),
            None => self.since.push(access),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(buffer: usize, bytes: Range<usize>, writes: bool) -> Access {
        Access {
            buffer,
            bytes,
            writes,
        }
    }

    #[test]
    fn a_step_waits_for_what_it_depends_on() {
        let (read, write) = (|b, r| access(b, r, false), |b, r| access(b, r, true));
        let mut order = Order::default();
        assert!(!order.must_wait(vec![read(1, 0..8), write(2, 0..8)]));
        // Reads again, and writes elsewhere.
        assert!(!order.must_wait(vec![read(1, 0..8), write(2, 8..16)]));
        assert!(!order.must_wait(vec![read(1, 4..6), write(3, 0..8)]));
        // Read after write.
        assert!(order.must_wait(vec![read(2, 12..20), write(4, 0..8)]));
        // What came before that wait is done.
        assert!(!order.must_wait(vec![write(1, 0..8)]));
        // Write after write, and after read.
        assert!(order.must_wait(vec![write(1, 7..9)]));
        assert!(!order.must_wait(vec![read(5, 0..1)]));
        assert!(order.must_wait(vec![write(5, 0..1)]));
    }

    #[test]
    fn pieces_are_put_together() {
        let mut order = Order::default();
        for i in 0..100 {
            assert!(!order.must_wait(vec![
                access(1, 0..8, false),
                access(2, i * 8..i * 8 + 8, true)
            ]));
        }
        assert_eq!(
            order.since,
            [access(1, 0..8, false), access(2, 0..800, true)]
        );
        assert!(!order.must_wait(vec![access(2, 808..816, true)]));
        assert!(order.must_wait(vec![access(2, 799..801, false)]));
    }
}
