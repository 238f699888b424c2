//! A source taken apart: its kernels, entries, function constants, and what becomes of its tokens.

use crate::declaration::{self, Item, ItemKind};
use crate::edits::Edits;
use crate::entries::{self, Entry};
use crate::error::{CompileError, Message};
use crate::kernel::{is_kernel, Kernel};
use crate::options::{MathMode, Options};
use crate::source::Source;
use crate::token::tokenise;
use crate::{constants, rewrite, strict};

#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) source: Source,
    pub(crate) edits: Edits,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) constants: constants::Constants,
    /// For the check of types, if it is wanted.
    pub(crate) typed: Option<Typed>,
}

/// The source with its address spaces, for the compiler to look at.
#[derive(Debug)]
pub(crate) struct Typed {
    pub(crate) edits: Edits,
    /// What names the function of each entry.
    pub(crate) targets: Vec<String>,
}

impl Program {
    pub(crate) fn new(preprocessed: &str, options: &Options) -> Result<Self, CompileError> {
        let source = tokenise(preprocessed)
            .and_then(Source::new)
            .map_err(single)?;
        let items = declaration::parse(&source).map_err(single)?;
        let mut problems = Vec::new();
        let mut edits = Edits::new(&source);
        let constants = constants::find(&source, &items, &mut problems);
        if options.strict {
            strict::check(&source, &items, options, &mut problems);
        }
        rewrite::tokens(&source, &items, &mut edits, &mut problems);
        if options.math == MathMode::Fast {
            rewrite::contract(&source, &items, &mut edits);
        }
        let mut kernels = Vec::new();
        find_kernels(&source, &items, "", &mut kernels, &mut problems);
        rewrite::kernels(&source, &kernels, &mut edits);
        rewrite::bodies(
            &source,
            &items,
            &kernels,
            &mut edits,
            options,
            &mut problems,
        );
        rewrite::collisions(&source, &items, &mut edits, &mut problems);
        let entries = entries::find(&source, &items, &kernels, &edits, &mut problems);
        remove_instances(&kernels, &entries, &mut edits);
        constants.mark(&source, &mut edits);
        if !problems.is_empty() {
            problems.sort_by_key(|problem| (problem.file.clone(), problem.line, problem.column));
            problems.dedup();
            return Err(CompileError::source(problems));
        }
        let typed = options.strict.then(|| {
            let mut edits = rewrite::typed(&source, &items, &kernels, &constants);
            let found = entries::find(&source, &items, &kernels, &edits, &mut Vec::new());
            remove_instances(&kernels, &found, &mut edits);
            let targets = found.into_iter().map(|entry| entry.target).collect();
            Typed { edits, targets }
        });
        Ok(Self {
            source,
            edits,
            kernels,
            entries,
            constants,
            typed,
        })
    }

    /// The entries to compile together with this one: instances of the same template, where there are no
    /// function constants, which would have each batch compiled for each set of values.
    pub(crate) fn batch(&self, entry: usize, size: usize) -> Vec<usize> {
        let kernel = self.entries[entry].kernel;
        if !self.constants.is_empty() || self.kernels[kernel].itself.is_none() {
            return vec![entry];
        }
        let family = (0..self.entries.len()).filter(|other| self.entries[*other].kernel == kernel);
        let family: Vec<usize> = family.collect();
        let own = family.chunks(size).find(|chunk| chunk.contains(&entry));
        own.map_or(vec![entry], <[usize]>::to_vec)
    }

    /// The entry of that name.
    pub(crate) fn entry(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.name == name)
    }
}

fn single(message: Message) -> CompileError {
    CompileError::source(vec![message])
}

/// Instantiations are not C++: entries stand for them.
fn remove_instances(kernels: &[Kernel], entries: &[Entry], edits: &mut Edits) {
    for entry in entries {
        if kernels[entry.kernel].item != entry.item {
            edits.remove(entry.item.clone());
        }
    }
}

