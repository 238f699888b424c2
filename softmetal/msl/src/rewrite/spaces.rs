//! Address spaces: memory has one address space on a CPU, and `constant` is `const`. For the check of types they stay.

use crate::declaration::{Function, Item, ItemKind, Scope};
use crate::edits::Edits;
use crate::source::{Source, SPACES};
use std::ops::Range;

pub(crate) fn erase(source: &Source, edits: &mut Edits) {
    for i in 0..source.len() {
        if source.is(i, "coherent") && source.is(i + 1, "(") {
            edits.remove(i..source.pair(i + 1) + 1);
        } else if source.is_space(i) {
            if source.is(i, "constant")
                && !qualifies_method(source, i)
                && !is_const_already(source, i)
            {
                edits.replace(i, "const");
            } else {
                edits.remove(i..i + 1);
            }
        }
    }
}

/// `float at() const constant { … }`
fn qualifies_method(source: &Source, at: usize) -> bool {
    let mut i = at;
    while i > 0 && (source.is_space(i - 1) || source.is_any(i - 1, &["const", "volatile"])) {
        i -= 1;
    }
    i > 0 && source.is(i - 1, ")")
}

fn is_const_already(source: &Source, at: usize) -> bool {
    source.is(at + 1, "const") || at > 0 && source.is(at - 1, "const")
}

const SCALARS: &[&str] = &[
    "bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "size_t", "half",
    "float", "bfloat", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t",
    "int64_t", "uint64_t",
];

/// The words of `spaces.h` instead of Metal's.
pub(crate) fn keep(source: &Source, items: &[Item], edits: &mut Edits) {
    for i in 0..source.len() {
        if source.is(i, "coherent") && source.is(i + 1, "(") {
            edits.remove(i..source.pair(i + 1) + 1);
        }
        match source[i].text.as_str() {
            "device" => edits.replace(i, "SM_DEVICE"),
            "constant" => edits.replace(i, "SM_CONSTANT"),
            "threadgroup" => edits.replace(i, "__local"),
            "thread" if takes_scalar(source, i) => edits.remove(i..i + 1),
            "thread" => edits.replace(i, "__private"),
            _ => {}
        }
    }
    operands(source, edits);
    keep_in(source, items, "", edits);
}

/// A parameter `thread const float& x` takes temporaries, which have no space in OpenCL: any space will do.
fn takes_scalar(source: &Source, at: usize) -> bool {
    let qualified = at > 0 && source.is(at - 1, "const");
    let starts = at.wrapping_sub(1 + usize::from(qualified));
    let name = at + 1 + usize::from(source.is(at + 1, "const"));
    let sigil = name + 1 + usize::from(source.is(name + 1, "const"));
    let constant = qualified || sigil > at + 2;
    constant
        && source.is_any(starts, &["(", ","])
        && source.is_any(name, SCALARS)
        && source.is(sigil, "&")
}

fn keep_in(source: &Source, items: &[Item], class: &str, edits: &mut Edits) {
    for item in items {
        for head in &item.heads {
            function_parameters(source, head.clone(), edits);
        }
        match &item.kind {
            ItemKind::Namespace { items, .. } => keep_in(source, items, "", edits),
            ItemKind::Class { items } => keep_in(source, items, class_name(source, item), edits),
            ItemKind::Function(function) => method(source, item, function, class, edits),
            ItemKind::Plain => variable(source, item, edits),
            ItemKind::Instantiation => {}
        }
    }
}

/// The object of a method lies in the thread's memory unless the method says otherwise. Constructors make objects of all
/// spaces, as OpenCL makes temporaries with those that have none only.
fn method(source: &Source, item: &Item, function: &Function, class: &str, edits: &mut Edits) {
    let tail = function.parameters.end + 1..item.range.end;
    let end = tail
        .clone()
        .find(|i| source.is_any(*i, &["{", ";", "=", ":"]));
    let tail = tail.start..end.unwrap_or(tail.end);
    let constructs = source.is(function.name, class);
    for i in tail.clone().filter(|i| source.is_space(*i)) {
        if constructs {
            edits.remove(i..i + 1);
        } else if source.is_any(i, &["device", "constant"]) {
            edits.replace(i, "__global");
        }
    }
    let special = source.is(tail.end, "=");
    let free = source
        .find(item.start..function.name, &["static", "friend"])
        .is_some();
    if item.scope == Scope::Class
        && !(constructs || special || free)
        && source.find(tail.clone(), SPACES).is_none()
    {
        edits.insert(tail.start, "__private");
    }
}

fn class_name<'a>(source: &'a Source, item: &Item) -> &'a str {
    let mut i = item.start;
    while !source.is_any(i, &["struct", "class", "union"]) && i < item.range.end {
        i += 1;
    }
    i += 1;
    while source.is_attribute(i) || source.is_any(i, &["alignas", "__attribute__", "("]) {
        i = source.next(i);
    }
    &source[i].text
}

/// `void (*f)(…)` among template parameters: OpenCL has no pointers to functions, but `void f(…)`.
fn function_parameters(source: &Source, head: Range<usize>, edits: &mut Edits) {
    for i in head {
        if source.is(i, "(") && source.is(i + 1, "*") && source.is(source.pair(i) + 1, "(") {
            edits.replace(i, " ");
            edits.remove(i + 1..i + 2);
            edits.remove(source.pair(i)..source.pair(i) + 1);
        }
    }
}

