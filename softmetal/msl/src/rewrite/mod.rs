//! From MSL to C++: what becomes of each form that clang does not know.

mod collisions;
mod contraction;
mod literals;
mod spaces;
mod swizzles;
mod threadgroup;

pub(crate) use collisions::collisions;
pub(crate) use contraction::contract;
pub(crate) use threadgroup::bodies;

use crate::attribute::attributes;
use crate::builtin;
use crate::constants::Constants;
use crate::declaration::{Item, ItemKind};
use crate::edits::Edits;
use crate::error::Message;
use crate::kernel::Kernel;
use crate::source::Source;
use crate::token::Kind;

/// The changes that depend on single tokens.
pub(crate) fn tokens(
    source: &Source,
    items: &[Item],
    edits: &mut Edits,
    problems: &mut Vec<Message>,
) {
    spaces::erase(source, edits);
    in_both(source, items, edits, problems);
    compile_on_demand(source, items, edits);
}

/// The changes for the check of types, in which address spaces stay. What is not understood has been said before.
pub(crate) fn typed(
    source: &Source,
    items: &[Item],
    kernels: &[Kernel],
    constants: &Constants,
) -> Edits {
    let mut edits = Edits::new(source);
    let said = &mut Vec::new();
    spaces::keep(source, items, &mut edits);
    in_both(source, items, &mut edits, said);
    literals::hide(source, &mut edits);
    for i in 0..source.len() {
        let pointer = || source.find(i..source.angle(i + 1).unwrap_or(i), &["*", "&"]);
        if source.is(i, "static_cast") && source.is(i + 1, "<") && pointer().is_some() {
            edits.replace(i, "static_cast");
        }
    }
    for kernel in kernels {
        make_static(source, kernel, &mut edits);
    }
    threadgroup::references(source, items, &mut edits);
    collisions(source, items, &mut edits, said);
    constants.mark(source, &mut edits);
    edits
}

fn in_both(source: &Source, items: &[Item], edits: &mut Edits, problems: &mut Vec<Message>) {
    literals::rewrite(source, edits, problems);
    swizzles::rewrite(source, items, edits, problems);
    strip_attributes(source, edits, problems);
    for i in 0..source.len() {
        if source.is(i, "static_cast") && source.is(i + 1, "<") {
            edits.replace(i, "softmetal::cast");
        } else if source[i].kind == Kind::Pragma {
            pragma(source, i, edits, problems);
        }
    }
}

/// Attributes that clang knows as well.
const STANDARD: &[&str] = &[
    "maybe_unused",
    "nodiscard",
    "fallthrough",
    "likely",
    "unlikely",
    "noreturn",
    "deprecated",
];

const METAL: &[&str] = &[
    "kernel",
    "host_name",
    "buffer",
    "threadgroup",
    "function_constant",
    "max_total_threads_per_threadgroup",
    "visible",
];

fn strip_attributes(source: &Source, edits: &mut Edits, problems: &mut Vec<Message>) {
    for i in 0..source.len() {
        if !source.is_attribute(i) {
            continue;
        }
        let range = i..source.pair(i) + 1;
        let found = attributes(source, range.clone());
        if found
            .iter()
            .all(|a| STANDARD.contains(&a.name.as_str()) || a.name.starts_with("clang::"))
        {
            continue;
        }
        for attribute in &found {
            if !METAL.contains(&attribute.name.as_str())
                && builtin::named(&attribute.name).is_none()
            {
                problems.push(source.error(
                    attribute.at,
                    format!("softmetal does not know the attribute '{}'", attribute.name),
                ));
            }
        }
        edits.remove(range);
    }
}

fn pragma(source: &Source, at: usize, edits: &mut Edits, problems: &mut Vec<Message>) {
    let words: Vec<_> = source[at].text.split_whitespace().collect();
    let Some(metal) = words.iter().position(|word| *word == "METAL") else {
        return;
    };
    let rest = words[metal + 1..].join(" ");
    if rest.starts_with("internals") || rest.starts_with("fp math_mode") {
        edits.remove(at..at + 1);
    } else if rest.starts_with("fp contract") {
        edits.replace(at, format!("#pragma clang {rest}"));
    } else {
        problems.push(source.error(at, format!("softmetal does not know '{}'", source[at].text)));
    }
}

/// Functions with external linkage would all be compiled for each entry: makes them `inline`.
fn compile_on_demand(source: &Source, items: &[Item], edits: &mut Edits) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { items, .. } => compile_on_demand(source, items, edits),
            ItemKind::Function(function) if function.body.is_some() => {
                let template = item.heads.iter().any(|head| !head.is_empty());
                let specifiers = item.start..function.name;
                let words = ["static", "inline", "constexpr", "kernel", "friend"];
                let kernel = crate::kernel::is_kernel(source, item, function);
                if !template && !kernel && source.find(specifiers, &words).is_none() {
                    edits.insert(item.start, "inline");
                }
            }
            _ => {}
        }
    }
}

/// A kernel is called by its entry only, and never inlined into it, as entries are not instrumented.
pub(crate) fn kernels(source: &Source, kernels: &[Kernel], edits: &mut Edits) {
    for kernel in kernels {
        make_static(source, kernel, edits);
        if let Some(limit) = &kernel.max_threads {
            let owner = kernel.address_in_body();
            let record = format!(
                "static unsigned long softmetal_limit[2] __attribute__((section(\"softmetal_limits\"), used)) = {{({}), {owner}}};",
                source.text(limit.clone())
            );
            edits.insert(kernel.body.start, &record);
        }
    }
}

fn make_static(source: &Source, kernel: &Kernel, edits: &mut Edits) {
    let name = (kernel.start..kernel.body.start)
        .find(|i| source.is(*i, "(") && !inside_attribute(source, kernel.start, *i));
    for i in kernel.start..name.unwrap_or(kernel.start) {
        if source.is_any(i, &["kernel", "static", "inline"]) {
            edits.remove(i..i + 1);
        }
    }
    edits.insert(kernel.start, "static __attribute__((noinline))");
}

fn inside_attribute(source: &Source, start: usize, at: usize) -> bool {
    (start..at).any(|i| source.is_attribute(i) && at < source.pair(i))
}
