//! Where variables may live.

use crate::declaration::{Item, ItemKind, Scope};
use crate::error::Message;
use crate::source::Source;
use std::ops::Range;

pub(crate) fn check(source: &Source, items: &[Item], problems: &mut Vec<Message>) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { items, .. } => check(source, items, problems),
            ItemKind::Class { items } => {
                check(source, items, problems);
                let declares = !source.is(item.range.end - 2, "}")
                    && !source.is_any(item.start, &["typedef", "using"]);
                if declares && item.scope == Scope::Namespace {
                    static_variable(source, item, problems);
                }
            }
            ItemKind::Plain if is_variable(source, item) => static_variable(source, item, problems),
            ItemKind::Function(function) => {
                if let Some(body) = &function.body {
                    locals(source, body.clone(), problems);
                }
            }
            ItemKind::Plain | ItemKind::Instantiation => {}
        }
    }
}

/// Whether a plain item of a namespace, or a `static` one of a class, declares a variable.
fn is_variable(source: &Source, item: &Item) -> bool {
    let not = [
        "typedef",
        "using",
        "enum",
        "static_assert",
        "namespace",
        "friend",
    ];
    if source.is_any(item.start, &not) || source.is(item.start + 1, "\"C\"") {
        return false;
    }
    let forward = source.is_any(item.start, &["struct", "class", "union"])
        && item.range.end - item.start == 3;
    let in_class =
        item.scope == Scope::Class && source.find(item.range.clone(), &["static"]).is_none();
    !forward && !in_class
}

fn static_variable(source: &Source, item: &Item, problems: &mut Vec<Message>) {
    let end = item
        .range
        .clone()
        .find(|i| source.is_any(*i, &["=", "{"]))
        .unwrap_or(item.range.end);
    let specifiers = item.start..end;
    if source.find(specifiers.clone(), &["threadgroup"]).is_some() {
        let text =
            "variable in the threadgroup address space must be declared in a kernel function";
        problems.push(source.error(item.start, text));
    } else if source.find(specifiers, &["constant"]).is_none() {
        let text = match item.scope {
            Scope::Namespace => "program scope variable must reside in constant address space",
            Scope::Class => "static data member must reside in constant address space",
        };
        problems.push(source.error(item.start, text));
    }
}

fn locals(source: &Source, body: Range<usize>, problems: &mut Vec<Message>) {
    for i in body {
        let starts = source.is_any(i - 1, &["{", "}", ";"]);
        if source.is(i, "static") {
            let end = (i..source.len())
                .find(|i| source.is_any(*i, &[";", "=", "{", "("]))
                .unwrap_or(i);
            // A static function of a local class.
            let function = source.is(end, "(") && source.is(source.pair(end) + 1, "{");
            let from = i.saturating_sub(2);
            if !function && source.find(from..end, &["constant"]).is_none() {
                problems.push(source.error(i, "static local variables are not supported in Metal"));
            }
        } else if starts
            && source.is_any(i, &["const", "device", "constant"])
            && automatic(source, i)
        {
            problems.push(source.error(
                i,
                "automatic variable qualified with an invalid address space",
            ));
        }
    }
}

/// `device float x;` in a function, as opposed to a pointer.
fn automatic(source: &Source, start: usize) -> bool {
    let mut spaced = false;
    let mut i = start;
    while i < source.len() && !source.is_any(i, &[";", "=", "[", "{", "(", ","]) {
        if source.is_any(i, &["*", "&", "&&", "static"]) {
            return false;
        }
        spaced |= source.is_any(i, &["device", "constant"]);
        i = source.next_type(i);
    }
    spaced
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{declaration, source};

    fn refused(text: &str) -> usize {
        let source = source::parse(text);
        let mut problems = Vec::new();
        check(
            &source,
            &declaration::parse(&source).unwrap(),
            &mut problems,
        );
        problems.len()
    }

    #[test]
    fn program_scope_is_constant() {
        for text in [
            "int x = 1;",
            "constexpr int x = 1;",
            "static float t[2] = {1, 2};",
            "namespace a { int x; }",
            "struct S { int a; } s;",
        ] {
            assert_eq!(refused(text), 1, "{text}");
        }
        for text in [
            "constant int x = 1;",
            "static constexpr constant int x = 1;",
            "constant float t[2] = {1, 2};",
            "struct S { int a; }; struct T; enum E { A }; using U = int; typedef int V;",
            "template <typename T> constant bool b = true;",
        ] {
            assert_eq!(refused(text), 0, "{text}");
        }
    }

    #[test]
    fn static_members_are_constant() {
        assert_eq!(refused("struct S { static constexpr int n = 1; };"), 1);
        assert_eq!(refused("struct S { static constexpr constant int n = 1; int m = 2; static int f() { return 1; } };"), 0);
    }

    #[test]
    fn static_locals() {
        for text in [
            "void f() { static int x = 1; }",
            "void f() { const static int x = 1; }",
            "void f() { for (static int i = 0; i < 2; i++) { } }",
            "void f() { switch (1) { case 1: static int x = 1; } }",
        ] {
            assert_eq!(refused(text), 1, "{text}");
        }
        assert_eq!(
            refused("void f() { struct S { static int g() { return 1; } }; }"),
            0
        );
        assert_eq!(
            refused("void f() { static constant int x = 1; int y = 2; }"),
            0
        );
    }

    #[test]
    fn threadgroup_variables_are_local() {
        assert_eq!(refused("threadgroup float a[4];"), 1);
    }

    #[test]
    fn locals_are_private() {
        assert_eq!(refused("void f() { device float x; }"), 1);
        assert_eq!(refused("void f() { const constant float x = 1; }"), 1);
        assert_eq!(
            refused(
                "void f() { device float* x = p; const device float& y = q; const float z = 1; }"
            ),
            0
        );
    }
}
