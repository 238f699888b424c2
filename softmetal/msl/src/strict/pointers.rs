//! Every pointer and every reference names the address space it points into.

use super::functions;
use crate::declaration::{Item, ItemKind};
use crate::error::Message;
use crate::source::{Source, SPACES};
use std::collections::BTreeSet;
use std::ops::Range;

const SIGILS: &[&str] = &["*", "&", "&&"];
const QUALIFIERS: &[&str] = &[
    "const",
    "volatile",
    "restrict",
    "__restrict",
    "__restrict__",
];

/// Words that begin statements which are not declarations.
const STATEMENTS: &[&str] = &[
    "return", "else", "case", "if", "for", "while", "do", "switch", "break", "continue", "default",
    "operator", "sizeof", "using",
];

pub(crate) fn check(source: &Source, items: &[Item], problems: &mut Vec<Message>) {
    let mut checker = Checker {
        source,
        dependent: template_parameters(source, items),
        found: BTreeSet::new(),
    };
    checker.items(items);
    functions(items, &mut |item, function| {
        checker.declaration(item.start..function.name);
        checker.conversion(item.start..function.parameters.start - 1);
        checker.parameters(function.parameters.clone());
        if let Some(body) = &function.body {
            checker.statements(body.clone());
        }
    });
    checker.types();
    for at in checker.found {
        let what = if source.is(at, "*") {
            "pointer"
        } else {
            "reference"
        };
        problems.push(source.error(
            at,
            format!("{what} type must have explicit address space qualifier"),
        ));
    }
}

struct Checker<'a> {
    source: &'a Source,
    /// Names of template parameters.
    dependent: BTreeSet<&'a str>,
    /// The `*` and `&` at fault.
    found: BTreeSet<usize>,
}

