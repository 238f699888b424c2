//! Stackful coroutines on which the threads of a kernel run.

use std::cell::{Cell, UnsafeCell};

use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, Yielder};

use crate::worker::Worker;

const STACK: usize = 256 * 1024;

type Body = Coroutine<(), (), (), DefaultStack>;

/// A coroutine that runs threads one after the other until one of them waits.
pub(crate) struct Fiber {
    coroutine: UnsafeCell<Option<Body>>,
    yielder: Cell<*const Yielder<(), ()>>,
    pub stack_low: usize,
    pub stack_len: usize,
}

impl Fiber {
    /// # Safety
    /// `worker` outlives the fiber.
    pub unsafe fn new(worker: *const Worker) -> Box<Self> {
        let stack = DefaultStack::new(STACK).expect("memory for a stack");
        let (low, high) = (stack.limit().get(), stack.base().get());
        let fiber = Box::new(Self {
            coroutine: UnsafeCell::new(None),
            yielder: Cell::new(std::ptr::null()),
            stack_low: low,
            stack_len: high - low,
        });
        // SAFETY: the box does not move, and the caller promises the worker.
        unsafe { fiber.install(worker, stack) };
        fiber
    }

    /// # Safety
    /// Both `self` and `worker` stay where they are as long as the coroutine runs.
    unsafe fn install(&self, worker: *const Worker, stack: DefaultStack) {
        let fiber: *const Fiber = self;
        let body = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            // SAFETY: promised by the caller of `install`.
            let (worker, fiber) = unsafe { (&*worker, &*fiber) };
            fiber.yielder.set(yielder);
            loop {
                worker.yielder.set(yielder);
                worker.run_fresh_threads();
                yielder.suspend(());
            }
        });
        // SAFETY: nobody runs the coroutine now.
        unsafe { *self.coroutine.get() = Some(body) };
    }

    /// Runs until the thread on it waits or there is nothing more to run.
    pub fn resume(&self, worker: &Worker) {
        worker.yielder.set(self.yielder.get());
        worker.stack_low.set(self.stack_low);
        worker.stack_len.set(self.stack_len);
        // SAFETY: only the worker's main stack gets here, so there is one borrow at a time.
        if let Some(coroutine) = unsafe { (*self.coroutine.get()).as_mut() } {
            coroutine.resume(());
        }
    }

    /// Gives up whatever is on the stack.
    ///
    /// # Safety
    /// Called on the worker's main stack; kernels hold nothing that must be dropped.
    pub unsafe fn discard(&self, worker: *const Worker) {
        // SAFETY: as promised.
        unsafe {
            if let Some(mut coroutine) = (*self.coroutine.get()).take() {
                coroutine.force_reset();
                self.install(worker, coroutine.into_stack());
            }
        }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if let Some(coroutine) = self.coroutine.get_mut() {
            // SAFETY: an idle fiber has nothing on its stack that must be dropped.
            unsafe { coroutine.force_reset() };
        }
    }
}
