//! The kernel objects of Metal Performance Shaders, each made once for a device and a shape.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::MTLDevice;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// Kernels held at most; a model has few shapes, but a loop over lengths would have ever more.
const MOST: usize = 256;

/// What tells the kernels of a class apart.
pub(super) type Shape = [u64; 6];

/// Registry id of the device, class, shape.
type Key = (u64, TypeId, Shape);

/// A `Retained` of some class.
struct Kernel {
    object: Box<dyn Any>,
    used: u64,
}

// SAFETY: kernels are not tied to the thread that made them, they only must not be used by two threads at the same time
// (Apple: MPSKernel). They never leave the lock of the cache.
unsafe impl Send for Kernel {}

#[derive(Default)]
struct Cache {
    kernels: HashMap<Key, Kernel>,
    uses: u64,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);
static BUILDS: AtomicU64 = AtomicU64::new(0);

/// Uses the kernel of a class and shape, which is made if it was not used before.
pub(super) fn with_cached_kernel<K: 'static>(
    device: &ProtocolObject<dyn MTLDevice>,
    shape: Shape,
    make: impl FnOnce() -> Retained<K>,
    encode: impl FnOnce(&K),
) {
    let key = (device.registryID(), TypeId::of::<K>(), shape);
    let mut cache = lock();
    cache.uses += 1;
    let used = cache.uses;
    if !cache.kernels.contains_key(&key) {
        cache.make_room();
        BUILDS.fetch_add(1, Ordering::Relaxed);
    }
    let kernel = cache.kernels.entry(key).or_insert_with(|| Kernel {
        object: Box::new(make()),
        used,
    });
    kernel.used = used;
    let object = kernel.object.downcast_ref::<Retained<K>>();
    encode(object.expect("the key names the class"));
}

impl Cache {
    /// Forgets the kernel that was not used for the longest time.
    fn make_room(&mut self) {
        if self.kernels.len() < MOST {
            return;
        }
        let oldest = self.kernels.iter().min_by_key(|(_, kernel)| kernel.used);
        if let Some((&key, _)) = oldest {
            self.kernels.remove(&key);
        }
    }
}

fn lock() -> MutexGuard<'static, Cache> {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many there are, and how many were made since the process began.
pub(crate) fn stats() -> (usize, u64) {
    (lock().kernels.len(), BUILDS.load(Ordering::Relaxed))
}

pub(crate) fn clear() {
    lock().kernels.clear();
}
