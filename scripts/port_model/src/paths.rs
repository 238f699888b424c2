//! `candle_nn::…` becomes `candle_fused::nn::…`.

use crate::edit::Edit;
use crate::tokens::{partner, Kind, Token};

pub struct Paths {
    pub edits: Vec<Edit>,
    /// What a person has to look at.
    pub left: Vec<String>,
}

/// Rewrites each path that begins with the crate `from`; `to` is the path that takes its place.
pub fn rewrite(tokens: &[Token], from: &str, to: &str) -> Paths {
    let (mut edits, mut left) = (vec![], vec![]);
    let text = |i: Option<usize>| i.and_then(|i| tokens.get(i)).map_or("", |t| t.text);
    for (i, token) in tokens.iter().enumerate() {
        if token.kind == Kind::Doc {
            edits.extend(doc(token, from, to));
            continue;
        }
        if token.kind != Kind::Ident || token.text != from {
            continue;
        }
        let (before, after) = (text(i.checked_sub(1)), text(Some(i + 1)));
        let replace = |text: &str| Edit {
            range: token.start..token.end(),
            text: text.to_string(),
        };
        if before == "crate" || before == "mod" {
            left.push(format!("`{before} {from}` stays as it is"));
        } else if before == "." || (before == "as" && after != "::") || !is_root(tokens, i) {
            // A field, an alias, or an item of that name in another module.
        } else if after == "::" {
            edits.push(replace(to));
            edits.extend(imported_self(tokens, i + 2, from));
        } else if after == "as" {
            edits.push(replace(to));
        } else if in_use(tokens, i) && matches!(after, ";" | "," | "}") {
            edits.push(replace(&format!("{to} as {from}")));
        }
    }
    Paths { edits, left }
}

/// Whether a path begins here: nothing comes before it, or a `::` that nothing comes before.
fn is_root(tokens: &[Token], i: usize) -> bool {
    if i == 0 || !tokens[i - 1].is("::") {
        return true;
    }
    // `<T>::x` and `a::x` go on from something; `use ::x` and `(::x` do not.
    i < 2
        || match tokens[i - 2].text {
            ">" => !closes_type(tokens, i - 2),
            _ => tokens[i - 2].kind != Kind::Ident || keyword(tokens[i - 2]),
        }
}

/// Whether the `>` belongs to a type: not to the generics of `impl<T>` or `for<'a>`, and not to a comparison.
fn closes_type(tokens: &[Token], close: usize) -> bool {
    let mut depth = 0;
    for i in (0..=close).rev() {
        match tokens[i].text {
            ">" => depth += 1,
            "<" => depth -= 1,
            ";" | "{" | "}" => return false,
            _ => {}
        }
        if depth == 0 {
            return i == 0 || !(tokens[i - 1].is("impl") || tokens[i - 1].is("for"));
        }
    }
    false
}

/// What a path may follow.
fn keyword(token: Token) -> bool {
    matches!(
        token.text,
        "use"
            | "return"
            | "as"
            | "dyn"
            | "impl"
            | "mut"
            | "ref"
            | "in"
            | "for"
            | "if"
            | "else"
            | "match"
            | "while"
            | "let"
            | "break"
            | "where"
            | "move"
    )
}

/// Whether the token stands in a `use` declaration.
fn in_use(tokens: &[Token], i: usize) -> bool {
    let begin = tokens[..i].iter().rposition(|t| t.is(";") || t.is("use"));
    begin.is_some_and(|b| tokens[b].is("use"))
}

/// `use candle_nn::{self, …}` made the name `candle_nn`, and still has to.
fn imported_self(tokens: &[Token], group: usize, name: &str) -> Option<Edit> {
    let token = tokens.get(group).filter(|t| t.is("{"))?;
    let end = partner(tokens, group)?;
    let mut depth = 0;
    for i in group..end {
        match tokens[i].text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "self" if depth == 1 && !tokens[i + 1].is("as") => {
                let end = tokens[i].end();
                let text = format!(" as {name}");
                return Some(Edit {
                    range: end..end,
                    text,
                });
            }
            _ => {}
        }
    }
    let _ = token;
    None
}

/// Examples in documentation are compiled too.
fn doc(token: &Token, from: &str, to: &str) -> Vec<Edit> {
    let pattern = format!("{from}::");
    let found = token.text.match_indices(&pattern);
    let whole = found.filter(|(i, _)| {
        let before = token.text[..*i].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
    });
    let edit = |(i, _)| {
        let start = token.start + i;
        Edit {
            range: start..start + from.len(),
            text: to.to_string(),
        }
    };
    whole.map(edit).collect()
}
