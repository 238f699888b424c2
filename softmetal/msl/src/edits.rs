//! Changes to tokens, and the text that results.

use crate::source::Source;
use crate::token::{Kind, Place};
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) struct Edits {
    replaced: Vec<Option<String>>,
    before: BTreeMap<usize, String>,
}

impl Edits {
    pub(crate) fn new(source: &Source) -> Self {
        Self {
            replaced: vec![None; source.len()],
            before: BTreeMap::new(),
        }
    }

    pub(crate) fn replace(&mut self, at: usize, text: impl Into<String>) {
        self.replaced[at] = Some(text.into());
    }

    pub(crate) fn remove(&mut self, range: Range<usize>) {
        for i in range {
            self.replaced[i] = Some(String::new());
        }
    }

    /// Puts a text in the place of tokens and of what was put between them.
    pub(crate) fn rewrite(&mut self, range: Range<usize>, text: String) {
        self.before.retain(|at, _| !range.contains(at));
        self.remove(range.clone());
        self.replace(range.start, text);
    }

    /// Puts a text in front of a token, behind those put there before.
    pub(crate) fn insert(&mut self, at: usize, text: &str) {
        let before = self.before.entry(at).or_default();
        before.push_str(text);
        before.push(' ');
    }

    /// What stands for the token.
    pub(crate) fn text<'a>(&'a self, source: &'a Source, at: usize) -> &'a str {
        self.replaced[at].as_deref().unwrap_or(&source[at].text)
    }

    pub(crate) fn text_before(&self, at: usize) -> Option<&str> {
        self.before.get(&at).map(String::as_str)
    }

    /// A range of tokens as one line.
    pub(crate) fn render(&self, source: &Source, range: Range<usize>) -> String {
        let mut text = String::new();
        for i in range {
            if source[i].gap && !text.is_empty() {
                text.push(' ');
            }
            if let Some(before) = self.text_before(i) {
                text.push_str(before);
            }
            text.push_str(self.text(source, i));
            if self.replaced[i].is_some() {
                text.push(' ');
            }
        }
        text.trim().to_owned()
    }
}

/// Text under construction in which every token stands on its author's line.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) text: String,
    line_start: usize,
    place: Place,
    /// For each line of the author the columns where tokens were put, and the author's.
    pub(crate) columns: Columns,
}

/// By (file, line): the column where a token was written, the author's column, and its length if unchanged.
pub(crate) type Columns = std::collections::HashMap<(u32, u32), Vec<(u32, u32, u32)>>;

impl Writer {
    /// Text that has no line of its own: it is taken to stand where the next token stands.
    pub(crate) fn plain(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn move_to(&mut self, files: &[String], place: Place) {
        let same = self.place.file == place.file && self.place.line != 0;
        if same && self.place.line == place.line {
            return;
        }
        if same && place.line > self.place.line && place.line - self.place.line < 4 {
            for _ in self.place.line..place.line {
                self.text.push('\n');
            }
        } else {
            let name = files[place.file as usize]
                .replace('\\', "\\\\")
                .replace('"', "\\\"");
            self.text
                .push_str(&format!("\n# {} \"{name}\"\n", place.line));
        }
        self.place = place;
        self.line_start = self.text.len();
    }

    pub(crate) fn token(&mut self, source: &Source, edits: &Edits, at: usize) {
        let token = &source[at];
        let text = edits.text(source, at);
        let before = edits.text_before(at);
        if text.is_empty() && before.is_none() {
            return;
        }
        self.move_to(source.files(), token.place);
        if token.kind == Kind::Pragma {
            self.text.push('\n');
            self.text.push_str(text);
            self.text.push('\n');
            self.place = Place {
                line: 0,
                ..token.place
            };
            return;
        }
        if let Some(before) = before {
            self.text.push(' ');
            self.text.push_str(before);
        }
        let changed = text != token.text;
        if token.gap || changed {
            self.text.push(' ');
        }
        let column = (self.text.len() - self.line_start + 1) as u32;
        let line = self
            .columns
            .entry((token.place.file, token.place.line))
            .or_default();
        line.push((
            column,
            token.place.column,
            if changed { 0 } else { text.len() as u32 },
        ));
        self.text.push_str(text);
        if changed {
            self.text.push(' ');
        }
    }

    /// A text on the line of a token.
    pub(crate) fn at_line(&mut self, source: &Source, at: usize, text: &str) {
        self.move_to(source.files(), source[at].place);
        self.text.push(' ');
        self.text.push_str(text);
        self.text.push(' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    #[test]
    fn tokens_keep_their_lines() {
        let source = parse("int a;\n# 7 \"b.metal\"\nfloat  b = 1.0;\n\nint c;");
        let mut edits = Edits::new(&source);
        edits.replace(6, "1.0f");
        edits.insert(3, "static");
        let mut writer = Writer::default();
        for i in 0..source.len() {
            writer.token(&source, &edits, i);
        }
        assert_eq!(
            writer.text,
            "\n# 1 \"program_source\"\nint a;\n# 7 \"b.metal\"\n static  float b = 1.0f ;\n\n int c;"
        );
        assert_eq!(writer.columns[&(1, 7)][1], (16, 8, 1));
    }

    #[test]
    fn changed_text_is_kept_apart() {
        let source = parse("a(b)");
        let mut edits = Edits::new(&source);
        edits.replace(1, "[");
        edits.remove(2..3);
        assert_eq!(edits.render(&source, 0..4), "a[  )");
    }
}
