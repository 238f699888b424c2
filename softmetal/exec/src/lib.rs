//! Executes compiled Metal kernels on the CPU and watches what they do.
//!
//! A [`Dispatch`] names a kernel, what is bound to it and how many threads run; [`run`] executes it and returns a
//! [`Report`]. Each GPU thread is a coroutine; the threads of a group meet at barriers, the lanes of a simdgroup
//! also at simd functions. Groups run in parallel on OS threads.
//!
//! In checked mode every access goes through the checks of `checks.rs`: is the address inside something that is
//! bound, aligned, written before it is read, writable, and ordered with what other threads did there?
//! An error stops the kernel; a note says what is undefined by the letter but harmless on known hardware.
//!
//! # Barriers
//! Threads that wait at different barriers are an error, `barrier-divergence`. A thread that returned before a barrier
//! at which others wait is a note, `early-return`: the specification asks that all threads execute the barrier and
//! also says that a thread that has ended does not hold up the others. Kernels in use count on that (the
//! matrix-vector product of MLX and Candle lets one lane per simdgroup pass a barrier while the others return), and
//! others have been broken by it.
//!
//! # What orders accesses
//! A threadgroup barrier orders the accesses of the whole group, a simdgroup barrier those of its simdgroup, each only
//! for the kind of memory that its flags name. Accesses of different groups are never ordered. Atomic operations
//! do not race with each other, but order nothing. Ordering by `atomic_thread_fence` is not followed: in a dispatch
//! that uses one, races are the note `memory-order`.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("softmetal needs a 64-bit host");

mod arena;
mod checks;
mod config;
mod deferred;
mod dispatch;
mod fiber;
mod finding;
mod findings;
mod group;
mod hooks;
mod job;
mod mapping;
pub mod memory;
mod order;
mod pool;
mod race;
mod region;
mod rendezvous;
mod report;
mod schedule;
mod stores;
mod touched;
mod worker;

pub use config::{Config, Schedule};
pub use dispatch::{Binding, Dispatch, Grid, MAX_GROUP, MAX_THREADGROUP_MEMORY};
pub use finding::{Finding, Kind, Severity};
pub use memory::{Buffer, Initial};
pub use pool::run;
pub use report::{Counters, RangeSet, Report, Touched};
