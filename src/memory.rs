//! Memory between calls.

/// Has the C library's allocator keep up to `bytes` of freed memory for later tensors, in the whole process. `false` where there is
/// nothing to set: on other systems than Linux with glibc.
///
/// By default glibc returns freed memory to the system soon, and the next tensor of some megabytes finds fresh pages, which the
/// system clears one by one when they are first written: adding two tensors of 1M f32 takes 0.76 ms then and 0.06 ms in kept
/// memory (2 vCPUs of an AMD EPYC). That concerns all ops, stock Candle's too. Call this once, at the beginning of `main`: a
/// library should not change what belongs to the process by itself. Tensors of more than 32 MB always come fresh from the
/// system.
///
/// ```
/// candle_fused::keep_freed_memory(1 << 30);
/// ```
pub fn keep_freed_memory(bytes: usize) -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// The largest threshold that glibc takes.
        const MOST_SHARED: libc::c_int = 32 << 20;
        let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        // SAFETY: `mallopt` sets numbers of the allocator, under its lock.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MOST_SHARED) == 1
                && libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) == 1
        }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        let _ = bytes;
        false
    }
}