impl Checker<'_> {
    fn items(&mut self, items: &[Item]) {
        for item in items {
            match &item.kind {
                ItemKind::Namespace { items, .. } | ItemKind::Class { items } => self.items(items),
                ItemKind::Plain => {
                    self.declaration(item.start..item.range.end);
                    self.function_types(item.start..item.range.end);
                }
                ItemKind::Function(_) | ItemKind::Instantiation => {}
            }
        }
    }

    /// The pointers of a declaration up to its name: each needs a space between it and the one before.
    fn declaration(&mut self, range: Range<usize>) {
        let source = self.source;
        let mut from = range.start;
        let mut i = range.start;
        while i < range.end
            && !source.is_any(i, &["=", ";", "{", "operator", "using", "static_assert"])
        {
            if source.is_attribute(i) {
                i = source.pair(i) + 1;
                continue;
            }
            if source.is_any(i, SIGILS) {
                self.judge(from..i, i);
                from = i + 1;
            } else if source.is(i, "(") && self.is_array_reference(i) {
                self.judge(from..i, i + 1);
            }
            i = source.next_type(i);
        }
    }

    /// `operator float*()`
    fn conversion(&mut self, range: Range<usize>) {
        let source = self.source;
        let Some(word) = range.clone().find(|i| source.is(*i, "operator")) else {
            return;
        };
        if source.is_word(word + 1) {
            self.declaration(word + 1..range.end);
        }
    }

    /// `float (&a)[4]`
    fn is_array_reference(&self, open: usize) -> bool {
        let close = self.source.pair(open);
        self.source.is_any(open + 1, &["*", "&"]) && self.source.is(close + 1, "[")
    }

    /// A reference to a pointer is let through: Metal takes the pointer to be private.
    fn judge(&mut self, before: Range<usize>, sigil: usize) {
        let source = self.source;
        let to_pointer = source.is(sigil, "&") && before.is_empty() && source.is(sigil - 1, "*");
        if !to_pointer && source.find(before, SPACES).is_none() {
            self.found.insert(sigil);
        }
    }

    fn parameters(&mut self, range: Range<usize>) {
        for part in self.source.split(range) {
            let end = part
                .clone()
                .find(|i| self.source.is(*i, "="))
                .unwrap_or(part.end);
            self.declaration(part.start..end);
            self.function_types(part.start..end);
        }
    }

    /// Parameter lists inside a declaration: `typedef void (f)(device int* a);`
    fn function_types(&mut self, range: Range<usize>) {
        let source = self.source;
        let mut i = range.start;
        while i < range.end && !source.is_any(i, &["=", "{"]) {
            if source.is(i, "(") && i > 0 && source.is(i - 1, ")") {
                self.parameters(i + 1..source.pair(i));
            }
            i = source.next_type(i);
        }
    }

    fn statements(&mut self, body: Range<usize>) {
        let source = self.source;
        for i in body.clone() {
            let in_head = i >= 2
                && source.is(i - 1, "(")
                && source.is_any(i - 2, &["for", "if", "while", "switch"]);
            let starts = i == body.start
                || source.is(i - 1, ";")
                || source.is(i - 1, "}")
                || self.opens_block(i - 1)
                || self.ends_label(i - 1)
                || in_head;
            let pragma = source[i - 1].kind == crate::token::Kind::Pragma;
            if (starts || pragma) && source.is_word(i) && !source.is_any(i, STATEMENTS) {
                self.statement(i, in_head);
            }
            if source.is(i, "[") && self.is_lambda(i) {
                let open = source.pair(i) + 1;
                self.parameters(open + 1..source.pair(open));
            }
        }
    }

    fn opens_block(&self, at: usize) -> bool {
        let source = self.source;
        let before = ["{", "}", ";", ")", "else", "do", ":"];
        let class =
            |name: usize| source.is_any(name.wrapping_sub(1), &["struct", "class", "union"]);
        source.is(at, "{") && (at == 0 || source.is_any(at - 1, &before) || class(at - 1))
    }

    /// The `:` of `case 1:` or `default:`
    fn ends_label(&self, at: usize) -> bool {
        let source = self.source;
        let stops = ["case", "default", "?", ";", "{", "}"];
        source.is(at, ":")
            && (0..at)
                .rev()
                .find(|i| source.is_any(*i, &stops))
                .is_some_and(|i| source.is_any(i, &["case", "default"]))
    }

    fn is_lambda(&self, at: usize) -> bool {
        let source = self.source;
        let close = source.pair(at);
        !source.is_word(at - 1)
            && !source.is_any(at - 1, &["]", ")"])
            && source.is(close + 1, "(")
            && source.is_any(source.pair(close + 1) + 1, &["{", "mutable", "->"])
    }

    /// A statement is a declaration if words are followed by `*` or `&`, a name, and what can follow a name.
    fn statement(&mut self, start: usize, in_head: bool) {
        let source = self.source;
        let mut i = start;
        let mut sigils = Vec::new();
        while i < source.len() {
            if source.is_any(i, SIGILS) {
                sigils.push(i);
                i += 1;
            } else if source.is_word(i) && sigils.is_empty()
                || source.is(i, "::")
                || source.is_any(i, QUALIFIERS)
                || source.is_space(i)
            {
                i += 1;
            } else if source.is(i, "<") && source.next_type(i) > i + 1 {
                i = source.next_type(i);
            } else {
                break;
            }
        }
        let follows: &[&str] = match sigils.last() {
            None => return,
            Some(last) if in_head || source.is(*last, "&&") => &["=", ":"],
            Some(_) => &["=", ";", ",", "[", "(", ":", "{"],
        };
        if source.is_word(i) && source.is_any(i + 1, follows) {
            self.declaration(start..i);
        }
    }

    /// Pointers that end a type: `(float*)p`, `f<float*>`, `g(float*, int)`, `using P = float*;`
    fn types(&mut self) {
        let source = self.source;
        for i in 1..source.len() {
            let after_type = source.is_word(i - 1) && !source.is_any(i - 1, STATEMENTS)
                || source.is(i - 1, ">")
                || source.is_any(i - 1, SIGILS);
            if !source.is_any(i, SIGILS) || !after_type {
                continue;
            }
            let mut next = i + 1;
            while source.is_any(next, QUALIFIERS) || source.is_space(next) {
                next += 1;
            }
            let start = self.type_start(i);
            let result = source.is(start.wrapping_sub(1), "->") && source.is(next, "{");
            if !result && !source.is_any(next, &[")", ">", ",", ";"]) {
                continue;
            }
            let word = source[i - 1].text.as_str();
            let specialisation =
                source.is_any(next, &[">", ","]) && i - start == 1 && self.dependent.contains(word);
            let in_capture = source.is(start.wrapping_sub(1), "[");
            if !specialisation && !in_capture && (start < i || source.is_any(i - 1, SIGILS)) {
                self.judge(start..i, i);
            }
        }
    }

    /// The first token of the type whose `*` stands at `at`.
    fn type_start(&self, at: usize) -> usize {
        let source = self.source;
        let mut i = at;
        while i > 0 {
            let previous = i - 1;
            if source.is(previous, ">") {
                match (0..previous)
                    .rev()
                    .take(400)
                    .find(|open| source.is(*open, "<") && source.angle(*open) == Some(previous))
                {
                    Some(open) => i = open,
                    None => return i,
                }
            } else if source.is_word(previous) && !source.is_any(previous, STATEMENTS)
                || source.is(previous, "::")
            {
                i = previous;
            } else {
                return i;
            }
        }
        i
    }
}

