//! A parser for declarations: namespaces, classes, functions, variables, explicit instantiations.
//!
//! It knows where things begin and end, not what they mean.

use crate::error::Message;
use crate::source::Source;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Namespace,
    Class,
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// All tokens, from `template` to `}` or `;`.
    pub(crate) range: Range<usize>,
    /// Where the declaration starts behind its template heads.
    pub(crate) start: usize,
    /// The insides of `template <…>`, outermost first.
    pub(crate) heads: Vec<Range<usize>>,
    pub(crate) kind: ItemKind,
    pub(crate) scope: Scope,
}

#[derive(Clone, Debug)]
pub(crate) enum ItemKind {
    Namespace {
        name: String,
        items: Vec<Item>,
    },
    Class {
        items: Vec<Item>,
    },
    Function(Function),
    /// A variable, a type alias, an enumeration … everything else up to its `;`.
    Plain,
    /// `template void f<int>(…);`
    Instantiation,
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// The last token of the name.
    pub(crate) name: usize,
    /// Between the parentheses.
    pub(crate) parameters: Range<usize>,
    /// Between the braces.
    pub(crate) body: Option<Range<usize>>,
}

pub(crate) fn parse(source: &Source) -> Result<Vec<Item>, Message> {
    items(source, 0..source.len(), Scope::Namespace)
}

fn items(source: &Source, range: Range<usize>, scope: Scope) -> Result<Vec<Item>, Message> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let pragma = source[at].kind == crate::token::Kind::Pragma;
        let access = scope == Scope::Class
            && source.is_any(at, &["public", "private", "protected"])
            && source.is(at + 1, ":");
        if pragma || source.is(at, ";") {
            at += 1;
        } else if access {
            at += 2;
        } else {
            let item = item(source, at..range.end, scope)?;
            at = item.range.end;
            found.push(item);
        }
    }
    Ok(found)
}

fn item(source: &Source, range: Range<usize>, scope: Scope) -> Result<Item, Message> {
    let mut at = range.start;
    let mut heads = Vec::new();
    while source.is(at, "template") {
        if !source.is(at + 1, "<") {
            let end = statement_end(source, at, range.end)?;
            let kind = ItemKind::Instantiation;
            return Ok(Item {
                range: range.start..end,
                start: at,
                heads,
                kind,
                scope,
            });
        }
        let close = source
            .angle(at + 1)
            .ok_or_else(|| source.error(at + 1, "template parameter list is not closed"))?;
        heads.push(at + 2..close);
        at = close + 1;
    }
    let start = at;
    let (kind, end) = match namespace(source, at)? {
        Some(found) => found,
        None => declaration(source, at..range.end)?,
    };
    Ok(Item {
        range: range.start..end,
        start,
        heads,
        kind,
        scope,
    })
}

fn namespace(source: &Source, at: usize) -> Result<Option<(ItemKind, usize)>, Message> {
    let word = at + usize::from(source.is(at, "inline"));
    if !source.is(word, "namespace") {
        return Ok(None);
    }
    let mut name = String::new();
    let mut i = word + 1;
    while source.is_word(i) || source.is(i, "::") || source.is_attribute(i) {
        if !source.is_attribute(i) {
            name += &source[i].text;
        }
        i = source.next(i);
    }
    if !source.is(i, "{") {
        return Ok(None);
    }
    let close = source.pair(i);
    let items = items(source, i + 1..close, Scope::Namespace)?;
    Ok(Some((ItemKind::Namespace { name, items }, close + 1)))
}

fn statement_end(source: &Source, from: usize, limit: usize) -> Result<usize, Message> {
    let mut i = from;
    while i < limit {
        if source.is(i, ";") {
            return Ok(i + 1);
        }
        i = source.next(i);
    }
    Err(source.error(from, "expected ';' behind this declaration"))
}

/// Words whose parentheses are not a parameter list.
const NOT_FUNCTIONS: &[&str] = &[
    "decltype",
    "alignas",
    "noexcept",
    "__attribute__",
    "sizeof",
    "explicit",
    "static_assert",
    "coherent",
];

fn declaration(source: &Source, range: Range<usize>) -> Result<(ItemKind, usize), Message> {
    let mut class_key = false;
    let mut enumeration = false;
    let mut class_items = None;
    let mut function: Option<Function> = None;
    let typedef = source.is_any(range.start, &["typedef", "using"]);
    let mut at = range.start;
    while at < range.end {
        let token = &source[at];
        if source.is_attribute(at) {
            at = source.pair(at) + 1;
        } else if token.is("operator") {
            at = operator_end(source, at);
        } else if token.is_any(&["struct", "class", "union"]) {
            class_key = true;
            at += 1;
        } else if token.is("enum") {
            enumeration = true;
            at += 1;
        } else if token.is("(") {
            let close = source.pair(at);
            let named = at > range.start
                && !source.is_any(at - 1, NOT_FUNCTIONS)
                && (source[at - 1].is_word()
                    || follows_operator(source, range.start, at)
                    || source.is(at - 1, ">"));
            if named && !typedef && class_items.is_none() {
                function = Some(Function {
                    name: at - 1,
                    parameters: at + 1..close,
                    body: None,
                });
            }
            at = close + 1;
        } else if token.is(";") {
            return Ok((finish(function, class_items), at + 1));
        } else if token.is("=") {
            let end = statement_end(source, at, range.end)?;
            let special = source.is_any(at + 1, &["default", "delete"]) || source.is(at + 1, "0");
            if !special || function.as_ref().is_some_and(|f| f.parameters.end > at) {
                function = None;
            }
            return Ok((finish(function, class_items), end));
        } else if token.is(":") && function.is_some() {
            at = initialisers_end(source, at + 1);
        } else if token.is("{") {
            let close = source.pair(at);
            if let Some(mut function) = function.take() {
                function.body = Some(at + 1..close);
                return Ok((ItemKind::Function(function), close + 1));
            }
            if class_key && !enumeration && class_items.is_none() {
                class_items = Some(items(source, at + 1..close, Scope::Class)?);
            }
            at = close + 1;
        } else {
            at = source.next_type(at);
        }
    }
    Err(source.error(range.start, "expected ';' behind this declaration"))
}

