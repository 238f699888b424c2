//! The passes of clang over a source: preprocess, check, compile.

use crate::cache::{Cache, Key};
use crate::clang::Clang;
use crate::constants::UNSET;
use crate::emit::Output;
use crate::error::{CompileError, Message};
use crate::headers;
use crate::options::Options;
use crate::program::Program;
use crate::source::Source;
use crate::{diagnostics, spaces, MAIN_FILE};
use std::path::PathBuf;
use std::process::Output as ProcessOutput;
use std::sync::{Mutex, PoisonError};

pub(crate) struct Compiler {
    clang: &'static Clang,
    cache: &'static Cache,
    include: PathBuf,
    flags: Vec<String>,
    /// What all results depend on: compiler, headers and flags.
    base: String,
    options: Options,
}

const LANGUAGE: &[&str] = &[
    "-std=c++17",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",
    // MSL sources read one type's memory as another's.
    "-fno-strict-aliasing",
    "-fstrict-flex-arrays=3",
    "-fno-math-errno",
    "-ffp-contract=on",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-Xclang",
    "-fbfloat16-excess-precision=none",
    "-O1",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-optimize-sibling-calls",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-gline-tables-only",
    "-fdebug-compilation-dir=.",
    "-fPIC",
    "-fno-caret-diagnostics",
    "-ftemplate-depth=2048",
    "-fconstexpr-steps=10000000",
];

const INSTRUMENT: &[&str] = &[
    "-fsanitize=kernel-address,array-bounds,alignment",
    "-mllvm",
    "-asan-instrumentation-with-call-threshold=0",
    "-mllvm",
    "-asan-stack=0",
    "-mllvm",
    "-asan-globals=0",
    "-mllvm",
    "-asan-opt=0",
    "-mllvm",
    "-asan-kernel-mem-intrinsic-prefix=1",
];

/// C++ for OpenCL is the dialect of clang in which pointers and references have address spaces.
const SPACES: &[&str] = &[
    "-cl-std=clc++2021",
    "-cl-no-stdinc",
    "-nostdinc",
    "-fsigned-char",
    "-fno-caret-diagnostics",
    "-ftemplate-depth=2048",
    "-fconstexpr-steps=10000000",
    "-ferror-limit=0",
    "-DSOFTMETAL_SPACES=1",
];

/// Part of every key: counts changes of this program that change its output.
const GENERATION: &str = "1";

impl Compiler {
    pub(crate) fn new(options: &Options) -> Result<Self, CompileError> {
        let clang = Clang::find()?;
        let cache = Cache::open()?;
        let include = headers::install(cache)?;
        let mut flags: Vec<String> = LANGUAGE.iter().map(|flag| flag.to_string()).collect();
        flags.extend(machine().map(String::from));
        if options.instrument {
            flags.extend(INSTRUMENT.iter().map(|flag| flag.to_string()));
        }
        flags.extend(versions(options));
        let base = flags
            .iter()
            .map(String::as_str)
            .chain(SPACES.iter().copied())
            .fold(
                Key::new(GENERATION)
                    .with(&clang.version)
                    .with(include.as_os_str().as_encoded_bytes()),
                |key, flag| key.with(flag),
            )
            .name();
        Ok(Self {
            clang,
            cache,
            include,
            flags,
            base,
            options: options.clone(),
        })
    }

    fn key(&self, kind: &str) -> Key {
        Key::new(kind).with(&self.base)
    }

