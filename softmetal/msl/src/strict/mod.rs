//! What clang accepts and Apple's compiler refuses.

mod pointers;
mod variables;
mod words;

use crate::declaration::{Function, Item, ItemKind};
use crate::error::Message;
use crate::options::Options;
use crate::source::Source;

pub(crate) fn check(
    source: &Source,
    items: &[Item],
    options: &Options,
    problems: &mut Vec<Message>,
) {
    words::check(source, options, problems);
    variables::check(source, items, problems);
    pointers::check(source, items, problems);
    functions(items, &mut |item, function| {
        if source.is(function.name, "main") && item.scope == crate::declaration::Scope::Namespace {
            problems.push(source.error(function.name, "function cannot be named 'main'"));
        }
        let parts = source.split(function.parameters.clone());
        if let Some(dots) = parts.iter().find(|part| source.is(part.start, "...")) {
            problems
                .push(source.error(dots.start, "variadic functions are not supported in Metal"));
        }
    });
}

/// Visits all functions, members included.
fn functions(items: &[Item], found: &mut impl FnMut(&Item, &Function)) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { items, .. } | ItemKind::Class { items } => {
                functions(items, found)
            }
            ItemKind::Function(function) => found(item, function),
            ItemKind::Plain | ItemKind::Instantiation => {}
        }
    }
}
