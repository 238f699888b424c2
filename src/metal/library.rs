//! From source to pipeline, each made once for a device and a set of options.
//!
//! Every source has a slot of its own for each device and generation of options. Making a library or a pipeline holds
//! the lock of that slot alone and calls nothing but Metal, so threads wait only for what they need themselves.

use super::error::MetalError;
use super::mps;
use super::options::{self, LanguageVersion, Options};
use super::sources::{Source, SOURCES};
use candle_metal_kernels::metal::{ComputePipeline, Device, Library};
use candle_metal_kernels::MetalKernelError;
use objc2::available;
use objc2::rc::Retained;
use objc2_metal::{
    MTLCompileOptions, MTLLanguageVersion, MTLMathFloatingPointFunctions, MTLMathMode,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, RwLock};

/// Registry id of the device, name of the source, generation of the options.
type Key = (u64, &'static str, u64);

#[derive(Default)]
struct Slot {
    library: Mutex<Option<Library>>,
    pipelines: RwLock<HashMap<String, ComputePipeline>>,
}

static SLOTS: LazyLock<RwLock<HashMap<Key, Arc<Slot>>>> = LazyLock::new(RwLock::default);
static LIBRARY_COMPILES: AtomicU64 = AtomicU64::new(0);
static PIPELINE_BUILDS: AtomicU64 = AtomicU64::new(0);

/// What the cache holds, and what has been made since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Libraries held.
    pub libraries: usize,
    /// Pipelines held.
    pub pipelines: usize,
    /// Kernels of Metal Performance Shaders held.
    pub mps_kernels: usize,
    /// Libraries compiled so far.
    pub library_compiles: u64,
    /// Pipelines built so far.
    pub pipeline_builds: u64,
    /// Kernels of Metal Performance Shaders made so far.
    pub mps_kernel_builds: u64,
}

/// The state of the kernel cache of this process.
pub fn cache_stats() -> CacheStats {
    let slots: Vec<_> = SLOTS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .values()
        .cloned()
        .collect();
    let (mps_kernels, mps_kernel_builds) = mps::stats();
    CacheStats {
        libraries: slots.iter().filter(|slot| slot.library().is_some()).count(),
        pipelines: slots
            .iter()
            .map(|slot| {
                slot.pipelines
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .len()
            })
            .sum(),
        mps_kernels,
        mps_kernel_builds,
        library_compiles: LIBRARY_COMPILES.load(Ordering::Relaxed),
        pipeline_builds: PIPELINE_BUILDS.load(Ordering::Relaxed),
    }
}

/// Forgets all libraries, pipelines and kernels of Metal Performance Shaders; they are made anew when next used.
pub fn clear_cache() {
    SLOTS
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    mps::clear();
}

/// Compiles every library for a Metal device now rather than at first use.
///
/// Other devices need no warm-up and are accepted.
pub fn precompile(device: &candle_core::Device) -> candle_core::Result<()> {
    if let candle_core::Device::Metal(device) = device {
        let device = device.metal_device();
        for source in SOURCES {
            let (slot, options) = slot(device, source);
            load(&mut slot.library(), device, source, &options)?;
        }
    }
    Ok(())
}

/// The pipeline of `kernel`, from the cache if it was asked for before.
pub(crate) fn pipeline(
    device: &Device,
    source: &'static Source,
    kernel: &str,
) -> Result<ComputePipeline, MetalError> {
    let key = (device.registry_id(), source.name, options::generation());
    let known = SLOTS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&key)
        .cloned();
    if let Some(pipeline) = known.and_then(|slot| slot.pipeline(kernel)) {
        return Ok(pipeline);
    }

    let (slot, options) = slot(device, source);
    let mut library = slot.library();
    // Another thread may have built it while this one waited for the lock.
    if let Some(pipeline) = slot.pipeline(kernel) {
        return Ok(pipeline);
    }
    let library = load(&mut library, device, source, &options)?;
    let function = library
        .get_function(kernel, None)
        .map_err(|_| MetalError::KernelNotFound {
            kernel: kernel.to_string(),
            library: source.name,
        })?;
    let pipeline = device
        .new_compute_pipeline_state_with_function(&function)
        .map_err(|error| {
            let reason = match error {
                MetalKernelError::FailedToCreatePipeline(reason) => reason,
                other => other.to_string(),
            };
            MetalError::PipelineCreationFailed {
                kernel: kernel.to_string(),
                reason,
            }
        })?;
    PIPELINE_BUILDS.fetch_add(1, Ordering::Relaxed);
    slot.pipelines
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(kernel.to_string(), pipeline.clone());
    Ok(pipeline)
}

