//! The functions that kernels call.

use std::ffi::{c_char, c_void, CStr};
use std::sync::atomic::Ordering;

use softmetal_abi::{atomic as atomic_kind, fault as fault_kind, scope, Gathered, Runtime, Site};

use crate::finding::Kind;
use crate::findings::Place;
use crate::order::ATOMIC;
use crate::worker::{Meeting, Status, Worker};

/// For dispatches that are checked or counted.
pub(crate) static WATCHED: Runtime = Runtime {
    load,
    store,
    atomic,
    threadgroup_variable,
    barrier,
    fence,
    gather,
    inactive_lane,
    fault,
};

/// For dispatches that just run.
pub(crate) static PLAIN: Runtime = Runtime {
    load: ignore,
    store: ignore,
    atomic: ignore_atomic,
    ..WATCHED
};

unsafe extern "C" fn ignore(_: usize, _: usize, _: usize) {}

unsafe extern "C" fn ignore_atomic(_: usize, _: usize, _: u32, _: usize) {}

unsafe extern "C" fn load(address: usize, size: usize, pc: usize) {
    Worker::current().access::<false>(address, size, pc, 0);
}

unsafe extern "C" fn store(address: usize, size: usize, pc: usize) {
    Worker::current().access::<true>(address, size, pc, 0);
}

unsafe extern "C" fn atomic(address: usize, size: usize, kind: u32, pc: usize) {
    let worker = Worker::current();
    if worker.job().stop.load(Ordering::Relaxed) {
        // Whoever waits for another group may wait for one that never runs.
        worker.abandon();
    }
    if kind != atomic_kind::STORE {
        worker.access::<false>(address, size, pc, ATOMIC);
    }
    if kind != atomic_kind::LOAD {
        worker.access::<true>(address, size, pc, ATOMIC);
    }
}

unsafe extern "C" fn threadgroup_variable(
    slot: u32,
    size: usize,
    align: usize,
    name: *const c_char,
) -> *mut c_void {
    let worker = Worker::current();
    // SAFETY: names are constants of the kernel.
    let name = || {
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    };
    // SAFETY: the borrow ends with the call.
    match unsafe { worker.arena_mut() }.variable(slot, size, align, name) {
        Ok(address) => address as *mut c_void,
        Err(detail) => {
            worker.report(Kind::Limit, Place::Host, None, || detail);
            worker.abandon()
        }
    }
}

/// Waits on the stack of the calling thread until its meeting took place.
fn wait(worker: &Worker, status: Status, meeting: Meeting) -> u32 {
    let thread = worker.thread.get();
    let slot = &worker.slots[thread as usize];
    slot.meeting.set(meeting);
    slot.status.set(status);
    worker.suspend();
    thread
}

fn meeting(site: *const Site) -> Meeting {
    // SAFETY: sites are constants of the kernel, or live on the stack that waits.
    let place = unsafe { &*site };
    Meeting {
        site,
        key: u64::from(place.line) << 32 | u64::from(place.column),
        ..Meeting::NOWHERE
    }
}

unsafe extern "C" fn barrier(who: u32, flags: u32, site: *const Site) {
    let worker = Worker::current();
    worker.settle();
    let status = if who == scope::THREADGROUP {
        Status::AtBarrier
    } else {
        Status::AtSimdBarrier
    };
    wait(
        worker,
        status,
        Meeting {
            flags,
            ..meeting(site)
        },
    );
}

unsafe extern "C" fn fence(_flags: u32, _site: *const Site) {
    let worker = Worker::current();
    worker.settle();
    worker.job().fenced.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn gather(
    value: *const c_void,
    size: u32,
    width: u32,
    kind: u32,
    argument: u32,
    site: *const Site,
) -> *const Gathered {
    let worker = Worker::current();
    worker.settle();
    assert!(
        size <= 64,
        "a lane brings {size} bytes to a rendezvous of 64"
    );
    let value = value.cast();
    let thread = wait(
        worker,
        Status::AtGather,
        Meeting {
            value,
            size,
            width,
            kind,
            argument,
            ..meeting(site)
        },
    );
    let gathered = worker.gathered.get();
    // SAFETY: the worker's own, and no other lane runs now.
    unsafe {
        (*gathered).mask = worker.slots[thread as usize].mask.get();
        (*gathered).lane = thread % 32;
    }
    gathered
}

unsafe extern "C" fn inactive_lane(lane: u32, site: *const Site) {
    let worker = Worker::current();
    worker.settle();
    let thread = worker.thread.get();
    let first = thread - thread % 32;
    let why = match first
        .checked_add(lane)
        .filter(|other| *other < worker.size.get() && lane < 32)
    {
        None => "which the threadgroup does not have",
        Some(other) if worker.slots[other as usize].status.get() == Status::Done => {
            "which has returned"
        }
        Some(_) => "which does not take part",
    };
    let detail = || format!("lane {} takes the value of lane {lane}, {why}", thread % 32);
    // SAFETY: sites are constants of the kernel.
    if worker.report(
        Kind::InactiveLane,
        Place::of_site(unsafe { &*site }),
        None,
        detail,
    ) {
        worker.abandon();
    }
}

unsafe extern "C" fn fault(kind: u32, pc: usize) {
    let worker = Worker::current();
    let (kind, detail) = match kind {
        fault_kind::ARRAY_BOUNDS => (Kind::ArrayBounds, "an index is beyond its array"),
        _ => (
            Kind::Undefined,
            "the kernel reached code that has no meaning",
        ),
    };
    worker.report(kind, Place::Code(pc), None, || detail.to_owned());
    worker.abandon()
}
