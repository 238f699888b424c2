//! `threadgroup` variables: slots of an arena that the threads of a group share.

use crate::declaration::{Function, Item, ItemKind};
use crate::edits::Edits;
use crate::error::Message;
use crate::kernel::Kernel;
use crate::options::Options;
use crate::source::Source;
use std::ops::Range;

/// Rewrites the declarations in all function bodies.
pub(crate) fn bodies(
    source: &Source,
    items: &[Item],
    kernels: &[Kernel],
    edits: &mut Edits,
    options: &Options,
    problems: &mut Vec<Message>,
) {
    let mut slots = 0;
    visit(items, &mut |body| {
        let kernel = kernels.iter().find(|kernel| kernel.body == body);
        for i in body {
            if !source.is(i, "threadgroup") || !declares(source, i) {
                continue;
            }
            if options.strict && kernel.is_none() {
                let text = "variable in the threadgroup address space must be declared in a kernel function";
                problems.push(source.error(i, text));
            }
            match Variables::read(source, i) {
                Ok(variables) => {
                    if let Some(at) = variables.initialiser().filter(|_| options.strict) {
                        let text =
                            "variable in the threadgroup address space cannot have an initializer";
                        problems.push(source.error(at, text));
                    }
                    let owner = kernel.map_or("0".into(), Kernel::address_in_body);
                    let text = variables.text(source, edits, &mut slots, &owner);
                    edits.remove(variables.statement.clone());
                    edits.replace(variables.statement.start, text);
                }
                Err(message) => problems.push(message),
            }
        }
    });
}

/// For the check of types: the declarations as references into threadgroup memory.
pub(crate) fn references(source: &Source, items: &[Item], edits: &mut Edits) {
    let mut slots = 0;
    visit(items, &mut |body| {
        for i in body {
            if !source.is(i, "threadgroup") || !declares(source, i) {
                continue;
            }
            if let Ok(variables) = Variables::read(source, i) {
                let text = variables.reference(source, edits, &mut slots);
                edits.rewrite(variables.statement, text);
            }
        }
    });
}

fn visit(items: &[Item], found: &mut impl FnMut(Range<usize>)) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { items, .. } | ItemKind::Class { items } => visit(items, found),
            ItemKind::Function(Function {
                body: Some(body), ..
            }) => found(body.clone()),
            _ => {}
        }
    }
}

const SPECIFIERS: &[&str] = &["const", "volatile", "static", "constexpr"];

/// Whether the `threadgroup` at `at` begins the declaration of a variable and not of a pointer.
fn declares(source: &Source, at: usize) -> bool {
    let start = statement_start(source, at);
    if start > 0
        && !source.is_any(start - 1, &["{", "}", ";", ":", ")"])
        && source[start - 1].kind != crate::token::Kind::Pragma
    {
        return false;
    }
    if source.is(start - 1, ")") && source.is(source.pair(start - 1).wrapping_sub(1), "operator") {
        return false;
    }
    let mut i = at + 1;
    while i < source.len() && !source.is_any(i, &[";", "[", ",", "=", "{", ")", "("]) {
        if source.is_any(i, &["*", "&", "&&"]) {
            return false;
        }
        i = source.next_type(i);
    }
    // `threadgroup float (*p)[32]`
    !(source.is(i, "(") && source.is_any(i + 1, &["*", "&"]))
}

fn statement_start(source: &Source, at: usize) -> usize {
    let mut i = at;
    loop {
        if i > 0 && source.is_any(i - 1, SPECIFIERS) {
            i -= 1;
        } else if i > 1
            && source.is(i - 1, ")")
            && source.is(source.pair(i - 1).wrapping_sub(1), "alignas")
        {
            i = source.pair(i - 1) - 1;
        } else {
            return i;
        }
    }
}

struct Variables {
    statement: Range<usize>,
    type_range: Range<usize>,
    alignment: Option<Range<usize>>,
    /// The name, its dimensions and whether an initialiser follows.
    declarators: Vec<(usize, Range<usize>, Option<usize>)>,
}

