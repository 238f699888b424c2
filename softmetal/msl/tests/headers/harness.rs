//! Loads what was compiled against the execution headers, and runs it on 32 lanes with a runtime that records.

use crate::compiler::{compile, scratch};
use softmetal_abi::{Gathered, Runtime, Site};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::{Arc, Barrier, Mutex};

/// What the kernel told the runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Load {
        address: usize,
        size: usize,
    },
    Store {
        address: usize,
        size: usize,
    },
    Atomic {
        address: usize,
        size: usize,
        kind: u32,
    },
    Barrier {
        scope: u32,
        flags: u32,
        line: u32,
    },
    Fence {
        flags: u32,
        line: u32,
    },
    Gather {
        size: u32,
        width: u32,
        kind: u32,
        argument: u32,
        line: u32,
    },
    InactiveLane {
        lane: u32,
        line: u32,
    },
    Fault {
        kind: u32,
    },
    /// A `CHECK` that did not hold.
    Failed {
        line: u32,
    },
}

/// `(lane, event)` in the order in which each lane caused them.
pub type Events = Vec<(u32, Event)>;

struct World {
    active: u32,
    slots: Mutex<Gathered>,
    simd: Barrier,
    quads: Vec<Barrier>,
    group_memory: Mutex<Vec<(u32, Box<[u64]>)>>,
    events: Mutex<Events>,
}

struct Lane {
    index: u32,
    world: Arc<World>,
    gathered: Box<Gathered>,
}

thread_local! {
    static LANE: RefCell<Option<Lane>> = const { RefCell::new(None) };
}

fn with_lane<T>(f: impl FnOnce(&mut Lane) -> T) -> T {
    LANE.with(|lane| {
        f(lane
            .borrow_mut()
            .as_mut()
            .expect("a hook was called outside of a lane"))
    })
}

fn record(event: Event) {
    with_lane(|lane| {
        let entry = (lane.index, event);
        lane.world
            .events
            .lock()
            .expect("no lane panics")
            .push(entry);
    });
}

unsafe extern "C" fn load(address: usize, size: usize, _pc: usize) {
    record(Event::Load { address, size });
}

unsafe extern "C" fn store(address: usize, size: usize, _pc: usize) {
    record(Event::Store { address, size });
}

unsafe extern "C" fn atomic(address: usize, size: usize, kind: u32, _pc: usize) {
    record(Event::Atomic {
        address,
        size,
        kind,
    });
}

unsafe extern "C" fn threadgroup_variable(
    slot: u32,
    size: usize,
    _align: usize,
    _name: *const c_char,
) -> *mut c_void {
    with_lane(|lane| {
        let mut memory = lane.world.group_memory.lock().expect("no lane panics");
        let at = memory
            .iter()
            .position(|(s, _)| *s == slot)
            .unwrap_or_else(|| {
                memory.push((slot, vec![0; size.div_ceil(8)].into_boxed_slice()));
                memory.len() - 1
            });
        memory[at].1.as_mut_ptr().cast()
    })
}

unsafe extern "C" fn barrier(scope: u32, flags: u32, site: *const Site) {
    // SAFETY: the headers pass a site on the caller's stack.
    let line = unsafe { (*site).line };
    record(Event::Barrier { scope, flags, line });
    let world = with_lane(|lane| lane.world.clone());
    world.simd.wait();
}

unsafe extern "C" fn fence(flags: u32, site: *const Site) {
    // SAFETY: as above.
    let line = unsafe { (*site).line };
    record(Event::Fence { flags, line });
}

unsafe extern "C" fn gather(
    value: *const c_void,
    size: u32,
    width: u32,
    kind: u32,
    argument: u32,
    site: *const Site,
) -> *const Gathered {
    // SAFETY: as above.
    let line = unsafe { (*site).line };
    record(Event::Gather {
        size,
        width,
        kind,
        argument,
        line,
    });
    let (world, index) = with_lane(|lane| (lane.world.clone(), lane.index));
    // SAFETY: the caller brings `size` ≤ 64 bytes.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), size as usize) };
    let meeting = if width == 32 {
        &world.simd
    } else {
        &world.quads[index as usize / 4]
    };
    world.slots.lock().expect("no lane panics").values[index as usize][..bytes.len()]
        .copy_from_slice(bytes);
    meeting.wait();
    let mut all = world.slots.lock().expect("no lane panics").clone();
    meeting.wait();
    let around = if width == 32 {
        u32::MAX
    } else {
        0xF << (index / 4 * 4)
    };
    all.mask = world.active & around;
    all.lane = index;
    with_lane(|lane| {
        *lane.gathered = all;
        &*lane.gathered as *const Gathered
    })
}

