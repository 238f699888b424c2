//! Overloads and specialisations that differ in the address space only: one of them is left.

use crate::declaration::{Item, ItemKind, Scope};
use crate::edits::Edits;
use crate::error::Message;
use crate::kernel::declarator_name;
use crate::source::{Source, SPACES};
use std::collections::HashMap;
use std::ops::Range;

type Seen = HashMap<String, (Range<usize>, String)>;

pub(crate) fn collisions(
    source: &Source,
    items: &[Item],
    edits: &mut Edits,
    problems: &mut Vec<Message>,
) {
    let mut namespaces = HashMap::new();
    in_namespace(source, items, "", edits, &mut namespaces, problems);
}

fn in_namespace(
    source: &Source,
    items: &[Item],
    prefix: &str,
    edits: &mut Edits,
    namespaces: &mut HashMap<String, Seen>,
    problems: &mut Vec<Message>,
) {
    for item in items {
        if let ItemKind::Namespace { name, items } = &item.kind {
            in_namespace(
                source,
                items,
                &format!("{prefix}{name}::"),
                edits,
                namespaces,
                problems,
            );
        } else {
            let seen = namespaces.entry(prefix.to_owned()).or_default();
            one(source, item, edits, seen, problems);
        }
    }
}

fn one(
    source: &Source,
    item: &Item,
    edits: &mut Edits,
    seen: &mut Seen,
    problems: &mut Vec<Message>,
) {
    if let ItemKind::Class { items } = &item.kind {
        let mut members = Seen::new();
        for member in items {
            one(source, member, edits, &mut members, problems);
        }
    }
    let Some((signature, body)) = outline(source, item, edits) else {
        return;
    };
    let spaced = |range: Range<usize>| source.find(range, SPACES).is_some();
    match seen.get(&signature) {
        None => {
            seen.insert(signature, (item.range.clone(), body));
        }
        Some((range, _)) if !spaced(range.clone()) && !spaced(item.range.clone()) => {}
        // Functions of a namespace may be declared as often as one likes.
        Some(_) if body.is_empty() && item.scope == Scope::Namespace => {}
        Some((_, other)) if other.is_empty() && item.scope == Scope::Namespace => {
            seen.insert(signature, (item.range.clone(), body));
        }
        Some((_, other)) if *other == body => edits.remove(item.range.clone()),
        Some((range, _)) => {
            let line = source[range.start].place.line;
            let text = format!(
                "softmetal can't tell this from the declaration in line {line}: they differ in address spaces and in what they do"
            );
            problems.push(source.error(item.start, text));
        }
    }
}

/// What declarations are told apart by after erasure, and what they do.
fn outline(source: &Source, item: &Item, edits: &Edits) -> Option<(String, String)> {
    let mut heads = String::new();
    for head in &item.heads {
        heads += &format!("<{}>", words(source, edits, head.clone(), &[]));
    }
    match &item.kind {
        ItemKind::Function(function) => {
            let open = function.parameters.start - 1;
            let mut signature = heads + &words(source, edits, item.start..open, &[]);
            let mut names = Vec::new();
            for part in source.split(function.parameters.clone()) {
                let default = part
                    .clone()
                    .find(|i| source.is(*i, "="))
                    .unwrap_or(part.end);
                let end = (part.start..default)
                    .find(|i| source.is_attribute(*i))
                    .unwrap_or(default);
                let name = declarator_name(source, part.start..end);
                signature += ",";
                signature += &words(source, edits, part.start..name.unwrap_or(end), &[]);
                signature += &words(source, edits, name.map_or(end, |n| n + 1)..end, &[]);
                names.push(name.map_or("", |name| source[name].text.as_str()));
            }
            let close = function.parameters.end + 1;
            let tail = match &function.body {
                Some(body) => close..body.start - 1,
                None => close..item.range.end - 1,
            };
            let initialisers = tail
                .clone()
                .find(|i| source.is(*i, ":") || source.is(*i, "="))
                .unwrap_or(tail.end);
            signature += ")";
            signature += &words(source, edits, tail.start..initialisers, &[]);
            let done = words(source, edits, initialisers..item.range.end, &names);
            Some((signature, if done == ";" { String::new() } else { done }))
        }
        ItemKind::Class { .. } => {
            let open = item.range.clone().find(|i| source.is(*i, "{"))?;
            let specialised = source.is(open - 1, ">");
            specialised.then(|| {
                let signature = heads + &words(source, edits, item.start..open, &[]);
                (signature, words(source, edits, open..item.range.end, &[]))
            })
        }
        _ => None,
    }
}

/// The edited words, with parameters numbered, without what linkage and inlining add.
fn words(source: &Source, edits: &Edits, range: Range<usize>, parameters: &[&str]) -> String {
    let mut text = String::new();
    let mut i = range.start;
    while i < range.end {
        if source.is(i, "__attribute__") {
            i = source.next(i + 1);
            continue;
        }
        let word = edits.text(source, i);
        let skip = ["inline", "static", "constexpr", ""].contains(&word.trim());
        let again = word == "const" && text.ends_with("const ");
        if !skip && !again {
            match parameters.iter().position(|name| *name == word) {
                Some(n) => text += &format!("${n} "),
                None => {
                    text += word.trim();
                    text.push(' ');
                }
            }
        }
        i += 1;
    }
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{declaration, source};

    fn left(text: &str) -> (String, usize) {
        let source = source::parse(text);
        let items = declaration::parse(&source).unwrap();
        let mut edits = Edits::new(&source);
        crate::rewrite::spaces::erase(&source, &mut edits);
        let mut problems = Vec::new();
        collisions(&source, &items, &mut edits, &mut problems);
        let text = edits.render(&source, 0..source.len());
        (
            text.split_whitespace().collect::<Vec<_>>().join(" "),
            problems.len(),
        )
    }

    #[test]
    fn equal_overloads_collapse() {
        assert_eq!(left("int f(device const int* a) { return a[0]; } int f(constant const int* b) { return b[0]; }").0, "int f( const int* a) { return a[0]; }");
        assert_eq!(left("template <typename T> struct P<device T*> { T t; }; template <typename T> struct P<thread T*> { T t; };").0, "template <typename T> struct P< T*> { T t; };");
        assert_eq!(
            left("struct S { S() = default; S() threadgroup = default; };").0,
            "struct S { S() = default; };"
        );
    }

    #[test]
    fn different_bodies_are_refused() {
        assert_eq!(
            left("int f(device int* a) { return 1; } int f(thread int* a) { return 2; }").1,
            1
        );
    }

    #[test]
    fn other_overloads_stay() {
        let text = "int f(int a) { return 1; } int f(float a) { return 2; }";
        assert_eq!(left(text), (text.to_owned(), 0));
    }

    #[test]
    fn functions_may_be_declared_before() {
        let text = "int f(device int* a); int f(device int* a) { return 1; } int f(constant int* a) { return 1; }";
        assert_eq!(
            left(text).0,
            "int f( int* a); int f( int* a) { return 1; } int f(const int* a) { return 1; }"
        );
        assert_eq!(
            left("struct S { int f() thread; int f() device; };").0,
            "struct S { int f() ; };"
        );
    }
}
