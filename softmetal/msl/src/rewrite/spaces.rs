//! Address spaces: memory has one address space on a CPU, and `constant` is `const`.

use crate::edits::Edits;
use crate::source::Source;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    fn erased(text: &str) -> String {
        let source = parse(text);
        let mut edits = Edits::new(&source);
        erase(&source, &mut edits);
        edits
            .render(&source, 0..source.len())
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
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
}
