//! The call that takes an attention's place.

use super::masks::Mask;
use super::{Attention, Tokens};
use crate::edit::{self, Edit};
use std::ops::Range;

const CALL: &str = "candle_fused::nn::attention::softmax_attention";

impl Attention {
    /// What the new code repeats.
    pub(super) fn kept(&self) -> Vec<Range<usize>> {
        let mut out = vec![self.q.clone(), self.kt.clone(), self.v.clone()];
        out.extend(self.scale.clone());
        out.extend(self.softcap.clone());
        match self.mask.clone() {
            None => {}
            Some(Mask::Always(argument)) => out.push(argument),
            Some(Mask::If {
                option,
                name,
                prelude,
                argument,
            }) => out.extend([option, name, prelude, argument]),
            Some(Mask::Fill { unless, hidden }) => {
                out.extend(unless);
                out.push(hidden);
            }
        }
        out
    }

    /// The comments in what is replaced, but for those that [`Attention::kept`] carries along, each on a line of its own.
    fn comments<'a>(&self, code: &'a str, tokens: Tokens) -> Vec<&'a str> {
        let kept = self.kept();
        let repeated = |i: usize| kept.iter().any(|r| r.contains(&i) && r.contains(&(i + 1)));
        let replaced = [&self.statements, &self.product];
        let within = |r: &&Range<usize>| r.start..r.end - 1;
        replaced
            .iter()
            .flat_map(within)
            .filter(|i| !repeated(*i))
            .flat_map(|i| code[tokens[i].end()..tokens[i + 1].start].lines())
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect()
    }

    pub(super) fn apply(&self, code: &str, tokens: Tokens, others: Vec<Edit>) -> Vec<Edit> {
        let bytes = |range: &Range<usize>| tokens[range.start].start..tokens[range.end - 1].end();
        let text = |range: &Range<usize>| {
            if range.is_empty() {
                return String::new();
            }
            let range = bytes(range);
            let inside =
                |edit: &&Edit| range.start <= edit.range.start && edit.range.end <= range.end;
            let moved = others.iter().filter(inside).map(|edit| Edit {
                range: edit.range.start - range.start..edit.range.end - range.start,
                text: edit.text.clone(),
            });
            edit::apply(&code[range.clone()], &moved.collect::<Vec<_>>())
        };
        let mut scale = self.scale.as_ref().map_or("1.".to_string(), text);
        if self.divides {
            scale = format!("1. / {scale}");
        }
        let softcap = self.softcap.as_ref().map_or("None".to_string(), text);
        let (mut before, mask) = match &self.mask {
            None => (String::new(), "None".to_string()),
            Some(Mask::Always(argument)) => (
                String::new(),
                format!("Some::<&Tensor>({})", text(argument)),
            ),
            Some(Mask::If {
                option,
                name,
                prelude,
                argument,
            }) => {
                let (option, name, prelude, argument) =
                    (text(option), text(name), text(prelude), text(argument));
                let some = format!("if let Some({name}) = {option} {{ {prelude} Some(Tensor::clone({argument})) }}");
                let before = format!("let added_mask: Option<Tensor> = {some} else {{ None }};");
                (before, "added_mask.as_ref()".to_string())
            }
            Some(Mask::Fill { unless, hidden }) => {
                let (q, hidden) = (text(&self.q), text(hidden));
                let mask = format!(
                    "{{ let hidden = {hidden}.clone(); let zeros = Tensor::zeros(hidden.shape(), DType::F32, hidden.device())?; \
                     masked_fill(&zeros, &hidden, f32::NEG_INFINITY)?.to_dtype({q}.dtype())? }}"
                );
                match unless {
                    None => (
                        format!("let added_mask = {mask};"),
                        "Some(&added_mask)".to_string(),
                    ),
                    Some(unless) => {
                        let unless = text(unless);
                        let before = format!(
                            "let added_mask = if {unless} {{ None }} else {{ Some({mask}) }};"
                        );
                        (before, "added_mask.as_ref()".to_string())
                    }
                }
            }
        };
        let (q, kt, v) = (text(&self.q), text(&self.kt), text(&self.v));
        let call = format!("{CALL}(&{q}, {kt}, {v}, {scale}, {softcap}, {mask})");
        let (statements, product) = (bytes(&self.statements), bytes(&self.product));
        // Without statements of its own, the line of the product begins where they began.
        let mut gap = statements.clone();
        if before.is_empty() {
            gap.end += code[gap.end..].len() - code[gap.end..].trim_start().len();
        }
        let keeps = |edit: &Edit| {
            [&gap, &product]
                .iter()
                .all(|r| edit.range.end <= r.start || r.end <= edit.range.start)
        };
        let line = code[..gap.start].rfind('\n').map_or(0, |end| end + 1);
        let indent = code[line..gap.start].chars();
        let indent: String = indent.take_while(|c| c.is_whitespace()).collect();
        let comments = self.comments(code, tokens).into_iter();
        let comments: String = comments.map(|c| format!("{c}\n{indent}")).collect();
        before.insert_str(0, &comments);
        let mut edits: Vec<Edit> = others.iter().filter(|edit| keeps(edit)).cloned().collect();
        edits.push(Edit {
            range: gap,
            text: before,
        });
        edits.push(Edit {
            range: product,
            text: call,
        });
        edits
    }
}
