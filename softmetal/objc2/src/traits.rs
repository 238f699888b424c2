//! The traits of classes and objects.

use crate::rc::{Allocated, Retained};
use std::ptr::NonNull;

/// A type whose references point to an object.
///
/// # Safety
/// References to the type are only made from objects of [`crate::object::new`].
pub unsafe trait Message {
    /// One more owner of this object.
    fn retain(&self) -> Retained<Self>
    where
        Self: Sized,
    {
        let object = NonNull::from(self);
        // SAFETY: a reference points to a live object, whose count goes up by the one that `Retained` takes.
        unsafe {
            crate::object::retain(object);
            Retained::from_non_null(object)
        }
    }
}

/// A class.
///
/// # Safety
/// The type has the layout of its superclass.
pub unsafe trait ClassType: Message {
    type Super: Message;
    const NAME: &'static str;
}

/// A class whose objects may be made on any thread.
///
/// # Safety
/// That is so.
pub unsafe trait AnyThread {
    /// A place for an object, to be given to one of its `init` functions.
    fn alloc() -> Allocated<Self>
    where
        Self: Sized + ClassType,
    {
        Allocated::new()
    }
}