unsafe extern "C" fn inactive_lane(lane: u32, site: *const Site) {
    // SAFETY: as above.
    let line = unsafe { (*site).line };
    record(Event::InactiveLane { lane, line });
}

unsafe extern "C" fn fault(kind: u32, _pc: usize) {
    record(Event::Fault { kind });
}

unsafe extern "C" fn failed(line: u32) {
    record(Event::Failed { line });
}

static RUNTIME: Runtime = Runtime {
    load,
    store,
    atomic,
    threadgroup_variable,
    barrier,
    fence,
    gather,
    inactive_lane,
    fault,
};

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}
const RTLD_NOW: c_int = 2;

type Run = unsafe extern "C" fn(lane: u32, data: *mut c_void, failed: unsafe extern "C" fn(u32));

pub struct Object {
    run: Run,
}

/// Compiles a source that defines `RUN { .. }`, in which `lane`, `data` and `CHECK` are known.
pub fn build(source: &str, more: &[&str]) -> Object {
    let prologue = "using namespace metal;\n\
        #define RUN extern \"C\" void run(uint lane, void* data, void (*failed)(uint))\n\
        #define CHECK(...) ((__VA_ARGS__) ? (void)0 : failed(__LINE__))\n#line 1 \"test.cpp\"\n";
    let library = scratch(".so");
    let library_text = library
        .to_str()
        .expect("the temporary directory has a plain name");
    let mut arguments = vec!["-O1", "-fPIC", "-shared", "-o", library_text];
    arguments.extend(more);
    compile(&format!("{prologue}{source}"), &arguments)
        .unwrap_or_else(|messages| panic!("{messages}"));
    let name = CString::new(library_text).expect("no NUL in a path");
    // SAFETY: the object has no constructors; it is never unloaded.
    let object = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
    if object.is_null() {
        // SAFETY: dlopen has just failed.
        panic!("{}", unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy());
    }
    std::fs::remove_file(&library).expect("the object was written");
    // SAFETY: both names are exported with these types: `softmetal_bind` by the headers, `run` by the prologue.
    unsafe {
        let bind = dlsym(object, c"softmetal_bind".as_ptr());
        let run = dlsym(object, c"run".as_ptr());
        assert!(
            !bind.is_null() && !run.is_null(),
            "softmetal_bind or run is missing"
        );
        std::mem::transmute::<*mut c_void, softmetal_abi::Bind>(bind)(&RUNTIME);
        Object {
            run: std::mem::transmute::<*mut c_void, Run>(run),
        }
    }
}

impl Object {
    /// Runs the lanes of `active`, each on a thread of its own, all with the same `data`.
    pub fn run_on<T: Send>(&self, active: u32, data: &mut [T]) -> Events {
        let present = |lanes: u32| Barrier::new((active & lanes).count_ones() as usize);
        let world = Arc::new(World {
            active,
            slots: Mutex::new(Gathered::default()),
            simd: present(u32::MAX),
            quads: (0..8).map(|quad| present(0xF << (quad * 4))).collect(),
            group_memory: Mutex::new(Vec::new()),
            events: Mutex::new(Vec::new()),
        });
        let (run, data) = (self.run, data.as_mut_ptr() as usize);
        std::thread::scope(|scope| {
            for index in (0..32).filter(|lane| active >> lane & 1 == 1) {
                let world = world.clone();
                scope.spawn(move || {
                    let gathered = Box::new(Gathered::default());
                    LANE.set(Some(Lane {
                        index,
                        world,
                        gathered,
                    }));
                    // SAFETY: tests give `data` the size their source expects.
                    unsafe { run(index, data as *mut c_void, failed) };
                });
            }
        });
        let events = world.events.lock().expect("no lane panics").clone();
        events
    }

    /// Runs one lane, and expects every check to hold.
    pub fn check(&self) {
        self.check_on(1);
    }

    /// Runs the lanes of `active`, and expects every check to hold.
    pub fn check_on(&self, active: u32) -> Events {
        let events = self.run_on::<u8>(active, &mut []);
        let broken: Vec<_> = events
            .iter()
            .filter(|(_, event)| matches!(event, Event::Failed { .. }))
            .collect();
        assert!(broken.is_empty(), "checks that failed, by lane: {broken:?}");
        events
    }
}
