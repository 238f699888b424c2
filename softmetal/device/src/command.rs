//! What a command buffer is made of.

use crate::buffer::Buffer;
use crate::finding::Finding;
use crate::library::Pipeline;
use crate::order::Fence;
use crate::ranges::Ranges;
use softmetal_exec::Grid;
use std::ops::Range;
use std::sync::Arc;

/// The commands of one encoder.
pub(crate) struct Pass {
    pub(crate) kind: PassKind,
    pub(crate) commands: Vec<Command>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PassKind {
    /// Commands wait for those before them.
    Serial,
    /// Commands may run at the same time.
    Concurrent,
}

pub(crate) enum Command {
    Dispatch(Box<Dispatch>),
    Copy {
        from: Arc<Buffer>,
        from_offset: usize,
        to: Arc<Buffer>,
        to_offset: usize,
        size: usize,
    },
    Fill {
        buffer: Arc<Buffer>,
        range: Range<usize>,
        value: u8,
    },
    Host(Box<HostWork>),
    /// A memory barrier for all buffers.
    Barrier,
    BarrierFor(Vec<Arc<Buffer>>),
    Wait(Arc<Fence>),
    Update(Arc<Fence>),
}

/// A kernel with its arguments, as they were when it was dispatched.
pub(crate) struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) arguments: Vec<Argument>,
    /// By the id of a buffer, the number of its bytes that are in use, where that is known.
    pub(crate) used: Vec<(u64, usize)>,
    pub(crate) threadgroup_lengths: Vec<(u32, usize)>,
    pub(crate) grid: Grid,
    pub(crate) group: [usize; 3],
}

/// What is bound at an index.
#[derive(Clone, Default)]
pub(crate) enum Argument {
    #[default]
    None,
    Bytes(Arc<[u8]>),
    Buffer {
        buffer: Arc<Buffer>,
        offset: usize,
    },
}

impl Argument {
    pub(crate) fn buffer(&self) -> Option<&Arc<Buffer>> {
        match self {
            Argument::Buffer { buffer, .. } => Some(buffer),
            Argument::None | Argument::Bytes(_) => None,
        }
    }
}

/// Work that is done by Rust code, such as a Metal Performance Shader.
pub(crate) struct HostWork {
    pub(crate) name: String,
    pub(crate) reads: Vec<(Arc<Buffer>, Ranges)>,
    pub(crate) writes: Vec<(Arc<Buffer>, Ranges)>,
    #[allow(clippy::type_complexity)]
    pub(crate) work: Box<dyn FnOnce() -> Result<(), Box<Finding>> + Send>,
}

impl Command {
    /// The buffers that this command uses, and whether it may write them.
    pub(crate) fn buffers(&self) -> Vec<(&Arc<Buffer>, bool)> {
        match self {
            Command::Dispatch(dispatch) => dispatch.buffers(),
            Command::Copy { from, to, .. } => vec![(from, false), (to, true)],
            Command::Fill { buffer, .. } => vec![(buffer, true)],
            Command::Host(work) => {
                let reads = work.reads.iter().map(|(buffer, _)| (buffer, false));
                reads
                    .chain(work.writes.iter().map(|(buffer, _)| (buffer, true)))
                    .collect()
            }
            Command::Barrier | Command::BarrierFor(_) | Command::Wait(_) | Command::Update(_) => {
                Vec::new()
            }
        }
    }
}

impl Dispatch {
    fn buffers(&self) -> Vec<(&Arc<Buffer>, bool)> {
        let params = &self.pipeline.function().params;
        let used = params
            .iter()
            .filter(|param| param.enabled && param.is_buffer());
        used.filter_map(|param| match self.arguments.get(param.index as usize) {
            Some(Argument::Buffer { buffer, .. }) => Some((buffer, !param.read_only)),
            _ => None,
        })
        .collect()
    }
}

pub(crate) trait IsBuffer {
    fn is_buffer(&self) -> bool;
}

impl IsBuffer for softmetal_abi::Param {
    fn is_buffer(&self) -> bool {
        self.space != softmetal_abi::Space::Threadgroup
    }
}
