//! `NSString`

use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use std::collections::HashSet;
use std::ffi::{c_char, CString};
use std::fmt;
use std::sync::{LazyLock, Mutex, PoisonError};

struct Text(String);
impl State for Text {}

objc2::class!(
    /// An immutable text.
    NSString: NSObject, Text
);

// SAFETY: its text never changes.
unsafe impl Send for NSString {}
// SAFETY: as above.
unsafe impl Sync for NSString {}

/// C strings that were handed out. Callers read them after the `NSString` is gone, as autoreleased memory
/// permits, so they stay; equal ones are shared.
static C_STRINGS: LazyLock<Mutex<HashSet<&'static std::ffi::CStr>>> = LazyLock::new(Mutex::default);

impl NSString {
    #[allow(clippy::should_implement_trait)]
    pub fn from_str(text: &str) -> Retained<Self> {
        object::new(Text(text.to_string()))
    }

    pub fn new() -> Retained<Self> {
        Self::from_str("")
    }

    /// The number of UTF-16 code units.
    pub fn length(&self) -> usize {
        self.state().0.encode_utf16().count()
    }

    pub fn UTF8String(&self) -> *const c_char {
        let text = self.state().0.replace('\0', "");
        let text = CString::new(text).unwrap_or_default();
        let mut known = C_STRINGS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known.get(text.as_c_str()) {
            return text.as_ptr();
        }
        let text: &'static std::ffi::CStr = Box::leak(text.into_boxed_c_str());
        known.insert(text);
        text.as_ptr()
    }
}

impl fmt::Display for NSString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.state().0)
    }
}

impl fmt::Debug for NSString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.state().0, f)
    }
}

impl PartialEq for NSString {
    fn eq(&self, other: &Self) -> bool {
        self.state().0 == other.state().0
    }
}

impl Eq for NSString {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn the_c_string_outlives_the_object() {
        let pointer = NSString::from_str("naïve").UTF8String();
        // SAFETY: C strings stay.
        assert_eq!(unsafe { CStr::from_ptr(pointer) }.to_str(), Ok("naïve"));
        assert_eq!(NSString::from_str("naïve").UTF8String(), pointer);
        assert_eq!(NSString::from_str("naïve").length(), 5);
    }
}
