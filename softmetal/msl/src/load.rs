//! Loading a shared object and reading what it says about its kernels.

use crate::emit::{entry_symbol, table_symbol};
use crate::error::CompileError;
use crate::kernel::Kernel;
use crate::locate::Lines;
use object::{Object, ObjectSection, ObjectSegment};
use softmetal_abi::{Bind, Entry, Function, Param};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub(crate) fn function(
    path: &Path,
    name: &str,
    kernel: &Kernel,
    place: usize,
) -> Result<Function, CompileError> {
    let failed = |error: &dyn std::fmt::Display| {
        CompileError::toolchain(format!("{}: {error}", path.display()))
    };
    // SAFETY: the object was compiled by us from checked source; it has no initialisers.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| failed(&error))?;
    let symbol = |symbol: &str| -> Result<usize, CompileError> {
        // SAFETY: only the address is taken; the callers below know the types.
        let found = unsafe { library.get::<*const ()>(symbol.as_bytes()) }
            .map_err(|error| failed(&error))?;
        Ok(*found as usize)
    };
    let entry = symbol(&entry_symbol(place))?;
    let bind = symbol("softmetal_bind")?;
    let table = symbol(&table_symbol(place))? as *const [u64; 3];
    let params = kernel
        .bound()
        .enumerate()
        .map(|(i, bound)| {
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
        })
        .collect();
    let data = std::fs::read(path).map_err(|error| failed(&error))?;
    let file = object::File::parse(&*data).map_err(|error| failed(&error))?;
    let recorded = entry_address(&file, place).ok_or_else(|| failed(&"the entry has no symbol"))?;
    let base = entry - recorded;
    let image = file
        .segments()
        .map(|segment| {
            base + segment.address() as usize..base + (segment.address() + segment.size()) as usize
        })
        .collect();
    let lines = Lines::new(path.to_owned(), base);
    Ok(Function {
        name: name.to_owned(),
        // SAFETY: `emit` writes the entry with this signature.
        entry: unsafe { std::mem::transmute::<usize, Entry>(entry) },
        // SAFETY: softmetal/runtime.h defines it with this signature.
        bind: unsafe { std::mem::transmute::<usize, Bind>(bind) },
        params,
        max_threads: records(&file, "softmetal_limits")
            .first()
            .map(|limit| *limit as u32),
        static_threadgroup: threadgroup_bytes(&records(&file, "softmetal_variables")),
        image,
        locate: Arc::new(move |pc| lines.locate(pc)),
        keep: Arc::new(library),
    })
}

fn entry_address(file: &object::File<'_>, place: usize) -> Option<usize> {
    use object::ObjectSymbol;
    let name = entry_symbol(place);
    let mut symbols = file.dynamic_symbols();
    symbols
        .find(|symbol| symbol.name() == Ok(&name))
        .map(|symbol| symbol.address() as usize)
}

/// The numbers that the kernels left in a section.
fn records(file: &object::File<'_>, section: &str) -> Vec<u64> {
    let data = file
        .section_by_name(section)
        .and_then(|section| section.data().ok())
        .unwrap_or_default();
    let words = data.chunks_exact(8);
    words
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
        .collect()
}

/// The end of the last variable when they lie one behind the other. A record is slot, size, alignment and a
/// filler that lets records follow each other without gaps.
fn threadgroup_bytes(records: &[u64]) -> usize {
    let slots: HashMap<u64, (u64, u64)> = records
        .chunks_exact(4)
        .map(|record| (record[0], (record[1], record[2])))
        .collect();
    let mut slots: Vec<_> = slots.into_iter().collect();
    slots.sort_unstable();
    let end = slots.iter().fold(0u64, |end, (_, (size, align))| {
        end.next_multiple_of((*align).max(1)) + size
    });
    end as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threadgroup_variables_are_added_up_once_and_aligned() {
        assert_eq!(threadgroup_bytes(&[]), 0);
        assert_eq!(threadgroup_bytes(&[3, 5, 1, 0, 4, 16, 8, 0]), 24);
        assert_eq!(threadgroup_bytes(&[3, 5, 1, 0, 3, 5, 1, 0]), 5);
    }
}
