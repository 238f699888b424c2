//! Buffers.

use crate::device::Device;
use crate::finding::{kind, Finding};
use crate::hazard::History;
use crate::limits;
use crate::order::Progress;
use softmetal_exec::memory::{self, Initial};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Who can see a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Shared,
    Managed,
    Private,
}

/// How a buffer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferOptions {
    pub storage: Storage,
    /// Whether Metal orders the encoders of a queue that use the buffer.
    pub tracked: bool,
}

impl BufferOptions {
    pub const SHARED: Self = Self {
        storage: Storage::Shared,
        tracked: true,
    };
    pub const PRIVATE: Self = Self {
        storage: Storage::Private,
        tracked: true,
    };

    pub const fn untracked(self) -> Self {
        Self {
            tracked: false,
            ..self
        }
    }
}

/// `MTLBuffer`
pub struct Buffer {
    device: Arc<Device>,
    memory: Arc<memory::Buffer>,
    options: BufferOptions,
    label: Mutex<Option<String>>,
    uses: Mutex<Vec<Use>>,
    history: Mutex<History>,
    /// Held by the dispatch that uses the buffer, since what it touches is recorded in one place.
    turn: Mutex<()>,
    /// What the host gets for the contents of a private buffer.
    decoy: OnceLock<Arc<memory::Buffer>>,
}

/// The last command buffers of a queue that use a buffer.
struct Use {
    queue: Arc<Progress>,
    read: u64,
    written: u64,
}

impl Buffer {
    /// A buffer of zeros, or none if it is too large.
    ///
    /// Metal clears new buffers, but whoever relies on it breaks as soon as buffers are reused, as Candle's pool does:
    /// bytes that were never written count as uninitialised.
    pub fn new(device: &Arc<Device>, length: usize, options: BufferOptions) -> Option<Arc<Self>> {
        if length == 0 {
            device.raise(Finding::new(kind::EMPTY, "a buffer of length 0 was asked for").note());
        }
        let buffer = Self::with(device, length, options, Initial::Zero)?;
        if device.settings.check {
            buffer.memory.forget(0..length);
        }
        Some(buffer)
    }

    /// A buffer with a copy of `bytes`.
    pub fn with_bytes(
        device: &Arc<Device>,
        bytes: &[u8],
        options: BufferOptions,
    ) -> Option<Arc<Self>> {
        if options.storage == Storage::Private {
            let detail = "a private buffer cannot be made from bytes of the host";
            device.raise(Finding::new(kind::PRIVATE, detail));
            return None;
        }
        Self::with(device, bytes.len(), options, Initial::Bytes(bytes))
    }

