//! A compiled source, and the functions made from it.

use crate::compiler::Compiler;
use crate::emit::{emit, emit_typed, Selection};
use crate::error::CompileError;
use crate::load::Object;
use crate::options::{Constant, Options};
use crate::program::Program;
use crate::MAIN_FILE;
use softmetal_abi::Function;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Instances of a kernel template that are compiled together. Of 0.25 s for one entry of our kernels 0.2 s are
/// spent before the optimiser sees it; whole libraries take 0.03 to 0.05 s an entry.
const BATCH: usize = 16;

/// A source that has passed all checks.
pub struct Library {
    compiler: Compiler,
    program: Program,
    names: Vec<String>,
    objects: Mutex<HashMap<String, Arc<Slot>>>,
    functions: Mutex<HashMap<String, Arc<Function>>>,
}

/// An object, locked while it is being compiled.
type Slot = Mutex<Option<Arc<Object>>>;

impl Library {
    /// Reads a source, checks every instantiation, and refuses what Metal refuses.
    pub fn new(source: &str, options: &Options) -> Result<Self, CompileError> {
        let compiler = Compiler::new(options)?;
        let preprocessed = compiler.preprocess(source)?;
        let program = Program::new(&preprocessed, options)?;
        compiler.check(&program, &emit(&program, Selection::Everything))?;
        if let Some(typed) = &program.typed {
            compiler.check_spaces(&program.source, &emit_typed(&program, typed))?;
        }
        let names = program.entries.iter().map(|entry| entry.name.clone());
        Ok(Self {
            names: names.collect(),
            compiler,
            program,
            objects: Mutex::default(),
            functions: Mutex::default(),
        })
    }

    /// The last file that the source names by `#line`.
    pub fn file(&self) -> &str {
        self.program
            .source
            .files()
            .last()
            .map_or(MAIN_FILE, String::as_str)
    }

    /// The names of all kernels, in the order of the source.
    pub fn functions(&self) -> &[String] {
        &self.names
    }

    /// The kernel of that name, with the values of function constants; `None` if there is none.
    pub fn function(
        &self,
        name: &str,
        constants: &[(u32, Constant)],
    ) -> Result<Option<Arc<Function>>, CompileError> {
        let Some(entry) = self.program.entry(name) else {
            return Ok(None);
        };
        self.program.constants.check(constants)?;
        let constants = self.program.constants.relevant(constants);
        let key = format!("{name} {constants:?}");
        if let Some(function) = lock(&self.functions).get(&key) {
            return Ok(Some(function.clone()));
        }
        let batch = self.program.batch(entry, BATCH);
        let place = batch.iter().position(|other| *other == entry);
        let object = self.object(&batch, &constants)?;
        let kernel = &self.program.kernels[self.program.entries[entry].kernel];
        let function = Arc::new(object.function(name, kernel, place.unwrap_or_default())?);
        let mut functions = lock(&self.functions);
        Ok(Some(functions.entry(key).or_insert(function).clone()))
    }

    fn object(
        &self,
        batch: &[usize],
        constants: &[(u32, Constant)],
    ) -> Result<Arc<Object>, CompileError> {
        let key = format!("{batch:?} {constants:?}");
        let slot = lock(&self.objects).entry(key).or_default().clone();
        let mut slot = lock(&slot);
        if let Some(object) = &*slot {
            return Ok(object.clone());
        }
        let emitted = emit(&self.program, Selection::Entries(batch, constants));
        let path = self.compiler.compile(&self.program.source, &emitted)?;
        let object = Arc::new(Object::open(&path)?);
        *slot = Some(object.clone());
        Ok(object)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("functions", &self.names.len())
            .finish_non_exhaustive()
    }
}
