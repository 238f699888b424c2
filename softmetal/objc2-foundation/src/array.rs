//! `NSArray`

use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::{AnyObject, NSObject, NSObjectProtocol};
use objc2::Message;
use std::fmt;
use std::marker::PhantomData;

struct Elements(Vec<Retained<AnyObject>>);
impl State for Elements {}

/// An immutable list of objects.
#[repr(C)]
pub struct NSArray<O: ?Sized = AnyObject> {
    object: NSObject,
    elements: PhantomData<O>,
}

// SAFETY: an opaque view of an object.
unsafe impl<O: ?Sized> Message for NSArray<O> {}
// SAFETY: identity needs nothing more.
unsafe impl<O: ?Sized> NSObjectProtocol for NSArray<O> {}

impl<O: Message> NSArray<O> {
    pub fn from_slice(elements: &[&O]) -> Retained<Self> {
        Self::from_retained_slice(
            &elements
                .iter()
                .map(|element| element.retain())
                .collect::<Vec<_>>(),
        )
    }

    pub fn from_retained_slice(elements: &[Retained<O>]) -> Retained<Self> {
        let elements = elements
            .iter()
            // SAFETY: every object is an `AnyObject`.
            .map(|element| unsafe { Retained::cast_unchecked(element.clone()) })
            .collect();
        object::new(Elements(elements))
    }

    pub fn to_vec(&self) -> Vec<Retained<O>> {
        self.elements()
            .iter()
            // SAFETY: the array was made of such objects.
            .map(|element| unsafe { Retained::cast_unchecked(element.clone()) })
            .collect()
    }

    pub fn count(&self) -> usize {
        self.elements().len()
    }

    pub fn len(&self) -> usize {
        self.count()
    }

    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Panics if there is no such element, where the real one raises an exception.
    pub fn objectAtIndex(&self, index: usize) -> Retained<O> {
        let element = self.elements()[index].clone();
        // SAFETY: the array was made of such objects.
        unsafe { Retained::cast_unchecked(element) }
    }

    fn elements(&self) -> &[Retained<AnyObject>] {
        &object::expect::<Elements, _>(self).0
    }
}

impl<O: Message + fmt::Debug> fmt::Debug for NSArray<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.to_vec()).finish()
    }
}
