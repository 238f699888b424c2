//! The last write and the last reads of each granule of memory, and what conflicts with them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::order::{
    distance, same_moment, thread_of, Memory, Relation, View, Word, ATOMIC, PARTIAL,
};

/// Who last accessed a granule of 1, 2 or 4 bytes.
///
/// Of concurrent accesses that do not conflict (reads, atomics) two are kept, as far apart as can be: whoever
/// conflicts with any of them conflicts with one of the two.
#[repr(C)]
pub(crate) struct Cell {
    writes: [AtomicU64; 2],
    reads: [AtomicU64; 2],
}

/// An earlier access that is not ordered with the one that is about to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub earlier: Word,
    pub relation: Relation,
    /// The earlier access was a write.
    pub wrote: bool,
}

/// Who is about to access what.
#[derive(Clone, Copy)]
pub(crate) struct Accessor<'a> {
    pub view: &'a View,
    pub memory: Memory,
    /// Words below belong to earlier dispatches.
    pub oldest: Word,
    /// [`ATOMIC`], [`PARTIAL`]
    pub flags: Word,
    /// Other workers may touch the same cell now.
    pub shared: bool,
}

impl Accessor<'_> {
    #[inline(always)]
    fn conflict(&self, earlier: Word, wrote: bool) -> Option<Conflict> {
        let relation = self.view.relation(earlier, self.memory, self.oldest);
        if relation == Relation::Before
            || earlier & self.flags & ATOMIC != 0
            // Two parts of a granule need not be the same bytes.
            || earlier & self.flags & PARTIAL != 0
        {
            return None;
        }
        Some(Conflict {
            earlier,
            relation,
            wrote,
        })
    }

    fn ordered(&self, earlier: Word) -> bool {
        self.view.relation(earlier, self.memory, self.oldest) == Relation::Before
    }

    #[inline(always)]
    fn conflicts(&self, slots: &[AtomicU64; 2], wrote: bool) -> Option<Conflict> {
        self.conflict(slots[0].load(SeqCst), wrote)
            .or_else(|| self.conflict(slots[1].load(SeqCst), wrote))
    }

    /// Puts `word` in `slot` such that, of two workers that write and then look, one sees the other.
    #[inline(always)]
    fn replace(&self, slot: &AtomicU64, word: Word) -> Word {
        if self.shared {
            slot.swap(word, SeqCst)
        } else {
            let earlier = slot.load(Relaxed);
            slot.store(word, Relaxed);
            earlier
        }
    }
}

impl Cell {
    /// Records a read and returns the write that it races with.
    #[inline(always)]
    pub fn read(&self, by: &Accessor<'_>) -> Option<Conflict> {
        let word = by.view.me | by.flags;
        if self.reads[0].load(Relaxed) != word {
            note(&self.reads, by, word);
        }
        by.conflicts(&self.writes, true)
    }

    /// Records a write and returns the write and the read that it races with.
    #[inline(always)]
    pub fn write(&self, by: &Accessor<'_>) -> (Option<Conflict>, Option<Conflict>) {
        let word = by.view.me | by.flags;
        let write = if by.flags & ATOMIC != 0 {
            note(&self.writes, by, word);
            by.conflicts(&self.writes, true)
        } else {
            let earlier = by.replace(&self.writes[0], word);
            by.conflict(earlier, true)
                .or_else(|| by.conflict(self.writes[1].load(SeqCst), true))
        };
        (write, by.conflicts(&self.reads, false))
    }
}

/// Adds an access to those that do not conflict with each other.
fn note(slots: &[AtomicU64; 2], by: &Accessor<'_>, word: Word) {
    let first = slots[0].load(Relaxed);
    let second = slots[1].load(Relaxed);
    if same_moment(first, word)
        && same_moment(second, word)
        && distance(first, word) <= distance(first, second)
        && thread_of(first) != thread_of(word)
    {
        return;
    }
    if by.ordered(first) {
        // A plain access stays plain when the same thread comes again atomically.
        let plain = first >= by.oldest && first | ATOMIC == word;
        by.replace(&slots[0], if plain { first } else { word });
        return;
    }
    if by.ordered(second) || distance(first, word) > distance(first, second) {
        by.replace(&slots[1], word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Epochs;
    use softmetal_abi::mem;

    fn cell() -> Cell {
        let nobody = || [AtomicU64::new(0), AtomicU64::new(0)];
        Cell {
            writes: nobody(),
            reads: nobody(),
        }
    }

    fn by(view: &View) -> Accessor<'_> {
        Accessor {
            view,
            memory: Memory::Device,
            oldest: 1,
            flags: 0,
            shared: true,
        }
    }

    #[test]
    fn write_then_read_without_a_barrier() {
        let (cell, mut epochs) = (cell(), Epochs::new(3));
        let (zero, one) = (epochs.view(0), epochs.view(1));
        assert_eq!(cell.write(&by(&zero)), (None, None));
        assert_eq!(cell.read(&by(&zero)), None);
        let conflict = cell.read(&by(&one)).expect("race");
        assert!(conflict.wrote && conflict.relation == Relation::Concurrent);
        epochs.threadgroup_barrier(mem::DEVICE);
        assert_eq!(cell.read(&by(&epochs.view(1))), None);
    }

    #[test]
    fn a_writer_among_the_readers_races_with_the_others() {
        let (cell, epochs) = (cell(), Epochs::new(3));
        for thread in [31, 30, 0] {
            assert_eq!(cell.read(&by(&epochs.view(thread))), None);
        }
        let conflict = cell.write(&by(&epochs.view(0))).1.expect("race");
        assert!(!conflict.wrote);
    }

    #[test]
    fn a_reader_in_another_simdgroup_is_not_forgotten() {
        let (cell, mut mine, other) = (cell(), Epochs::new(3), Epochs::new(3));
        cell.read(&by(&mine.view(0)));
        cell.read(&by(&mine.view(1)));
        cell.read(&by(&other.view(40)));
        mine.simdgroup_barrier(mem::DEVICE);
        assert!(cell.write(&by(&mine.view(5))).1.is_some());
    }

    #[test]
    fn readers_of_two_groups_exclude_every_writer() {
        let (cell, a, b) = (cell(), Epochs::new(3), Epochs::new(4));
        cell.read(&by(&a.view(0)));
        cell.read(&by(&a.view(1)));
        cell.read(&by(&b.view(0)));
        let mut late = a;
        late.threadgroup_barrier(mem::DEVICE);
        let conflict = cell.write(&by(&late.view(0))).1.expect("race");
        assert_eq!(conflict.relation, Relation::OtherGroup);
    }

    #[test]
    fn atomics_race_only_with_plain_accesses() {
        let (cell, epochs) = (cell(), Epochs::new(3));
        let (zero, one) = (epochs.view(0), epochs.view(1));
        let atomic = |view| Accessor {
            flags: ATOMIC,
            ..by(view)
        };
        assert_eq!(cell.write(&atomic(&zero)), (None, None));
        assert_eq!(cell.write(&atomic(&one)), (None, None));
        assert!(cell.read(&by(&zero)).is_some());
        assert!(
            cell.read(&by(&one)).is_some(),
            "the other thread's atomic is remembered"
        );
        let cell = self::cell();
        cell.write(&by(&zero));
        cell.write(&atomic(&zero));
        assert!(
            cell.write(&atomic(&one)).0.is_some(),
            "the plain write is remembered"
        );
    }
}
