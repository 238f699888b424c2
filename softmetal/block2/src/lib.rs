//! A look-alike of the `block2` crate: closures with a count, behind thin pointers.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A closure of signature `F`, such as `dyn Fn(i32)`. Only ever seen behind a pointer.
#[repr(C)]
pub struct Block<F: ?Sized> {
    _signature: PhantomData<F>,
}

/// The name for a block of a `dyn Fn`.
pub type DynBlock<F> = Block<F>;

/// What lies behind a `Block`: its first field is the block itself.
#[repr(C)]
struct Shared<F: ?Sized> {
    block: Block<F>,
    closure: Box<F>,
}

/// A counted owner of a block.
pub struct RcBlock<F: ?Sized> {
    block: NonNull<Block<F>>,
}

impl<F: ?Sized> RcBlock<F> {
    pub fn new<'f, A, R, Closure>(closure: Closure) -> Self
    where
        A: 'f,
        R: 'f,
        Closure: IntoBlock<'f, A, R, Dyn = F>,
    {
        let shared = Arc::new(Shared {
            block: Block {
                _signature: PhantomData,
            },
            closure: closure.into_dyn(),
        });
        let pointer = Arc::into_raw(shared).cast_mut().cast::<Block<F>>();
        // SAFETY: `Arc::into_raw` is never null.
        Self {
            block: unsafe { NonNull::new_unchecked(pointer) },
        }
    }

    pub fn as_ptr(this: &Self) -> *mut Block<F> {
        this.block.as_ptr()
    }

    /// One more owner of a block.
    ///
    /// # Safety
    /// `block` is null or a live block.
    pub unsafe fn copy(block: *mut Block<F>) -> Option<Self> {
        let block = NonNull::new(block)?;
        // SAFETY: by the caller; all blocks are made by `new`.
        unsafe { Arc::increment_strong_count(block.cast::<Shared<F>>().as_ptr()) };
        Some(Self { block })
    }
}

impl<F: ?Sized> Clone for RcBlock<F> {
    fn clone(&self) -> Self {
        // SAFETY: the block lives as long as this owner.
        unsafe { Arc::increment_strong_count(self.block.cast::<Shared<F>>().as_ptr()) };
        Self { block: self.block }
    }
}

impl<F: ?Sized> Drop for RcBlock<F> {
    fn drop(&mut self) {
        // SAFETY: this owner gives up the count it has.
        drop(unsafe { Arc::from_raw(self.block.cast::<Shared<F>>().as_ptr()) });
    }
}

impl<F: ?Sized> Deref for RcBlock<F> {
    type Target = Block<F>;
    fn deref(&self) -> &Block<F> {
        // SAFETY: the block lives as long as this owner.
        unsafe { self.block.as_ref() }
    }
}

impl<F: ?Sized> fmt::Debug for RcBlock<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RcBlock({:p})", self.block)
    }
}

impl<F: ?Sized + BlockFn> Block<F> {
    pub fn call(&self, arguments: F::Args) -> F::Output {
        let shared = NonNull::from(self).cast::<Shared<F>>();
        // SAFETY: a block is the first field of its `Shared`, which lives as long as the reference.
        let closure = unsafe { &shared.as_ref().closure };
        closure.call_with(arguments)
    }
}

/// The type of a block's closure.
pub trait BlockFn {
    type Args;
    type Output;

    #[doc(hidden)]
    fn call_with(&self, arguments: Self::Args) -> Self::Output;
}

/// A closure that can become a block.
pub trait IntoBlock<'f, A, R> {
    type Dyn: ?Sized + BlockFn<Args = A, Output = R>;

    #[doc(hidden)]
    fn into_dyn(self) -> Box<Self::Dyn>;
}

macro_rules! arity {
    ($($argument:ident $type:ident),*) => {
        impl<'f, $($type,)* R> BlockFn for dyn Fn($($type),*) -> R + 'f {
            type Args = ($($type,)*);
            type Output = R;

            fn call_with(&self, ($($argument,)*): Self::Args) -> R {
                self($($argument),*)
            }
        }

        impl<'f, $($type: 'f,)* R: 'f, Closure> IntoBlock<'f, ($($type,)*), R> for Closure
        where
            Closure: Fn($($type),*) -> R + 'f,
        {
            type Dyn = dyn Fn($($type),*) -> R + 'f;

            fn into_dyn(self) -> Box<Self::Dyn> {
                Box::new(self)
            }
        }
    };
}

arity!();
arity!(a A);
arity!(a A, b B);
arity!(a A, b B, c C);
arity!(a A, b B, c C, d D);

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_copy_keeps_the_closure_alive() {
        let sum = std::rc::Rc::new(Cell::new(0));
        let seen = sum.clone();
        let block = RcBlock::new(move |x: i32| seen.set(seen.get() + x));
        // SAFETY: the block is alive.
        let copy = unsafe { RcBlock::copy(RcBlock::as_ptr(&block)) }.expect("a block");
        drop(block);
        copy.call((3,));
        copy.call((4,));
        assert_eq!(sum.get(), 7);
        drop(copy);
        assert_eq!(std::rc::Rc::strong_count(&sum), 1);
    }
}
