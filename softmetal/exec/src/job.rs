//! A dispatch made ready: memory laid out and described, so that workers can run its groups.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use softmetal_abi::{Function, Param, Space, POISON};

use crate::config::{Config, Schedule};
use crate::dispatch::{Binding, Dispatch, Geometry};
use crate::finding::{Finding, Kind, Severity};
use crate::findings::{Findings, Place};
use crate::mapping::Mapping;
use crate::memory::Buffer;
use crate::order::{Word, SERIALS, SERIAL_SHIFT};
use crate::race::Cell;
use crate::region::{granule_shift, Argument, Cells, Region, Regions, Role};
use crate::report::Counters;
use crate::schedule::GroupOrder;
use crate::stores::Stores;
use crate::touched::ByteMap;

/// Room for one block of bytes, most of it red zone.
const SLOT: usize = 64 * 1024;
const MAX_BYTES: usize = SLOT / 2;
const SLOTS: usize = 64;
/// The last two slots stand in for arguments without memory.
const DISABLED: usize = SLOTS - 2;
const UNBOUND: usize = SLOTS - 1;

/// Cells for larger buffers go back to the system after each dispatch.
const MAX_KEPT: usize = 256 << 20;
/// Dispatches with fewer threads than this are not worth waking another worker.
const WORTH_SHARING: usize = 2048;

/// Memory that dispatches use one after the other.
pub(crate) struct Scratch {
    blocks: Mapping,
    cells: Vec<Mapping>,
    next_serial: u64,
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            blocks: Mapping::new(SLOTS * SLOT),
            cells: Vec::new(),
            next_serial: 1,
        }
    }

    fn slot(&self, slot: usize) -> *mut u8 {
        // SAFETY: there are that many slots.
        unsafe { self.blocks.data().add(slot * SLOT) }
    }

    /// Serial numbers for the groups of a dispatch, and whether they start anew.
    fn serials(&mut self, groups: usize) -> (u64, bool) {
        let groups = (groups as u64).min(SERIALS - 1);
        let anew = self.next_serial + groups > SERIALS;
        if anew {
            self.cells.clear();
            self.next_serial = 1;
        }
        let first = self.next_serial;
        self.next_serial += groups;
        (first, anew)
    }

    /// Cells for so many bytes. What they hold is older than any dispatch to come.
    fn take_cells(&mut self, count: usize) -> Mapping {
        let bytes = count.max(1) * size_of::<Cell>();
        let fits = self
            .cells
            .iter()
            .enumerate()
            .filter(|(_, cells)| cells.len() >= bytes);
        match fits
            .min_by_key(|(_, cells)| cells.len())
            .map(|(index, _)| index)
        {
            Some(index) => self.cells.swap_remove(index),
            None => Mapping::new(bytes.next_power_of_two()),
        }
    }
}

/// Where the address of a kernel argument comes from.
pub(crate) enum Source {
    Address(usize),
    /// Laid out in the arena of each worker.
    Threadgroup {
        index: u32,
        name: String,
        len: usize,
        align: usize,
    },
}

pub(crate) struct Job {
    pub function: Arc<Function>,
    pub geometry: Geometry,
    pub order: GroupOrder,
    pub schedule: Schedule,
    /// Report what is found.
    pub check: bool,
    notes_are_errors: bool,
    pub regions: Regions,
    pub sources: Vec<Source>,
    first_serial: u64,
    /// The serial numbers began anew: older accesses mean nothing.
    pub anew: bool,
    /// Several workers run groups.
    pub shared: bool,
    next_turn: AtomicUsize,
    pub stores: Stores,
    pub stop: AtomicBool,
    /// A thread used `atomic_thread_fence`.
    pub fenced: AtomicBool,
    pub findings: Mutex<Findings>,
    pub counters: Mutex<Counters>,
    cells: Vec<Mapping>,
    pub buffers: Vec<Arc<Buffer>>,
}

