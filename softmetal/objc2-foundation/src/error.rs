//! `NSError`

use crate::{NSInteger, NSString};
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::NSObject;
use std::fmt;

/// The name of a family of error codes.
pub type NSErrorDomain = NSString;

struct Failure {
    domain: Retained<NSErrorDomain>,
    code: NSInteger,
    description: Retained<NSString>,
}
impl State for Failure {}

objc2::class!(
    /// Why something failed.
    NSError: NSObject, Failure
);

// SAFETY: it never changes.
unsafe impl Send for NSError {}
// SAFETY: as above.
unsafe impl Sync for NSError {}

impl NSError {
    /// An error with a description, which real code passes in a dictionary.
    #[doc(hidden)]
    pub fn describe(domain: &str, code: NSInteger, description: &str) -> Retained<Self> {
        object::new(Failure {
            domain: NSString::from_str(domain),
            code,
            description: NSString::from_str(description),
        })
    }

    pub fn domain(&self) -> Retained<NSErrorDomain> {
        self.state().domain.clone()
    }

    pub fn code(&self) -> NSInteger {
        self.state().code
    }

    pub fn localizedDescription(&self) -> Retained<NSString> {
        self.state().description.clone()
    }
}

impl fmt::Display for NSError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().description.fmt(f)
    }
}

impl fmt::Debug for NSError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure {
            domain,
            code,
            description,
        } = self.state();
        f.debug_struct("NSError")
            .field("domain", domain)
            .field("code", code)
            .field("localizedDescription", description)
            .finish()
    }
}

impl std::error::Error for NSError {}
