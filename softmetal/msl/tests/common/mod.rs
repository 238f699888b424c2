//! A runtime just large enough to call one thread of a kernel.

use softmetal_abi::{Builtins, Function, Gathered, Runtime, Site};
use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_void};

thread_local! {
    /// Addresses and code addresses of the accesses seen.
    pub static ACCESSES: RefCell<Vec<(usize, usize, usize)>> = const { RefCell::new(Vec::new()) };
    static ARENA: RefCell<[u64; 4096]> = const { RefCell::new([0; 4096]) };
    static USED: Cell<usize> = const { Cell::new(0) };
}

unsafe extern "C" fn access(address: usize, size: usize, pc: usize) {
    ACCESSES.with_borrow_mut(|list| list.push((address, size, pc)));
}
unsafe extern "C" fn atomic(_: usize, _: usize, _: u32, _: usize) {}
unsafe extern "C" fn variable(
    _slot: u32,
    size: usize,
    _align: usize,
    _name: *const c_char,
) -> *mut c_void {
    let words = USED.replace(USED.get() + size.div_ceil(8));
    ARENA.with_borrow_mut(|arena| arena[words..].as_mut_ptr().cast())
}
unsafe extern "C" fn barrier(_: u32, _: u32, _: *const Site) {}
unsafe extern "C" fn fence(_: u32, _: *const Site) {}
unsafe extern "C" fn gather(
    value: *const c_void,
    size: u32,
    _: u32,
    _: u32,
    _: u32,
    _: *const Site,
) -> *const Gathered {
    let mut gathered = Box::<Gathered>::default();
    gathered.mask = 1;
    // SAFETY: the kernel gives `size` ≤ 64 readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size as usize) };
    gathered.values[0][..bytes.len()].copy_from_slice(bytes);
    Box::leak(gathered)
}
unsafe extern "C" fn inactive(_: u32, _: *const Site) {}
unsafe extern "C" fn fault(_: u32, _: usize) {
    std::process::abort();
}

static RUNTIME: Runtime = Runtime {
    load: access,
    store: access,
    atomic,
    threadgroup_variable: variable,
    barrier,
    fence,
    gather,
    inactive_lane: inactive,
    fault,
};

/// Runs one thread.
pub fn run(function: &Function, arguments: &[*mut c_void], builtins: &Builtins) {
    assert_eq!(arguments.len(), function.params.len());
    USED.set(0);
    // SAFETY: the caller gives an address for each argument, of the kernel's types.
    unsafe {
        (function.bind)(&RUNTIME);
        (function.entry)(arguments.as_ptr(), builtins);
    }
}