fn find_kernels(
    source: &Source,
    items: &[Item],
    prefix: &str,
    kernels: &mut Vec<Kernel>,
    problems: &mut Vec<Message>,
) {
    for item in items {
        match &item.kind {
            ItemKind::Namespace { name, items } => {
                find_kernels(
                    source,
                    items,
                    &format!("{prefix}{name}::"),
                    kernels,
                    problems,
                );
            }
            ItemKind::Class { items } => {
                for member in items {
                    let ItemKind::Function(function) = &member.kind else {
                        continue;
                    };
                    if is_kernel(source, member, function) {
                        problems.push(
                            source.error(member.start, "a kernel cannot be a member function"),
                        );
                    }
                }
            }
            ItemKind::Function(function) if is_kernel(source, item, function) => {
                let Some(body) = function.body.clone() else {
                    continue;
                };
                let mut kernel = Kernel::new(source, item, function, body, prefix, problems);
                let same = kernels.iter_mut().filter(|other| other.name == kernel.name);
                for other in same {
                    if other.shape() == kernel.shape() || !other.template || !kernel.template {
                        let text = format!("kernel '{}' is defined twice", kernel.name);
                        problems.push(source.error(function.name, text));
                    }
                    other.itself = None;
                    kernel.itself = None;
                }
                kernels.push(kernel);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(text: &str) -> Result<Program, CompileError> {
        Program::new(text, &Options::default())
    }

    fn targets(text: &str) -> Vec<(String, String)> {
        let program = program(text).unwrap_or_else(|error| panic!("{error}"));
        let entries = program.entries.into_iter();
        entries.map(|entry| (entry.name, entry.target)).collect()
    }

    fn pair(name: &str, target: &str) -> (String, String) {
        (name.to_owned(), target.to_owned())
    }

    const TEMPLATE: &str = "template <typename T, int N> [[kernel]] void k(device T* x) { } ";

    #[test]
    fn the_four_spellings_of_an_instantiation() {
        let instances = [
            "template [[host_name(\"a\" \"_b\")]] [[kernel]] decltype(k<float, 1>) k<float, 1>;",
            "typedef decltype(k<int, 1>) k_t; template [[host_name(\"b\")]] kernel k_t k<half, (2 > 1)>;",
            "template [[host_name(\"c\")]] [[kernel]] void k<int, 3>(device int* x [[buffer(0)]]);",
            "template [[host_name(\"d\")]] [[kernel]] void k(device int* x);",
        ];
        let expected = [
            pair("a_b", "&k<float, 1>"),
            pair("b", "&k<half, (2 > 1)>"),
            pair("c", "static_cast<void (*)( int* x  )>(&k<int, 3>)"),
            pair("d", "static_cast<void (*)( int* x)>(&k)"),
        ];
        for (instance, expected) in instances.iter().zip(expected) {
            let found = targets(&format!("{TEMPLATE}{instance}"));
            let squeezed = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(found.len(), 1, "{instance}");
            assert_eq!(found[0].0, expected.0);
            assert_eq!(squeezed(&found[0].1), squeezed(&expected.1));
        }
    }

    #[test]
    fn plain_kernels_are_entries_by_their_names() {
        let text = "kernel void a() { } namespace n { [[kernel]] void b() { } } [[host_name(\"c\")]] kernel void d() { } void e() { }";
        assert_eq!(
            targets(text),
            [
                pair("a", "&::a"),
                pair("n::b", "&::n::b"),
                pair("c", "&::d")
            ]
        );
    }

    #[test]
    fn instances_inside_a_namespace_find_their_template() {
        let text = format!("namespace n {{ {TEMPLATE} template [[host_name(\"a\")]] [[kernel]] decltype(k<int, 1>) k<int, 1>; }}");
        assert_eq!(targets(&text), [pair("a", "&k<int, 1>")]);
        let text = format!("namespace n {{ {TEMPLATE} }} template [[host_name(\"a\")]] [[kernel]] decltype(n::k<int, 1>) n::k<int, 1>;");
        assert_eq!(targets(&text), [pair("a", "&n::k<int, 1>")]);
    }

    #[test]
    fn overloaded_templates_are_told_apart_by_their_parameters() {
        let text = "template <typename T> [[kernel]] void k(device T* x) { } \
                    template <typename T, typename U> [[kernel]] void k(device T* x, device U* y) { } \
                    template [[host_name(\"two\")]] [[kernel]] void k<int, float>(device int*, device float*);";
        let program = program(text).unwrap();
        assert_eq!(
            program.kernels[program.entries[0].kernel].arguments.len(),
            2
        );
        assert_eq!(program.batch(0, 16), [0]);
    }

    #[test]
    fn other_instantiations_stay() {
        assert!(
            targets("template <typename T> T f(T x) { return x; } template int f<int>(int);")
                .is_empty()
        );
    }

    #[test]
    fn instances_of_one_template_make_a_batch() {
        let instance = |n: usize| {
            format!(
                "template [[host_name(\"k{n}\")]] [[kernel]] decltype(k<int, {n}>) k<int, {n}>;"
            )
        };
        let text: String = (0..5).map(instance).collect();
        let program = program(&format!("{TEMPLATE}{text} kernel void other() {{ }}")).unwrap();
        assert_eq!(program.batch(2, 3), [0, 1, 2]);
        assert_eq!(program.batch(4, 3), [3, 4]);
        assert_eq!(program.batch(5, 3), [5]);
    }

    #[test]
    fn function_constants_end_batches() {
        let text = format!(
            "constant bool c [[function_constant(0)]]; {TEMPLATE} \
             template [[host_name(\"a\")]] [[kernel]] decltype(k<int, 1>) k<int, 1>; \
             template [[host_name(\"b\")]] [[kernel]] decltype(k<int, 2>) k<int, 2>;"
        );
        assert_eq!(program(&text).unwrap().batch(0, 16), [0]);
    }

    #[test]
    fn lowest_free_indices() {
        let program = program("kernel void k(device int* a, device int* b [[buffer(0)]], constant int& c, threadgroup int* d, device int* e [[buffer(1)]]) { }").unwrap();
        let indices: Vec<_> = program.kernels[0]
            .bound()
            .map(|bound| (bound.name.as_str(), bound.index))
            .collect();
        assert_eq!(indices, [("a", 2), ("b", 0), ("c", 3), ("d", 0), ("e", 1)]);
    }
}
