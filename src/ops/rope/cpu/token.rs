//! The heads of one position, as a decoder's next token has them: in f32 and with few elements the arithmetic takes less time than
//! [`Walk`](super::Walk) takes to share it out.

use super::{HeadRow, Rotate};
use crate::cpu::alloc;
use crate::cpu::simd::{dispatch, Kernel, Simd};
use crate::op::on_cpu::Arg;
use crate::ops::rope::{RopeLayout, RopePairs, RopePositions, Rotation};
use candle_core::CpuStorage;

/// The most elements that are rotated here.
const FEW: usize = 8 * 1024;

/// The rotated heads, or `None` for what [`Walk`](super::Walk) must do. The arguments have been checked.
pub fn forward(
    rotation: &Rotation,
    (x, xl): Arg,
    [(cos, cl), (sin, sl)]: [Arg; 2],
) -> Option<CpuStorage> {
    let (CpuStorage::F32(x), CpuStorage::F32(cos), CpuStorage::F32(sin)) = (x, cos, sin) else {
        return None;
    };
    let rope = &rotation.rope;
    let RopePositions::From(first) = rope.positions else {
        return None;
    };
    if rope.sections.is_some() || rotation.inverse || rope.pairs != RopePairs::Half {
        return None;
    }
    let (&[.., heads_or_positions, positions_or_heads, dim], &[_, pairs]) = (xl.dims(), cl.dims())
    else {
        return None;
    };
    let positions = match rope.layout {
        RopeLayout::HeadsFirst => positions_or_heads,
        RopeLayout::PositionsFirst => heads_or_positions,
    };
    let count = xl.shape().elem_count();
    let dense = xl.is_contiguous() && cl.is_contiguous() && sl.is_contiguous();
    if positions != 1 || !dense || !(1..=FEW).contains(&count) {
        return None;
    }
    let x = x.get(xl.start_offset()..)?.get(..count)?;
    let row = |table: &[f32], start: usize| -> Option<*const f32> {
        let row = table.get(start + first * pairs..)?.get(..pairs)?;
        Some(row.as_ptr())
    };
    let tables = [row(cos, cl.start_offset())?, row(sin, sl.start_offset())?];
    let rotate = Rotate::<false> { pairs, dim };
    // SAFETY: the output has x's elements, whole heads of `dim`, and the kernel writes all of them. The tables have `pairs`
    // numbers each, which a head has room for by the op's check.
    Some(CpuStorage::F32(unsafe {
        alloc::build(count, |y| {
            dispatch(Token {
                x,
                y,
                rotate,
                tables,
            })
        })
    }))
}

/// Heads one behind the other that are all rotated by the same angles. Made by [`forward`] alone.
struct Token<'a> {
    x: &'a [f32],
    y: *mut f32,
    rotate: Rotate<false>,
    tables: [*const f32; 2],
}

impl Kernel for Token<'_> {
    const WIDE: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut head = 0;
        while head < self.x.len() {
            // SAFETY: x and y have whole heads; the tables are as `forward` made them.
            unsafe {
                let (x, y) = (self.x.as_ptr().add(head), self.y.add(head));
                self.rotate.row(s, 0, 0, [x], y, self.tables);
            }
            head += self.rotate.dim;
        }
    }
}
