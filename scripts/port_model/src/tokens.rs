//! Rust's tokens with their places in the text: enough to rewrite code without touching strings, comments or layout.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ident,
    Literal,
    Lifetime,
    Punct,
    /// A comment that rustdoc reads; all others are left out.
    Doc,
}

#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub start: usize,
}

impl Token<'_> {
    pub fn end(&self) -> usize {
        self.start + self.text.len()
    }

    pub fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Ident | Kind::Punct)
    }
}

/// `::`, `->` and `=>` are one token, all other punctuation is one token for each character.
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut out = vec![];
    let mut at = shebang(code);
    while let Some(c) = code[at..].chars().next() {
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let rest = &code[at..];
        let (kind, len) = if let Some(len) = comment(rest) {
            let doc = ["///", "//!", "/**", "/*!"]
                .iter()
                .any(|d| rest.starts_with(d));
            if !doc {
                at += len;
                continue;
            }
            (Kind::Doc, len)
        } else if let Some(len) = string(rest) {
            (Kind::Literal, len)
        } else if c == '\'' {
            quote(rest)
        } else if c.is_ascii_digit() {
            (Kind::Literal, number(rest))
        } else if c.is_alphabetic() || c == '_' {
            (Kind::Ident, ident(rest))
        } else if ["::", "->", "=>"].iter().any(|p| rest.starts_with(p)) {
            (Kind::Punct, 2)
        } else {
            (Kind::Punct, c.len_utf8())
        };
        out.push(Token {
            kind,
            text: &rest[..len],
            start: at,
        });
        at += len;
    }
    out
}

/// The length of a first line such as `#!/usr/bin/env x`. `#![` begins an attribute.
fn shebang(code: &str) -> usize {
    match code.strip_prefix("#!") {
        Some(rest) if !rest.trim_start().starts_with('[') => code.find('\n').unwrap_or(code.len()),
        _ => 0,
    }
}

fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(rest.len())
}

/// A string, raw or not, of characters or bytes.
fn string(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|p| {
        rest.strip_prefix(p)
            .is_some_and(|r| r.starts_with(['"', '#']))
    })?;
    let body = &rest[prefix.len()..];
    let hashes = body.len() - body.trim_start_matches('#').len();
    let raw = prefix.ends_with('r');
    if !body[hashes..].starts_with('"') || (hashes > 0 && !raw) {
        return None;
    }
    let open = prefix.len() + hashes + 1;
    if raw {
        let close = format!("\"{}", "#".repeat(hashes));
        let end = rest[open..].find(&close).map(|i| open + i + close.len());
        return Some(end.unwrap_or(rest.len()));
    }
    Some(open + closed_by(&rest[open..], '"'))
}

/// The length up to and with the closing quote.
fn closed_by(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return i + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// A character or a lifetime.
fn quote(rest: &str) -> (Kind, usize) {
    let mut chars = rest[1..].chars();
    match (chars.next(), chars.next()) {
        (Some(c), Some(next)) if c != '\\' && next != '\'' => {
            (Kind::Lifetime, 1 + ident(&rest[1..]).max(1))
        }
        _ => (Kind::Literal, 1 + closed_by(&rest[1..], '\'')),
    }
}

fn ident(rest: &str) -> usize {
    let raw = if rest.starts_with("r#") { 2 } else { 0 };
    let body = &rest[raw..];
    let len = body.find(|c: char| !c.is_alphanumeric() && c != '_');
    raw + len.unwrap_or(body.len())
}

/// A number. A dot belongs to it in `1.5` and `1.`, not in `1..2` and `1.max(2)`.
fn number(rest: &str) -> usize {
    let digits = |s: &str| ident(s);
    let mut len = digits(rest);
    if let Some(after) = rest[len..].strip_prefix('.') {
        let next = after.chars().next();
        if next.is_none_or(|c| !c.is_alphabetic() && c != '_' && c != '.') {
            len += 1 + digits(after);
        }
    }
    let hex = rest.starts_with("0x");
    if !hex && rest[..len].ends_with(['e', 'E']) && rest[len..].starts_with(['+', '-']) {
        len += 1 + digits(&rest[len + 1..]);
    }
    len
}

/// The index of the bracket that closes the one at `open`, or opens the one at `open` if that closes.
pub fn partner(tokens: &[Token], open: usize) -> Option<usize> {
    let opening = matches!(tokens.get(open)?.text, "(" | "[" | "{");
    let mut depth = 0i32;
    let mut at = open;
    loop {
        let token = tokens[at];
        if token.kind == Kind::Punct {
            match token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
        }
        if depth == 0 {
            return Some(at);
        }
        at = if opening { at + 1 } else { at.checked_sub(1)? };
        if at >= tokens.len() {
            return None;
        }
    }
}

/// The bodies of `macro_rules!`, where a name may stand for anything.
pub fn macro_bodies(tokens: &[Token]) -> Vec<Range<usize>> {
    let body = |i: usize| {
        let is_macro = tokens[i].is("macro_rules") && tokens.get(i + 1)?.is("!");
        let open = i + 3;
        is_macro.then_some(open..partner(tokens, open)?)
    };
    (0..tokens.len()).filter_map(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(code: &str) -> Vec<&str> {
        tokens(code).iter().map(|t| t.text).collect()
    }

    #[test]
    fn strings_comments_and_lifetimes_are_whole() {
        let code = r##"a /* b /* c */ */ "d\"e" r#"f"g"# 'h' '\'' &'i j // k
            b"l" x.0.relu() 1.5e-3 1..2 /// doc"##;
        let want = [
            "a",
            "\"d\\\"e\"",
            "r#\"f\"g\"#",
            "'h'",
            "'\\''",
            "&",
            "'i",
            "j",
            "b\"l\"",
            "x",
            ".",
            "0",
            ".",
            "relu",
            "(",
            ")",
            "1.5e-3",
            "1",
            ".",
            ".",
            "2",
            "/// doc",
        ];
        assert_eq!(texts(code), want);
    }

    #[test]
    fn brackets_find_each_other() {
        let tokens = tokens("a(b[c], {d})e");
        assert_eq!(partner(&tokens, 1), Some(10));
        assert_eq!(partner(&tokens, 10), Some(1));
        assert_eq!(partner(&tokens[..5], 1), None);
    }
}