fn template_parameters<'a>(source: &'a Source, items: &[Item]) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for item in items {
        for head in &item.heads {
            for part in source.split(head.clone()) {
                let end = part
                    .clone()
                    .find(|i| source.is(*i, "="))
                    .unwrap_or(part.end);
                if let Some(name) = (part.start..end).rev().find(|i| source.is_word(*i)) {
                    names.insert(source[name].text.as_str());
                }
            }
        }
        if let ItemKind::Namespace { items, .. } | ItemKind::Class { items } = &item.kind {
            names.extend(template_parameters(source, items));
        }
    }
    names
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

    fn pair(bad: &str, good: &str) {
        assert_eq!(refused(bad), 1, "{bad}");
        assert_eq!(refused(good), 0, "{good}");
    }

    #[test]
    fn parameters() {
        pair("void f(float* p) { }", "void f(device float* p) { }");
        pair("void f(const float& r);", "void f(const thread float& r);");
        pair(
            "void f(device float* const* p);",
            "void f(device float* const thread* p);",
        );
        pair(
            "template <typename T> void f(vec<T, 4>* p) { }",
            "template <typename T> void f(threadgroup vec<T, 4>* p) { }",
        );
        pair(
            "struct S { void f(int& a); };",
            "struct S { void f(thread int& a); };",
        );
        pair("void f(float*& p);", "void f(const device float*& p);");
        pair("void f(device float**);", "void f(device float* thread*);");
        pair("void f(float (&a)[4]);", "void f(constant float (&a)[4]);");
    }

    #[test]
    fn results() {
        pair("float* f();", "device float* f();");
        pair(
            "struct S { S& operator=(int a); };",
            "struct S { thread S& operator=(int a); };",
        );
        assert_eq!(
            refused("struct S { bool operator&&(int a); int operator*(int a); };"),
            0
        );
    }

    #[test]
    fn locals() {
        pair(
            "void f() { float* p = q; }",
            "void f() { device float* p = q; }",
        );
        pair(
            "void f() { if (x) { auto& r = s; } }",
            "void f() { if (x) { thread auto& r = s; } }",
        );
        pair(
            "void f() { for (float* p = a; p != b; p++) { } }",
            "void f() { for (device float* p = a; p != b; p++) { } }",
        );
        pair(
            "void f() { vec<T, 4>* p; }",
            "void f() { threadgroup vec<T, 4>* p; }",
        );
        assert_eq!(refused("void f() { x = a * b; y = a & b; if (a & b) { } if (a * b > c) { } g({a * b, c}); return a * b; }"), 0);
        assert_eq!(
            refused("void f() { a && g(b); ok = a && b; case 1: x(); }"),
            0
        );
    }

    #[test]
    fn members() {
        pair("struct S { float* p; };", "struct S { device float* p; };");
        pair(
            "struct S { int a; T<int, 2>& r; };",
            "struct S { int a; thread T<int, 2>& r; };",
        );
    }

    #[test]
    fn casts_and_template_arguments() {
        pair(
            "void f() { x = *(float4*)p; }",
            "void f() { x = *(device float4*)p; }",
        );
        pair(
            "void f() { x = reinterpret_cast<const uint*>(p); }",
            "void f() { x = reinterpret_cast<const device uint*>(p); }",
        );
        pair(
            "void f() { g<float*, 2>(p); }",
            "void f() { g<device float*, 2>(p); }",
        );
        assert_eq!(refused("template <typename T> struct P<T*> { }; template <typename T> struct P<thread T*> { };"), 0);
    }

    #[test]
    fn names_of_types() {
        pair("using P = float*;", "using P = device float*;");
        pair("typedef float* P;", "typedef device float* P;");
        pair(
            "typedef void (fn)(int n, float* p);",
            "typedef void (fn)(int n, device float* p);",
        );
    }

    #[test]
    fn function_pointers_need_no_space() {
        assert_eq!(
            refused("template <void (*f)(device int*, thread float&)> void g() { }"),
            0
        );
        assert_eq!(refused("void g() { h([&](thread int& a) { }); }"), 0);
        assert_eq!(refused("void g() { h([&](int& a) { }); }"), 1);
    }
}
