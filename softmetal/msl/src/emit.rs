//! The C++ text of a library, whole for checking or cut down to the entries to be compiled.

use crate::edits::{Columns, Writer};
use crate::entries::Entry;
use crate::kernel::{Argument, Kernel};
use crate::options::Constant;
use crate::program::{Program, Typed};
use std::collections::HashMap;
use std::fmt::Write;

const SUPPORT: &str = include_str!("entry.h");

/// What to write.
#[derive(Clone, Copy)]
pub(crate) enum Selection<'a> {
    /// All entries; function constants have no values.
    Everything,
    /// These, by their numbers, with the values of the function constants.
    Entries(&'a [usize], &'a [(u32, Constant)]),
}

pub(crate) struct Output {
    pub(crate) text: String,
    pub(crate) columns: Columns,
}

/// The symbols of the entry that is `place`d there in its object.
pub(crate) fn entry_symbol(place: usize) -> String {
    format!("softmetal_entry_{place}")
}

pub(crate) fn table_symbol(place: usize) -> String {
    format!("softmetal_arguments_{place}")
}

/// The symbol that holds the address of the kernel.
pub(crate) fn target_symbol(place: usize) -> String {
    format!("softmetal_kernel_{place}")
}

pub(crate) fn emit(program: &Program, selection: Selection<'_>) -> Output {
    let (wanted, constants): (Vec<usize>, _) = match selection {
        Selection::Everything => ((0..program.entries.len()).collect(), None),
        Selection::Entries(list, constants) => (list.to_vec(), Some(constants)),
    };
    let constants_known = constants.is_some();
    let source = &program.source;
    let mut writer = Writer::default();
    writer.plain("# 1 \"softmetal_entry\"\n");
    writer.plain(SUPPORT);
    writer.plain(&callers(program, &wanted));
    let mut constants = program.constants.texts(source, constants);
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); source.len() + 1];
    for (place, &entry) in wanted.iter().enumerate() {
        ends[program.entries[entry].item.end].push(place);
    }
    let mut skips = vec![0; source.len()];
    for (n, kernel) in program.kernels.iter().enumerate() {
        let needed = wanted
            .iter()
            .any(|entry| program.entries[*entry].kernel == n);
        if !needed {
            // The declaration stays, as types may be made from it.
            skips[kernel.body.start - 1] = kernel.item.end;
        }
    }
    let mut i = 0;
    loop {
        for &place in &ends[i] {
            let text = entry_text(
                program,
                &program.entries[wanted[place]],
                place,
                constants_known,
            );
            writer.at_line(source, i - 1, &text);
        }
        if i == source.len() {
            break;
        }
        if skips[i] > i {
            writer.at_line(source, i, ";");
            i = skips[i];
        } else if let Some((end, text)) = constants.remove(&i) {
            writer.at_line(source, i, &text);
            i = end;
        } else {
            writer.token(source, &program.edits, i);
            i += 1;
        }
    }
    writer.plain("\n");
    Output {
        text: writer.text,
        columns: writer.columns,
    }
}

/// The whole source with its address spaces, every instance named once.
pub(crate) fn emit_typed(program: &Program, typed: &Typed) -> Output {
    let source = &program.source;
    let mut writer = Writer::default();
    let mut constants = program.constants.texts(source, None);
    let mut ends: HashMap<usize, usize> = HashMap::new();
    for (n, entry) in program.entries.iter().enumerate() {
        ends.insert(entry.item.end - 1, n);
    }
    let mut i = 0;
    while i < source.len() {
        if let Some((end, text)) = constants.remove(&i) {
            writer.at_line(source, i, &text);
            i = end;
            continue;
        }
        writer.token(source, &typed.edits, i);
        if let Some(n) = ends.get(&i) {
            let text = format!(
                "static void softmetal_check_{n}() {{ (void)({}); }}",
                typed.targets[*n]
            );
            writer.at_line(source, i, &text);
        }
        i += 1;
    }
    writer.plain("\n");
    Output {
        text: writer.text,
        columns: writer.columns,
    }
}

/// For each kernel a function that calls an instance of it.
fn callers(program: &Program, wanted: &[usize]) -> String {
    let mut text = String::from("namespace softmetal_entry {\n");
    for (n, kernel) in program.kernels.iter().enumerate() {
        if wanted
            .iter()
            .any(|entry| program.entries[*entry].kernel == n)
        {
            caller(&mut text, n, kernel);
        }
    }
    text.push_str("}\n");
    text
}

fn caller(text: &mut String, number: usize, kernel: &Kernel) {
    let types: Vec<_> = (0..kernel.arguments.len())
        .map(|i| format!("A{i}"))
        .collect();
    let mut bound = 0;
    let values: Vec<_> = kernel
        .arguments
        .iter()
        .zip(&types)
        .map(|(argument, name)| match argument {
            Argument::Bound(_) => {
                bound += 1;
                format!("argument<{name}>::at(a[{}])", bound - 1)
            }
            Argument::Input(input) => input.expression(name),
        })
        .collect();
    let head: Vec<_> = types.iter().map(|name| format!("class {name}")).collect();
    let head = if head.is_empty() {
        String::new()
    } else {
        format!("template <{}> ", head.join(", "))
    };
    let _ = writeln!(
        text,
        "{head}inline __attribute__((always_inline, no_sanitize(\"kernel-address\"))) \
         void call_{number}(void (*f)({}), void* const* a, const softmetal::Builtins* b) {{ f({}); }}",
        types.join(", "),
        values.join(", ")
    );
}

/// Without the values of function constants the switches of arguments are looked at, but have no value.
fn entry_text(program: &Program, entry: &Entry, place: usize, constants_known: bool) -> String {
    let kernel = &program.kernels[entry.kernel];
    let target = &entry.target;
    let mut rows = String::new();
    let mut switches = String::new();
    for (i, argument) in kernel.arguments.iter().enumerate() {
        let Argument::Bound(bound) = argument else {
            continue;
        };
        let enabled = match &bound.switch {
            Some(range) if constants_known => format!(
                "(unsigned long)(bool)({})",
                program.source.text(range.clone())
            ),
            Some(range) => {
                let _ = write!(
                    switches,
                    "(void)(bool)({}); ",
                    program.source.text(range.clone())
                );
                "1".to_owned()
            }
            None => "1".to_owned(),
        };
        let of = format!("softmetal_entry::parameter<{i}, softmetal_type_{place}>");
        let _ = write!(rows, "{{{of}::size, {of}::align, {enabled}}}, ");
    }
    format!(
        "typedef decltype({target}) softmetal_type_{place}; \
         extern \"C\" __attribute__((visibility(\"default\"), used)) const unsigned long {}[][3] = {{{rows}{{0, 0, 0}}}}; \
         extern \"C\" __attribute__((visibility(\"default\"), used)) const unsigned long {} = (unsigned long)({target}); \
         extern \"C\" __attribute__((visibility(\"default\"), used, no_sanitize(\"kernel-address\"))) \
         void {}(void* const* a, const softmetal::Builtins* b) {{ {switches}softmetal_entry::call_{}({target}, a, b); }}",
        table_symbol(place),
        target_symbol(place),
        entry_symbol(place),
        entry.kernel
    )
}
