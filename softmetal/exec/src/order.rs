//! Who accessed a place, when, and whether a barrier lies between that and now.
//!
//! A [`Word`] names an access: group, threadgroup barriers passed, simdgroup barriers passed since the last of
//! them, thread. Fields lie in this order from the highest bit down, so that within a group "before that
//! barrier" is one comparison of integers.

use softmetal_abi::{mem, SIMD_WIDTH};

pub(crate) type Word = u64;

const FLAG_BITS: u32 = 2;
const THREAD_BITS: u32 = 10;
const EPOCH_BITS: u32 = 14;
const SERIAL_BITS: u32 = 24;
const THREAD_SHIFT: u32 = FLAG_BITS;
const SIMD_EPOCH_SHIFT: u32 = THREAD_SHIFT + THREAD_BITS;
const GROUP_EPOCH_SHIFT: u32 = SIMD_EPOCH_SHIFT + EPOCH_BITS;
pub(crate) const SERIAL_SHIFT: u32 = GROUP_EPOCH_SHIFT + EPOCH_BITS;
const _: () = assert!(SERIAL_SHIFT + SERIAL_BITS == 64);

/// Serial numbers of groups are below this; 0 is nobody's.
pub(crate) const SERIALS: u64 = 1 << SERIAL_BITS;
/// Epochs are below this: behind it races are not tracked any more.
pub(crate) const EPOCHS: u32 = 1 << EPOCH_BITS;

/// The access was an atomic operation.
pub(crate) const ATOMIC: Word = 1;
/// The access touched only a part of the granule that the word stands for.
pub(crate) const PARTIAL: Word = 2;

/// The memory that a barrier's flags name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Device = 0,
    Threadgroup = 1,
}

/// How an earlier access relates to one that is about to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// Ordered before it, or made by the same thread, or by nobody.
    Before,
    /// A barrier lies between that does not order this memory.
    Unfenced,
    /// In the same group without a barrier between.
    Concurrent,
    /// In another group.
    OtherGroup,
}

pub(crate) fn thread_of(word: Word) -> u32 {
    (word >> THREAD_SHIFT) as u32 & ((1 << THREAD_BITS) - 1)
}

pub(crate) fn serial_of(word: Word) -> u64 {
    word >> SERIAL_SHIFT
}

fn simdgroup_of(word: Word) -> u32 {
    thread_of(word) / SIMD_WIDTH as u32
}

/// The word of the same thread with another epoch or flag has the same identity.
#[inline(always)]
fn same_thread(a: Word, b: Word) -> bool {
    const IDENTITY: Word = !0 << SERIAL_SHIFT | ((1 << THREAD_BITS) - 1) << THREAD_SHIFT;
    (a ^ b) & IDENTITY == 0
}

/// The threads of a simdgroup (and group) that meet at barriers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Epochs {
    serial: u64,
    group: u32,
    simd: u32,
    /// Per memory kind: words of this simdgroup below are ordered before now.
    simd_floor: [Word; 2],
    /// Per memory kind: words of this group below are ordered before now.
    group_floor: [Word; 2],
}

impl Epochs {
    pub fn new(serial: u64) -> Self {
        let start = serial << SERIAL_SHIFT;
        Self {
            serial,
            group: 0,
            simd: 0,
            simd_floor: [start; 2],
            group_floor: [start; 2],
        }
    }

    /// Whether both counters still fit their fields.
    pub fn in_range(&self) -> bool {
        self.group < EPOCHS && self.simd < EPOCHS
    }

    fn start(&self) -> Word {
        self.serial << SERIAL_SHIFT
            | u64::from(self.group) << GROUP_EPOCH_SHIFT
            | u64::from(self.simd) << SIMD_EPOCH_SHIFT
    }

    pub fn threadgroup_barrier(&mut self, flags: u32) {
        self.group += 1;
        self.simd = 0;
        for kind in fenced(flags) {
            self.group_floor[kind as usize] = self.start();
            self.simd_floor[kind as usize] = self.start();
        }
    }

    pub fn simdgroup_barrier(&mut self, flags: u32) {
        self.simd += 1;
        for kind in fenced(flags) {
            self.simd_floor[kind as usize] = self.start();
        }
    }

    pub fn view(&self, thread: u32) -> View {
        View {
            me: self.start() | u64::from(thread) << THREAD_SHIFT,
            start: self.start(),
            simd_floor: self.simd_floor,
            group_floor: self.group_floor,
        }
    }
}

fn fenced(flags: u32) -> impl Iterator<Item = Memory> {
    [
        (mem::DEVICE, Memory::Device),
        (mem::THREADGROUP, Memory::Threadgroup),
    ]
    .into_iter()
    .filter(move |(flag, _)| flags & flag != 0)
    .map(|(_, kind)| kind)
}

