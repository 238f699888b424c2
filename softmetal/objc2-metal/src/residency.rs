//! `MTLResidencySet`

use crate::resource::MTLAllocation;
use objc2::object::{self, State};
use objc2::rc::Retained;
use objc2::runtime::{NSObject, NSObjectProtocol, ProtocolObject};
use objc2::Message;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All memory is always resident: the set only knows what was put into it, by address.
#[derive(Default)]
struct Residents(Mutex<HashSet<usize>>);
impl State for Residents {}

pub(crate) fn new() -> Retained<ProtocolObject<dyn MTLResidencySet>> {
    object::new(Residents::default())
}

struct Nothing;
impl State for Nothing {}

objc2::class!(
    /// How to make a residency set.
    MTLResidencySetDescriptor: NSObject, Nothing
);

impl MTLResidencySetDescriptor {
    pub fn new() -> Retained<Self> {
        object::new(Nothing)
    }
}

crate::protocol!(MTLResidencySet);

/// Memory that is to stay where the GPU can reach it.
pub unsafe trait MTLResidencySet: NSObjectProtocol {
    fn requestResidency(&self)
    where
        Self: Sized + Message,
    {
    }

    fn endResidency(&self)
    where
        Self: Sized + Message,
    {
    }

    fn addAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>)
    where
        Self: Sized + Message,
    {
        residents(self).insert(address(allocation));
    }

    fn removeAllocation(&self, allocation: &ProtocolObject<dyn MTLAllocation>)
    where
        Self: Sized + Message,
    {
        residents(self).remove(&address(allocation));
    }

    fn removeAllAllocations(&self)
    where
        Self: Sized + Message,
    {
        residents(self).clear();
    }

    fn containsAllocation(&self, an_allocation: &ProtocolObject<dyn MTLAllocation>) -> bool
    where
        Self: Sized + Message,
    {
        residents(self).contains(&address(an_allocation))
    }

    fn allocationCount(&self) -> usize
    where
        Self: Sized + Message,
    {
        residents(self).len()
    }

    fn commit(&self)
    where
        Self: Sized + Message,
    {
    }
}

fn residents<T: Message>(set: &T) -> MutexGuard<'_, HashSet<usize>> {
    object::expect::<Residents, _>(set)
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

fn address(allocation: &ProtocolObject<dyn MTLAllocation>) -> usize {
    std::ptr::from_ref(allocation).addr()
}
