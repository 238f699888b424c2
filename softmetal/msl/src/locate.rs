//! From a code address to the author's line.

use softmetal_abi::Location;
use std::path::PathBuf;
use std::sync::Mutex;

type Reader = gimli::EndianArcSlice<gimli::NativeEndian>;

/// The line table of a shared object, read when it is first asked for.
pub(crate) struct Lines {
    path: PathBuf,
    base: usize,
    context: Mutex<Option<Option<addr2line::Context<Reader>>>>,
}

impl Lines {
    pub(crate) fn new(path: PathBuf, base: usize) -> Self {
        Self {
            path,
            base,
            context: Mutex::new(None),
        }
    }

    pub(crate) fn locate(&self, pc: usize) -> Option<Location> {
        let address = pc.checked_sub(self.base)? as u64;
        let mut context = self
            .context
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let context = context.get_or_insert_with(|| read(&self.path)).as_ref()?;
        let mut frames = context.find_frames(address).skip_all_loads().ok()?;
        while let Ok(Some(frame)) = frames.next() {
            let Some((file, line, column)) = frame
                .location
                .and_then(|l| Some((l.file?, l.line?, l.column.unwrap_or(0))))
            else {
                continue;
            };
            if !file.contains("/softmetal/") && line > 0 {
                return Some(Location {
                    file: file.trim_start_matches("./").to_owned(),
                    line,
                    column,
                });
            }
        }
        None
    }
}

fn read(path: &PathBuf) -> Option<addr2line::Context<Reader>> {
    use object::{Object, ObjectSection};
    let data = std::fs::read(path).ok()?;
    let file = object::File::parse(&*data).ok()?;
    let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let section = file.section_by_name(id.name());
        let bytes = section
            .and_then(|section| section.uncompressed_data().ok())
            .unwrap_or_default();
        Ok(Reader::new(bytes.into(), gimli::NativeEndian))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}
