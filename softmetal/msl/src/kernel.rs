//! Kernel functions and their argument tables.

use crate::attribute::{attributes, integer, string, Attribute};
use crate::builtin::{self, Input};
use crate::declaration::{Function, Item};
use crate::error::Message;
use crate::source::{Source, SPACES};
use softmetal_abi::Space;
use std::ops::Range;

/// Slots of each kind that a kernel has.
const SLOTS: u32 = 31;

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// With its namespaces.
    pub(crate) name: String,
    pub(crate) item: Range<usize>,
    /// Where the declaration starts behind its template heads.
    pub(crate) start: usize,
    pub(crate) template: bool,
    template_parameters: usize,
    /// How its body names the instance it belongs to, if the template parameters have names.
    pub(crate) itself: Option<String>,
    pub(crate) body: Range<usize>,
    pub(crate) arguments: Vec<Argument>,
    /// The expression of `[[max_total_threads_per_threadgroup(…)]]`
    pub(crate) max_threads: Option<Range<usize>>,
    pub(crate) host_name: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Bound(Bound),
    Input(Input),
}

/// An argument that the host binds.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) index: u32,
    pub(crate) read_only: bool,
    pub(crate) reference: bool,
    /// The function constant that switches it on.
    pub(crate) switch: Option<Range<usize>>,
}

/// Whether the item is a kernel function, by either spelling.
pub(crate) fn is_kernel(source: &Source, item: &Item, function: &Function) -> bool {
    let specifiers = item.start..function.name;
    source.find(specifiers.clone(), &["kernel"]).is_some()
        || attributes(source, specifiers)
            .iter()
            .any(|attribute| attribute.name == "kernel")
}

impl Kernel {
    pub(crate) fn new(
        source: &Source,
        item: &Item,
        function: &Function,
        body: Range<usize>,
        namespace: &str,
        problems: &mut Vec<Message>,
    ) -> Self {
        let mut kernel = Self {
            name: format!("{namespace}{}", source[function.name].text),
            item: item.range.clone(),
            start: item.start,
            template: !item.heads.is_empty(),
            template_parameters: item
                .heads
                .first()
                .map_or(0, |head| source.split(head.clone()).len()),
            itself: name_in_body(source, item, function),
            arguments: Vec::new(),
            max_threads: None,
            host_name: None,
            body: body.clone(),
        };
        let outside = attributes(source, item.start..function.name)
            .into_iter()
            .chain(attributes(
                source,
                function.parameters.end + 1..body.start - 1,
            ));
        for attribute in outside {
            kernel.take_attribute(source, &attribute, problems);
        }
        let returned = source.find(item.start..function.name, &["void"]);
        if returned.is_none_or(|at| source.is(at + 1, "*")) {
            problems.push(source.error(function.name, "kernel must have void return type"));
        }
        kernel.read_parameters(source, function.parameters.clone(), problems);
        kernel
    }

    fn take_attribute(
        &mut self,
        source: &Source,
        attribute: &Attribute,
        problems: &mut Vec<Message>,
    ) {
        match attribute.name.as_str() {
            "kernel" => {}
            "host_name" => match string(source, attribute.arguments.clone()) {
                Some(name) => self.host_name = Some(name),
                None => problems.push(
                    source.error(attribute.at, "'host_name' attribute takes a string literal"),
                ),
            },
            "max_total_threads_per_threadgroup" => {
                self.max_threads = Some(attribute.arguments.clone())
            }
            other => problems.push(source.error(
                attribute.at,
                format!("unknown attribute '{other}' on a kernel"),
            )),
        }
    }

    fn read_parameters(
        &mut self,
        source: &Source,
        parameters: Range<usize>,
        problems: &mut Vec<Message>,
    ) {
        if source.text(parameters.clone()) == "void" {
            return;
        }
        let mut pending = Vec::new();
        for part in source.split(parameters) {
            match Parameter::read(source, part) {
                Ok(parameter) => pending.push(parameter),
                Err(message) => problems.push(message),
            }
        }
        let mut taken = [Vec::new(), Vec::new()];
        for parameter in &pending {
            if let (Some(index), Some(class)) = (parameter.index, parameter.slot_class()) {
                if index >= i64::from(SLOTS) || index < 0 {
                    let text = format!(
                        "'{}' attribute parameter is out of bounds: must be between 0 and {}",
                        class.0,
                        SLOTS - 1
                    );
                    problems.push(source.error(parameter.at, text));
                } else if taken[class.1].contains(&index) {
                    let text = format!(
                        "cannot reserve '{}' resource location at index {index}: it is taken",
                        class.0
                    );
                    problems.push(source.error(parameter.at, text));
                }
                taken[class.1].push(index);
            }
        }
        for parameter in pending {
            let argument = match parameter.kind {
                ParameterKind::Input(input) => Argument::Input(input),
                ParameterKind::Bound(mut bound) => {
                    let taken = &mut taken[usize::from(bound.space == Space::Threadgroup)];
                    let index = parameter.index.unwrap_or_else(|| {
                        let free = (0..)
                            .find(|index| !taken.contains(index))
                            .unwrap_or_default();
                        taken.push(free);
                        free
                    });
                    bound.index = index as u32;
                    if parameter.index.is_none() && bound.index >= SLOTS {
                        problems.push(source.error(
                            parameter.at,
                            format!("no index is left for '{}'", bound.name),
                        ));
                    }
                    Argument::Bound(bound)
                }
            };
            self.arguments.push(argument);
        }
        let inputs: Vec<_> = self.inputs().cloned().collect();
        builtin::check(source, &inputs, problems);
    }

