//! The functions of a library: plain kernels by their names, instances of templates by their host names.

use crate::attribute::{attributes, string};
use crate::declaration::{Item, ItemKind};
use crate::edits::Edits;
use crate::error::Message;
use crate::kernel::Kernel;
use crate::source::Source;
use std::collections::HashSet;
use std::ops::Range;

/// A function that the host can ask for.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kernel: usize,
    /// The tokens of the instantiation, or of the kernel itself.
    pub(crate) item: Range<usize>,
    /// The text that names the function.
    pub(crate) target: String,
}

/// All entries, in the order of the source.
pub(crate) fn find(
    source: &Source,
    items: &[Item],
    kernels: &[Kernel],
    edits: &Edits,
    problems: &mut Vec<Message>,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    let finder = EntryFinder {
        source,
        kernels,
        edits,
    };
    finder.find(items, "", &mut entries, problems);
    check_names(source, &entries, problems);
    entries
}

fn check_names(source: &Source, entries: &[Entry], problems: &mut Vec<Message>) {
    let mut seen = HashSet::new();
    for entry in entries {
        if !seen.insert(entry.name.as_str()) {
            let text = format!(
                "function name '{}' is used twice in this library",
                entry.name
            );
            problems.push(source.error(entry.item.start, text));
        }
    }
}

struct EntryFinder<'a> {
    source: &'a Source,
    kernels: &'a [Kernel],
    edits: &'a Edits,
}

impl EntryFinder<'_> {
    fn find(
        &self,
        items: &[Item],
        prefix: &str,
        entries: &mut Vec<Entry>,
        problems: &mut Vec<Message>,
    ) {
        for item in items {
            match &item.kind {
                ItemKind::Namespace { name, items } => {
                    self.find(items, &format!("{prefix}{name}::"), entries, problems);
                }
                ItemKind::Function(_) => {
                    let known = self
                        .kernels
                        .iter()
                        .position(|kernel| kernel.item == item.range);
                    let Some(kernel) = known.filter(|kernel| !self.kernels[*kernel].template)
                    else {
                        continue;
                    };
                    let name = &self.kernels[kernel].name;
                    entries.push(Entry {
                        name: self.kernels[kernel]
                            .host_name
                            .clone()
                            .unwrap_or_else(|| name.clone()),
                        kernel,
                        item: item.range.clone(),
                        target: format!("&::{name}"),
                    });
                }
                ItemKind::Instantiation => match self.instantiation(item, prefix) {
                    Ok(Some(entry)) => entries.push(entry),
                    Ok(None) => {}
                    Err(message) => problems.push(message),
                },
                _ => {}
            }
        }
    }

    /// `template [[host_name("x")]] [[kernel]] type f<…>;` and its other spellings.
    fn instantiation(&self, item: &Item, prefix: &str) -> Result<Option<Entry>, Message> {
        let source = self.source;
        let range = item.start + 1..item.range.end - 1;
        let found = attributes(source, range.clone());
        let kernel_word = source.find(range.clone(), &["kernel"]).is_some();
        let attribute = |name: &str| found.iter().find(|attribute| attribute.name == name);
        let host_name = attribute("host_name");
        if host_name.is_none() && !kernel_word && attribute("kernel").is_none() {
            return Ok(None);
        }
        if let Some(other) = found.iter().find(|a| {
            !["host_name", "kernel", "max_total_threads_per_threadgroup"].contains(&a.name.as_str())
        }) {
            return Err(source.error(
                other.at,
                format!("unknown attribute '{}' on an instantiation", other.name),
            ));
        }
        let parameters = (source.is(range.end - 1, ")")).then(|| source.pair(range.end - 1));
        let named_end = parameters.unwrap_or(range.end);
        let (name_start, name_end) =
            self.function_name(range.start, named_end).ok_or_else(|| {
                source.error(
                    item.start,
                    "this instantiation of a kernel is not understood",
                )
            })?;
        let base: String = (name_start..name_end)
            .map(|i| source[i].text.as_str())
            .collect();
        let shape = (
            parameters.map(|open| source.split(open + 1..range.end - 1).len()),
            source
                .split(name_end + 1..named_end.saturating_sub(1))
                .len(),
        );
        let kernel = self.kernel(&base, prefix, shape).ok_or_else(|| {
            source.error(
                name_start,
                format!("'{base}' is not a kernel template defined in this source"),
            )
        })?;
        let function = self.edits.render(source, name_start..named_end);
        let target = match parameters {
            Some(open) => {
                let list = self.edits.render(source, open..range.end);
                format!("static_cast<void (*){list}>(&{function})")
            }
            None => format!("&{function}"),
        };
        let name = match host_name {
            Some(attribute) => string(source, attribute.arguments.clone()).ok_or_else(|| {
                source.error(attribute.at, "'host_name' attribute takes a string literal")
            })?,
            None => self.kernels[kernel].name.clone(),
        };
        Ok(Some(Entry {
            name,
            kernel,
            item: item.range.clone(),
            target,
        }))
    }

    /// The tokens of the (qualified) name that ends, with its template arguments, at `end`.
    fn function_name(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let source = self.source;
        let mut last = end.checked_sub(1)?;
        if source.is(last, ">") {
            last = (start..last)
                .find(|i| source.is(*i, "<") && source.angle(*i) == Some(end - 1))?
                .checked_sub(1)?;
        }
        let mut first = last;
        while first >= start + 2 && source.is(first - 1, "::") && source.is_word(first - 2) {
            first -= 2;
        }
        source.is_word(last).then_some((first, last + 1))
    }

    /// The template of that name, by the number of parameters and of template arguments if there are several.
    fn kernel(&self, base: &str, prefix: &str, shape: (Option<usize>, usize)) -> Option<usize> {
        let mut prefix = prefix.to_owned();
        loop {
            let name = format!("{prefix}{base}");
            let named = |n: &usize| self.kernels[*n].template && self.kernels[*n].name == name;
            let found: Vec<usize> = (0..self.kernels.len()).filter(named).collect();
            if let [only] = found[..] {
                return Some(only);
            }
            if !found.is_empty() {
                return found.into_iter().find(|n| {
                    let (parameters, arguments) = self.kernels[*n].shape();
                    shape.0.is_none_or(|given| given == parameters) && shape.1 <= arguments
                });
            }
            let outer = prefix.strip_suffix("::")?;
            prefix.truncate(outer.rfind("::").map_or(0, |at| at + 2));
        }
    }
}
