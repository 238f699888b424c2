//! What one OS thread needs to run threadgroups.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

use corosensei::Yielder;
use softmetal_abi::{Builtins, Gathered, Site};

use crate::arena::Arena;
use crate::dispatch::MAX_GROUP;
use crate::fiber::Fiber;
use crate::finding::{Finding, Kind};
use crate::findings::Place;
use crate::job::{Job, Source};
use crate::order::{Epochs, View};
use crate::region::Region;
use crate::report::Counters;
use crate::schedule::Random;

thread_local! {
    static CURRENT: Cell<*const Worker> = const { Cell::new(std::ptr::null()) };
}

/// What a thread of the group is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not started, or not part of this group.
    Fresh,
    /// May go on.
    Ready,
    Running,
    AtBarrier,
    AtSimdBarrier,
    AtGather,
    Done,
}

/// A rendezvous that a thread waits at.
#[derive(Clone, Copy)]
pub(crate) struct Meeting {
    pub site: *const Site,
    /// Line and column: the order in which meetings of a simdgroup take place.
    pub key: u64,
    pub flags: u32,
    pub value: *const u8,
    pub size: u32,
    pub width: u32,
    pub kind: u32,
    pub argument: u32,
}

impl Meeting {
    pub const NOWHERE: Self = Self {
        site: std::ptr::null(),
        key: 0,
        flags: 0,
        value: std::ptr::null(),
        size: 0,
        width: 0,
        kind: 0,
        argument: 0,
    };
}

pub(crate) struct Slot {
    pub status: Cell<Status>,
    pub meeting: Cell<Meeting>,
    /// The fiber that the thread waits on.
    pub fiber: Cell<u32>,
    /// Lanes of its last rendezvous.
    pub mask: Cell<u32>,
}

/// Bytes counted by the hooks.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Read and written, of device and of threadgroup memory.
    pub bytes: [[Cell<u64>; 2]; 2],
    pub barriers: Cell<u64>,
    pub gathers: Cell<u64>,
    pub threads: Cell<u64>,
    pub groups: Cell<u64>,
}

/// A store whose value decides what it was: see `checks::settle`.
#[derive(Clone, Copy)]
pub(crate) struct Pending {
    pub address: usize,
    pub size: usize,
    pub before: [u8; 4],
    pub pc: usize,
    pub earlier: u64,
    pub kind: Kind,
}

/// A read of memory that nobody had written. If another thread of the group writes it before the next barrier,
/// this was a race; until then the verdict waits: see `deferred.rs`.
pub(crate) struct Deferred {
    pub region: usize,
    pub address: usize,
    pub pc: usize,
    pub thread: u32,
}

pub(crate) const CACHE: usize = 64;

pub(crate) struct Worker {
    job: Cell<*const Job>,
    pub stack_low: Cell<usize>,
    pub stack_len: Cell<usize>,
    pub yielder: Cell<*const Yielder<(), ()>>,
    /// Something is wrong: nothing of this group is resumed any more.
    pub abandoned: Cell<bool>,

    // The thread that runs now.
    pub thread: Cell<u32>,
    pub fiber: Cell<u32>,
    pub view: Cell<View>,
    /// There is something to settle.
    pub is_pending: Cell<bool>,
    pub pending: Cell<Option<Pending>>,
    /// Of the job's [`Stores`](crate::stores::Stores).
    pub slot: Cell<usize>,

    // The group.
    pub group: Cell<usize>,
    pub builtins: Cell<Builtins>,
    pub size: Cell<u32>,
    /// Epochs still fit their counters.
    pub tracking: Cell<bool>,
    pub epochs: [Cell<Epochs>; MAX_GROUP / 32],
    pub slots: Box<[Slot]>,
    /// Threads of the current simdgroup that have not started, in reverse order.
    pub fresh: RefCell<Vec<u32>>,
    pub random: Cell<Random>,
    pub deferred: RefCell<Vec<Deferred>>,
    /// Accesses since the first of them.
    pub patience: Cell<u32>,
    pub gathered: UnsafeCell<Gathered>,