impl Job {
    /// Lays out what is bound. The error is a finding that keeps the kernel from starting.
    pub fn new(
        dispatch: &Dispatch,
        geometry: Geometry,
        config: &Config,
        scratch: &mut Scratch,
    ) -> Result<Self, Box<Finding>> {
        let count = geometry.group_count();
        let threads = count * dispatch.group.iter().product::<usize>();
        let (first_serial, anew) = scratch.serials(count);
        let mut job = Self {
            function: dispatch.function.clone(),
            geometry,
            order: GroupOrder::new(config.schedule, count),
            schedule: config.schedule,
            check: config.check,
            notes_are_errors: config.notes_are_errors,
            regions: Regions::new(Vec::new()),
            sources: Vec::new(),
            first_serial,
            anew,
            shared: config.threads > 1 && count > 1 && threads >= WORTH_SHARING,
            next_turn: AtomicUsize::new(0),
            stores: Stores::new(config.threads.max(1)),
            stop: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            findings: Mutex::default(),
            counters: Mutex::default(),
            cells: Vec::new(),
            buffers: Vec::new(),
        };
        let regions = job.bind(dispatch, scratch)?;
        job.regions = Regions::new(regions);
        if config.check || config.trace {
            job.attach_shadows(scratch, config.check);
        } else {
            job.trust_writes();
        }
        Ok(job)
    }