fn finish(function: Option<Function>, class_items: Option<Vec<Item>>) -> ItemKind {
    match (class_items, function) {
        (Some(items), _) => ItemKind::Class { items },
        (None, Some(function)) => ItemKind::Function(function),
        (None, None) => ItemKind::Plain,
    }
}

/// Behind the name of an operator function.
fn operator_end(source: &Source, at: usize) -> usize {
    let mut i = at + 1;
    if source.is_any(i, &["(", "["]) {
        return source.pair(i) + 1;
    }
    while i < source.len() && !source.is(i, "(") {
        i += 1;
    }
    i
}

fn follows_operator(source: &Source, start: usize, at: usize) -> bool {
    (start..at).rev().take(6).any(|i| source.is(i, "operator"))
}

/// The `{` of a constructor's body, from behind the `:` of its initialisers.
fn initialisers_end(source: &Source, from: usize) -> usize {
    let mut i = from;
    while i < source.len() && !source.is(i, ";") {
        if source.is(i, "{") && !(source[i - 1].is_word() || source.is(i - 1, ">")) {
            return i;
        }
        i = source.next_type(i);
    }
    i
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source;

    fn outline(text: &str) -> Vec<String> {
        let source = source::parse(text);
        describe(&source, &parse(&source).unwrap())
    }

    fn describe(source: &Source, items: &[Item]) -> Vec<String> {
        items
            .iter()
            .map(|item| {
                let heads = "<>".repeat(item.heads.len());
                let what = match &item.kind {
                    ItemKind::Namespace { name, items } => {
                        format!("namespace {name} [{}]", describe(source, items).join(", "))
                    }
                    ItemKind::Class { items } => {
                        format!("class [{}]", describe(source, items).join(", "))
                    }
                    ItemKind::Function(f) => format!(
                        "{}({}){}",
                        source[f.name].text,
                        source.split(f.parameters.clone()).len(),
                        if f.body.is_some() { "{}" } else { "" }
                    ),
                    ItemKind::Plain => "plain".into(),
                    ItemKind::Instantiation => "instantiation".into(),
                };
                heads + &what
            })
            .collect()
    }

    #[test]
    fn functions_variables_and_types() {
        assert_eq!(
            outline("int f(int a, vec<T, 4> b) { return a; } void g(); constant float x[2] = {1, 2}; using A = B<1>;"),
            ["f(2){}", "g(0)", "plain", "plain"]
        );
        assert_eq!(
            outline(
                "typedef void (fn_t)(device int* p); enum E { A, B }; static_assert(1 < 2, \"\");"
            ),
            ["plain"; 3]
        );
        assert_eq!(
            outline("constant int t {3}; decltype(f(1)) g(int) { }"),
            ["plain", "g(1){}"]
        );
        assert_eq!(
            outline("struct S f(int a) { } typedef struct { int a; } T;"),
            ["f(1){}", "class [plain]"]
        );
    }

    #[test]
    fn classes_and_their_members() {
        assert_eq!(
            outline(
                "template <typename T, int N = (1 > 0)> struct S : B<T> { public: T a; S() : a(1), b{2} { } \
                 S() threadgroup = default; T operator()(T x) const thread { } operator T() const; \
                 template <typename U> bool operator<(U o) { } };"
            ),
            ["<>class [plain, S(0){}, S(0), )(1){}, T(0), <><(1){}]"]
        );
    }

    #[test]
    fn namespaces_and_instantiations() {
        assert_eq!(
            outline(
                "namespace a { namespace b { int x; } } \
                 template [[host_name(\"k\")]] [[kernel]] decltype(k<float>) k<float>; template <> int g<int>(int);"
            ),
            ["namespace a [namespace b [plain]]", "instantiation", "<>>(1)"]
        );
    }

    #[test]
    fn default_arguments_do_not_hide_the_body() {
        assert_eq!(
            outline("void f(int a = 3, B b = {1}) { } int x = f(1);"),
            ["f(2){}", "plain"]
        );
    }

    #[test]
    fn what_does_not_end_is_refused() {
        let source = source::parse("int a");
        assert_eq!(
            parse(&source).unwrap_err().text,
            "expected ';' behind this declaration"
        );
    }
}
