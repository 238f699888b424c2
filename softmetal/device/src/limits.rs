//! The limits of Apple's GPUs, from the Metal feature set tables.

/// Buffer arguments of a kernel, and threadgroup memory arguments as well.
pub const ARGUMENTS: usize = 31;
/// `setBytes` takes less than this.
pub const BYTES: usize = 4096;
/// Threadgroup memory of a kernel, static and dynamic together.
pub const THREADGROUP_MEMORY: usize = 32 * 1024;
/// What dynamic threadgroup memory lengths are multiples of.
pub const THREADGROUP_MEMORY_ALIGNMENT: usize = 16;
pub const THREADS_PER_GROUP: usize = 1024;
/// Threads of a grid in one dimension are counted in 32 bits.
pub const GRID: usize = u32::MAX as usize;
/// Command buffers of one queue that are not completed.
pub const COMMAND_BUFFERS: usize = 64;
/// The largest buffer.
pub const BUFFER: usize = 1 << 36;
/// Alignment that an offset into the `constant` address space needs.
pub const CONSTANT_OFFSET: usize = 4;
/// Threads of a simdgroup.
pub const SIMD_WIDTH: usize = softmetal_abi::SIMD_WIDTH;