    fn inputs(&self) -> impl Iterator<Item = &Input> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Input(input) => Some(input),
            Argument::Bound(_) => None,
        })
    }

    /// The numbers of parameters and of template parameters.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.arguments.len(), self.template_parameters)
    }

    /// An expression in the body for the address of the instance, or 0.
    pub(crate) fn address_in_body(&self) -> String {
        match &self.itself {
            Some(name) => format!("(unsigned long)&{name}"),
            None => "0".to_owned(),
        }
    }

    pub(crate) fn bound(&self) -> impl Iterator<Item = &Bound> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Bound(bound) => Some(bound),
            Argument::Input(_) => None,
        })
    }
}

/// The words of a type without qualifiers. The name of another type stands for that type.
fn type_words(source: &Source, range: impl Iterator<Item = usize>) -> String {
    let qualifiers = ["const", "metal", "::", "thread"];
    let plain = |i: &usize| !source.is_any(*i, &qualifiers);
    let mut words: Vec<usize> = range.filter(plain).collect();
    // As deep as anyone nests them; names in different scopes may stand for each other.
    for _ in 0..4 {
        let meaning = match words.as_slice() {
            [name] if !source.is_any(*name, &["uint", "uint2", "uint3", "ushort"]) => {
                alias(source, &source[*name].text)
            }
            _ => None,
        };
        let Some(meaning) = meaning else { break };
        words = meaning.filter(plain).collect();
    }
    let words: Vec<_> = words.iter().map(|i| source[*i].text.as_str()).collect();
    words.join(" ")
}

/// The type in `using name = …;` or `typedef … name;`.
fn alias(source: &Source, name: &str) -> Option<Range<usize>> {
    (0..source.len())
        .filter(|i| source.is(*i, name))
        .find_map(|i| {
            if source.is(i.wrapping_sub(1), "using") && source.is(i + 1, "=") {
                let end = (i..source.len()).find(|end| source.is(*end, ";"))?;
                return Some(i + 2..end);
            }
            let start = (0..i)
                .rev()
                .find(|at| source.is_any(*at, &["typedef", ";", "}"]))?;
            let typedef = source.is(i + 1, ";") && source.is(start, "typedef");
            typedef.then_some(start + 1..i)
        })
}

fn name_in_body(source: &Source, item: &Item, function: &Function) -> Option<String> {
    let name = &source[function.name].text;
    let Some(head) = item.heads.first() else {
        return Some(name.clone());
    };
    let mut arguments = Vec::new();
    for part in source.split(head.clone()) {
        let end = (part.clone().find(|i| source.is(*i, "="))).unwrap_or(part.end);
        let dots = part.clone().any(|i| source.is(i, "..."));
        let parameter = if source.is(part.start, "template") {
            end.checked_sub(1)
        } else {
            declarator_name(source, part.start..end)
        };
        let parameter = &source[parameter?].text;
        arguments.push(format!("{parameter}{}", if dots { "..." } else { "" }));
    }
    Some(format!("{name}<{}>", arguments.join(", ")))
}

struct Parameter {
    at: usize,
    kind: ParameterKind,
    index: Option<i64>,
}

enum ParameterKind {
    Bound(Bound),
    Input(Input),
}

impl Parameter {
    fn slot_class(&self) -> Option<(&'static str, usize)> {
        match &self.kind {
            ParameterKind::Bound(bound) if bound.space == Space::Threadgroup => {
                Some(("threadgroup", 1))
            }
            ParameterKind::Bound(_) => Some(("buffer", 0)),
            ParameterKind::Input(_) => None,
        }
    }

