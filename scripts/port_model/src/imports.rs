//! What a path means: the `use` declarations of a file.

use crate::tokens::{Kind, Token};

/// A name that a `use` binds, and the path that it stands for.
struct Import<'a> {
    name: &'a str,
    path: Vec<&'a str>,
}

/// The declarations of a file. A name that two modules of it bind differently has no meaning here.
pub struct Imports<'a>(Vec<Import<'a>>);

impl<'a> Imports<'a> {
    pub fn new(tokens: &[Token<'a>]) -> Self {
        let mut out = vec![];
        for (i, token) in tokens.iter().enumerate() {
            if token.is("use") {
                tree(tokens, i + 1, &[], &mut out);
            }
        }
        Imports(out)
    }

    /// The path whose last segment stands at `at`, from the crate on. A name that is not imported stands for itself.
    pub fn resolve(&self, tokens: &[Token<'a>], at: usize) -> Option<Vec<&'a str>> {
        let mut begin = at;
        while begin >= 2 && tokens[begin - 1].is("::") && tokens[begin - 2].kind == Kind::Ident {
            begin -= 2;
        }
        let mut path: Vec<&str> = (begin..=at).step_by(2).map(|i| tokens[i].text).collect();
        if begin >= 1 && tokens[begin - 1].is("::") {
            // From the root, or from a type in angle brackets.
            let of_type = begin >= 2 && tokens[begin - 2].is(">");
            return (!of_type).then_some(path);
        }
        // `use a::b as c` may be followed by `use c::d`.
        for _ in 0..4 {
            let mut meanings = self.0.iter().filter(|import| import.name == path[0]);
            let Some(first) = meanings.next() else {
                return Some(path);
            };
            if meanings.any(|other| other.path != first.path) {
                return None;
            }
            let same = first.path[0] == path[0];
            path.splice(..1, first.path.iter().copied());
            if same {
                return Some(path);
            }
        }
        None
    }
}

/// Reads the tree of a `use` from `at` on, behind the segments of `parent`. Returns where it ends.
fn tree<'a>(
    tokens: &[Token<'a>],
    mut at: usize,
    parent: &[&'a str],
    out: &mut Vec<Import<'a>>,
) -> usize {
    let mut path = parent.to_vec();
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.text {
            "::" => {}
            "{" => {
                while tokens.get(at).is_some_and(|t| !t.is("}")) {
                    at = tree(tokens, at, &path, out);
                    if tokens.get(at).is_some_and(|t| t.is(",")) {
                        at += 1;
                    }
                }
                return at + 1;
            }
            // What a glob imports cannot be seen.
            "*" => return at,
            "as" => {
                if let Some(name) = tokens.get(at).map(|t| t.text) {
                    out.push(Import { name, path });
                }
                return at + 1;
            }
            _ if token.kind != Kind::Ident => {
                bind(path, out);
                return at - 1;
            }
            "self" if !path.is_empty() => {}
            segment => path.push(segment),
        }
    }
    at
}

fn bind<'a>(path: Vec<&'a str>, out: &mut Vec<Import<'a>>) {
    if let Some(name) = path.last().copied() {
        out.push(Import { name, path });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::tokens;

    fn resolved(code: &str) -> Option<String> {
        let tokens = tokens(code);
        let path = Imports::new(&tokens).resolve(&tokens, tokens.len() - 1)?;
        Some(path.join("::"))
    }

    #[test]
    fn names_stand_for_what_they_were_imported_from() {
        let known = [
            ("use a::{b::{self as c, d}, e::*}; c::x", "a::b::x"),
            ("use a::{b::{self as c, d}, e::*}; d", "a::b::d"),
            ("use a::{b, c::{self, d},}; c::x", "a::c::x"),
            ("use a as b; use b::c; fn f() { c::x", "a::c::x"),
            ("use a; a::x", "a::x"),
            ("use ::a::b; b::x", "a::b::x"),
            ("use b::a; ::a::x", "a::x"),
            ("use crate::a; a::x", "crate::a::x"),
            ("x", "x"),
        ];
        for (code, want) in known {
            assert_eq!(resolved(code).as_deref(), Some(want), "{code}");
        }
        for unknown in [
            "use a::b; use c::b; b::x",
            "<T>::x",
            "use a::b; use b::a; a",
        ] {
            assert_eq!(resolved(unknown), None, "{unknown}");
        }
    }
}
