//! Files that other packages wrote.

use std::path::{Path, PathBuf};

/// Below tests/fixtures, from this package or from softmetal's.
pub fn fixture(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["tests/fixtures", "../../tests/fixtures"].map(|place| here.join(place));
    let place = places.iter().find(|place| place.is_dir());
    place.expect("tests/fixtures").join(name)
}
