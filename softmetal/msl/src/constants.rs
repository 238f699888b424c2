//! Function constants, and the program-scope constants derived from them.

use crate::attribute::{attributes, integer};
use crate::declaration::{Item, ItemKind};
use crate::edits::Edits;
use crate::error::{CompileError, Message};
use crate::kernel::declarator_name;
use crate::options::Constant;
use crate::source::Source;
use std::collections::HashMap;
use std::ops::Range;

/// The prefix of the symbols that stand for constants without a value.
pub(crate) const UNSET: &str = "softmetal_unset_";

#[derive(Clone, Debug)]
pub(crate) struct FunctionConstant {
    pub(crate) name: String,
    index: u32,
    type_name: String,
    item: Range<usize>,
}

/// `constant bool d = c && e;`
#[derive(Clone, Debug)]
struct Derived {
    name: String,
    type_name: String,
    item: Range<usize>,
    initialiser: Range<usize>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Constants {
    list: Vec<FunctionConstant>,
    derived: Vec<Derived>,
    /// `is_function_constant_defined(c)`: the range and the name.
    queries: Vec<(Range<usize>, String)>,
}

const SPECIFIERS: &[&str] = &["static", "constexpr", "const", "constant", "inline"];

pub(crate) fn find(source: &Source, items: &[Item], problems: &mut Vec<Message>) -> Constants {
    let mut constants = Constants::default();
    collect(source, items, &mut constants, problems);
    constants.find_queries(source, problems);
    constants
}

fn collect(
    source: &Source,
    items: &[Item],
    constants: &mut Constants,
    problems: &mut Vec<Message>,
) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { items, .. } => collect(source, items, constants, problems),
            ItemKind::Plain => {
                let found = attributes(source, item.range.clone());
                if let Some(attribute) = found.iter().find(|a| a.name == "function_constant") {
                    match constants.declare(source, item, attribute.arguments.clone()) {
                        Ok(constant) => constants.list.push(constant),
                        Err(message) => problems.push(message),
                    }
                } else {
                    constants.derive(source, item);
                }
            }
            _ => {}
        }
    }
}

impl Constants {
    fn declare(
        &self,
        source: &Source,
        item: &Item,
        arguments: Range<usize>,
    ) -> Result<FunctionConstant, Message> {
        let end = item.range.end - 1;
        let refuse = |text: &str| Err(source.error(item.start, text));
        if source.find(item.start..end, &["constant"]).is_none() {
            return refuse("function constants must be declared in the constant address space");
        }
        if source.find(item.start..end, &["="]).is_some() {
            return refuse("function constants cannot be initialised");
        }
        let declared = item.start
            ..(item.start..end)
                .find(|i| source.is_attribute(*i))
                .unwrap_or(end);
        let index = integer(source, arguments).filter(|index| (0..=65535).contains(index));
        let (Some(index), Some(name)) = (index, declarator_name(source, declared.clone())) else {
            return refuse("'function_constant' attribute takes an index between 0 and 65535");
        };
        if let Some(other) = self.list.iter().find(|other| other.index == index as u32) {
            return refuse(&format!(
                "function constant index {index} is already used by '{}'",
                other.name
            ));
        }
        Ok(FunctionConstant {
            name: source[name].text.clone(),
            index: index as u32,
            type_name: type_name(source, declared, name),
            item: item.range.clone(),
        })
    }

    fn derive(&mut self, source: &Source, item: &Item) {
        let Some(equals) = item.range.clone().find(|i| source.is(*i, "=")) else {
            return;
        };
        let initialiser = equals + 1..item.range.end - 1;
        let declared = item.start..equals;
        let known = |i: usize| source.is_word(i) && self.is_known(&source[i].text);
        let constant = source.find(declared.clone(), &["constant"]).is_some();
        if !constant || !initialiser.clone().any(known) {
            return;
        }
        if let Some(name) = declarator_name(source, declared.clone()) {
            self.derived.push(Derived {
                name: source[name].text.clone(),
                type_name: type_name(source, declared, name),
                item: item.range.clone(),
                initialiser,
            });
        }
    }

    fn is_known(&self, name: &str) -> bool {
        self.list.iter().any(|constant| constant.name == name)
            || self.derived.iter().any(|derived| derived.name == name)
    }

