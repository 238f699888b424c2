//! A look-alike of the `objc2-foundation` crate: the few classes that Candle and Metal's API need.

#![allow(non_snake_case)]

mod array;
mod data;
mod error;
mod range;
mod string;
mod url;

pub use array::NSArray;
pub use data::NSData;
pub use error::{NSError, NSErrorDomain};
pub use objc2::ffi::{NSInteger, NSUInteger};
pub use objc2::runtime::{NSObject, NSObjectProtocol};
pub use range::NSRange;
pub use string::NSString;
pub use url::NSURL;
