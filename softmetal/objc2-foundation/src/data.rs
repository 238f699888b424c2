//! `NSData`

use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::NSObject;

struct Bytes(Vec<u8>);
impl State for Bytes {}

objc2::class!(
    /// Immutable bytes.
    NSData: NSObject, Bytes
);

impl NSData {
    pub fn with_bytes(bytes: &[u8]) -> Retained<Self> {
        object::new(Bytes(bytes.to_vec()))
    }

    pub fn from_vec(bytes: Vec<u8>) -> Retained<Self> {
        object::new(Bytes(bytes))
    }

    pub fn length(&self) -> usize {
        self.state().0.len()
    }

    pub fn to_vec(&self) -> Vec<u8> {
        self.state().0.clone()
    }
}