    fn find_queries(&mut self, source: &Source, problems: &mut Vec<Message>) {
        for i in 0..source.len() {
            if !source.is(i, "is_function_constant_defined") || !source.is(i + 1, "(") {
                continue;
            }
            let name = source.text(i + 2..source.pair(i + 1));
            if self.list.iter().all(|constant| constant.name != name) {
                problems.push(source.error(i, format!("'{name}' is not a function constant")));
            }
            self.queries.push((i..source.pair(i + 1) + 1, name));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes the declarations out of the text: [`Constants::texts`] puts others in their place.
    pub(crate) fn mark(&self, source: &Source, edits: &mut Edits) {
        for constant in &self.list {
            edits.remove(constant.item.clone());
        }
        for i in self
            .derived
            .iter()
            .flat_map(|derived| derived.item.start..derived.initialiser.start)
        {
            if source.is(i, "constexpr") {
                edits.remove(i..i + 1);
            }
        }
    }

    /// Checks that the values given are of the declared types.
    pub(crate) fn check(&self, given: &[(u32, Constant)]) -> Result<(), CompileError> {
        for (index, value) in given {
            let Some(constant) = self.list.iter().find(|constant| constant.index == *index) else {
                continue;
            };
            let known = KNOWN
                .iter()
                .any(|sample| sample.type_names().contains(&constant.type_name.as_str()));
            if known && !value.type_names().contains(&constant.type_name.as_str()) {
                return Err(CompileError::Constants(format!(
                    "function constant '{}' (index {index}) is declared '{}', the value given is of type '{}'",
                    constant.name,
                    constant.type_name,
                    value.type_names()[0]
                )));
            }
        }
        Ok(())
    }

    /// Those of the values that the source declares, sorted.
    pub(crate) fn relevant(&self, given: &[(u32, Constant)]) -> Vec<(u32, Constant)> {
        let mut values: Vec<_> = given
            .iter()
            .filter(|(index, _)| self.list.iter().any(|c| c.index == *index))
            .copied()
            .collect();
        values.sort_by_key(|(index, _)| *index);
        values.dedup_by_key(|(index, _)| *index);
        values
    }

    /// Whether a constant derived from function constants is declared in that line.
    pub(crate) fn is_derived_at(&self, source: &Source, file: &str, line: u32) -> bool {
        let mut places = self
            .derived
            .iter()
            .flat_map(|derived| derived.item.clone())
            .map(|i| source[i].place);
        places.any(|place| place.line == line && source.files()[place.file as usize] == file)
    }

    /// Texts that replace token ranges. Without values all constants are declared but not defined, so
    /// that a use in a constant expression is refused.
    pub(crate) fn texts(
        &self,
        source: &Source,
        given: Option<&[(u32, Constant)]>,
    ) -> HashMap<usize, (usize, String)> {
        let value = |constant: &FunctionConstant| {
            given?
                .iter()
                .find(|(index, _)| *index == constant.index)
                .map(|(_, value)| *value)
        };
        let mut texts = HashMap::new();
        let mut unset: HashMap<&str, &str> = HashMap::new();
        for constant in &self.list {
            let (name, type_name) = (&constant.name, &constant.type_name);
            let text = match value(constant) {
                Some(value) => {
                    format!(
                        "static constexpr {type_name} {name} = static_cast<{type_name}>({});",
                        value.expression(type_name)
                    )
                }
                None => {
                    unset.insert(name, name);
                    undefined(name, type_name, name)
                }
            };
            texts.insert(constant.item.start, (constant.item.end, text));
        }
        for derived in self.derived.iter().filter(|_| given.is_some()) {
            let root = derived.initialiser.clone().find_map(|i| {
                let root = unset.get(source[i].text.as_str())?;
                let asked = self.queries.iter().any(|(range, name)| {
                    name == root
                        && derived.initialiser.start <= range.start
                        && range.end <= derived.initialiser.end
                });
                (!asked).then_some(*root)
            });
            if let Some(root) = root {
                unset.insert(&derived.name, root);
                let text = undefined(&derived.name, &derived.type_name, root);
                texts.insert(derived.item.start, (derived.item.end, text));
            }
        }
        for (range, name) in &self.queries {
            let defined = self
                .list
                .iter()
                .any(|c| c.name == *name && value(c).is_some());
            texts.insert(
                range.start,
                (range.end, (given.is_none() || defined).to_string()),
            );
        }
        texts
    }
}

fn undefined(name: &str, type_name: &str, root: &str) -> String {
    format!("extern __attribute__((visibility(\"hidden\"))) const {type_name} {name} __asm__(\"{UNSET}{root}\");")
}

fn type_name(source: &Source, declared: Range<usize>, name: usize) -> String {
    let words: Vec<_> = declared
        .take_while(|i| *i < name)
        .filter(|i| !source.is_any(*i, SPECIFIERS))
        .map(|i| source[i].text.as_str())
        .collect();
    words.join(" ")
}

const KNOWN: &[Constant] = &[
    Constant::Bool(false),
    Constant::U8(0),
    Constant::I8(0),
    Constant::U16(0),
    Constant::I16(0),
    Constant::U32(0),
    Constant::I32(0),
    Constant::U64(0),
    Constant::I64(0),
    Constant::F32(0.0),
    Constant::F16(0),
    Constant::BF16(0),
];