    /// One region for each thing that arguments point to, and the address of each argument.
    fn bind(
        &mut self,
        dispatch: &Dispatch,
        scratch: &Scratch,
    ) -> Result<Vec<Region>, Box<Finding>> {
        let mut regions = Vec::new();
        let function = dispatch.function.clone();
        for (slot, param) in function.params.iter().enumerate() {
            if param.space == Space::Threadgroup && param.enabled {
                let given = dispatch
                    .threadgroup_lengths
                    .iter()
                    .find(|(index, _)| *index == param.index);
                let len = given.map_or(0, |(_, len)| *len);
                let (index, name) = (param.index, param.name.clone());
                self.sources.push(Source::Threadgroup {
                    index,
                    name,
                    len,
                    align: param.align,
                });
                continue;
            }
            let binding = dispatch
                .buffers
                .get(param.index as usize)
                .filter(|_| param.enabled);
            let address = match binding {
                Some(Binding::Buffer { buffer, offset }) => {
                    self.bind_buffer(&mut regions, buffer, *offset, param);
                    buffer.address() + offset
                }
                Some(Binding::Bytes(bytes)) => {
                    if bytes.len() > MAX_BYTES || slot >= DISABLED {
                        let detail = format!("{} bytes are too many for setBytes", bytes.len());
                        return Err(Box::new(self.host_finding(
                            Kind::Limit,
                            Some(param),
                            detail,
                        )));
                    }
                    let block = scratch.slot(slot);
                    // SAFETY: the slot has room for that many bytes.
                    unsafe { block.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                    let mut region = Region::new(block as usize, bytes.len(), Role::Bytes);
                    region.writable = !param.read_only;
                    region.label = "setBytes data".to_owned();
                    region.arguments.push(argument(param, 0));
                    regions.push(region);
                    block as usize
                }
                Some(Binding::None) | None => {
                    let (role, index) = if param.enabled {
                        (Role::Unbound, UNBOUND)
                    } else {
                        (Role::Disabled, DISABLED)
                    };
                    let block = scratch.slot(index);
                    stand_in(&mut regions, block, role)
                        .arguments
                        .push(argument(param, 0));
                    block as usize
                }
            };
            self.sources.push(Source::Address(address));
        }
        for range in &function.image {
            let mut region = Region::new(range.start, range.len(), Role::Image);
            region.label = "the kernel's constants".to_owned();
            regions.push(region);
        }
        Ok(regions)
    }

    fn bind_buffer(
        &mut self,
        regions: &mut Vec<Region>,
        buffer: &Arc<Buffer>,
        offset: usize,
        param: &Param,
    ) {
        let found = regions
            .iter()
            .position(|region| region.base == buffer.address());
        let index = found.unwrap_or_else(|| {
            let mut region = Region::new(buffer.address(), buffer.len(), Role::Buffer);
            region.label = match buffer.label() {
                label if label.is_empty() => format!("a buffer of {} bytes", buffer.len()),
                label => format!("buffer `{label}` of {} bytes", buffer.len()),
            };
            region.cells.shift = u32::MAX;
            regions.push(region);
            self.buffers.push(buffer.clone());
            regions.len() - 1
        });
        let region = &mut regions[index];
        region.writable |= !param.read_only;
        region.cells.shift = region.cells.shift.min(granule_shift(param.align));
        region.arguments.push(argument(param, offset));
    }

    fn attach_shadows(&mut self, scratch: &mut Scratch, check: bool) {
        for buffer in &self.buffers {
            let Some(index) = self.regions.find_base(buffer.address()) else {
                continue;
            };
            let region = &mut self.regions.sorted[index];
            region.recorder = Some(buffer.accesses().recorder());
            region.initialised = ByteMap::new(buffer.initialised_map());
            if check && region.writable {
                let cells = scratch.take_cells((buffer.len() >> region.cells.shift) + 1);
                region.cells = Cells {
                    first: cells.data().cast(),
                    ..region.cells
                };
                self.cells.push(cells);
            } else {
                region.cells = Cells::NONE;
            }
        }
    }

    /// What an unchecked kernel may write counts as written.
    fn trust_writes(&self) {
        for buffer in &self.buffers {
            let region = self.regions.find_base(buffer.address());
            if region.is_some_and(|index| self.regions.sorted[index].writable) {
                buffer.mark_initialised(0..buffer.len());
            }
        }
    }

    /// Gives back what was borrowed.
    pub fn release(self, scratch: &mut Scratch) -> Findings {
        scratch.cells.extend(
            self.cells
                .into_iter()
                .filter(|cells| cells.len() <= MAX_KEPT),
        );
        self.findings
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub fn oldest(&self) -> Word {
        self.first_serial << SERIAL_SHIFT
    }

    pub fn serial(&self, group: usize) -> u64 {
        self.first_serial + (group as u64 % (SERIALS - self.first_serial))
    }

    pub fn group_of_serial(&self, serial: u64) -> [u32; 3] {
        self.geometry
            .group_position((serial - self.first_serial) as usize)
    }

    /// The next group, in the order of the schedule.
    pub fn next_group(&self) -> Option<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let turn = self.next_turn.fetch_add(1, Ordering::Relaxed);
        (turn < self.geometry.group_count()).then(|| self.order.group(turn))
    }

    pub fn severity(&self, kind: Kind) -> Severity {
        if self.notes_are_errors {
            Severity::Error
        } else {
            kind.severity()
        }
    }

    /// Adds a finding and says whether the kernel has to stop.
    pub fn report(&self, kind: Kind, place: Place, make: impl FnOnce(&Self) -> Finding) -> bool {
        if !self.check && kind != Kind::Limit {
            return false;
        }
        let severity = self.severity(kind);
        self.findings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(kind, severity, place, || make(self));
        let stop = severity == Severity::Error;
        if stop {
            self.stop.store(true, Ordering::Relaxed);
        }
        stop
    }

    fn host_finding(&self, kind: Kind, param: Option<&Param>, detail: String) -> Finding {
        Finding {
            severity: self.severity(kind),
            kind,
            kernel: self.function.name.clone(),
            argument: param.map(|param| (param.index, param.name.clone())),
            offset: None,
            thread: [0; 3],
            group: [0; 3],
            location: None,
            detail,
            count: 1,
        }
    }
}

fn argument(param: &Param, offset: usize) -> Argument {
    Argument {
        index: param.index,
        name: param.name.clone(),
        writable: !param.read_only,
        offset,
    }
}

/// The region of a stand-in block, one for all arguments that share it.
fn stand_in(regions: &mut Vec<Region>, block: *mut u8, role: Role) -> &mut Region {
    let index = regions
        .iter()
        .position(|region| region.role == role)
        .unwrap_or_else(|| {
            let fill = if role == Role::Unbound { POISON } else { 0 };
            // SAFETY: a slot is larger.
            unsafe { block.write_bytes(fill, MAX_BYTES) };
            let mut region = Region::new(block as usize, MAX_BYTES, role);
            region.label = match role {
                Role::Disabled => "an argument that a function constant switches off".to_owned(),
                _ => "an argument without a buffer".to_owned(),
            };
            regions.push(region);
            regions.len() - 1
        });
    &mut regions[index]
}
