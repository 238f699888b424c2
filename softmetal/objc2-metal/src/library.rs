//! `MTLLibrary`, `MTLFunction` and `MTLComputePipelineState`

use crate::device;
use crate::resource::MTLAllocation;
use crate::softmetal::{self, CompileOptions, Constant, MathMode, Version};
use crate::types::{
    MTLDataType, MTLFunctionType, MTLLanguageVersion, MTLMathFloatingPointFunctions, MTLMathMode,
};
use crate::MTLDevice;
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol, ProtocolObject};
use objc2::Message;
use objc2_foundation::{NSArray, NSError, NSString};
use std::cell::RefCell;
use std::ffi::c_void;
use std::ptr::NonNull;

crate::protocol!(MTLLibrary, MTLFunction, MTLComputePipelineState);

struct Options(RefCell<CompileOptions>);
impl State for Options {}

objc2::class!(
    /// How to compile a library.
    MTLCompileOptions: NSObject, Options
);

impl MTLCompileOptions {
    pub fn new() -> Retained<Self> {
        object::new(Options(RefCell::default()))
    }

    pub(crate) fn get(&self) -> CompileOptions {
        self.state().0.borrow().clone()
    }

    fn change(&self, change: impl FnOnce(&mut CompileOptions)) {
        change(&mut self.state().0.borrow_mut());
    }

    pub fn setMathMode(&self, math_mode: MTLMathMode) {
        let math = match math_mode {
            MTLMathMode::Safe => MathMode::Safe,
            MTLMathMode::Relaxed => MathMode::Relaxed,
            _ => MathMode::Fast,
        };
        self.change(|options| options.math = Some(math));
    }

    pub fn mathMode(&self) -> MTLMathMode {
        match self.get().math {
            Some(MathMode::Safe) => MTLMathMode::Safe,
            Some(MathMode::Relaxed) => MTLMathMode::Relaxed,
            Some(MathMode::Fast) | None => MTLMathMode::Fast,
        }
    }

    pub fn setMathFloatingPointFunctions(&self, functions: MTLMathFloatingPointFunctions) {
        let precise = functions == MTLMathFloatingPointFunctions::Precise;
        self.change(|options| options.precise_functions = precise);
    }

    #[deprecated = "Use mathMode instead"]
    pub fn setFastMathEnabled(&self, fast_math_enabled: bool) {
        self.change(|options| {
            options.math = Some(if fast_math_enabled {
                MathMode::Fast
            } else {
                MathMode::Safe
            });
            options.precise_functions = !fast_math_enabled;
        });
    }

    pub fn setLanguageVersion(&self, language_version: MTLLanguageVersion) {
        let MTLLanguageVersion(number) = language_version;
        let version = Version::new((number >> 16) as u16, (number & 0xffff) as u16);
        self.change(|options| options.language = Some(version));
    }

    pub fn languageVersion(&self) -> MTLLanguageVersion {
        let version = self.get().language.unwrap_or(Version::V3_1);
        MTLLanguageVersion(usize::from(version.major) << 16 | usize::from(version.minor))
    }
}

#[derive(Default)]
struct Constants(RefCell<Vec<(u32, Constant)>>);
impl State for Constants {}

objc2::class!(
    /// Values for the function constants of a library.
    MTLFunctionConstantValues: NSObject, Constants
);

impl MTLFunctionConstantValues {
    pub fn new() -> Retained<Self> {
        object::new(Constants::default())
    }

