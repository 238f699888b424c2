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
//! take tensors, and neither the scores nor their softmax may be used by anything else. The second product must be computed
//! exactly once, where the same names mean the same. Comments between the statements stay.

mod call;
mod masks;
mod numbers;
mod statements;

use crate::edit::Edit;
use crate::imports::Imports;
use crate::tokens::{macro_bodies, partner, Token};
use masks::{
    added_mask, broadcast_to, conditional_mask, filled, filled_unless, matched_cap, matched_mask,
    Mask,
};
use numbers::{field_is, is_f64};
use statements::{
    are, behind_guard, is, let_of, mentions, path_until, statement_of, top_level, top_level_any,
};
use std::ops::Range;

type Tokens<'a> = &'a [Token<'a>];

/// The edits of all attentions in a file, beside `others`, which they replace where both change the same code. `from` is the
/// name that the code has for `candle_nn`.
pub fn rewrite(code: &str, tokens: Tokens, from: &str, others: Vec<Edit>) -> Vec<Edit> {
    let mut edits = others;
    // The new code names the type, and may bind this variable.
    if !tokens.iter().any(|t| t.is("Tensor")) || tokens.iter().any(|t| t.is("added_mask")) {
        return edits;
    }
    let (imports, macros) = (Imports::new(tokens), macro_bodies(tokens));
    for i in 0..tokens.len() {
        if !is_softmax(tokens, &imports, i, from) || macros.iter().any(|body| body.contains(&i)) {
            continue;
        }
        if let Some(found) = find(tokens, i) {
            edits = found.apply(code, tokens, edits);
        }
    }
    edits
}

/// Whether a softmax of candle_nn is called at `at`, and not one of the user's own.
fn is_softmax(tokens: Tokens, imports: &Imports, at: usize, from: &str) -> bool {
    let name = tokens[at];
    if !(name.is("softmax") || name.is("softmax_last_dim")) || !is(tokens, at + 1, "(") {
        return false;
    }
    if at > 0 && is(tokens, at - 1, ".") {
        return false;
    }
    // A function, a local or an argument of that name.
    let own = tokens.windows(2).any(|pair| {
        (["fn", "let", "mut"].contains(&pair[0].text) && pair[1].is(name.text))
            || (pair[0].is(name.text) && pair[1].is(":"))
    });
    if own && !(at > 0 && is(tokens, at - 1, "::")) {
        return false;
    }
    let Some(path) = imports.resolve(tokens, at) else {
        return false;
    };
    let modules: [&[&str]; 3] = [
        &["candle_nn", "ops"],
        &[from, "ops"],
        &["candle_fused", "nn", "ops"],
    ];
    let module = &path[..path.len() - 1];
    path.ends_with(&[name.text]) && modules.contains(&module)
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

/// The attention whose softmax is called at `at`.
fn find(tokens: Tokens, at: usize) -> Option<Attention> {
    let name = tokens[at];
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
    // What the statements bound is gone: nothing behind them may use it, and nothing of them that is kept.
    let first = block.partition_point(|s| s.start < found.statements.start);
    let free = block[first..next].iter().all(|statement| {
        let Some(bound) = let_of(tokens, statement) else {
            return true;
        };
        let kept = found.kept().into_iter();
        let mut kept = kept.filter(|range| !range.is_empty() && statement.end <= range.start);
        (bound.name == p || uses(bound.name, rest.clone()) == 0)
            && kept.all(|range| range == found.v || uses(bound.name, range) == 0)
    });
    (once && free).then_some(found)
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
        let is_tail = next + 1 == block.len() && !is(tokens, statement.end - 1, ";");
        let init = match let_of(tokens, statement) {
            Some(binding) => binding.init,
            None if is_tail => statement.clone(),
            None => return None,
        };
        let at = *mentions(tokens, init.clone(), p).first()?;
        // `{ let _guard = self.span.enter(); value }.transpose(1, 2)?` computes its value once.
        let guarded = partner(tokens, init.start)
            .and_then(|close| behind_guard(tokens, &(init.start..close + 1)))
            .filter(|value| value.contains(&at));
        let start = guarded.map_or(init.start, |value| value.start);
        let call = at + 1..at + 4;
        if !are(tokens, &call, &[".", "matmul", "("]) {
            return None;
        }
        // In a block, a closure or the condition of a loop it could be computed more than once, or where other variables have
        // the names of q and k; a call in front of it could change them.
        let mut before = tokens[start..at].iter();
        if before.any(|t| {
            ["{", "|", ")", "mut", "while"]
                .iter()
                .any(|text| t.is(text))
        }) {
            return None;
        }
        let close = partner(tokens, at + 3)?;
        self.product = at..close + 1;
        self.v = without_comma(tokens, at + 4..close);
        Some(())
    }
}

/// The last argument of a call without the comma behind it.
fn without_comma(tokens: Tokens, mut argument: Range<usize>) -> Range<usize> {
    if !argument.is_empty() && is(tokens, argument.end - 1, ",") {
        argument.end -= 1;
    }
    argument
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
    let argument = without_comma(tokens, open + 1..range.end - 2);
    (is_call && !chain).then_some((range.start..name, argument))
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