    // The dispatch.
    arena: UnsafeCell<Arena>,
    arguments: RefCell<Vec<usize>>,
    pub arguments_start: Cell<*const usize>,
    /// The region last found for an address with these bits.
    pub cache: [Cell<u8>; CACHE],
    pub traffic: Traffic,

    /// Boxed, since a coroutine knows where its fiber is.
    #[allow(clippy::vec_box)]
    fibers: UnsafeCell<Vec<Box<Fiber>>>,
    idle: RefCell<Vec<u32>>,
}

// SAFETY: a worker is used by one OS thread at a time; its coroutines are idle in between and keep nothing of
// the thread that ran them.
unsafe impl Send for Worker {}

impl Worker {
    pub fn new() -> Box<Self> {
        let slot = || Slot {
            status: Cell::new(Status::Fresh),
            meeting: Cell::new(Meeting::NOWHERE),
            fiber: Cell::new(0),
            mask: Cell::new(0),
        };
        Box::new(Self {
            job: Cell::new(std::ptr::null()),
            stack_low: Cell::new(0),
            stack_len: Cell::new(0),
            yielder: Cell::new(std::ptr::null()),
            abandoned: Cell::new(false),
            thread: Cell::new(0),
            fiber: Cell::new(0),
            view: Cell::default(),
            is_pending: Cell::new(false),
            pending: Cell::new(None),
            slot: Cell::new(0),
            group: Cell::new(0),
            builtins: Cell::default(),
            size: Cell::new(0),
            tracking: Cell::new(true),
            epochs: Default::default(),
            slots: std::iter::repeat_with(slot).take(MAX_GROUP).collect(),
            fresh: RefCell::default(),
            random: Cell::new(Random::new(0)),
            deferred: RefCell::default(),
            patience: Cell::new(0),
            gathered: UnsafeCell::new(Gathered::default()),
            arena: UnsafeCell::new(Arena::new()),
            arguments: RefCell::default(),
            arguments_start: Cell::new(std::ptr::null()),
            cache: std::array::from_fn(|_| Cell::new(0)),
            traffic: Traffic::default(),
            fibers: UnsafeCell::default(),
            idle: RefCell::default(),
        })
    }