/// OpenCL lets program-scope variables live in its own spaces only. Scalars are used by value; a table gets a second name of
/// the right type.
fn variable(source: &Source, item: &Item, edits: &mut Edits) {
    let end = item.range.clone().find(|i| source.is_any(*i, &["=", "{"]));
    let declared = item.start..end.unwrap_or(item.range.end - 1);
    let types = ["*", "&", "typedef", "using"];
    if source.find(declared.clone(), &["constant"]).is_none()
        || source.find(declared.clone(), &types).is_some()
    {
        return;
    }
    for i in declared.clone().filter(|i| source.is(*i, "constant")) {
        edits.replace(
            i,
            if is_const_already(source, i) {
                ""
            } else {
                "const"
            },
        );
    }
    let name = declared
        .clone()
        .find(|i| source.is(*i + 1, "[") && !source.is_attribute(*i + 1));
    let plain = |name: &usize| {
        item.scope == Scope::Namespace && item.heads.is_empty() && !source.is(*name - 1, "::")
    };
    if let Some(name) = name.filter(plain) {
        let table = source[name].text.as_str();
        edits.replace(name, format!("softmetal_{table}"));
        let alias =
            format!("; static auto& {table} = softmetal::constant_table(softmetal_{table});");
        edits.replace(item.range.end - 1, alias);
    }
}

/// `c ? a : b` with both operands as values.
fn operands(source: &Source, edits: &mut Edits) {
    for question in (0..source.len()).filter(|i| source.is(*i, "?")) {
        let Some(colon) = operand_end(source, question + 1).filter(|i| source.is(*i, ":")) else {
            continue;
        };
        let Some(end) = operand_end(source, colon + 1) else {
            continue;
        };
        edits.insert(question + 1, "softmetal::operand(");
        edits.insert(colon, ")");
        edits.insert(colon + 1, "softmetal::operand(");
        edits.insert(end, ")");
    }
}

/// Where an operand of `?:` ends, unless it has a `<` or `>` that may be of either kind.
fn operand_end(source: &Source, from: usize) -> Option<usize> {
    let mut nested = 0;
    let mut i = from;
    while i < source.len() && !source.is_any(i, &[",", ";", ")", "]", "}"]) {
        let next = source.next_type(i);
        match source[i].text.as_str() {
            "?" => nested += 1,
            ":" if nested == 0 => return Some(i),
            ":" => nested -= 1,
            "<" | ">" if next == i + 1 => return None,
            _ => {}
        }
        i = next;
    }
    Some(i)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    /// With one blank between words.
    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn erased(text: &str) -> String {
        let source = parse(text);
        let mut edits = Edits::new(&source);
        erase(&source, &mut edits);
        words(&edits.render(&source, 0..source.len()))
    }

    #[test]
    fn spaces_vanish() {
        assert_eq!(erased("device const float* p"), "const float* p");
        assert_eq!(erased("(threadgroup T*)x"), "( T*)x");
        assert_eq!(erased("device float* thread* p"), "float* * p");
        assert_eq!(erased("coherent(device) device float* p"), "float* p");
    }

    #[test]
    fn constant_is_const() {
        assert_eq!(erased("constant Params& p"), "const Params& p");
        assert_eq!(erased("constant const int& n"), "const int& n");
        assert_eq!(erased("const constant int& n"), "const int& n");
        assert_eq!(
            erased("static constant constexpr const int N = 1;"),
            "static const constexpr const int N = 1;"
        );
    }

    #[test]
    fn qualifiers_of_methods_vanish() {
        assert_eq!(erased("int f() const constant { }"), "int f() const { }");
        assert_eq!(erased("S() threadgroup = default;"), "S() = default;");
        assert_eq!(erased("int f() thread const { }"), "int f() const { }");
    }

    fn kept(text: &str) -> String {
        let source = parse(text);
        let items = crate::declaration::parse(&source).unwrap();
        let mut edits = Edits::new(&source);
        keep(&source, &items, &mut edits);
        words(&edits.render(&source, 0..source.len()))
    }

    #[test]
    fn spaces_are_opencls() {
        assert_eq!(
            kept("void f(device float* a, constant int& b, threadgroup float* thread* c);"),
            "void f(SM_DEVICE float* a, SM_CONSTANT int& b, __local float* __private * c);"
        );
        assert_eq!(
            kept("void f(thread const short& a, const thread V& b);"),
            "void f( const short& a, const __private V& b);"
        );
    }

    #[test]
    fn objects_are_private() {
        assert_eq!(
            kept("struct S { S() thread; int f() const { } int g() device; static int h(); };"),
            "struct S { S() ; int f() __private const { } int g() __global ; static int h(); };"
        );
    }

    #[test]
    fn tables_have_a_second_name() {
        assert_eq!(
            kept("constant int n = 2; constant float t[2] = {1, 2};"),
            "const int n = 2; const float softmetal_t [2] = {1, 2}; static auto& t = softmetal::constant_table(softmetal_t);"
        );
    }

    #[test]
    fn functions_among_template_parameters() {
        assert_eq!(
            kept("template <void (*f)(int)> void g();"),
            "template <void f (int)> void g();"
        );
    }

    #[test]
    fn operands_are_values() {
        assert_eq!(
            kept("int f() { return a ? b : c ? d : e; }"),
            "int f() { return a ? softmetal::operand( b ) : softmetal::operand( c ? softmetal::operand( d ) : softmetal::operand( e) ) ; }"
        );
        assert_eq!(kept("int a[b ? c < d : 1];"), "int a[b ? c < d : 1];");
    }
}
