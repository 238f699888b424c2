//! Objects behind the look-alike types: a counted header followed by a Rust value.

use crate::rc::Retained;
use crate::runtime::AnyObject;
use crate::Message;
use std::any::{type_name, TypeId};
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicUsize, Ordering};

/// What an object is made of.
pub trait State: 'static {
    /// The answer to a message without arguments, if this object knows it.
    fn send(&self, _selector: &str) -> Option<*const AnyObject> {
        None
    }
}

#[repr(C)]
struct Header {
    count: AtomicUsize,
    type_id: TypeId,
    type_name: &'static str,
    free: unsafe fn(NonNull<Header>),
    send: unsafe fn(NonNull<Header>, &str) -> Option<*const AnyObject>,
}

#[repr(C)]
struct Instance<S> {
    header: Header,
    state: S,
}

/// Makes an object of type `T` (a class or a protocol object) out of its state.
pub fn new<T: Message, S: State>(state: S) -> Retained<T> {
    let instance = Box::new(Instance {
        header: Header {
            count: AtomicUsize::new(1),
            type_id: TypeId::of::<S>(),
            type_name: type_name::<S>(),
            free: free::<S>,
            send: send_to::<S>,
        },
        state,
    });
    let pointer = NonNull::from(Box::leak(instance)).cast::<T>();
    // SAFETY: every `Message` type is an opaque view of such an allocation, and its count is ours.
    unsafe { Retained::from_non_null(pointer) }
}

/// The state of an object, if it is an `S`.
pub fn state<S: State, T: ?Sized + Message>(object: &T) -> Option<&S> {
    let header = header(NonNull::from(object));
    // SAFETY: the object lives as long as the reference to it, and its header is never written but for the count.
    let is_it = unsafe { header.as_ref() }.type_id == TypeId::of::<S>();
    // SAFETY: the header belongs to an `Instance<S>`, as its type says.
    is_it.then(|| unsafe { &header.cast::<Instance<S>>().as_ref().state })
}

/// The state of an object of a class that is always made of `S`.
///
/// Panics for an object that was made otherwise, such as a pointer cast to a protocol it doesn't have.
#[track_caller]
pub fn expect<S: State, T: ?Sized + Message>(object: &T) -> &S {
    state(object).unwrap_or_else(|| {
        // SAFETY: as in `state`.
        let found = unsafe { header(NonNull::from(object)).as_ref() }.type_name;
        panic!(
            "softmetal: expected a {}, found a {found}",
            type_name::<S>()
        )
    })
}

/// Sends a message without arguments.
///
/// # Safety
/// None is asked for; but the real `msg_send!` is unsafe, and so must its callers be.
#[track_caller]
pub unsafe fn send<T: ?Sized + Message>(object: &T, selector: &str) -> *const AnyObject {
    let header = header(NonNull::from(object));
    // SAFETY: the object is alive, and `send` was made for its type.
    let (answer, name) = unsafe {
        (
            (header.as_ref().send)(header, selector),
            header.as_ref().type_name,
        )
    };
    answer.unwrap_or_else(|| panic!("softmetal: a {name} does not know the selector {selector}"))
}

fn header<T: ?Sized>(object: NonNull<T>) -> NonNull<Header> {
    object.cast()
}

/// # Safety
/// `object` is a live object.
pub(crate) unsafe fn retain<T: ?Sized>(object: NonNull<T>) {
    // SAFETY: by the caller.
    unsafe { header(object).as_ref() }
        .count
        .fetch_add(1, Ordering::Relaxed);
}

/// # Safety
/// `object` is a live object, and the caller gives up one of its counts.
pub(crate) unsafe fn release<T: ?Sized>(object: NonNull<T>) {
    let header = header(object);
    // SAFETY: by the caller.
    let (count, free) = unsafe { (&header.as_ref().count, header.as_ref().free) };
    if count.fetch_sub(1, Ordering::Release) == 1 {
        fence(Ordering::Acquire);
        // SAFETY: that was the last count.
        unsafe { free(header) }
    }
}

unsafe fn free<S>(header: NonNull<Header>) {
    // SAFETY: the header belongs to a leaked `Box<Instance<S>>` that nobody refers to any more.
    drop(unsafe { Box::from_raw(header.cast::<Instance<S>>().as_ptr()) });
}

unsafe fn send_to<S: State>(header: NonNull<Header>, selector: &str) -> Option<*const AnyObject> {
    // SAFETY: the header belongs to an `Instance<S>`.
    unsafe { &header.cast::<Instance<S>>().as_ref().state }.send(selector)
}

/// Declares a class: an opaque view of an object whose state is `$state`.
///
/// `class!(Name: Super, State)` gives `Name` with `Deref` to `Super` and a private `fn state(&self) -> &State`.
#[macro_export]
macro_rules! class {
    ($(#[$meta:meta])* $name:ident : $super:ty, $state:ty) => {
        $(#[$meta])*
        #[repr(transparent)]
        pub struct $name($super);

        // SAFETY: a transparent view of an object.
        unsafe impl $crate::Message for $name {}
        // SAFETY: objects of this class are made by this crate alone, as views of the superclass.
        unsafe impl $crate::ClassType for $name {
            type Super = $super;
            const NAME: &'static str = stringify!($name);
        }
        // SAFETY: no class here is tied to the main thread.
        unsafe impl $crate::AnyThread for $name {}
        // SAFETY: identity needs nothing more.
        unsafe impl $crate::runtime::NSObjectProtocol for $name {}

        impl ::core::ops::Deref for $name {
            type Target = $super;
            fn deref(&self) -> &$super {
                &self.0
            }
        }

        impl $name {
            #[allow(dead_code)]
            fn state(&self) -> &$state {
                $crate::object::expect(self)
            }
        }
    };
}
