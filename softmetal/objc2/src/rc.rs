//! Owners of objects.

use crate::object;
use crate::Message;
use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

/// A counted owner of an object.
#[repr(transparent)]
pub struct Retained<T: ?Sized> {
    pointer: NonNull<T>,
    owns: PhantomData<T>,
}

// SAFETY: counts are atomic; the rest is up to the object's type.
unsafe impl<T: ?Sized + Send + Sync> Send for Retained<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Send + Sync> Sync for Retained<T> {}

impl<T: ?Sized> Retained<T> {
    /// # Safety
    /// `pointer` is an object, and one of its counts passes to the result.
    pub(crate) unsafe fn from_non_null(pointer: NonNull<T>) -> Self {
        Self {
            pointer,
            owns: PhantomData,
        }
    }
}

impl<T: ?Sized + Message> Retained<T> {
    /// # Safety
    /// `pointer` is null, or an object of which one count passes to the result.
    pub unsafe fn from_raw(pointer: *mut T) -> Option<Self> {
        // SAFETY: by the caller.
        NonNull::new(pointer).map(|pointer| unsafe { Self::from_non_null(pointer) })
    }

    pub fn into_raw(this: Self) -> *mut T {
        ManuallyDrop::new(this).pointer.as_ptr()
    }

    pub fn as_ptr(this: &Self) -> *const T {
        this.pointer.as_ptr()
    }
}

impl<T: Message> Retained<T> {
    /// # Safety
    /// `pointer` is null or a live object.
    pub unsafe fn retain(pointer: *mut T) -> Option<Self> {
        // SAFETY: by the caller.
        unsafe { pointer.as_ref() }.map(T::retain)
    }

    /// # Safety
    /// The object is a `U`.
    pub unsafe fn cast_unchecked<U: Message>(this: Self) -> Retained<U> {
        let pointer = ManuallyDrop::new(this).pointer.cast();
        // SAFETY: by the caller; the count is moved.
        unsafe { Retained::from_non_null(pointer) }
    }
}

impl<T: Message> Clone for Retained<T> {
    fn clone(&self) -> Self {
        self.retain()
    }
}

impl<T: ?Sized> Drop for Retained<T> {
    fn drop(&mut self) {
        // SAFETY: this owner has one count, which it gives up.
        unsafe { object::release(self.pointer) }
    }
}

impl<T: ?Sized> Deref for Retained<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: an object lives as long as it has owners.
        unsafe { self.pointer.as_ref() }
    }
}

impl<T: ?Sized + AsRef<U>, U: ?Sized> AsRef<U> for Retained<T> {
    fn as_ref(&self) -> &U {
        (**self).as_ref()
    }
}

impl<T: ?Sized> Borrow<T> for Retained<T> {
    fn borrow(&self) -> &T {
        self
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Retained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for Retained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> fmt::Pointer for Retained<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.pointer, f)
    }
}

impl<T: ?Sized + PartialEq> PartialEq for Retained<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: ?Sized + Eq> Eq for Retained<T> {}

impl<T: ?Sized + Hash> Hash for Retained<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state)
    }
}

/// A place for an object that is not yet there.
pub struct Allocated<T: ?Sized>(PhantomData<*const T>);

impl<T: ?Sized> Allocated<T> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

/// What [`autoreleasepool`] hands to its closure.
#[derive(Clone, Copy, Debug)]
pub struct AutoreleasePool<'pool>(PhantomData<&'pool ()>);

/// Runs `f`. Objects here are freed with their last owner, so there is nothing to drain.
pub fn autoreleasepool<T, F>(f: F) -> T
where
    F: for<'pool> FnOnce(AutoreleasePool<'pool>) -> T,
{
    f(AutoreleasePool(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{self, State};
    use crate::runtime::AnyObject;
    use std::sync::Arc;

    struct Counted(#[allow(dead_code)] Arc<()>);
    impl State for Counted {}

    #[test]
    fn frees_with_the_last_owner() {
        let value = Arc::new(());
        let first: Retained<AnyObject> = object::new(Counted(value.clone()));
        let second = first.clone();
        assert_eq!(Retained::as_ptr(&first), Retained::as_ptr(&second));
        drop(first);
        assert_eq!(Arc::strong_count(&value), 2);
        assert!(object::state::<Counted, _>(&*second).is_some());
        drop(second);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
