//! What must hold of a dispatch before it can run.

use crate::command::{Argument, Dispatch};
use crate::finding::{kind, Finding};
use crate::limits;
use softmetal_abi::{Function, Param, Space};
use softmetal_exec::Grid;

/// Everything that is wrong with a dispatch.
pub(crate) fn dispatch(dispatch: &Dispatch) -> Vec<Finding> {
    let function = dispatch.pipeline.function();
    let mut findings: Vec<_> = function
        .params
        .iter()
        .filter(|param| param.enabled)
        .filter_map(|param| match param.space {
            Space::Threadgroup => threadgroup_argument(param, dispatch),
            Space::Device | Space::Constant => argument(param, dispatch),
        })
        .collect();
    findings.extend(threadgroup_memory(function, dispatch));
    findings.extend(group_size(dispatch));
    findings.extend(grid_size(dispatch));
    findings
        .into_iter()
        .map(|finding| finding.in_kernel(&function.name))
        .collect()
}

fn argument(param: &Param, dispatch: &Dispatch) -> Option<Finding> {
    let of = |kind, detail| Some(Finding::new(kind, detail).of_argument(param.index, &param.name));
    let length = match dispatch.arguments.get(param.index as usize) {
        None | Some(Argument::None) => {
            // Metal's validation layer objects; the hardware does only if the kernel goes there, and then the
            // execution reports an error.
            return of(kind::UNBOUND, "nothing is bound to it".to_string()).map(Finding::note);
        }
        Some(Argument::Bytes(bytes)) => bytes.len(),
        Some(Argument::Buffer { buffer, offset }) => {
            let suits = |align: usize| offset.is_multiple_of(align);
            let detail = |align: usize| format!("offset {offset} is not a multiple of {align}");
            let found = if !suits(param.align) {
                of(kind::MISALIGNED_OFFSET, detail(param.align))
            } else if param.space == Space::Constant && !suits(limits::CONSTANT_OFFSET) {
                // Against the tables of Apple, but the hardware is known to load by the type's alignment.
                of(kind::MISALIGNED_OFFSET, detail(limits::CONSTANT_OFFSET)).map(Finding::note)
            } else {
                None
            };
            if let Some(finding) = found {
                return Some(finding.at_offset(*offset));
            }
            buffer.length() - offset
        }
    };
    if param.reference && length < param.size {
        let detail = format!(
            "{length} bytes are bound to it, its type has {}",
            param.size
        );
        return of(kind::SHORT_BINDING, detail);
    }
    None
}

fn threadgroup_argument(param: &Param, dispatch: &Dispatch) -> Option<Finding> {
    let set = dispatch
        .threadgroup_lengths
        .iter()
        .any(|(index, _)| *index == param.index);
    (!set).then(|| {
        Finding::new(kind::UNBOUND, "its threadgroup memory has no length")
            .of_argument(param.index, &param.name)
    })
}

fn threadgroup_memory(function: &Function, dispatch: &Dispatch) -> Option<Finding> {
    let used = |index| {
        function
            .params
            .iter()
            .any(|param| param.enabled && param.space == Space::Threadgroup && param.index == index)
    };
    let lengths = dispatch.threadgroup_lengths.iter();
    let dynamic: usize = lengths
        .filter(|(index, _)| used(*index))
        .map(|(_, length)| length)
        .sum();
    let total = dynamic + function.static_threadgroup;
    (total > limits::THREADGROUP_MEMORY).then(|| {
        let detail = format!(
            "{total} bytes of threadgroup memory ({} of variables, {dynamic} of arguments), {} is the most",
            function.static_threadgroup,
            limits::THREADGROUP_MEMORY
        );
        Finding::new(kind::LIMIT, detail)
    })
}

fn group_size(dispatch: &Dispatch) -> Option<Finding> {
    let group = dispatch.group;
    let most = dispatch.pipeline.max_threads();
    let threads = group
        .iter()
        .try_fold(1usize, |product, side| product.checked_mul(*side));
    let detail = match threads {
        Some(0) => format!("threadgroups of {group:?} threads are empty"),
        Some(threads) if threads <= most => return None,
        _ => format!("threadgroups of {group:?} threads, the pipeline's limit is {most}"),
    };
    Some(Finding::new(kind::LIMIT, detail))
}

fn grid_size(dispatch: &Dispatch) -> Option<Finding> {
    let (what, sides) = match dispatch.grid {
        Grid::Threads(sides) => ("threads", sides),
        Grid::Groups(sides) => ("threadgroups", sides),
    };
    if sides.contains(&0) {
        return Some(Finding::new(
            kind::LIMIT,
            format!("a grid of {sides:?} {what} is empty"),
        ));
    }
    let too_large = (0..3).any(|side| {
        let threads = match dispatch.grid {
            Grid::Threads(_) => Some(sides[side]),
            Grid::Groups(_) => sides[side].checked_mul(dispatch.group[side]),
        };
        threads.is_none_or(|threads| threads > limits::GRID)
    });
    too_large.then(|| {
        let detail = format!(
            "a grid of {sides:?} {what} by {:?}: threads are counted in 32 bits",
            dispatch.group
        );
        Finding::new(kind::LIMIT, detail)
    })
}