    fn with(
        device: &Arc<Device>,
        length: usize,
        options: BufferOptions,
        initial: Initial<'_>,
    ) -> Option<Arc<Self>> {
        if length > limits::BUFFER {
            let detail = format!(
                "a buffer of {length} bytes was asked for, {} is the most",
                limits::BUFFER
            );
            device.raise(Finding::new(kind::LIMIT, detail));
            return None;
        }
        device.allocate(length);
        Some(Arc::new(Self {
            device: device.clone(),
            memory: memory::Buffer::new(length, initial),
            options,
            label: Mutex::default(),
            uses: Mutex::default(),
            history: Mutex::default(),
            turn: Mutex::default(),
            decoy: OnceLock::new(),
        }))
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn length(&self) -> usize {
        self.memory.len()
    }

    pub fn options(&self) -> BufferOptions {
        self.options
    }

    pub fn set_label(&self, label: Option<&str>) {
        self.memory.set_label(label.unwrap_or_default());
        *lock(&self.label) = label.map(str::to_string);
    }

    pub fn label(&self) -> Option<String> {
        lock(&self.label).clone()
    }

    /// How many of the bytes hold anything, where the label says so: `used:N`. Buffers of a pool are longer than what they
    /// are taken for, and a kernel that writes on behind it would go unnoticed.
    pub(crate) fn used(&self) -> Option<usize> {
        self.label()?.strip_prefix("used:")?.parse().ok()
    }

    /// The buffer's memory for the host, which may read and write it as long as no command buffer uses it.
    ///
    /// A private buffer has none. That is an error, and the pointer leads to other memory of the same length.
    pub fn contents(&self) -> *mut u8 {
        if self.options.storage == Storage::Private {
            let detail =
                format!("contents() of {self}, which is private and has none for the host");
            self.device.raise(Finding::new(kind::PRIVATE, detail));
            let decoy = self
                .decoy
                .get_or_init(|| memory::Buffer::new(self.length(), Initial::Poison));
            return decoy.address() as *mut u8;
        }
        self.check_in_flight();
        // From now on the host may write what it likes, unseen.
        self.memory.mark_initialised(0..self.length());
        self.memory.address() as *mut u8
    }

    /// Reports command buffers that the host has not yet seen to complete.
    fn check_in_flight(&self) {
        if !self.device.settings.check {
            return;
        }
        let mut uses = lock(&self.uses);
        uses.retain(|used| used.read.max(used.written) > used.queue.observed());
        let pending =
            |of: fn(&Use) -> u64| uses.iter().find(|used| of(used) > used.queue.observed());
        if let Some(used) = pending(|used| used.written) {
            let detail = format!(
                "contents() of {self} while command buffer {} of queue {} may still write it: wait until it has \
                 completed",
                used.written, used.queue.queue
            );
            self.device.raise(Finding::new(kind::IN_FLIGHT, detail));
        } else if let Some(used) = pending(|used| used.read) {
            let detail = format!(
                "contents() of {self} while command buffer {} of queue {} may still read it: nothing may be written \
                 yet",
                used.read, used.queue.queue
            );
            self.device
                .raise(Finding::new(kind::IN_FLIGHT, detail).note());
        }
    }

    /// A command buffer that uses this buffer was committed.
    pub(crate) fn committed(&self, queue: &Arc<Progress>, command_buffer: u64, writes: bool) {
        let mut uses = lock(&self.uses);
        let at = match uses.iter().position(|used| Arc::ptr_eq(&used.queue, queue)) {
            Some(at) => at,
            None => {
                uses.push(Use {
                    queue: queue.clone(),
                    read: 0,
                    written: 0,
                });
                uses.len() - 1
            }
        };
        let last = if writes {
            &mut uses[at].written
        } else {
            &mut uses[at].read
        };
        *last = command_buffer.max(*last);
    }

    pub(crate) fn memory(&self) -> &Arc<memory::Buffer> {
        &self.memory
    }

    pub(crate) fn id(&self) -> u64 {
        self.memory.id()
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// Keeps dispatches of other queues from these buffers.
    pub(crate) fn take_turns<'a>(
        buffers: impl Iterator<Item = &'a Arc<Buffer>>,
    ) -> Vec<MutexGuard<'a, ()>> {
        let mut buffers: Vec<_> = buffers.collect();
        // Always in the same order, so that nobody waits for each other.
        buffers.sort_by_key(|buffer| buffer.id());
        buffers.dedup_by_key(|buffer| buffer.id());
        buffers
            .into_iter()
            .map(|buffer| lock(&buffer.turn))
            .collect()
    }

    /// The bytes from `offset` on, or an error if they are not all there.
    pub(crate) fn check_range(
        &self,
        what: &str,
        offset: usize,
        size: usize,
    ) -> Result<(), Box<Finding>> {
        if offset
            .checked_add(size)
            .is_some_and(|end| end <= self.length())
        {
            return Ok(());
        }
        let detail = format!("{what}: {size} bytes from {offset} on are not in {self}");
        Err(Finding::new(kind::BOUNDS, detail).at_offset(offset).into())
    }
}

impl std::fmt::Display for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "buffer {}", self.id())?;
        if let Some(label) = self.label() {
            write!(f, " `{label}`")?;
        }
        write!(f, " of {} bytes", self.length())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.release(self.length());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
