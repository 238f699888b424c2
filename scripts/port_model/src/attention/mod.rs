//! Attention that is written as products and a softmax becomes one call of `candle_fused::nn::attention::softmax_attention`.
//!
//! These statements, one behind the other in one block, are recognised; those in brackets may be missing:
//!
//! ```text
//! let x = q.matmul(&kt)?;                                    or (q.matmul(&kt)? / number)?
//! [let x = (x / number)?;]                                   or `*`
//! [let x = match cap { None => x, Some(c) => ((x / c)?.tanh()? * c)? };]
//! [let x = x.broadcast_add(mask)?;]                          or under `match` or `if let` of an optional mask, or `masked_fill`
//! let p = softmax(&x, D::Minus1)?;                           or softmax_last_dim, or of the product itself
//! [let p = self.dropout.forward(&p)?;]                       of a type whose `forward` returns a clone
//! … p.matmul(&v) …
//! ```
//!
//! Each may stand in a block behind the guard of a tracing span. A number must be shown to be an `f64`, since the same operators
//! take tensors, and neither the scores nor their softmax may be used by anything else.

mod masks;
mod numbers;
mod statements;

use crate::edit::{self, Edit};
use crate::tokens::{partner, Token};
use masks::{
    added_mask, broadcast_to, conditional_mask, filled, filled_unless, matched_cap, matched_mask,
    Mask,
};
use numbers::{field_is, is_f64};
use statements::{are, is, let_of, mentions, path_until, statement_of, top_level, top_level_any};
use std::ops::Range;

const CALL: &str = "candle_fused::nn::attention::softmax_attention";

