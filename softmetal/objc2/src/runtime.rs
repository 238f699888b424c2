//! Types of objects about which little is known.

use crate::rc::Retained;
use crate::Message;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::{PhantomData, PhantomPinned};

pub use crate::protocol_object::{ImplementedBy, ProtocolObject};

/// An object of any class. Only ever seen behind a pointer.
#[repr(C)]
pub struct AnyObject {
    opaque: UnsafeCell<[u8; 0]>,
    /// Neither `Send`, `Sync` nor `Unpin` unless a subclass says so.
    neutral: PhantomData<(*const u8, PhantomPinned)>,
}

// SAFETY: an opaque view of an object.
unsafe impl Message for AnyObject {}

impl fmt::Debug for AnyObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<AnyObject: {:p}>", self)
    }
}

/// The root of all classes.
#[repr(transparent)]
#[derive(Debug)]
pub struct NSObject(AnyObject);

// SAFETY: an opaque view of an object.
unsafe impl Message for NSObject {}
// SAFETY: identity needs nothing more.
unsafe impl NSObjectProtocol for NSObject {}

impl AsRef<AnyObject> for NSObject {
    fn as_ref(&self) -> &AnyObject {
        &self.0
    }
}

/// What every object can do.
///
/// # Safety
/// The implementing type is an object.
pub unsafe trait NSObjectProtocol {
    /// Objects are equal if they are the same, unless their class says otherwise.
    fn isEqual(&self, other: Option<&AnyObject>) -> bool
    where
        Self: Sized + Message,
    {
        other.is_some_and(|other| std::ptr::addr_eq(self, other))
    }

    fn hash(&self) -> usize
    where
        Self: Sized + Message,
    {
        std::ptr::from_ref(self).addr()
    }

    fn retain(&self) -> Retained<Self>
    where
        Self: Sized + Message,
    {
        Message::retain(self)
    }
}
