//! `NSURL`

use crate::NSString;
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use std::path::{Path, PathBuf};

struct Location(PathBuf);
impl State for Location {}

objc2::class!(
    /// The address of a file.
    NSURL: NSObject, Location
);

impl NSURL {
    pub fn from_file_path<P: AsRef<Path>>(path: P) -> Option<Retained<Self>> {
        let path = std::path::absolute(path).ok()?;
        Some(object::new(Location(path)))
    }

    pub fn fileURLWithPath(path: &NSString) -> Retained<Self> {
        object::new(Location(PathBuf::from(path.to_string())))
    }

    pub fn to_file_path(&self) -> Option<PathBuf> {
        Some(self.state().0.clone())
    }
}