impl Variables {
    fn read(source: &Source, at: usize) -> Result<Self, Message> {
        let unknown = || {
            source.error(
                at,
                "this declaration in the threadgroup address space is not understood",
            )
        };
        let start = statement_start(source, at);
        let alignment = (start..at)
            .find(|i| source.is(*i, "alignas"))
            .map(|i| i + 1..source.pair(i + 1) + 1);
        let mut end = at;
        while end < source.len() && !source.is(end, ";") {
            if source.is(end, "}") {
                return Err(unknown());
            }
            end = source.next(end);
        }
        let parts = source.split(at + 1..end);
        let first = parts.first().ok_or_else(unknown)?;
        let stop = |part: &Range<usize>| {
            let mut i = part.start;
            while i < part.end && !source.is_any(i, &["[", "=", "{", "("]) {
                i = source.next_type(i);
            }
            i
        };
        let name = stop(first)
            .checked_sub(1)
            .filter(|i| source.is_word(*i) && *i > first.start)
            .ok_or_else(unknown)?;
        let mut declarators = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            let behind = stop(part);
            let name = if n == 0 { name } else { part.start };
            if name + 1 != behind || !source.is_word(name) {
                return Err(unknown());
            }
            let mut dimensions = behind;
            while dimensions < part.end
                && source.is(dimensions, "[")
                && !source.is_attribute(dimensions)
            {
                dimensions = source.pair(dimensions) + 1;
            }
            let initialiser = (dimensions < part.end).then_some(dimensions);
            if initialiser.is_some_and(|i| !source.is_any(i, &["=", "{"])) {
                return Err(unknown());
            }
            declarators.push((name, behind..dimensions, initialiser));
        }
        Ok(Self {
            statement: start..end + 1,
            type_range: at + 1..name,
            alignment,
            declarators,
        })
    }

    fn initialiser(&self) -> Option<usize> {
        self.declarators
            .iter()
            .find_map(|(.., initialiser)| *initialiser)
    }

    /// Each variable's slot, name and dimensions.
    fn numbered<'a>(
        &'a self,
        source: &'a Source,
        edits: &'a Edits,
        slots: &'a mut u32,
    ) -> impl Iterator<Item = (u32, &'a str, String)> + 'a {
        self.declarators.iter().map(move |(name, dimensions, _)| {
            let slot = *slots;
            *slots += 1;
            let dimensions = edits.render(source, dimensions.clone());
            (slot, &*source[*name].text, dimensions)
        })
    }

    /// As the check of address spaces sees them.
    fn reference(&self, source: &Source, edits: &Edits, slots: &mut u32) -> String {
        let type_text = edits.render(source, self.type_range.clone());
        let mut text = String::new();
        for (slot, name, dimensions) in self.numbered(source, edits, slots) {
            text += &format!(
                "typedef {type_text} sm_t{slot}{dimensions}; \
                 __local sm_t{slot}& {name} = softmetal::threadgroup_variable<sm_t{slot}>(); "
            );
        }
        text
    }

    /// References into the arena. A record of each variable tells the loader what the kernel `owner` needs. It isn't `const`, as
    /// clang would put those of templates and those of other kernels into sections of different kinds.
    fn text(&self, source: &Source, edits: &Edits, slots: &mut u32, owner: &str) -> String {
        let type_text = edits.render(source, self.type_range.clone());
        let mut text = String::new();
        for (slot, name, dimensions) in self.numbered(source, edits, slots) {
            let (declared, member) = match &self.alignment {
                Some(alignment) => {
                    let alignment = edits.render(source, alignment.clone());
                    let value = format!("{type_text} value{dimensions};");
                    (
                        format!("struct alignas{alignment} sm_t{slot} {{ {value} }};"),
                        ".value",
                    )
                }
                None => (format!("typedef {type_text} sm_t{slot}{dimensions};"), ""),
            };
            text += &format!(
                "{declared} static unsigned long sm_v{slot}[4] __attribute__((section(\"softmetal_variables\"), used)) = \
                 {{{slot}, sizeof(sm_t{slot}), alignof(sm_t{slot}), {owner}}}; \
                 auto& {name} = softmetal::threadgroup_variable<sm_t{slot}>({slot}, \"{name}\"){member}; "
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{declaration, source};

    fn rewritten(body: &str) -> (String, Vec<String>) {
        let source = source::parse(&format!("kernel void f() {{ {body} }}"));
        let items = declaration::parse(&source).unwrap();
        let mut edits = Edits::new(&source);
        let mut problems = Vec::new();
        let ItemKind::Function(function) = &items[0].kind else {
            panic!("not a function");
        };
        let body = function.body.clone().unwrap();
        let kernel = Kernel::new(&source, &items[0], function, body, "", &mut problems);
        bodies(
            &source,
            &items,
            &[kernel],
            &mut edits,
            &Options::default(),
            &mut problems,
        );
        let text = edits.render(&source, 6..source.len() - 1);
        (
            text,
            problems.into_iter().map(|message| message.text).collect(),
        )
    }

    #[test]
    fn arrays_and_scalars_become_slots() {
        let (text, problems) = rewritten("threadgroup float a[2 * N][4], b;");
        assert!(problems.is_empty());
        assert!(text.contains("typedef float sm_t0[2 * N][4];"), "{text}");
        assert!(
            text.contains("auto& a = softmetal::threadgroup_variable<sm_t0>(0, \"a\");"),
            "{text}"
        );
        assert!(text.contains("typedef float sm_t1;"), "{text}");
        assert!(
            text.contains("auto& b = softmetal::threadgroup_variable<sm_t1>(1, \"b\");"),
            "{text}"
        );
    }

    #[test]
    fn dependent_types() {
        let (text, _) =
            rewritten("if (x) { } threadgroup typename K<T, 2>::acc m[K<T, 2>::n == 0 ? 1 : 2];");
        assert!(
            text.contains("typedef typename K<T, 2>::acc sm_t0[K<T, 2>::n == 0 ? 1 : 2];"),
            "{text}"
        );
    }

    #[test]
    fn alignment_is_kept() {
        let (text, _) = rewritten("alignas(16) threadgroup half a[8];");
        assert!(
            text.contains("struct alignas(16) sm_t0 { half value[8]; };"),
            "{text}"
        );
        assert!(text.contains(".value;"), "{text}");
    }

    #[test]
    fn pointers_stay() {
        for text in [
            "threadgroup float* p = a;",
            "const threadgroup vec<T, 4>& r = b;",
            "x = (threadgroup float*)p;",
            "threadgroup float (*p)[32] = a;",
        ] {
            assert_eq!(rewritten(text).0, text);
        }
    }

    #[test]
    fn initialisers_are_refused() {
        assert_eq!(rewritten("threadgroup float a[2] = {0};").1.len(), 1);
        assert_eq!(rewritten("threadgroup float a {0};").1.len(), 1);
    }

    #[test]
    fn unknown_forms_are_refused() {
        assert_eq!(rewritten("threadgroup float a(3);").1.len(), 1);
        assert_eq!(rewritten("threadgroup float;").1.len(), 1);
    }
}
