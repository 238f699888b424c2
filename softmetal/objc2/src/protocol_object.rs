//! An object of which only a protocol is known.

use crate::rc::Retained;
use crate::runtime::{AnyObject, NSObjectProtocol};
use crate::Message;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// An object that conforms to the protocol `P`, such as `dyn MTLBuffer`. A pointer to it is thin, and a pointer
/// to it as another protocol of the same object is the same pointer.
#[repr(C)]
pub struct ProtocolObject<P: ?Sized> {
    object: AnyObject,
    protocol: PhantomData<P>,
}

// SAFETY: the protocol says whether its objects may be used from other threads.
unsafe impl<P: ?Sized + Send> Send for ProtocolObject<P> {}
// SAFETY: as above.
unsafe impl<P: ?Sized + Sync> Sync for ProtocolObject<P> {}
// SAFETY: an opaque view of an object.
unsafe impl<P: ?Sized> Message for ProtocolObject<P> {}
// SAFETY: the object has it by way of its protocol.
unsafe impl<P: ?Sized + NSObjectProtocol> NSObjectProtocol for ProtocolObject<P> {}

/// `dyn Protocol: ImplementedBy<T>` if `T` conforms to the protocol.
///
/// # Safety
/// That is so.
pub unsafe trait ImplementedBy<T: ?Sized + Message> {}

impl<P: ?Sized> ProtocolObject<P> {
    pub fn from_ref<T: ?Sized + Message>(object: &T) -> &Self
    where
        P: ImplementedBy<T>,
    {
        // SAFETY: both are opaque views of the object, which conforms to `P`.
        unsafe { NonNull::from(object).cast::<Self>().as_ref() }
    }

    pub fn from_retained<T: Message>(object: Retained<T>) -> Retained<Self>
    where
        P: ImplementedBy<T>,
    {
        // SAFETY: as in `from_ref`.
        unsafe { Retained::cast_unchecked(object) }
    }
}

impl<P: ?Sized + NSObjectProtocol> PartialEq for ProtocolObject<P> {
    fn eq(&self, other: &Self) -> bool {
        self.isEqual(Some(&other.object))
    }
}

impl<P: ?Sized + NSObjectProtocol> Eq for ProtocolObject<P> {}

impl<P: ?Sized + NSObjectProtocol> Hash for ProtocolObject<P> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        NSObjectProtocol::hash(self).hash(state)
    }
}

impl<P: ?Sized + NSObjectProtocol> fmt::Debug for ProtocolObject<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{}: {:p}>", std::any::type_name::<P>(), self)
    }
}

impl<P: ?Sized, Q: ?Sized> AsRef<ProtocolObject<Q>> for ProtocolObject<P>
where
    Q: ImplementedBy<ProtocolObject<P>>,
{
    fn as_ref(&self) -> &ProtocolObject<Q> {
        ProtocolObject::from_ref(self)
    }
}

impl<P: ?Sized> AsRef<AnyObject> for ProtocolObject<P> {
    fn as_ref(&self) -> &AnyObject {
        &self.object
    }
}