    /// Expands macros and leaves out comments.
    pub(crate) fn preprocess(&self, source: &str) -> Result<String, CompileError> {
        let mut key = self.key("preprocess").with(source);
        for (name, value) in &self.options.defines {
            key = key.with(name).with(value);
        }
        let name = format!("{}.i", key.name());
        if let Some(text) = self.cache.read(&name) {
            return Ok(text);
        }
        let mut arguments: Vec<String> = [
            "-E",
            "-x",
            "c++",
            "-std=c++17",
            "-nostdinc",
            "-undef",
            "-w",
            "-fno-caret-diagnostics",
        ]
        .map(String::from)
        .to_vec();
        arguments.push(format!("-I{}", self.include.display()));
        arguments.push(format!(
            "-include{}",
            self.include.join("softmetal/macros.h").display()
        ));
        arguments.extend(versions(&self.options));
        arguments.extend(
            self.options
                .defines
                .iter()
                .map(|(name, value)| format!("-D{name}={value}")),
        );
        arguments.push("-".into());
        let output = self
            .clang
            .run(&arguments, &format!("#line 1 \"{MAIN_FILE}\"\n{source}\n"))?;
        if !output.status.success() {
            return Err(diagnostics::failure(&output, |message| message));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        self.cache.write(&name, &text)?;
        Ok(text)
    }

    /// Lets clang look at everything, once for each text.
    pub(crate) fn check(&self, program: &Program, emitted: &Output) -> Result<(), CompileError> {
        let strict = if self.options.strict {
            "strict"
        } else {
            "lenient"
        };
        let name = format!(
            "{}.checked",
            self.key("check").with(strict).with(&emitted.text).name()
        );
        if self.cache.path(&name).exists() {
            return Ok(());
        }
        let mut arguments = self.arguments()?;
        arguments.extend(
            [
                "-fsyntax-only",
                "-Wno-everything",
                "-Wimplicit-float-conversion",
                "-Wglobal-constructors",
                "-",
            ]
            .map(String::from),
        );
        let output = self.clang.run(&arguments, &emitted.text)?;
        let source = &program.source;
        let place = |message| diagnostics::with_column(message, source.files(), &emitted.columns);
        if !output.status.success() {
            return Err(diagnostics::failure(&output, place));
        }
        if self.options.strict {
            let mut refused = diagnostics::strict_warnings(&output);
            refused.retain(|message| {
                let derived = || {
                    program
                        .constants
                        .is_derived_at(source, &message.file, message.line)
                };
                message.text != diagnostics::NOT_CONSTANT || !derived()
            });
            if !refused.is_empty() {
                return Err(CompileError::source(
                    refused.into_iter().map(place).collect(),
                ));
            }
        }
        self.cache.write(&name, "")?;
        Ok(())
    }

    /// Lets clang look at address spaces, once for each text.
    pub(crate) fn check_spaces(
        &self,
        source: &Source,
        emitted: &Output,
    ) -> Result<(), CompileError> {
        let name = format!("{}.spaces", self.key("spaces").with(&emitted.text).name());
        if self.cache.path(&name).exists() {
            return Ok(());
        }
        let mut flags: Vec<String> = SPACES.iter().map(|flag| flag.to_string()).collect();
        flags.extend(versions(&self.options));
        let header = self.precompiled("spaces", &flags, "cl-header")?;
        flags.extend(["-fsyntax-only", "-x", "clcpp", "-include-pch"].map(String::from));
        flags.push(header.display().to_string());
        flags.extend(["-Wno-everything", "-Wimplicit-float-conversion", "-"].map(String::from));
        let output = self.clang.run(&flags, &emitted.text)?;
        let place = |message| diagnostics::with_column(message, source.files(), &emitted.columns);
        let mut refused = spaces::mistakes(&output);
        refused.extend(diagnostics::strict_warnings(&output));
        let refused: Vec<_> = refused.into_iter().map(place).collect();
        if !refused.is_empty() {
            return Err(CompileError::source(refused));
        }
        self.cache.write(&name, "")?;
        Ok(())
    }

    /// The path of the shared object made from the text.
    pub(crate) fn compile(
        &self,
        source: &Source,
        emitted: &Output,
    ) -> Result<PathBuf, CompileError> {
        let path = self.cache.path(&format!(
            "{}.so",
            self.key("object").with(&emitted.text).name()
        ));
        if path.exists() {
            return Ok(path);
        }
        let arguments = self.arguments()?;
        self.cache.make(&path, |temporary| {
            let mut arguments = arguments;
            arguments.extend(
                [
                    "-w",
                    "-shared",
                    "-nostartfiles",
                    "-Wl,-z,defs",
                    "-",
                    "-lm",
                    "-o",
                ]
                .map(String::from),
            );
            arguments.push(temporary.display().to_string());
            let output = self.clang.run(&arguments, &emitted.text)?;
            let place =
                |message| diagnostics::with_column(message, source.files(), &emitted.columns);
            if output.status.success() {
                Ok(())
            } else {
                Err(self.explain(&output, place))
            }
        })?;
        Ok(path)
    }

    fn explain(&self, output: &ProcessOutput, place: impl Fn(Message) -> Message) -> CompileError {
        let text = String::from_utf8_lossy(&output.stderr);
        if let Some(at) = text.find(UNSET) {
            let name: String = text[at + UNSET.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            return CompileError::Constants(format!(
                "function constant '{name}' is used but has no value"
            ));
        }
        if text.contains("unable to execute command") || text.contains("invalid linker name") {
            return CompileError::toolchain(format!(
                "clang finds no linker (Debian: apt-get install binutils gcc): {text}"
            ));
        }
        diagnostics::failure(output, place)
    }

    fn arguments(&self) -> Result<Vec<String>, CompileError> {
        let mut arguments = self.flags.clone();
        arguments.extend(["-nostdinc", "-nostdinc++"].map(String::from));
        let header = self.precompiled("header", &arguments, "c++-header")?;
        arguments.extend(["-x", "c++", "-include-pch"].map(String::from));
        arguments.push(header.display().to_string());
        Ok(arguments)
    }

    /// The headers, parsed once and for all.
    fn precompiled(
        &self,
        kind: &str,
        flags: &[String],
        language: &str,
    ) -> Result<PathBuf, CompileError> {
        let path = self.cache.path(&format!("{}.pch", self.key(kind).name()));
        static BUILDING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        if path.exists() {
            return Ok(path);
        }
        self.cache.make(&path, |temporary| {
            let mut arguments = flags.to_vec();
            // Another process may write the same headers again: their time does not count.
            arguments.extend(["-Xclang", "-fno-pch-timestamp", "-w", "-x"].map(String::from));
            arguments.push(language.into());
            let header = self.include.join("softmetal/msl.h");
            arguments.push(header.display().to_string());
            arguments.push("-o".into());
            arguments.push(temporary.display().to_string());
            let output = self.clang.run(&arguments, "")?;
            if output.status.success() {
                return Ok(());
            }
            let text = String::from_utf8_lossy(&output.stderr);
            Err(CompileError::toolchain(format!(
                "softmetal's own headers don't compile: {text}"
            )))
        })?;
        Ok(path)
    }
}

/// The instruction set: half needs F16C to be fast.
fn machine() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("f16c")
        && std::arch::is_x86_feature_detected!("fma")
    {
        return Some("-march=x86-64-v3");
    }
    None
}

/// Macros that depend on the language version and on the choice of functions.
fn versions(options: &Options) -> Vec<String> {
    let mut defines = vec![
        "-D__METAL__=1".to_owned(),
        format!("-D__METAL_VERSION__={}", options.language.number()),
    ];
    if cfg!(target_os = "macos") || cfg!(target_os = "linux") {
        defines.push("-D__METAL_MACOS__=1".into());
    }
    if options.language.has_bfloat() {
        defines.push("-D__HAVE_BFLOAT__=1".into());
    }
    if options.precise_functions {
        defines.push("-DSOFTMETAL_PRECISE_FUNCTIONS=1".into());
    }
    defines
}
