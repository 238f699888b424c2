//! `v.zw` becomes `v.template get<2, 3>()`, or `ref<2, 3>()` where it is assigned to.

use crate::declaration::{Item, ItemKind};
use crate::edits::Edits;
use crate::error::Message;
use crate::source::Source;
use std::collections::HashSet;

const ASSIGNMENTS: &[&str] = &[
    "=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "++", "--",
];

pub(crate) fn rewrite(
    source: &Source,
    items: &[Item],
    edits: &mut Edits,
    problems: &mut Vec<Message>,
) {
    let mut fields = HashSet::new();
    collect_fields(source, items, &mut fields);
    for i in 1..source.len() {
        let access =
            source.is_any(i - 1, &[".", "->"]) && source.is_word(i) && !source.is(i + 1, "(");
        if !access || fields.contains(source[i].text.as_str()) {
            continue;
        }
        let Some(components) = components(&source[i].text) else {
            continue;
        };
        if source.is(i + 1, "[") && source.is_any(source.pair(i + 1) + 1, ASSIGNMENTS) {
            problems.push(source.error(i, "softmetal can't assign to an element of a swizzle"));
        }
        let shift = source.is(i + 1, ">") && source.is(i + 2, ">=") && !source[i + 2].gap;
        let assigned = source.is_any(i + 1, ASSIGNMENTS) || shift;
        let method = if assigned { "ref" } else { "get" };
        edits.replace(i, format!("template {method}<{components}>()"));
    }
}

/// `zw` as `2, 3`; nothing for single components and other names.
fn components(name: &str) -> Option<String> {
    if !(2..=4).contains(&name.len()) {
        return None;
    }
    let of = |letters: &str| -> Option<Vec<String>> {
        name.chars()
            .map(|c| Some(letters.find(c)?.to_string()))
            .collect()
    };
    of("xyzw")
        .or_else(|| of("rgba"))
        .map(|list| list.join(", "))
}

fn collect_fields<'a>(source: &'a Source, items: &[Item], fields: &mut HashSet<&'a str>) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { items, .. } => collect_fields(source, items, fields),
            ItemKind::Class { items } => {
                collect_fields(source, items, fields);
                for member in items
                    .iter()
                    .filter(|member| matches!(member.kind, ItemKind::Plain))
                {
                    for i in member.range.clone() {
                        if source.is_word(i)
                            && source.is_any(i + 1, &[";", ",", "[", "=", "{", ":"])
                        {
                            fields.insert(&source[i].text);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{declaration, source};

    fn rewritten(text: &str) -> (String, usize) {
        let source = source::parse(text);
        let items = declaration::parse(&source).unwrap();
        let mut edits = Edits::new(&source);
        let mut problems = Vec::new();
        rewrite(&source, &items, &mut edits, &mut problems);
        (edits.render(&source, 0..source.len()), problems.len())
    }

    #[test]
    fn reads_and_writes() {
        assert_eq!(
            rewritten("int f() { a = v.zw; }").0,
            "int f() { a = v.template get<2, 3>() ; }"
        );
        assert_eq!(
            rewritten("int f() { v.xy *= 2; }").0,
            "int f() { v.template ref<0, 1>()  *= 2; }"
        );
        assert_eq!(
            rewritten("int f() { c = p->rgb == q; }").0,
            "int f() { c = p->template get<0, 1, 2>()  == q; }"
        );
    }

    #[test]
    fn other_members_stay() {
        assert_eq!(
            rewritten("int f() { v.x = s.gap + v.xx() + t.xr; }").0,
            "int f() { v.x = s.gap + v.xx() + t.xr; }"
        );
        assert_eq!(
            rewritten("struct S { int ab; }; int f() { return s.ab; }").0,
            "struct S { int ab; }; int f() { return s.ab; }"
        );
    }

    #[test]
    fn elements_of_swizzles_are_not_assigned() {
        assert_eq!(rewritten("int f() { v.xy[0] = 1; }").1, 1);
        assert_eq!(rewritten("int f() { a = v.xy[0]; }").1, 0);
    }
}
