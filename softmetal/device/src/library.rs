//! From MSL source to a pipeline.

use crate::device::Device;
use crate::error::Error;
use crate::limits;
use softmetal_abi as abi;
use softmetal_msl as msl;
use std::sync::Arc;

pub use softmetal_msl::{Constant, MathMode, Version};

/// `MTLCompileOptions`
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    pub language: Option<Version>,
    pub math: Option<MathMode>,
    pub precise_functions: bool,
    pub defines: Vec<(String, String)>,
}

/// `MTLLibrary`
pub struct Library {
    device: Arc<Device>,
    library: msl::Library,
}

impl Library {
    pub fn new(
        device: &Arc<Device>,
        source: &str,
        options: &CompileOptions,
    ) -> Result<Arc<Self>, Error> {
        let default = msl::Options::default();
        let options = msl::Options {
            language: options.language.unwrap_or(default.language),
            math: options.math.unwrap_or(default.math),
            precise_functions: options.precise_functions,
            defines: options.defines.clone(),
            instrument: device.settings.check,
            ..default
        };
        let library = msl::Library::new(source, &options)
            .map_err(|error| Error::compile(error.to_string()))?;
        device.coverage().made(library.file(), library.functions());
        Ok(Arc::new(Self {
            device: device.clone(),
            library,
        }))
    }

    pub fn names(&self) -> &[String] {
        self.library.functions()
    }

    /// A function without constants, or none if there is no such name. What is wrong with the function itself is
    /// told when a pipeline is made of it.
    pub fn function(self: &Arc<Self>, name: &str) -> Option<Arc<Function>> {
        let known = self.names().iter().any(|known| known == name);
        known.then(|| Arc::new(self.unspecialised(name)))
    }

    pub fn specialised(
        self: &Arc<Self>,
        name: &str,
        constants: &[(u32, Constant)],
    ) -> Result<Arc<Function>, Error> {
        let function = self.unspecialised(name);
        let function = Function {
            constants: constants.to_vec(),
            ..function
        };
        function.compile()?;
        Ok(Arc::new(function))
    }

    fn unspecialised(self: &Arc<Self>, name: &str) -> Function {
        Function {
            library: self.clone(),
            name: name.to_string(),
            constants: Vec::new(),
        }
    }
}

/// `MTLFunction`
pub struct Function {
    library: Arc<Library>,
    name: String,
    constants: Vec<(u32, Constant)>,
}

impl Function {
    pub fn name(&self) -> &str {
        &self.name
    }

    fn compile(&self) -> Result<Arc<abi::Function>, Error> {
        let compiled = self.library.library.function(&self.name, &self.constants);
        match compiled {
            Ok(Some(function)) => Ok(function),
            Ok(None) => {
                let text = format!("the library has no function named {}", self.name);
                Err(Error::function_not_found(text))
            }
            Err(error) => Err(Error::compile(error.to_string())),
        }
    }
}

/// `MTLComputePipelineState`
pub struct Pipeline {
    function: Arc<abi::Function>,
    /// Where the function comes from.
    library: Arc<Library>,
    max_threads: usize,
}

impl Pipeline {
    pub fn new(function: &Function) -> Result<Arc<Self>, Error> {
        let library = function.library.clone();
        let function = function.compile()?;
        if function.static_threadgroup > limits::THREADGROUP_MEMORY {
            return Err(Error::pipeline(format!(
                "kernel {} uses {} bytes of threadgroup memory, {} is the most",
                function.name,
                function.static_threadgroup,
                limits::THREADGROUP_MEMORY
            )));
        }
        let max_threads = match function.max_threads {
            Some(threads) => (threads as usize).min(limits::THREADS_PER_GROUP),
            None => library.device.settings.max_threads,
        };
        Ok(Arc::new(Self {
            function,
            library,
            max_threads,
        }))
    }

    pub fn max_threads(&self) -> usize {
        self.max_threads
    }

    /// The source file of the library.
    pub(crate) fn file(&self) -> &str {
        self.library.library.file()
    }

    pub fn static_threadgroup_memory(&self) -> usize {
        self.function.static_threadgroup
    }

    pub(crate) fn function(&self) -> &Arc<abi::Function> {
        &self.function
    }
}