type Tokens<'a> = &'a [Token<'a>];

/// The edits of all attentions in a file, beside `others`, which they replace where both change the same code.
pub fn rewrite(code: &str, tokens: Tokens, others: Vec<Edit>) -> Vec<Edit> {
    let mut edits = others;
    // The new code names the type, and may bind this variable.
    if !tokens.iter().any(|t| t.is("Tensor")) || tokens.iter().any(|t| t.is("added_mask")) {
        return edits;
    }
    for i in 0..tokens.len() {
        if let Some(found) = find(tokens, i) {
            edits = found.apply(code, tokens, edits);
        }
    }
    edits
}

/// An attention, as ranges of tokens.
struct Attention {
    /// From the product's statement to that of the softmax, or of the dropout behind it.
    statements: Range<usize>,
    q: Range<usize>,
    /// The argument of the first product.
    kt: Range<usize>,
    divides: bool,
    scale: Option<Range<usize>>,
    softcap: Option<Range<usize>>,
    mask: Option<Mask>,
    /// `p.matmul(&v)`
    product: Range<usize>,
    v: Range<usize>,
}

impl Attention {
    fn apply(&self, code: &str, tokens: Tokens, others: Vec<Edit>) -> Vec<Edit> {
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
        let mut edits: Vec<Edit> = others.iter().filter(|edit| keeps(edit)).cloned().collect();
        edits.push(Edit {
            range: gap,
            text: std::mem::take(&mut before),
        });
        edits.push(Edit {
            range: product,
            text: call,
        });
        edits
    }
}

/// The attention whose softmax is called at `at`.
fn find(tokens: Tokens, at: usize) -> Option<Attention> {
    let name = tokens[at];
    if at == 0
        || !(name.is("softmax") || name.is("softmax_last_dim"))
        || !is(tokens, at + 1, "(")
        || is(tokens, at - 1, "fn")
    {
        return None;
    }
    // The function of candle_nn, not one of the file.
    let own = tokens
        .windows(2)
        .any(|pair| pair[0].is("fn") && pair[1].text == name.text);
    if own || is(tokens, at - 1, ".") {
        return None;
    }
    let qualified = at >= 2 && are(tokens, &(at - 2..at), &["ops", "::"]);
    if !qualified && !imported(tokens, name.text) {
        return None;
    }
    let close = partner(tokens, at + 1)?;
    let mut arg = at + 3..close;
    if name.is("softmax") {
        let comma = top_level(tokens, &arg, ",").pop()?;
        let dim = comma + 1..close;
        let last = ["D", "::", "Minus1"];
        if dim.len() < 3 || !are(tokens, &(dim.end - 3..dim.end), &last) {
            return None;
        }
        arg.end = comma;
    }
    if !is(tokens, at + 2, "&") || !is(tokens, close + 1, "?") {
        return None;
    }
    let (block, index) = statement_of(tokens, at)?;
    let softmax = let_of(tokens, &block[index])?;
    if softmax.init.end != close + 2 || !path_until(tokens, softmax.init.start, at) {
        return None;
    }

    let mut found = Attention {
        statements: block[index].clone(),
        q: 0..0,
        kt: 0..0,
        divides: false,
        scale: None,
        softcap: None,
        mask: None,
        product: 0..0,
        v: 0..0,
    };
    if arg.len() == 1 {
        found.scores(tokens, &block[..index], tokens[arg.start].text)?;
    } else {
        found.first_product(tokens, &arg)?;
    }
    let (mut next, mut p) = (index + 1, softmax.name);
    if let Some(dropped) = block.get(next).and_then(|s| let_of(tokens, s)) {
        if identity(tokens, &dropped.init, p) {
            found.statements.end = block[next].end;
            (next, p) = (next + 1, dropped.name);
        }
    }
    found.second_product(tokens, &block, next, p)?;
    let rest = block[next].start..block.last()?.end;
    let rebound = let_of(tokens, &block[next]).is_some_and(|l| l.name == p);
    let uses = |name: &str, range: Range<usize>| mentions(tokens, range, name).len();
    let once = match rebound {
        true => uses(p, let_of(tokens, &block[next])?.init) == 1,
        false => uses(p, rest.clone()) == 1,
    };
    // What the statements bound is gone: nothing behind them may use it.
    let first = block.partition_point(|s| s.start < found.statements.start);
    let bound = block[first..next].iter().filter_map(|s| let_of(tokens, s));
    let free = bound
        .filter(|l| l.name != p)
        .all(|l| uses(l.name, rest.clone()) == 0);
    (once && free).then_some(found)
}

/// Whether the name comes from a module `ops`.
fn imported(tokens: Tokens, name: &str) -> bool {
    let uses = tokens.split(|t| t.is(";")).filter_map(|statement| {
        let begin = statement.iter().position(|t| t.is("use"))?;
        Some(&statement[begin..])
    });
    let mut uses = uses;
    uses.any(|u| u.iter().any(|t| t.is("ops")) && u.iter().any(|t| t.is(name)))
}

impl Attention {
    /// Reads the statements before the softmax backwards: mask, cap, scale, product.
    fn scores(&mut self, tokens: Tokens, before: &[Range<usize>], name: &str) -> Option<()> {
        let mut name = name;
        let mut broadcast = None;
        for statement in before.iter().rev() {
            self.statements.start = statement.start;
            if let Some(mask) = broadcast.take() {
                let hidden = broadcast_to(tokens, statement, mask, name)?;
                self.mask = Some(Mask::Fill {
                    unless: None,
                    hidden,
                });
                continue;
            }
            if let Some(mask) = conditional_mask(tokens, statement, name) {
                if self.mask.is_some() || self.scale.is_some() || self.softcap.is_some() {
                    return None;
                }
                self.mask = Some(mask);
                continue;
            }
            let binding = let_of(tokens, statement)?;
            if binding.name != name {
                return None;
            }
            let init = binding.init;
            let free = self.mask.is_none() && self.scale.is_none() && self.softcap.is_none();
            if let Some((from, mask)) = filled(tokens, &init).filter(|_| free) {
                (broadcast, name) = (Some(mask), from);
                continue;
            }
            let added = added_mask(tokens, &init)
                .or_else(|| matched_mask(tokens, &init))
                .or_else(|| filled_unless(tokens, &init));
            if let Some((from, mask)) = added {
                if self.mask.is_some() || self.scale.is_some() || self.softcap.is_some() {
                    return None;
                }
                (self.mask, name) = (Some(mask), from);
            } else if let Some((from, cap)) = matched_cap(tokens, &init) {
                if self.scale.is_some() || self.softcap.is_some() {
                    return None;
                }
                (self.softcap, name) = (Some(cap), from);
            } else if self.first_product(tokens, &init).is_some() {
                return Some(());
            } else {
                let (inner, divides, number) = scaled(tokens, &init)?;
                if self.scale.is_some() || inner.len() != 1 {
                    return None;
                }
                (self.scale, self.divides, name) =
                    (Some(number), divides, tokens[inner.start].text);
            }
        }
        None
    }

    /// `q.matmul(&kt)?`, scaled or not.
    fn first_product(&mut self, tokens: Tokens, init: &Range<usize>) -> Option<()> {
        if let Some((q, kt)) = product(tokens, init) {
            (self.q, self.kt) = (q, kt);
            return Some(());
        }
        let (inner, divides, number) = scaled(tokens, init)?;
        if self.scale.is_some() {
            return None;
        }
        (self.q, self.kt) = product(tokens, &inner)?;
        (self.scale, self.divides) = (Some(number), divides);
        Some(())
    }

    /// `p.matmul(&v)` in the statement behind the softmax.
    fn second_product(
        &mut self,
        tokens: Tokens,
        block: &[Range<usize>],
        next: usize,
        p: &str,
    ) -> Option<()> {
        let statement = block.get(next)?;
        let init = let_of(tokens, statement).map_or(statement.clone(), |l| l.init);
        let at = *mentions(tokens, init, p).first()?;
        let call = at + 1..at + 4;
        if !are(tokens, &call, &[".", "matmul", "("]) {
            return None;
        }
        let close = partner(tokens, at + 3)?;
        self.product = at..close + 1;
        self.v = at + 4..close;
        Some(())
    }
}

/// `a.matmul(b)?` as a and b.
fn product(tokens: Tokens, range: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
    if range.len() < 6 || !is(tokens, range.end - 1, "?") || !is(tokens, range.end - 2, ")") {
        return None;
    }
    let open = partner(tokens, range.end - 2)?;
    let name = open.checked_sub(2).filter(|&i| i > range.start)?;
    // A chain of calls, whatever it begins with: no operator outside of brackets.
    let chain = top_level_any(
        tokens,
        &(range.start..name),
        &["*", "/", "+", "-", "&", "=", ",", "!", "<"],
    );
    let is_call = are(tokens, &(name..open + 1), &[".", "matmul", "("]);
    (is_call && !chain).then(|| (range.start..name, open + 1..range.end - 2))
}

/// `(inner / number)?` or `(inner * number)?`.
fn scaled(tokens: Tokens, range: &Range<usize>) -> Option<(Range<usize>, bool, Range<usize>)> {
    if range.len() < 5 || !is(tokens, range.start, "(") || !is(tokens, range.end - 1, "?") {
        return None;
    }
    if partner(tokens, range.start)? != range.end - 2 {
        return None;
    }
    let mut inside = range.start + 1..range.end - 2;
    let (times, over) = (
        top_level(tokens, &inside, "*"),
        top_level(tokens, &inside, "/"),
    );
    let [at] = [times.clone(), over.clone()].concat()[..] else {
        return None;
    };
    if is(tokens, inside.start, "&") {
        inside.start += 1;
    }
    let number = at + 1..inside.end;
    is_f64(tokens, &number, 3).then_some((inside.start..at, over.len() == 1, number))
}

/// Whether `self.field.forward(&p)?` gives p: the field's type has a `forward` that is `Ok(x.clone())`.
fn identity(tokens: Tokens, init: &Range<usize>, p: &str) -> bool {
    if init.len() != 10
        || !are(
            tokens,
            &(init.start + 3..init.end),
            &[".", "forward", "(", "&", p, ")", "?"],
        )
    {
        return false;
    }
    let field = tokens[init.start + 2].text;
    let identities = tokens.windows(4).enumerate().filter_map(|(i, w)| {
        let is_impl = w[0].is("impl") && w[1].is("Module") && w[2].is("for");
        let body = i + 5..partner(tokens, i + 4).filter(|_| is_impl)?;
        let open = (body.start..body.end).find(|&j| is(tokens, j, "{"))?;
        let clone = open + 1..partner(tokens, open)?;
        let x = tokens.get(open + 3)?.text;
        let argument = are(
            tokens,
            &(body.start..body.start + 8),
            &["fn", "forward", "(", "&", "self", ",", x, ":"],
        );
        let returns = are(tokens, &clone, &["Ok", "(", x, ".", "clone", "(", ")", ")"]);
        (argument && returns).then_some(w[3].text)
    });
    identities
        .into_iter()
        .any(|ty| field_is(tokens, field, &[ty]))
}
