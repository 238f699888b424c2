//! What a compiled kernel and the runtime that executes it say to each other.
//!
//! A kernel is a shared object made by `softmetal-msl`. It calls back through a [`Runtime`], a table
//! of functions that `softmetal-exec` fills in and hands over with `softmetal_bind`. The C side of the
//! same declarations is `msl/include/softmetal/abi.h`; both must change together.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::sync::Arc;

/// Lanes of a simdgroup.
pub const SIMD_WIDTH: usize = 32;

/// A place in the MSL source, known at compile time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub file: *const c_char,
    pub line: u32,
    pub column: u32,
}

/// The built-in inputs of one thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Builtins {
    pub thread_position_in_grid: [u32; 3],
    pub threads_per_grid: [u32; 3],
    pub thread_position_in_threadgroup: [u32; 3],
    /// The actual size of this group, smaller at the ragged edge of a grid.
    pub threads_per_threadgroup: [u32; 3],
    /// The size asked for.
    pub dispatch_threads_per_threadgroup: [u32; 3],
    pub threadgroup_position_in_grid: [u32; 3],
    pub threadgroups_per_grid: [u32; 3],
    pub thread_index_in_threadgroup: u32,
    pub thread_index_in_simdgroup: u32,
    pub threads_per_simdgroup: u32,
    pub simdgroup_index_in_threadgroup: u32,
    pub simdgroups_per_threadgroup: u32,
    pub dispatch_simdgroups_per_threadgroup: u32,
}

/// What the lanes of a simdgroup (or quad) put together at a rendezvous.
///
/// Valid until the calling lane's next rendezvous. Slots of lanes outside `mask` hold [`POISON`].
#[repr(C, align(64))]
#[derive(Clone)]
pub struct Gathered {
    /// Lanes that take part.
    pub mask: u32,
    /// The calling lane.
    pub lane: u32,
    _pad: [u32; 14],
    pub values: [[u8; 64]; SIMD_WIDTH],
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            mask: 0,
            lane: 0,
            _pad: [0; 14],
            values: [[POISON; 64]; SIMD_WIDTH],
        }
    }
}

/// The byte that fresh threadgroup and device memory is filled with.
pub const POISON: u8 = 0xCB;

/// `mem_flags`
pub mod mem {
    pub const NONE: u32 = 0;
    pub const DEVICE: u32 = 1;
    pub const THREADGROUP: u32 = 2;
    pub const TEXTURE: u32 = 4;
}

/// Who meets at a barrier.
pub mod scope {
    pub const THREADGROUP: u32 = 0;
    pub const SIMDGROUP: u32 = 1;
}

/// What an atomic operation does to its memory.
pub mod atomic {
    pub const LOAD: u32 = 1;
    pub const STORE: u32 = 2;
    pub const RMW: u32 = 3;
}

/// What the lanes of a rendezvous are about to do with the values.
pub mod gather {
    /// Every active lane's value is used (sum, max, ballot, prefix …): any mask is defined.
    pub const REDUCE: u32 = 0;
    /// Each lane reads one other lane; `argument` (delta, mask, broadcast lane) must be uniform.
    pub const SHUFFLE_UNIFORM: u32 = 1;
    /// Each lane reads a lane of its own choice.
    pub const SHUFFLE: u32 = 2;
    /// All 32 lanes must take part (simdgroup_matrix).
    pub const MATRIX: u32 = 3;
}

/// Faults the compiled code finds by itself.
pub mod fault {
    /// An index beyond a private array of known size.
    pub const ARRAY_BOUNDS: u32 = 1;
    /// Unreachable code, division trap and the like.
    pub const UNDEFINED: u32 = 2;
}

/// The functions a kernel calls. `pc` is a code address inside the kernel, for [`Function::locate`].
#[repr(C)]
pub struct Runtime {
    /// Called before every load that may touch shared memory (private escaping memory included).
    pub load: unsafe extern "C" fn(address: usize, size: usize, pc: usize),
    pub store: unsafe extern "C" fn(address: usize, size: usize, pc: usize),
    /// Called before an atomic access, which the kernel then performs with the host's atomics.
    pub atomic: unsafe extern "C" fn(address: usize, size: usize, kind: u32, pc: usize),
    /// The address of a `threadgroup` variable of the calling thread's group.
    pub threadgroup_variable: unsafe extern "C" fn(
        slot: u32,
        size: usize,
        align: usize,
        name: *const c_char,
    ) -> *mut c_void,
    pub barrier: unsafe extern "C" fn(scope: u32, flags: u32, site: *const Site),
    /// `atomic_thread_fence`
    pub fence: unsafe extern "C" fn(flags: u32, site: *const Site),
    /// Rendezvous of the `width` (32 or 4) lanes around the caller; `size` ≤ 64 bytes at `value`.
    pub gather: unsafe extern "C" fn(
        value: *const c_void,
        size: u32,
        width: u32,
        kind: u32,
        argument: u32,
        site: *const Site,
    ) -> *const Gathered,
    /// A lane took the value of `lane`, which is not in the mask of its last rendezvous.
    pub inactive_lane: unsafe extern "C" fn(lane: u32, site: *const Site),
    /// Does not return to the kernel.
    pub fault: unsafe extern "C" fn(kind: u32, pc: usize),
}

/// `softmetal_bind`, exported by every shared object.
pub type Bind = unsafe extern "C" fn(*const Runtime);

/// The body of one thread: `arguments` has one address per [`Function::params`] entry.
pub type Entry = unsafe extern "C" fn(arguments: *const *mut c_void, builtins: *const Builtins);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Device,
    Constant,
    /// `[[threadgroup(n)]]`
    Threadgroup,
}

/// A kernel parameter that the host binds.
#[derive(Clone, Debug)]
pub struct Param {
    pub name: String,
    pub space: Space,
    /// `n` of `[[buffer(n)]]` or `[[threadgroup(n)]]`.
    pub index: u32,
    /// `constant`, or `device const`.
    pub read_only: bool,
    /// Switched off by a function constant: nothing is bound, and the kernel gets a dummy block.
    pub enabled: bool,
    /// `T&` rather than `T*`: exactly one `T` must fit.
    pub reference: bool,
    /// Size and alignment of the pointee.
    pub size: usize,
    pub align: usize,
}

/// A line of the MSL source as its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    pub file: String,
    pub line: u32,
    pub column: u32,
}

/// A kernel that is ready to run.
pub struct Function {
    pub name: String,
    pub entry: Entry,
    pub bind: Bind,
    pub params: Vec<Param>,
    /// `[[max_total_threads_per_threadgroup(n)]]`
    pub max_threads: Option<u32>,
    /// Bytes of `threadgroup` variables, as far as the compiler can tell.
    pub static_threadgroup: usize,
    /// Where the shared object's constant tables and code lie in memory.
    pub image: Vec<Range<usize>>,
    /// The source line of a code address.
    #[allow(clippy::type_complexity)]
    pub locate: Arc<dyn Fn(usize) -> Option<Location> + Send + Sync>,
    /// Keeps the shared object loaded.
    pub keep: Arc<dyn std::any::Any + Send + Sync>,
}