    /// # Safety
    /// `value` points to a value of type `type`.
    pub unsafe fn setConstantValue_type_atIndex(
        &self,
        value: NonNull<c_void>,
        r#type: MTLDataType,
        index: usize,
    ) {
        // SAFETY: by the caller.
        let value = unsafe { read_constant(value, r#type) };
        let mut constants = self.state().0.borrow_mut();
        constants.retain(|(other, _)| *other != index as u32);
        constants.push((index as u32, value));
    }

    pub fn reset(&self) {
        self.state().0.borrow_mut().clear();
    }
}

/// # Safety
/// `value` points to a value of type `type`.
unsafe fn read_constant(value: NonNull<c_void>, r#type: MTLDataType) -> Constant {
    // SAFETY: by the caller.
    unsafe {
        match r#type {
            MTLDataType::Bool => Constant::Bool(value.cast::<u8>().read() != 0),
            MTLDataType::Char => Constant::I8(value.cast().read()),
            MTLDataType::UChar => Constant::U8(value.cast().read()),
            MTLDataType::Short => Constant::I16(value.cast().read_unaligned()),
            MTLDataType::UShort => Constant::U16(value.cast().read_unaligned()),
            MTLDataType::Int => Constant::I32(value.cast().read_unaligned()),
            MTLDataType::UInt => Constant::U32(value.cast().read_unaligned()),
            MTLDataType::Long => Constant::I64(value.cast().read_unaligned()),
            MTLDataType::ULong => Constant::U64(value.cast().read_unaligned()),
            MTLDataType::Float => Constant::F32(value.cast().read_unaligned()),
            MTLDataType::Half => Constant::F16(value.cast().read_unaligned()),
            MTLDataType::BFloat => Constant::BF16(value.cast().read_unaligned()),
            MTLDataType(other) => {
                panic!("softmetal: function constants of data type {other} are not supported")
            }
        }
    }
}

/// Compiled source.
pub unsafe trait MTLLibrary: NSObjectProtocol + Send + Sync {
    fn device(&self) -> Retained<ProtocolObject<dyn MTLDevice>>
    where
        Self: Sized + Message,
    {
        device::system()
    }

    fn functionNames(&self) -> Retained<NSArray<NSString>>
    where
        Self: Sized + Message,
    {
        let names = softmetal::library(self).names();
        let names: Vec<_> = names.iter().map(|name| NSString::from_str(name)).collect();
        NSArray::from_retained_slice(&names)
    }

    fn newFunctionWithName(
        &self,
        function_name: &NSString,
    ) -> Option<Retained<ProtocolObject<dyn MTLFunction>>>
    where
        Self: Sized + Message,
    {
        let function = softmetal::library(self).function(&function_name.to_string())?;
        Some(softmetal::wrap_function(function))
    }

    fn newFunctionWithName_constantValues_error(
        &self,
        name: &NSString,
        constant_values: &MTLFunctionConstantValues,
    ) -> Result<Retained<ProtocolObject<dyn MTLFunction>>, Retained<NSError>>
    where
        Self: Sized + Message,
    {
        let constants = constant_values.state().0.borrow();
        softmetal::library(self)
            .specialised(&name.to_string(), &constants)
            .map(softmetal::wrap_function)
            .map_err(|error| softmetal::ns_error(&error))
    }
}

/// A kernel.
pub unsafe trait MTLFunction: NSObjectProtocol + Send + Sync {
    fn name(&self) -> Retained<NSString>
    where
        Self: Sized + Message,
    {
        NSString::from_str(softmetal::function(self).name())
    }

    fn functionType(&self) -> MTLFunctionType
    where
        Self: Sized + Message,
    {
        MTLFunctionType::Kernel
    }
}

/// A kernel that is ready to run.
pub unsafe trait MTLComputePipelineState:
    MTLAllocation + NSObjectProtocol + Send + Sync
{
    fn maxTotalThreadsPerThreadgroup(&self) -> usize
    where
        Self: Sized + Message,
    {
        softmetal::pipeline(self).max_threads()
    }

    fn threadExecutionWidth(&self) -> usize
    where
        Self: Sized + Message,
    {
        softmetal::limits::SIMD_WIDTH
    }

    fn staticThreadgroupMemoryLength(&self) -> usize
    where
        Self: Sized + Message,
    {
        softmetal::pipeline(self).static_threadgroup_memory()
    }
}
