//! The built-in inputs of kernels, and the rules on their types.

use crate::error::Message;
use crate::source::Source;

/// Inputs whose types must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Grid,
    /// The threads of a group.
    Group,
    /// The groups of a grid.
    Groups,
    Simd,
}

#[derive(Debug)]
pub(crate) struct Builtin {
    pub(crate) name: &'static str,
    /// The field of `softmetal::Builtins`, and the divisor that makes the value from it.
    pub(crate) field: &'static str,
    pub(crate) operation: &'static str,
    /// A position or a size, which may be a vector.
    ranked: bool,
    family: Family,
}

const fn ranked(name: &'static str, family: Family) -> Builtin {
    Builtin {
        name,
        field: name,
        operation: "",
        ranked: true,
        family,
    }
}

const fn scalar(name: &'static str, family: Family) -> Builtin {
    Builtin {
        name,
        field: name,
        operation: "",
        ranked: false,
        family,
    }
}

static BUILTINS: &[Builtin] = &[
    ranked("thread_position_in_grid", Family::Grid),
    ranked("threads_per_grid", Family::Grid),
    ranked("thread_position_in_threadgroup", Family::Group),
    ranked("threads_per_threadgroup", Family::Group),
    ranked("dispatch_threads_per_threadgroup", Family::Group),
    ranked("threadgroup_position_in_grid", Family::Groups),
    ranked("threadgroups_per_grid", Family::Groups),
    scalar("thread_index_in_threadgroup", Family::Group),
    scalar("thread_index_in_simdgroup", Family::Simd),
    scalar("threads_per_simdgroup", Family::Simd),
    scalar("simdgroup_index_in_threadgroup", Family::Simd),
    scalar("simdgroups_per_threadgroup", Family::Simd),
    scalar("dispatch_simdgroups_per_threadgroup", Family::Simd),
    Builtin {
        name: "thread_execution_width",
        field: "threads_per_simdgroup",
        operation: "",
        ranked: false,
        family: Family::Simd,
    },
    Builtin {
        name: "thread_index_in_quadgroup",
        field: "thread_index_in_simdgroup",
        operation: " % 4u",
        ranked: false,
        family: Family::Simd,
    },
    Builtin {
        name: "quadgroup_index_in_threadgroup",
        field: "thread_index_in_threadgroup",
        operation: " / 4u",
        ranked: false,
        family: Family::Simd,
    },
    Builtin {
        name: "quadgroups_per_threadgroup",
        field: "threads_per_threadgroup",
        operation: " quads",
        ranked: false,
        family: Family::Simd,
    },
];

pub(crate) fn named(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|builtin| builtin.name == name)
}

/// A parameter that receives a built-in input.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    pub(crate) builtin: &'static Builtin,
    /// 1 for a scalar.
    pub(crate) rank: usize,
    short: bool,
    at: usize,
}

impl Input {
    /// Reads the type of the parameter, its words given without `const` and name.
    pub(crate) fn new(builtin: &'static Builtin, words: &str, at: usize) -> Result<Self, String> {
        let refused = || {
            let vectors = if builtin.ranked {
                " or a vector of 2 or 3 of them"
            } else {
                ""
            };
            format!("type '{words}' is not valid for attribute '{}': it must be ushort or uint{vectors}", builtin.name)
        };
        let (short, rank) = match words {
            "uint" | "uint32_t" | "unsigned" | "unsigned int" => (false, 1),
            "ushort" | "uint16_t" | "unsigned short" => (true, 1),
            "uint2" | "vec < uint , 2 >" => (false, 2),
            "uint3" | "vec < uint , 3 >" => (false, 3),
            "ushort2" | "vec < ushort , 2 >" => (true, 2),
            "ushort3" | "vec < ushort , 3 >" => (true, 3),
            _ => return Err(refused()),
        };
        if rank > 1 && !builtin.ranked {
            return Err(refused());
        }
        Ok(Self {
            builtin,
            rank,
            short,
            at,
        })
    }

    /// The value, from a `const softmetal::Builtins* b`, as a `type`.
    pub(crate) fn expression(&self, name_of_type: &str) -> String {
        let field = self.builtin.field;
        if self.builtin.operation == " quads" {
            return format!(
                "{name_of_type}((b->{field}[0] * b->{field}[1] * b->{field}[2] + 3u) / 4u)"
            );
        }
        if !self.builtin.ranked {
            return format!("{name_of_type}(b->{field}{})", self.builtin.operation);
        }
        let components: Vec<_> = (0..self.rank).map(|i| format!("b->{field}[{i}]")).collect();
        format!("{name_of_type}({})", components.join(", "))
    }
}

