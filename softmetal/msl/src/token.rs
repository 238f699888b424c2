//! Preprocessed text as tokens that know the author's file and line.

use crate::error::Message;

/// A position in the author's text. `file` is an index into [`Tokens::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) file: u32,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Number,
    /// A string or character literal.
    Text,
    Punct,
    /// A whole `#pragma` line.
    Pragma,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    pub(crate) place: Place,
    /// White space stands before it.
    pub(crate) gap: bool,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text && self.kind != Kind::Text
    }

    pub(crate) fn is_any(&self, texts: &[&str]) -> bool {
        self.kind != Kind::Text && texts.contains(&self.text.as_str())
    }

    pub(crate) fn is_word(&self) -> bool {
        self.kind == Kind::Word
    }
}

/// `>>` is left apart, as it may close two template argument lists.
const PUNCTUATION: &[&str] = &[
    "...", "<<=", "->*", "::", "->", "++", "--", "<<", "<=", ">=", "==", "!=", "&&", "||", "+=",
    "-=", "*=", "/=", "%=", "&=", "|=", "^=", ".*", "##",
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) list: Vec<Token>,
    pub(crate) files: Vec<String>,
}

impl Tokens {
    pub(crate) fn message(&self, place: Place, text: impl Into<String>) -> Message {
        let file = self.files.get(place.file as usize);
        Message {
            file: file.cloned().unwrap_or_else(|| crate::MAIN_FILE.into()),
            line: place.line,
            column: place.column,
            text: text.into(),
        }
    }

    fn file(&mut self, name: &str) -> u32 {
        let known = self.files.iter().position(|file| file == name);
        known.unwrap_or_else(|| {
            self.files.push(name.to_owned());
            self.files.len() - 1
        }) as u32
    }
}

/// Splits the output of `clang -E`.
pub(crate) fn tokenise(text: &str) -> Result<Tokens, Message> {
    let mut tokens = Tokens::default();
    let mut place = Place {
        file: tokens.file(crate::MAIN_FILE),
        line: 1,
        column: 1,
    };
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut line_start = 0;
    let mut gap = false;
    while at < bytes.len() {
        let start = at;
        place.column = (start - line_start + 1) as u32;
        let first = bytes[at];
        if first == b'\n' {
            at += 1;
            place.line += 1;
            line_start = at;
            gap = true;
            continue;
        }
        if first.is_ascii_whitespace() {
            at += 1;
            gap = true;
            continue;
        }
        if first == b'#' && text[line_start..start].trim().is_empty() {
            let end = text[at..]
                .find('\n')
                .map_or(text.len(), |length| at + length);
            let line = &text[at..end];
            at = (end + 1).min(text.len());
            line_start = at;
            match marker(line) {
                Some((number, file)) => {
                    place.line = number;
                    place.file = tokens.file(&file);
                }
                None if line[1..].trim_start().starts_with("pragma") => {
                    let text = line.to_owned();
                    tokens.list.push(Token {
                        kind: Kind::Pragma,
                        text,
                        place,
                        gap: true,
                    });
                    place.line += 1;
                }
                None => return Err(tokens.message(place, format!("unknown directive '{line}'"))),
            }
            gap = true;
            continue;
        }
        let (kind, length) = measure(text, at)
            .ok_or_else(|| tokens.message(place, "unterminated or unknown token"))?;
        at += length;
        let token = Token {
            kind,
            text: text[start..at].to_owned(),
            place,
            gap,
        };
        let breaks = token.text.matches('\n').count();
        if breaks > 0 {
            place.line += breaks as u32;
            line_start = start + token.text.rfind('\n').unwrap_or(0) + 1;
        }
        tokens.list.push(token);
        gap = false;
    }
    Ok(tokens)
}

/// `# 12 "file" 1`
fn marker(line: &str) -> Option<(u32, String)> {
    let rest = line.strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("line").unwrap_or(rest).trim_start();
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number = rest[..digits].parse().ok()?;
    let quoted = rest[digits..].trim_start().strip_prefix('"')?;
    let name = &quoted[..quoted.rfind('"')?];
    Some((number, name.replace("\\\\", "\\").replace("\\\"", "\"")))
}

