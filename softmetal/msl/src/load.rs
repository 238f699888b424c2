//! Loading a shared object and reading what it says about its kernels.

use crate::emit::{entry_symbol, table_symbol, target_symbol};
use crate::error::CompileError;
use crate::kernel::Kernel;
use crate::locate::Lines;
use object::{Object as _, ObjectSection, ObjectSegment, ObjectSymbol};
use softmetal_abi::{Bind, Entry, Function, Param};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A shared object in memory.
pub(crate) struct Object {
    library: Arc<libloading::Library>,
    path: PathBuf,
    image: Vec<Range<usize>>,
    lines: Arc<Lines>,
    /// Slot, size, alignment and owner of each threadgroup variable.
    variables: Vec<[u64; 4]>,
    /// Limit and owner.
    limits: Vec<[u64; 2]>,
}

impl Object {
    pub(crate) fn open(path: &Path) -> Result<Self, CompileError> {
        let failed = |error: &dyn std::fmt::Display| {
            CompileError::toolchain(format!("{}: {error}", path.display()))
        };
        // SAFETY: the object was compiled by us from checked source; it has no initialisers.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| failed(&error))?;
        let data = std::fs::read(path).map_err(|error| failed(&error))?;
        let file = object::File::parse(&*data).map_err(|error| failed(&error))?;
        let recorded = file
            .dynamic_symbols()
            .find(|symbol| symbol.name() == Ok(BIND))
            .ok_or_else(|| failed(&"softmetal_bind is missing"))?
            .address() as usize;
        let base = address(&library, BIND).map_err(|error| failed(&error))? - recorded;
        let image = file
            .segments()
            .map(|segment| {
                let start = base + segment.address() as usize;
                start..start + segment.size() as usize
            })
            .collect();
        Ok(Self {
            library: Arc::new(library),
            path: path.to_owned(),
            image,
            lines: Arc::new(Lines::new(path.to_owned(), base)),
            variables: records(&file, base, "softmetal_variables"),
            limits: records(&file, base, "softmetal_limits"),
        })
    }

    fn address(&self, symbol: &str) -> Result<usize, CompileError> {
        address(&self.library, symbol)
            .map_err(|error| CompileError::toolchain(format!("{}: {error}", self.path.display())))
    }

    /// The function whose entry has this place in the object.
    pub(crate) fn function(
        &self,
        name: &str,
        kernel: &Kernel,
        place: usize,
    ) -> Result<Function, CompileError> {
        let entry = self.address(&entry_symbol(place))?;
        let bind = self.address(BIND)?;
        let table = self.address(&table_symbol(place))? as *const [u64; 3];
        let target = self.address(&target_symbol(place))? as *const u64;
        // SAFETY: `emit` defines the symbol as the address of the kernel.
        let target = unsafe { *target };
        let params = kernel.bound().enumerate().map(|(i, bound)| {
            // SAFETY: the table has a row for each bound argument of the kernel.
            let [size, align, enabled] = unsafe { *table.add(i) };
            Param {
                name: bound.name.clone(),
                space: bound.space,
                index: bound.index,
                read_only: bound.read_only,
                enabled: enabled != 0,
                reference: bound.reference,
                size: size as usize,
                align: align as usize,
            }
        });
        let limit = self
            .limits
            .iter()
            .find(|[_, owner]| *owner == target || *owner == 0);
        let lines = self.lines.clone();
        Ok(Function {
            name: name.to_owned(),
            // SAFETY: `emit` writes the entry with this signature.
            entry: unsafe { std::mem::transmute::<usize, Entry>(entry) },
            // SAFETY: softmetal/runtime.h defines it with this signature.
            bind: unsafe { std::mem::transmute::<usize, Bind>(bind) },
            params: params.collect(),
            max_threads: limit.map(|[limit, _]| *limit as u32),
            static_threadgroup: threadgroup_bytes(&self.variables, target),
            image: self.image.clone(),
            locate: Arc::new(move |pc| lines.locate(pc)),
            keep: self.library.clone(),
        })
    }
}

const BIND: &str = "softmetal_bind";

fn address(library: &libloading::Library, symbol: &str) -> Result<usize, libloading::Error> {
    // SAFETY: only the address is taken; the callers know the types.
    let found = unsafe { library.get::<*const ()>(symbol.as_bytes()) }?;
    Ok(*found as usize)
}

/// What the kernels left in a section, with addresses as the loader has made them.
fn records<const N: usize>(file: &object::File<'_>, base: usize, name: &str) -> Vec<[u64; N]> {
    let Some(section) = file.section_by_name(name) else {
        return Vec::new();
    };
    let start = (base + section.address() as usize) as *const [u64; N];
    let count = section.size() as usize / size_of::<[u64; N]>();
    // SAFETY: the section lies in a loaded segment and is made of such records.
    (0..count).map(|i| unsafe { *start.add(i) }).collect()
}

/// The end of a kernel's last variable when they lie one behind the other.
fn threadgroup_bytes(variables: &[[u64; 4]], kernel: u64) -> usize {
    let mut slots: Vec<_> = variables
        .iter()
        .filter(|[.., owner]| *owner == kernel || *owner == 0)
        .map(|[slot, size, align, _]| (slot, size, align))
        .collect();
    slots.sort_unstable();
    slots.dedup();
    let end = slots.iter().fold(0u64, |end, (_, size, align)| {
        end.next_multiple_of((**align).max(1)) + **size
    });
    end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threadgroup_variables_of_a_kernel_are_added_up_and_aligned() {
        assert_eq!(threadgroup_bytes(&[], 9), 0);
        let variables = [[3, 5, 1, 9], [4, 16, 8, 9], [4, 160, 8, 8], [3, 5, 1, 9]];
        assert_eq!(threadgroup_bytes(&variables, 9), 24);
        assert_eq!(threadgroup_bytes(&[[1, 4, 4, 0]], 9), 4);
    }
}
