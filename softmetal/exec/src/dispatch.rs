//! What the host asks for: a kernel, what is bound to it, and how many threads.

use std::sync::Arc;

use softmetal_abi::{Builtins, Function, SIMD_WIDTH};

use crate::memory::Buffer;

/// Threads that one group may have.
pub const MAX_GROUP: usize = 1024;
/// Bytes of threadgroup memory, variables and arguments together.
pub const MAX_THREADGROUP_MEMORY: usize = 32 * 1024;

#[derive(Clone, Default)]
pub enum Binding {
    #[default]
    None,
    Buffer {
        buffer: Arc<Buffer>,
        offset: usize,
    },
    /// `setBytes`
    Bytes(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// Groups at the far edges may be smaller.
    Threads([usize; 3]),
    Groups([usize; 3]),
}

#[derive(Clone)]
pub struct Dispatch {
    pub function: Arc<Function>,
    /// By `[[buffer(n)]]` index.
    pub buffers: Vec<Binding>,
    /// Index and length of `[[threadgroup(n)]]` arguments.
    pub threadgroup_lengths: Vec<(u32, usize)>,
    pub grid: Grid,
    pub group: [usize; 3],
}

/// The grid in numbers that are known to fit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Threads in each dimension of the grid.
    pub grid: [u32; 3],
    pub group: [u32; 3],
    pub groups: [u32; 3],
}

impl Geometry {
    pub fn new(grid: Grid, group: [usize; 3]) -> Result<Self, String> {
        let volume = group
            .iter()
            .try_fold(1usize, |product, &side| product.checked_mul(side));
        match volume {
            Some(0) => return Err(format!("threadgroup size {group:?} is empty")),
            Some(volume) if volume <= MAX_GROUP => {}
            _ => {
                return Err(format!(
                    "threadgroup size {group:?} has more than {MAX_GROUP} threads"
                ))
            }
        }
        let mut geometry = Self {
            grid: [0; 3],
            group: [0; 3],
            groups: [0; 3],
        };
        for side in 0..3 {
            let (threads, groups) = match grid {
                Grid::Threads(threads) => {
                    (Some(threads[side]), threads[side].div_ceil(group[side]))
                }
                Grid::Groups(groups) => (groups[side].checked_mul(group[side]), groups[side]),
            };
            if groups == 0 {
                return Err(format!("the grid {grid:?} is empty"));
            }
            geometry.grid[side] = threads
                .and_then(|threads| u32::try_from(threads).ok())
                .ok_or_else(|| {
                    format!("the grid {grid:?} has 2^32 or more threads in a dimension")
                })?;
            geometry.group[side] = group[side] as u32;
            geometry.groups[side] = groups as u32;
        }
        Ok(geometry)
    }

    pub fn group_count(&self) -> usize {
        self.groups.iter().map(|&side| side as usize).product()
    }

    pub fn group_position(&self, linear: usize) -> [u32; 3] {
        unfold(linear, self.groups)
    }

    /// The actual size of a group.
    pub fn group_size(&self, position: [u32; 3]) -> [u32; 3] {
        std::array::from_fn(|side| {
            self.group[side].min(self.grid[side] - position[side] * self.group[side])
        })
    }

    /// The inputs of the first thread of a group, to be completed by [`Self::place`].
    pub fn group_builtins(&self, position: [u32; 3]) -> Builtins {
        let size = self.group_size(position);
        Builtins {
            threads_per_grid: self.grid,
            threads_per_threadgroup: size,
            dispatch_threads_per_threadgroup: self.group,
            threadgroup_position_in_grid: position,
            threadgroups_per_grid: self.groups,
            threads_per_simdgroup: SIMD_WIDTH as u32,
            simdgroups_per_threadgroup: simdgroups(size),
            dispatch_simdgroups_per_threadgroup: simdgroups(self.group),
            ..Builtins::default()
        }
    }

    /// Fills in what differs between the threads of a group.
    pub fn place(&self, builtins: &mut Builtins, thread: u32) {
        let local = unfold(thread as usize, builtins.threads_per_threadgroup);
        let group = builtins.threadgroup_position_in_grid;
        builtins.thread_position_in_threadgroup = local;
        builtins.thread_position_in_grid =
            std::array::from_fn(|side| group[side] * self.group[side] + local[side]);
        builtins.thread_index_in_threadgroup = thread;
        builtins.thread_index_in_simdgroup = thread % SIMD_WIDTH as u32;
        builtins.simdgroup_index_in_threadgroup = thread / SIMD_WIDTH as u32;
    }
}

/// The position that is number `linear` of a box, x running fastest.
fn unfold(linear: usize, size: [u32; 3]) -> [u32; 3] {
    let (x, y) = (size[0] as usize, size[1] as usize);
    [
        (linear % x) as u32,
        (linear / x % y) as u32,
        (linear / (x * y)) as u32,
    ]
}

fn simdgroups(size: [u32; 3]) -> u32 {
    size.iter().product::<u32>().div_ceil(SIMD_WIDTH as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ragged_groups_have_their_actual_size() {
        let geometry = Geometry::new(Grid::Threads([70, 3, 1]), [32, 2, 1]).expect("valid");
        assert_eq!(geometry.groups, [3, 2, 1]);
        assert_eq!(geometry.group_count(), 6);
        let corner = geometry.group_position(5);
        assert_eq!(corner, [2, 1, 0]);
        let mut builtins = geometry.group_builtins(corner);
        assert_eq!(builtins.threads_per_threadgroup, [6, 1, 1]);
        assert_eq!(builtins.dispatch_threads_per_threadgroup, [32, 2, 1]);
        assert_eq!(builtins.simdgroups_per_threadgroup, 1);
        assert_eq!(builtins.dispatch_simdgroups_per_threadgroup, 2);
        geometry.place(&mut builtins, 5);
        assert_eq!(builtins.thread_position_in_grid, [69, 2, 0]);
        assert_eq!(builtins.thread_position_in_threadgroup, [5, 0, 0]);
        assert_eq!(builtins.threads_per_grid, [70, 3, 1]);
    }

    #[test]
    fn lanes_run_along_x_then_y_then_z() {
        let geometry = Geometry::new(Grid::Groups([1, 1, 2]), [8, 4, 4]).expect("valid");
        let mut builtins = geometry.group_builtins([0, 0, 1]);
        geometry.place(&mut builtins, 32 + 8 + 3);
        assert_eq!(builtins.thread_position_in_threadgroup, [3, 1, 1]);
        assert_eq!(builtins.thread_position_in_grid, [3, 1, 5]);
        assert_eq!(builtins.simdgroup_index_in_threadgroup, 1);
        assert_eq!(builtins.thread_index_in_simdgroup, 11);
        assert_eq!(builtins.threads_per_grid, [8, 4, 8]);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (grid, group) in [
            (Grid::Groups([1, 1, 1]), [1025, 1, 1]),
            (Grid::Groups([1, 1, 1]), [0, 1, 1]),
            (Grid::Groups([0, 1, 1]), [32, 1, 1]),
            (Grid::Threads([1 << 33, 1, 1]), [32, 1, 1]),
            (Grid::Groups([1 << 31, 1, 1]), [32, 1, 1]),
        ] {
            assert!(Geometry::new(grid, group).is_err(), "{grid:?} {group:?}");
        }
    }
}