/// Order as one thread sees it now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// The word of an access by this thread now.
    pub me: Word,
    start: Word,
    simd_floor: [Word; 2],
    group_floor: [Word; 2],
}

impl View {
    /// How the access `word` relates to one by this thread now. Words below `oldest` are from before this dispatch.
    #[inline(always)]
    pub fn relation(&self, word: Word, kind: Memory, oldest: Word) -> Relation {
        if word < oldest || same_thread(word, self.me) {
            return Relation::Before;
        }
        if serial_of(word) != serial_of(self.me) {
            return match kind {
                Memory::Device => Relation::OtherGroup,
                // Left by a group that ran in this arena earlier.
                Memory::Threadgroup => Relation::Before,
            };
        }
        if word < self.group_floor[kind as usize] {
            return Relation::Before;
        }
        if simdgroup_of(word) == simdgroup_of(self.me) {
            if word < self.simd_floor[kind as usize] {
                return Relation::Before;
            }
            return if word < self.start {
                Relation::Unfenced
            } else {
                Relation::Concurrent
            };
        }
        let group_start = self.start >> GROUP_EPOCH_SHIFT << GROUP_EPOCH_SHIFT;
        if word < group_start {
            Relation::Unfenced
        } else {
            Relation::Concurrent
        }
    }
}

/// Whether two accesses of one group lie between the same barriers.
#[inline(always)]
pub(crate) fn same_moment(a: Word, b: Word) -> bool {
    (a ^ b) >> SIMD_EPOCH_SHIFT == 0
}

/// How far apart two readers are: the pair that is kept should be as far apart as can be, so that whoever
/// writes next is unordered with one of them if he is with any.
pub(crate) fn distance(a: Word, b: Word) -> u32 {
    if serial_of(a) != serial_of(b) {
        3
    } else if simdgroup_of(a) != simdgroup_of(b) {
        2
    } else {
        u32::from(thread_of(a) != thread_of(b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Memory::{Device, Threadgroup};
    use Relation::{Before, Concurrent, OtherGroup, Unfenced};

    const OLDEST: Word = 5 << SERIAL_SHIFT;

    #[test]
    fn a_barrier_orders_the_memory_it_names() {
        let mut epochs = Epochs::new(7);
        let wrote = epochs.view(40).me;
        assert_eq!(
            epochs.view(3).relation(wrote, Threadgroup, OLDEST),
            Concurrent
        );
        assert_eq!(epochs.view(40).relation(wrote, Threadgroup, OLDEST), Before);
        epochs.threadgroup_barrier(mem::DEVICE);
        assert_eq!(
            epochs.view(3).relation(wrote, Threadgroup, OLDEST),
            Unfenced
        );
        assert_eq!(epochs.view(3).relation(wrote, Device, OLDEST), Before);
        epochs.threadgroup_barrier(mem::THREADGROUP);
        assert_eq!(epochs.view(3).relation(wrote, Threadgroup, OLDEST), Before);
    }

    #[test]
    fn a_simdgroup_barrier_orders_only_its_lanes() {
        let mut mine = Epochs::new(7);
        let other = Epochs::new(7);
        let (near, far) = (mine.view(1).me, other.view(33).me);
        mine.simdgroup_barrier(mem::THREADGROUP);
        assert_eq!(mine.view(0).relation(near, Threadgroup, OLDEST), Before);
        assert_eq!(mine.view(0).relation(near, Device, OLDEST), Unfenced);
        assert_eq!(mine.view(0).relation(far, Threadgroup, OLDEST), Concurrent);
        // The other way round the simdgroup that did not meet sees no order either.
        assert_eq!(
            other
                .view(33)
                .relation(mine.view(0).me, Threadgroup, OLDEST),
            Concurrent
        );
    }

    #[test]
    fn other_groups_are_never_ordered_on_device_memory() {
        let view = Epochs::new(7).view(0);
        let other = Epochs::new(6).view(0).me;
        assert_eq!(view.relation(other, Device, OLDEST), OtherGroup);
        assert_eq!(view.relation(other, Threadgroup, OLDEST), Before);
        assert_eq!(
            view.relation(Epochs::new(4).view(0).me, Device, OLDEST),
            Before
        );
        assert_eq!(view.relation(0, Device, OLDEST), Before);
    }

    #[test]
    fn an_unfenced_barrier_after_a_fenced_one_keeps_the_older_order() {
        let mut epochs = Epochs::new(9);
        let old = epochs.view(64).me;
        epochs.threadgroup_barrier(mem::THREADGROUP);
        let new = epochs.view(64).me;
        epochs.threadgroup_barrier(mem::NONE);
        let view = epochs.view(0);
        assert_eq!(view.relation(old, Threadgroup, OLDEST), Before);
        assert_eq!(view.relation(new, Threadgroup, OLDEST), Unfenced);
    }
}
