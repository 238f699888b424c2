//! A look-alike of the `objc2` crate for programs that run on softmetal.
//!
//! There is no Objective-C here. An object is a counted allocation of a Rust value, and the types of this
//! crate ([`rc::Retained`], [`runtime::ProtocolObject`] …) are the views of it that the real crate has, with
//! the same names, layouts and bounds. What code written for the real crate does not see is in [`object`].

#![allow(non_snake_case)]

mod availability;
pub mod object;
mod protocol_object;
pub mod rc;
pub mod runtime;
mod traits;

pub use traits::{AnyThread, ClassType, Message};

#[deprecated = "renamed to AnyThread"]
pub use AnyThread as AllocAnyThread;

#[doc(hidden)]
pub use availability::is_available as __is_available;

/// Names as Objective-C has them.
pub mod ffi {
    pub type NSInteger = isize;
    pub type NSUInteger = usize;
}

/// Sends a message without arguments; the answer is a borrowed object.
///
/// Objects answer to the few selectors that [`object::State::send`] knows. Anything else panics, as the real
/// runtime raises an exception for it.
#[macro_export]
macro_rules! msg_send {
    [$object:expr, $selector:ident] => {
        $crate::object::send($object, ::core::stringify!($selector))
    };
}

/// Whether the operating system is at least of some version. This one presents itself as macOS 15.
#[macro_export]
macro_rules! available {
    ($($os:ident = $major:literal $(. $minor:literal)?),* $(,)?) => {
        $crate::__is_available(&[$((::core::stringify!($os), ::core::stringify!($major))),*], false)
    };
    ($($os:ident = $major:literal $(. $minor:literal)?,)* ..) => {
        $crate::__is_available(&[$((::core::stringify!($os), ::core::stringify!($major))),*], true)
    };
}