/// The rules that hold between the inputs of one kernel.
pub(crate) fn check(source: &Source, inputs: &[Input], problems: &mut Vec<Message>) {
    for (i, input) in inputs.iter().enumerate() {
        let name = input.builtin.name;
        let before = &inputs[..i];
        if before.iter().any(|other| other.builtin.name == name) {
            problems.push(source.error(input.at, format!("attribute '{name}' is used twice")));
        }
        let widths = ["thread_execution_width", "threads_per_simdgroup"];
        if widths.contains(&name)
            && before
                .iter()
                .any(|o| widths.contains(&o.builtin.name) && o.builtin.name != name)
        {
            let text = "'thread_execution_width' and 'threads_per_simdgroup' are the same input: use one of them";
            problems.push(source.error(input.at, text));
        }
        if let Some(other) = before
            .iter()
            .find(|other| input.builtin.ranked && other.builtin.ranked && other.rank != input.rank)
        {
            let text = format!(
                "type of '{name}' must be a scalar or a vector like that of '{}': all positions and sizes of a kernel have the same number of components",
                other.builtin.name
            );
            problems.push(source.error(input.at, text));
        }
        if let Some(other) = before.iter().find(|other| {
            other.builtin.family == input.builtin.family && other.short != input.short
        }) {
            let text = format!(
                "'{name}' and '{}' must both be made of ushort or both of uint",
                other.builtin.name
            );
            problems.push(source.error(input.at, text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::parse;

    fn complaints(inputs: &[(&str, &str)]) -> Vec<String> {
        let source = parse("kernel");
        let inputs: Vec<_> = inputs
            .iter()
            .map(|(words, name)| Input::new(named(name).unwrap(), words, 0).unwrap())
            .collect();
        let mut problems = Vec::new();
        check(&source, &inputs, &mut problems);
        problems.into_iter().map(|message| message.text).collect()
    }

    #[test]
    fn types() {
        let input = |name, words| Input::new(named(name).unwrap(), words, 0);
        assert!(input("thread_position_in_grid", "uint3").is_ok());
        assert!(input("thread_position_in_grid", "ushort").is_ok());
        assert!(input("thread_position_in_grid", "int").is_err());
        assert!(input("thread_position_in_grid", "uint4").is_err());
        assert!(input("thread_index_in_simdgroup", "uint2").is_err());
        assert!(named("thread_position").is_none());
    }

    #[test]
    fn ranks_agree() {
        assert_eq!(
            complaints(&[
                ("uint", "thread_position_in_grid"),
                ("uint3", "threads_per_threadgroup")
            ])
            .len(),
            1
        );
        assert!(complaints(&[
            ("uint3", "thread_position_in_grid"),
            ("uint3", "threads_per_threadgroup")
        ])
        .is_empty());
        assert!(complaints(&[
            ("uint3", "thread_position_in_grid"),
            ("uint", "thread_index_in_threadgroup")
        ])
        .is_empty());
    }

    #[test]
    fn types_agree_within_a_family() {
        assert_eq!(
            complaints(&[
                ("uint", "thread_position_in_grid"),
                ("ushort", "threads_per_grid")
            ])
            .len(),
            1
        );
        assert_eq!(
            complaints(&[
                ("ushort", "thread_index_in_simdgroup"),
                ("uint", "simdgroup_index_in_threadgroup")
            ])
            .len(),
            1
        );
        assert!(complaints(&[
            ("uint", "thread_position_in_grid"),
            ("ushort", "thread_index_in_simdgroup")
        ])
        .is_empty());
        assert!(complaints(&[
            ("uint3", "threadgroup_position_in_grid"),
            ("ushort3", "thread_position_in_threadgroup")
        ])
        .is_empty());
    }

    #[test]
    fn inputs_come_once() {
        assert_eq!(
            complaints(&[
                ("uint", "thread_position_in_grid"),
                ("uint", "thread_position_in_grid")
            ])
            .len(),
            1
        );
        assert_eq!(
            complaints(&[
                ("uint", "thread_execution_width"),
                ("uint", "threads_per_simdgroup")
            ])
            .len(),
            1
        );
    }

    #[test]
    fn expressions() {
        let input = Input::new(named("thread_position_in_grid").unwrap(), "uint2", 0).unwrap();
        assert_eq!(
            input.expression("A1"),
            "A1(b->thread_position_in_grid[0], b->thread_position_in_grid[1])"
        );
        let input =
            Input::new(named("quadgroup_index_in_threadgroup").unwrap(), "uint", 0).unwrap();
        assert_eq!(
            input.expression("A1"),
            "A1(b->thread_index_in_threadgroup / 4u)"
        );
    }
}
