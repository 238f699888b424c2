//! A compiled source, and the functions made from it.

use crate::compiler::Compiler;
use crate::emit::{emit, Selection};
use crate::error::CompileError;
use crate::load;
use crate::options::{Constant, Options};
use crate::program::Program;
use softmetal_abi::Function;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A source that has passed all checks.
pub struct Library {
    compiler: Compiler,
    program: Program,
    names: Vec<String>,
    loaded: Mutex<HashMap<String, Arc<Function>>>,
}

impl Library {
    /// Reads a source, checks every instantiation, and refuses what Metal refuses.
    pub fn new(source: &str, options: &Options) -> Result<Self, CompileError> {
        let compiler = Compiler::new(options)?;
        let preprocessed = compiler.preprocess(source)?;
        let program = Program::new(&preprocessed, options)?;
        compiler.check(&program, &emit(&program, Selection::Everything))?;
        let names = program
            .entries
            .iter()
            .map(|entry| entry.name.clone())
            .collect();
        Ok(Self {
            compiler,
            program,
            names,
            loaded: Mutex::default(),
        })
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
        if let Some(function) = self.loaded().get(&key) {
            return Ok(Some(function.clone()));
        }
        let emitted = emit(&self.program, Selection::Entries(&[entry], &constants));
        let path = self.compiler.compile(&self.program.source, &emitted)?;
        let kernel = &self.program.kernels[self.program.entries[entry].kernel];
        let function = Arc::new(load::function(&path, name, kernel, 0)?);
        Ok(Some(self.loaded().entry(key).or_insert(function).clone()))
    }

    fn loaded(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Function>>> {
        self.loaded
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("functions", &self.names.len())
            .finish_non_exhaustive()
    }
}
