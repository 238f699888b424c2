//! The last write and the last reads of each granule of memory, and what conflicts with them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use crate::order::{distance, Memory, Relation, View, Word, ATOMIC, PARTIAL};

/// Who last accessed a granule of 1, 2 or 4 bytes.
#[repr(C)]
pub(crate) struct Cell {
    write: AtomicU64,
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
            || (earlier | self.flags) & PARTIAL != 0
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

    /// Puts `word` in `slot` such that, of two workers that write and then look, one sees the other.
    #[inline(always)]
    fn publish(&self, slot: &AtomicU64, word: Word) {
        if self.shared {
            slot.swap(word, SeqCst);
        } else {
            slot.store(word, Relaxed);
        }
    }
}

impl Cell {
    /// Records a read and returns the write that it races with.
    #[inline(always)]
    pub fn read(&self, by: &Accessor<'_>) -> Option<Conflict> {
        let word = by.view.me | by.flags;
        if self.reads[0].load(Relaxed) != word {
            self.note_reader(by, word);
        }
        by.conflict(self.write.load(SeqCst), true)
    }

    fn note_reader(&self, by: &Accessor<'_>, word: Word) {
        let first = self.reads[0].load(Relaxed);
        if by.ordered(first) {
            // A plain read stays plain when the same thread reads again atomically.
            let plain = first >= by.oldest && first | ATOMIC == word;
            return by.publish(&self.reads[0], if plain { first } else { word });
        }
        let second = self.reads[1].load(Relaxed);
        if by.ordered(second) || distance(first, word) > distance(first, second) {
            by.publish(&self.reads[1], word);
        }
    }

    /// Records a write and returns the write and the read that it races with.
    #[inline(always)]
    pub fn write(&self, by: &Accessor<'_>) -> (Option<Conflict>, Option<Conflict>) {
        let mut word = by.view.me | by.flags;
        let earlier = self.write.load(Relaxed);
        if earlier | ATOMIC == word {
            // A plain write stays plain when the same thread writes again atomically.
            word = earlier;
        }
        let earlier = if by.shared {
            self.write.swap(word, SeqCst)
        } else {
            self.write.store(word, Relaxed);
            earlier
        };
        let read = by
            .conflict(self.reads[0].load(SeqCst), false)
            .or_else(|| by.conflict(self.reads[1].load(SeqCst), false));
        (by.conflict(earlier, true), read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Epochs;
    use softmetal_abi::mem;

    fn cell() -> Cell {
        Cell {
            write: AtomicU64::new(0),
            reads: [AtomicU64::new(0), AtomicU64::new(0)],
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
        let cell = self::cell();
        cell.write(&by(&zero));
        cell.write(&atomic(&zero));
        assert!(
            cell.write(&atomic(&one)).0.is_some(),
            "the plain write is remembered"
        );
    }
}
