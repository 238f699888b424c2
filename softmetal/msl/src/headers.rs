//! Our Metal headers, carried in the binary and written to the cache for clang to read.

use crate::cache::{Cache, Key};
use crate::error::CompileError;
use std::path::PathBuf;

/// Path below `include/` and text of each header.
pub(crate) static HEADERS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/headers.rs"));

/// The directory that holds them, whole.
pub(crate) fn install(cache: &Cache) -> Result<PathBuf, CompileError> {
    let name = format!("include-{}", fingerprint());
    let dir = cache.path(&name);
    let complete = dir.join("complete");
    if complete.exists() {
        return Ok(dir);
    }
    for (path, text) in HEADERS {
        cache.write(&format!("{name}/{path}"), text)?;
    }
    cache.write(&format!("{name}/complete"), "")?;
    Ok(dir)
}

/// A hash of all headers.
pub(crate) fn fingerprint() -> String {
    HEADERS
        .iter()
        .fold(Key::new("headers"), |key, (path, text)| {
            key.with(path).with(text)
        })
        .name()
}