/// The slot for the present options, which are returned with it: they may change at any moment.
fn slot(device: &Device, source: &'static Source) -> (Arc<Slot>, Options) {
    let (generation, options) = options::snapshot();
    let key = (device.registry_id(), source.name, generation);
    let mut slots = SLOTS.write().unwrap_or_else(PoisonError::into_inner);
    slots.retain(|&(_, _, other), _| other >= generation);
    (slots.entry(key).or_default().clone(), options)
}

impl Slot {
    fn library(&self) -> MutexGuard<'_, Option<Library>> {
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pipeline(&self, kernel: &str) -> Option<ComputePipeline> {
        self.pipelines
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(kernel)
            .cloned()
    }
}

/// The library that a slot holds, compiled if it holds none yet.
fn load(
    held: &mut Option<Library>,
    device: &Device,
    source: &'static Source,
    options: &Options,
) -> Result<Library, MetalError> {
    if let Some(library) = held {
        return Ok(library.clone());
    }
    let library = compile(device, source, options)?;
    LIBRARY_COMPILES.fetch_add(1, Ordering::Relaxed);
    *held = Some(library.clone());
    Ok(library)
}

fn compile(
    device: &Device,
    source: &'static Source,
    options: &Options,
) -> Result<Library, MetalError> {
    let failed = |log: String| MetalError::CompilationFailed {
        library: source.name,
        log,
    };
    let text = source
        .text(options)
        .map_err(|error| failed(error.to_string()))?;
    let mut version = options.language_version.min(newest_known());
    loop {
        let log =
            match device.new_library_with_source(&text, Some(&compile_options(options, version))) {
                Ok(library) => return Ok(library),
                Err(MetalKernelError::LoadLibraryError(log)) => log,
                Err(other) => other.to_string(),
            };
        match version.older() {
            Some(older) if log.to_lowercase().contains("language version") => version = older,
            _ => return Err(failed(log)),
        }
    }
}

/// Asking for a version that the system doesn't know fails, so it is never asked for.
fn newest_known() -> LanguageVersion {
    if available!(macos = 15, ios = 18) {
        LanguageVersion::V3_2
    } else if available!(macos = 14, ios = 17) {
        LanguageVersion::V3_1
    } else if available!(macos = 13, ios = 16) {
        LanguageVersion::V3_0
    } else {
        LanguageVersion::V2_4
    }
}

fn compile_options(options: &Options, version: LanguageVersion) -> Retained<MTLCompileOptions> {
    let compile = MTLCompileOptions::new();
    compile.setLanguageVersion(match version {
        LanguageVersion::V2_4 => MTLLanguageVersion::Version2_4,
        LanguageVersion::V3_0 => MTLLanguageVersion::Version3_0,
        LanguageVersion::V3_1 => MTLLanguageVersion::Version3_1,
        LanguageVersion::V3_2 => MTLLanguageVersion::Version3_2,
    });
    // Metal's own default is fast math, so both cases are spelt out.
    if available!(macos = 15, ios = 18) {
        let (mode, functions) = if options.fast_math {
            (MTLMathMode::Fast, MTLMathFloatingPointFunctions::Fast)
        } else {
            (MTLMathMode::Safe, MTLMathFloatingPointFunctions::Precise)
        };
        compile.setMathMode(mode);
        compile.setMathFloatingPointFunctions(functions);
    } else {
        #[allow(deprecated)]
        compile.setFastMathEnabled(options.fast_math);
    }
    compile
}
