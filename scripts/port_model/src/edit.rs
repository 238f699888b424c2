//! Replacements in a text, and how they look as a diff.

use std::fmt::Write;
use std::ops::Range;

/// `text` takes the place of the bytes `range`.
#[derive(Clone, Debug)]
pub struct Edit {
    pub range: Range<usize>,
    pub text: String,
}

/// The text with all edits, which do not overlap.
pub fn apply(text: &str, edits: &[Edit]) -> String {
    let mut out = String::new();
    let mut at = 0;
    for edit in sorted(edits) {
        out.push_str(&text[at..edit.range.start]);
        out.push_str(&edit.text);
        at = edit.range.end;
    }
    out + &text[at..]
}

/// The edit that makes `new` of `old`, from the first line that differs to the last; none if they are equal.
pub fn between(old: &str, new: &str) -> Vec<Edit> {
    if old == new {
        return vec![];
    }
    let same = |a: &[&str], b: &[&str]| -> usize {
        let pairs = a.iter().zip(b).take_while(|(a, b)| a == b);
        pairs.map(|(line, _)| line.len()).sum()
    };
    let lines = |text| str::split_inclusive(text, '\n').collect::<Vec<_>>();
    let (mut a, mut b) = (lines(old), lines(new));
    let start = same(&a, &b);
    a.reverse();
    b.reverse();
    let end = same(&a, &b).min(old.len().min(new.len()) - start);
    vec![Edit {
        range: start..old.len() - end,
        text: new[start..new.len() - end].to_string(),
    }]
}

fn sorted(edits: &[Edit]) -> Vec<&Edit> {
    let mut edits: Vec<&Edit> = edits.iter().collect();
    edits.sort_by_key(|edit| edit.range.start);
    edits
}

/// Lines of context around a change.
const CONTEXT: usize = 3;

/// A unified diff of the edits.
pub fn diff(path: &str, text: &str, edits: &[Edit]) -> String {
    let starts: Vec<usize> = std::iter::once(0)
        .chain(text.match_indices('\n').map(|(i, _)| i + 1))
        .collect();
    let line_of = |at: usize| starts.partition_point(|&start| start <= at) - 1;
    let lines = text.lines().count();
    let line_end = |line: usize| starts.get(line + 1).copied().unwrap_or(text.len());
    // Changed blocks of lines [first, last], with the edits in them.
    let mut blocks: Vec<(usize, usize, Vec<Edit>)> = vec![];
    for edit in sorted(edits) {
        let (first, last) = (line_of(edit.range.start), line_of(edit.range.end));
        match blocks.last_mut() {
            Some((_, end, inside)) if first <= *end => {
                *end = last.max(*end);
                inside.push(edit.clone());
            }
            _ => blocks.push((first, last, vec![edit.clone()])),
        }
    }
    let mut out = format!("--- {path}\n+++ {path}\n");
    let mut shift = 0isize;
    let mut i = 0;
    while i < blocks.len() {
        let mut j = i;
        while j + 1 < blocks.len() && blocks[j + 1].0 <= blocks[j].1 + 2 * CONTEXT {
            j += 1;
        }
        let (from, to) = (
            blocks[i].0.saturating_sub(CONTEXT),
            (blocks[j].1 + CONTEXT + 1).min(lines),
        );
        let (mut body, mut at, mut added) = (String::new(), from, 0);
        for (first, last, inside) in &blocks[i..=j] {
            for line in &starts[at..*first] {
                let _ = writeln!(body, " {}", line_at(text, *line));
            }
            let range = starts[*first]..line_end(*last);
            let moved: Vec<Edit> = inside
                .iter()
                .map(|edit| Edit {
                    range: edit.range.start - range.start..edit.range.end - range.start,
                    text: edit.text.clone(),
                })
                .collect();
            let new = apply(&text[range.clone()], &moved);
            for line in text[range].lines() {
                let _ = writeln!(body, "-{line}");
            }
            for line in new.lines() {
                let _ = writeln!(body, "+{line}");
            }
            added += new.lines().count() as isize - (last + 1 - first) as isize;
            at = last + 1;
        }
        for line in &starts[at.min(to)..to] {
            let _ = writeln!(body, " {}", line_at(text, *line));
        }
        let count = (to - from) as isize;
        let _ = write!(
            out,
            "@@ -{},{count} +{},{} @@\n{body}",
            from + 1,
            from as isize + 1 + shift,
            count + added
        );
        shift += added;
        i = j + 1;
    }
    out
}

fn line_at(text: &str, start: usize) -> &str {
    text[start..].lines().next().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_texts_differ_between_their_first_and_last_lines() {
        for (old, new, text) in [
            ("a\nb\nc\n", "a\nB\nBB\nc\n", "B\nBB\n"),
            ("a\na\n", "a\na\na\n", "a\n"),
            ("a\na\na\n", "a\n", ""),
            ("a", "", ""),
        ] {
            let edits = between(old, new);
            assert_eq!(apply(old, &edits), new);
            assert_eq!(edits[0].text, text);
        }
        assert!(between("a\n", "a\n").is_empty());
    }

    #[test]
    fn a_diff_is_what_diff_u_would_show() {
        let text = "a\nb\nc\nd\ne\nf\n";
        let edits = [Edit {
            range: 4..5,
            text: "C\nCC".into(),
        }];
        assert_eq!(apply(text, &edits), "a\nb\nC\nCC\nd\ne\nf\n");
        let want = "--- x\n+++ x\n@@ -1,6 +1,7 @@\n a\n b\n-c\n+C\n+CC\n d\n e\n f\n";
        assert_eq!(diff("x", text, &edits), want);
    }
}
