//! Tokens with their brackets matched, and the small questions a parser asks of them.

use crate::error::Message;
use crate::token::{Kind, Token, Tokens};
use std::ops::{Index, Range};

/// The four address spaces of compute functions.
pub(crate) const SPACES: &[&str] = &["device", "constant", "threadgroup", "thread"];

#[derive(Clone, Debug)]
pub(crate) struct Source {
    tokens: Tokens,
    /// For each bracket the position of its partner.
    pairs: Vec<usize>,
}

impl Index<usize> for Source {
    type Output = Token;
    fn index(&self, at: usize) -> &Token {
        &self.tokens.list[at]
    }
}

impl Source {
    pub(crate) fn new(tokens: Tokens) -> Result<Self, Message> {
        let mut pairs = vec![usize::MAX; tokens.list.len()];
        let mut open: Vec<usize> = Vec::new();
        for (i, token) in tokens.list.iter().enumerate() {
            if token.kind != Kind::Punct {
                continue;
            }
            let opener = match token.text.as_str() {
                "(" | "[" | "{" => {
                    open.push(i);
                    continue;
                }
                ")" => "(",
                "]" => "[",
                "}" => "{",
                _ => continue,
            };
            match open.pop() {
                Some(start) if tokens.list[start].text == opener => {
                    pairs[start] = i;
                    pairs[i] = start;
                }
                _ => {
                    return Err(tokens.message(token.place, format!("extraneous '{}'", token.text)))
                }
            }
        }
        if let Some(&start) = open.last() {
            let token = &tokens.list[start];
            return Err(tokens.message(token.place, format!("unmatched '{}'", token.text)));
        }
        Ok(Self { tokens, pairs })
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.list.len()
    }

    pub(crate) fn files(&self) -> &[String] {
        &self.tokens.files
    }

    /// The partner of the bracket at `at`.
    pub(crate) fn pair(&self, at: usize) -> usize {
        self.pairs[at]
    }

    pub(crate) fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.list.get(at).is_some_and(|token| token.is(text))
    }

    pub(crate) fn is_any(&self, at: usize, texts: &[&str]) -> bool {
        self.tokens
            .list
            .get(at)
            .is_some_and(|token| token.is_any(texts))
    }

    pub(crate) fn is_word(&self, at: usize) -> bool {
        self.tokens.list.get(at).is_some_and(Token::is_word)
    }

    pub(crate) fn is_space(&self, at: usize) -> bool {
        self.is_any(at, SPACES)
    }

    /// `[[` of an attribute list.
    pub(crate) fn is_attribute(&self, at: usize) -> bool {
        self.is(at, "[") && self.is(at + 1, "[") && self.pair(at) == self.pair(at + 1) + 1
    }

    pub(crate) fn error(&self, at: usize, text: impl Into<String>) -> Message {
        let last = self.len().saturating_sub(1);
        let place = self
            .tokens
            .list
            .get(at.min(last))
            .map(|token| token.place)
            .unwrap_or_default();
        self.tokens.message(place, text)
    }

    /// The position behind the group that starts at `at`: brackets are jumped over whole.
    pub(crate) fn next(&self, at: usize) -> usize {
        if self.is_any(at, &["(", "[", "{"]) {
            self.pair(at) + 1
        } else {
            at + 1
        }
    }

    /// The `>` that closes the template argument list opened at `at`, if it is one.
    pub(crate) fn angle(&self, at: usize) -> Option<usize> {
        let mut depth = 0;
        let mut i = at;
        while i < self.len() {
            let token = &self[i];
            if token.is("<") && (i == at || self[i - 1].is_word()) {
                depth += 1;
            } else if token.is(">") {
                depth -= 1;
                if depth == 0 {
                    return Some(i);
                }
            } else if token.is_any(&[";", ")", "]", "}"]) {
                return None;
            }
            i = self.next(i);
        }
        None
    }

    /// The position behind a template argument list or bracket group at `at`, or behind the token.
    pub(crate) fn next_type(&self, at: usize) -> usize {
        if self.is(at, "<") && at > 0 && self[at - 1].is_word() && !self[at - 1].is("operator") {
            if let Some(end) = self.angle(at) {
                return end + 1;
            }
        }
        self.next(at)
    }

    /// The parts of a comma-separated list.
    pub(crate) fn split(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut start = range.start;
        let mut i = range.start;
        while i < range.end {
            if self.is(i, ",") {
                parts.push(start..i);
                start = i + 1;
            }
            i = self.next_type(i);
        }
        if start < range.end {
            parts.push(start..range.end);
        }
        parts
    }

    /// The tokens of a range as text, one blank between them.
    pub(crate) fn text(&self, range: Range<usize>) -> String {
        let words: Vec<&str> = range.map(|i| self[i].text.as_str()).collect();
        words.join(" ")
    }

    /// Whether one of the words stands in the range, outside of attributes.
    pub(crate) fn find(&self, range: Range<usize>, words: &[&str]) -> Option<usize> {
        let mut i = range.start;
        while i < range.end {
            if self.is_attribute(i) {
                i = self.pair(i) + 1;
                continue;
            }
            if self.is_any(i, words) {
                return Some(i);
            }
            i += 1;
        }
        None
    }
}

#[cfg(test)]
pub(crate) fn parse(text: &str) -> Source {
    Source::new(crate::token::tokenise(text).unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tokenise;

    #[test]
    fn brackets_must_match() {
        let error = |text| Source::new(tokenise(text).unwrap()).unwrap_err().text;
        assert_eq!(error("void f( {"), "unmatched '{'");
        assert_eq!(error("a ( ]"), "extraneous ']'");
    }

    #[test]
    fn lists_are_split_outside_of_brackets_and_angles() {
        let source = parse("vec<T, 4> a, int b[f(1, 2)], bool c = x < y, pair<A<(1 > 0)>, B> d");
        let parts: Vec<_> = source
            .split(0..source.len())
            .into_iter()
            .map(|r| source.text(r))
            .collect();
        assert_eq!(
            parts,
            [
                "vec < T , 4 > a",
                "int b [ f ( 1 , 2 ) ]",
                "bool c = x < y",
                "pair < A < ( 1 > 0 ) > , B > d"
            ]
        );
    }

    #[test]
    fn attributes_are_not_subscripts() {
        let source = parse("int a [[buffer(0)]], b[c[1]]");
        assert!(source.is_attribute(2));
        assert!((3..source.len()).all(|i| !source.is_attribute(i)));
    }
}