    /// The worker whose group the calling OS thread runs.
    #[inline(always)]
    pub fn current() -> &'static Worker {
        // SAFETY: hooks are called by kernels only, and kernels run inside `work`.
        unsafe { &*CURRENT.get() }
    }

    #[inline(always)]
    pub fn job(&self) -> &Job {
        // SAFETY: set for the duration of `work`.
        unsafe { &*self.job.get() }
    }

    #[inline(always)]
    pub fn arena(&self) -> &Arena {
        // SAFETY: changed only by `arena_mut`, whose borrows end at once.
        unsafe { &*self.arena.get() }
    }

    /// # Safety
    /// No other borrow of the arena is alive.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn arena_mut(&self) -> &mut Arena {
        // SAFETY: as promised; a worker belongs to one OS thread.
        unsafe { &mut *self.arena.get() }
    }

    pub fn fibers(&self) -> &[Box<Fiber>] {
        // SAFETY: pushed to only in `idle_fiber`, while no fiber runs.
        unsafe { &*self.fibers.get() }
    }

    /// A fiber with nothing on it.
    pub fn idle_fiber(&self) -> u32 {
        if let Some(index) = self.idle.borrow_mut().pop() {
            return index;
        }
        // SAFETY: called on the main stack, between resumes; workers are boxed and outlive their fibers.
        unsafe {
            let fibers = &mut *self.fibers.get();
            fibers.push(Fiber::new(self));
            fibers.len() as u32 - 1
        }
    }

    pub fn release_fiber(&self, index: u32) {
        self.idle.borrow_mut().push(index);
    }

    /// Runs groups of the job until none is left.
    pub fn work(&self, job: &Job) {
        self.job.set(job);
        self.slot.set(job.stores.claim());
        let outer = CURRENT.replace(self);
        if self.prepare(job) {
            while let Some(group) = job.next_group() {
                self.run_group(group);
            }
        }
        CURRENT.set(outer);
        *job.counters.lock().unwrap_or_else(PoisonError::into_inner) += self.take_counters();
        self.job.set(std::ptr::null());
    }

    /// Lays out threadgroup arguments; false if they do not fit.
    fn prepare(&self, job: &Job) -> bool {
        self.cache.iter().for_each(|entry| entry.set(0));
        // SAFETY: no kernel runs, so nothing else borrows the arena.
        let arena = unsafe { self.arena_mut() };
        arena.reset();
        if job.anew {
            arena.forget_accesses();
        }
        let mut arguments = self.arguments.borrow_mut();
        arguments.clear();
        for source in &job.sources {
            let address = match source {
                Source::Address(address) => Ok(*address),
                Source::Threadgroup {
                    index,
                    name,
                    len,
                    align,
                } => arena.argument(*len, *align, *index, name),
            };
            match address {
                Ok(address) => arguments.push(address),
                Err(detail) => {
                    self.report(Kind::Limit, Place::Host, None, || detail);
                    return false;
                }
            }
        }
        self.arguments_start.set(arguments.as_ptr());
        true
    }

    fn take_counters(&self) -> Counters {
        let traffic = &self.traffic;
        let [[device_read, device_written], [threadgroup_read, threadgroup_written]] =
            [0, 1].map(|memory| [0, 1].map(|store| traffic.bytes[memory][store].take()));
        Counters {
            threads: traffic.threads.take(),
            groups: traffic.groups.take(),
            device_read,
            device_written,
            threadgroup_read,
            threadgroup_written,
            barriers: traffic.barriers.take(),
            gathers: traffic.gathers.take(),
            ..Counters::default()
        }
    }

    /// Position of a thread of this group in the grid.
    pub fn position(&self, thread: u32) -> [u32; 3] {
        let mut builtins = self.builtins.get();
        self.job().geometry.place(&mut builtins, thread);
        builtins.thread_position_in_grid
    }

    /// Adds a finding about the current thread; true if the kernel has to stop.
    pub fn report(
        &self,
        kind: Kind,
        place: Place,
        access: Option<(&Region, usize, bool)>,
        detail: impl FnOnce() -> String,
    ) -> bool {
        self.job().report(kind, place, |job| {
            let argument =
                access.and_then(|(region, address, store)| region.argument(address, store));
            let offset = access.and_then(|(region, address, _)| {
                let start = region.base + argument.map_or(0, |argument| argument.offset);
                address.checked_sub(start)
            });
            Finding {
                severity: job.severity(kind),
                kind,
                kernel: job.function.name.clone(),
                argument: argument.map(|argument| (argument.index, argument.name.clone())),
                offset,
                thread: self.position(self.thread.get()),
                group: self.builtins.get().threadgroup_position_in_grid,
                location: None,
                detail: detail(),
                count: 1,
            }
        })
    }

    /// Leaves the kernel for good. Called on the stack of a fiber.
    pub fn abandon(&self) -> ! {
        self.judge_deferred();
        self.job().stores.done(self.slot.get());
        self.abandoned.set(true);
        self.job().stop.store(true, Ordering::Relaxed);
        loop {
            self.suspend();
        }
    }

    /// Back to the worker's main stack, until the fiber is resumed.
    pub fn suspend(&self) {
        // SAFETY: set to the yielder of the fiber that runs now, which lives on its stack.
        unsafe { (*self.yielder.get()).suspend(()) }
    }

    /// Called on a fiber: runs the threads of the current simdgroup that nobody has started.
    pub fn run_fresh_threads(&self) {
        while let Some(thread) = self.next_fresh() {
            let slot = &self.slots[thread as usize];
            slot.status.set(Status::Running);
            slot.fiber.set(self.fiber.get());
            self.enter(thread);
            let mut builtins = self.builtins.get();
            self.job().geometry.place(&mut builtins, thread);
            let entry = self.job().function.entry;
            // SAFETY: one address for each parameter, laid out by `prepare`.
            unsafe { entry(self.arguments_start.get().cast(), &builtins) };
            self.settle();
            slot.status.set(Status::Done);
        }
    }

    fn next_fresh(&self) -> Option<u32> {
        self.fresh.borrow_mut().pop()
    }

    /// Makes `thread` the current one.
    pub fn enter(&self, thread: u32) {
        self.thread.set(thread);
        self.view
            .set(self.epochs[thread as usize / 32].get().view(thread));
    }
}