    fn read(source: &Source, part: Range<usize>) -> Result<Self, Message> {
        let found = attributes(source, part.clone());
        let plain_end = (part.clone())
            .find(|i| source.is_attribute(*i))
            .unwrap_or(part.end);
        let end = (part.start..plain_end)
            .find(|i| source.is(*i, "="))
            .unwrap_or(plain_end);
        let declared = part.start..end;
        let sigil = declared
            .clone()
            .rev()
            .find(|i| source.is_any(*i, &["*", "&", "&&"]));
        let dimension = declared.clone().find(|i| source.is(*i, "["));
        let name = declarator_name(source, declared.clone());
        if let Some(input) = found
            .iter()
            .find_map(|a| builtin::named(&a.name).map(|b| (a, b)))
        {
            let (attribute, builtin) = input;
            if sigil.is_some() {
                return Err(
                    source.error(part.start, format!("'{}' is passed by value", builtin.name))
                );
            }
            let words = declared.filter(|i| Some(*i) != name);
            let input = Input::new(builtin, &type_words(source, words), attribute.at)
                .map_err(|text| source.error(attribute.at, text))?;
            return Ok(Self {
                at: part.start,
                kind: ParameterKind::Input(input),
                index: None,
            });
        }
        let shown = name.map_or("parameter".to_owned(), |i| source[i].text.clone());
        let (at, mut index, mut switch, mut by_attribute) = (part.start, None, None, None);
        for attribute in &found {
            match attribute.name.as_str() {
                "buffer" | "threadgroup" => {
                    let Some(value) = integer(source, attribute.arguments.clone()) else {
                        return Err(source.error(
                            attribute.at,
                            format!("'{}' attribute takes an integer", attribute.name),
                        ));
                    };
                    index = Some(value);
                    by_attribute = Some(attribute.name.as_str());
                }
                "function_constant" => switch = Some(attribute.arguments.clone()),
                "texture" | "sampler" | "stage_in" | "imageblock_data" | "id" => {
                    return Err(source.error(
                        attribute.at,
                        format!("softmetal has no '{}' arguments", attribute.name),
                    ));
                }
                other => {
                    return Err(source.error(
                        attribute.at,
                        format!("unknown attribute '{other}' on a kernel parameter"),
                    ))
                }
            }
        }
        let Some(sigil) = sigil.or(dimension) else {
            let text = format!("invalid type '{}' for buffer declaration of '{shown}': kernel arguments are pointers or references, or have a built-in attribute", source.text(declared.clone().filter(|i| Some(*i) != name).fold(declared.start..declared.start, |r, i| r.start..i + 1)));
            return Err(source.error(at, text));
        };
        let before = part.start..sigil;
        let Some(word) = source
            .find(before.clone(), SPACES)
            .map(|i| source[i].text.as_str())
        else {
            return Err(source.error(
                at,
                format!("kernel parameter '{shown}' must have explicit address space qualifier"),
            ));
        };
        let space = match word {
            "device" => Space::Device,
            "constant" => Space::Constant,
            "threadgroup" => Space::Threadgroup,
            _ => return Err(source.error(at, format!("kernel parameter '{shown}' must be in the device, constant or threadgroup address space"))),
        };
        let expected = if space == Space::Threadgroup {
            "threadgroup"
        } else {
            "buffer"
        };
        if let Some(given) = by_attribute.filter(|given| *given != expected) {
            return Err(source.error(at, format!("'{given}' attribute cannot be applied to '{shown}' in the {word} address space")));
        }
        let bound = Bound {
            name: shown,
            space,
            index: 0,
            read_only: space == Space::Constant || source.find(before, &["const"]).is_some(),
            reference: source.is_any(sigil, &["&", "&&"]),
            switch,
        };
        Ok(Self {
            at,
            kind: ParameterKind::Bound(bound),
            index,
        })
    }
}

/// The name a parameter or variable declares: the last word outside of brackets.
pub(crate) fn declarator_name(source: &Source, range: Range<usize>) -> Option<usize> {
    let mut name = None;
    let mut words = 0;
    let mut i = range.start;
    while i < range.end {
        if source.is(i, "[") {
            break;
        }
        if source.is(i, "(") && source.is_any(i + 1, &["&", "*"]) && source.is_word(i + 2) {
            return Some(i + 2);
        }
        if source.is_word(i) {
            words += usize::from(!source.is_any(i, &["const", "volatile"]) && !source.is_space(i));
            name = Some(i);
        }
        i = source.next_type(i);
    }
    let name = name?;
    let last = source.is_any(name, &["const", "volatile"]) || source.is_space(name);
    (words > 1 && !last && !source.is(name.wrapping_sub(1), "::")).then_some(name)
}