fn measure(text: &str, at: usize) -> Option<(Kind, usize)> {
    let bytes = &text.as_bytes()[at..];
    let first = bytes[0];
    if first.is_ascii_alphabetic() || first == b'_' || first == b'$' || first >= 0x80 {
        return Some((Kind::Word, run(bytes, |b| is_word_byte(b) || b >= 0x80)));
    }
    if first.is_ascii_digit() || first == b'.' && bytes.get(1).is_some_and(u8::is_ascii_digit) {
        return Some((Kind::Number, number(bytes)));
    }
    if first == b'"' || first == b'\'' {
        let mut end = 1;
        while *bytes.get(end)? != first {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        return Some((Kind::Text, end + 1));
    }
    if let Some(punct) = PUNCTUATION
        .iter()
        .find(|punct| text[at..].starts_with(**punct))
    {
        return Some((Kind::Punct, punct.len()));
    }
    b"()[]{}<>;:,.?~!+-*/%&|^=#@"
        .contains(&first)
        .then_some((Kind::Punct, 1))
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

fn run(bytes: &[u8], holds: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|b| !holds(*b)).unwrap_or(bytes.len())
}

fn number(bytes: &[u8]) -> usize {
    let mut end = 1;
    while let Some(&byte) = bytes.get(end) {
        let sign = (byte == b'+' || byte == b'-') && b"eEpP".contains(&bytes[end - 1]) && {
            let hex = bytes.len() > 1 && (bytes[1] | 0x20) == b'x';
            !hex || (bytes[end - 1] | 0x20) == b'p'
        };
        let quote = byte == b'\'' && bytes.get(end + 1).is_some_and(u8::is_ascii_alphanumeric);
        if !(is_word_byte(byte) || byte == b'.' || sign || quote) {
            break;
        }
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        tokenise(source)
            .unwrap()
            .list
            .into_iter()
            .map(|token| token.text)
            .collect()
    }

    #[test]
    fn words_numbers_and_signs() {
        assert_eq!(texts("a+=1.5e-3f;"), ["a", "+=", "1.5e-3f", ";"]);
        assert_eq!(
            texts("x->y.z 0x1p-3 0xE+1"),
            ["x", "->", "y", ".", "z", "0x1p-3", "0xE", "+", "1"]
        );
        assert_eq!(texts("0.h 16.h 1bf .5"), ["0.h", "16.h", "1bf", ".5"]);
        assert_eq!(
            texts(r#"f("a\"b", '\'')"#),
            ["f", "(", r#""a\"b""#, ",", r"'\''", ")"]
        );
    }

    #[test]
    fn shifts_to_the_right_stay_apart() {
        assert_eq!(
            texts("vec<vec<T>>>=2"),
            ["vec", "<", "vec", "<", "T", ">", ">", ">=", "2"]
        );
        assert_eq!(texts("a<<=2"), ["a", "<<=", "2"]);
    }

    #[test]
    fn lines_and_files_are_the_authors() {
        let tokens = tokenise("a\n# 40 \"op.metal\" 2\n  b\nc\n#pragma unroll\nd").unwrap();
        let places: Vec<_> = tokens
            .list
            .iter()
            .map(|t| {
                (
                    tokens.files[t.place.file as usize].as_str(),
                    t.place.line,
                    t.place.column,
                )
            })
            .collect();
        assert_eq!(
            places,
            [
                ("program_source", 1, 1),
                ("op.metal", 40, 3),
                ("op.metal", 41, 1),
                ("op.metal", 42, 1),
                ("op.metal", 43, 1)
            ]
        );
        assert_eq!(tokens.list[3].kind, Kind::Pragma);
    }

    #[test]
    fn an_open_string_is_an_error() {
        let error = tokenise("int a;\n \"abc").unwrap_err();
        assert_eq!((error.line, error.column), (2, 2));
    }
}
