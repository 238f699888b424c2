//! Checks that a `#[repr(C)]` parameter struct has the layout of the MSL struct it mirrors, by reading the kernel's source.

use super::options::Options;
use super::sources::SOURCES;
use std::any::type_name;
use std::collections::HashMap;

/// `assert_mirrors!(Params => "row_norm" RowNormParams { rows, cols, eps })`: the struct's fields are those of
/// `RowNormParams` as `kernels/row_norm.metal` sees it, in name, order, type, offset and size. A field that is left out
/// here shows as a gap or in the size. `kernel = "kernel_size"` is a field that MSL calls otherwise, and `dropout.seed_low`
/// one of a struct whose fields MSL lists one by one.
macro_rules! assert_mirrors {
    ($ty:ident => $kernel:literal $msl:ident { $($($field:ident).+ $(= $msl_field:literal)?),* $(,)? }) => {{
        let fields = [$($crate::metal::mirror::Field::new(
            [$(stringify!($field),)+ $($msl_field)?].last().unwrap(),
            std::mem::offset_of!($ty, $($field).+),
            |params: &$ty| &params.$($field).+,
        )),*];
        $crate::metal::mirror::check($kernel, stringify!($msl), size_of::<$ty>(), &fields);
    }};
}
pub(crate) use assert_mirrors;

/// The test that parameter structs have the layouts of the kernels', each as [`assert_mirrors`] takes it.
#[cfg(feature = "metal")]
macro_rules! mirrors {
    ($($ty:ident => $kernel:literal $msl:ident $fields:tt)+) => {
        #[test]
        fn params_mirror_the_kernels() {
            $($crate::metal::mirror::assert_mirrors!($ty => $kernel $msl $fields);)+
        }
    };
}
#[cfg(feature = "metal")]
pub(crate) use mirrors;

/// A field of either side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    name: String,
    /// As Rust writes it; empty for a nested struct, whose name differs.
    ty: String,
    offset: usize,
    size: usize,
}

impl Field {
    pub(crate) fn new<T, F>(name: &str, offset: usize, _: fn(&T) -> &F) -> Self {
        let ty = type_name::<F>();
        Field {
            name: name.into(),
            ty: if ty.contains("::") { "" } else { ty }.into(),
            offset,
            size: size_of::<F>(),
        }
    }
}

#[track_caller]
pub(crate) fn check(kernel: &str, msl: &str, size: usize, fields: &[Field]) {
    let source = SOURCES.iter().find(|source| source.name == kernel);
    let source = source.unwrap_or_else(|| panic!("no kernels/{kernel}.metal"));
    let text = source.text(&Options::default()).expect("built-in sources");
    let msl = Layout::of(&text, msl);
    assert_eq!(fields, msl.fields, "Rust on the left, MSL on the right");
    assert_eq!(size, msl.size, "sizes in Rust and in MSL");
}

/// The layout of an MSL struct: that of C.
struct Layout {
    fields: Vec<Field>,
    size: usize,
    align: usize,
}

impl Layout {
    fn of(text: &str, name: &str) -> Layout {
        let text = without_comments(text);
        let body = body(&text, name).unwrap_or_else(|| panic!("no struct {name}"));
        let mut layout = Layout {
            fields: Vec::new(),
            size: 0,
            align: 1,
        };
        for member in body.split(';').map(str::trim).filter(|m| !m.is_empty()) {
            let (ty, declared) = member
                .split_once(char::is_whitespace)
                .unwrap_or_else(|| panic!("{name}: {member}"));
            for declared in declared.split(',') {
                layout.push(&text, ty, declared.trim());
            }
        }
        layout.size = layout.size.next_multiple_of(layout.align);
        layout
    }

    fn push(&mut self, text: &str, ty: &str, declared: &str) {
        let (name, count) = match declared.split_once('[') {
            Some((name, count)) => (name, Some(number(text, count.trim_end_matches(']')))),
            None => (declared, None),
        };
        let (rust, size, align) = scalar(ty).unwrap_or_else(|| {
            let nested = Layout::of(text, ty);
            ("", nested.size, nested.align)
        });
        let offset = self.size.next_multiple_of(align);
        self.fields.push(Field {
            name: name.trim().into(),
            ty: match count {
                Some(count) => format!("[{rust}; {count}]"),
                None => rust.into(),
            },
            offset,
            size: size * count.unwrap_or(1),
        });
        self.size = offset + size * count.unwrap_or(1);
        self.align = self.align.max(align);
    }
}

/// The Rust name, size and alignment of MSL's scalars.
fn scalar(ty: &str) -> Option<(&'static str, usize, usize)> {
    let scalars = HashMap::from([
        ("uchar", ("u8", 1)),
        ("ushort", ("u16", 2)),
        ("int", ("i32", 4)),
        ("uint", ("u32", 4)),
        ("float", ("f32", 4)),
        ("long", ("i64", 8)),
        ("ulong", ("u64", 8)),
    ]);
    scalars.get(ty).map(|&(rust, size)| (rust, size, size))
}

/// A literal, or the value of a constant or macro of that name.
fn number(text: &str, expression: &str) -> usize {
    let expression = expression.trim();
    let literal = |text: &str| {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let value = || {
        let definitions = text.split(expression).skip(1);
        let mut values = definitions.filter_map(|rest| {
            let rest = rest.trim_start();
            literal(rest.strip_prefix('=').unwrap_or(rest).trim_start())
        });
        values.next()
    };
    let number = literal(expression).or_else(value);
    number.unwrap_or_else(|| panic!("{expression} is no number"))
}

/// What stands between the braces of a struct.
fn body<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut structs = text.split("struct ").skip(1);
    structs.find_map(|rest| {
        let rest = rest.strip_prefix(name)?.trim_start();
        rest.strip_prefix('{')?
            .split_once('}')
            .map(|(body, _)| body)
    })
}

fn without_comments(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "constant uint N = 3;
        struct Inner { ulong a; uint b; };  // 16 bytes
        struct Outer {
            uint first;      // struct Outer { nothing }
            Inner inner;
            float many[N];
            uint x, y;
        };";

    #[test]
    fn msl_is_laid_out_like_c() {
        let outer = Layout::of(TEXT, "Outer");
        let fields = outer.fields.iter();
        let fields: Vec<_> = fields
            .map(|f| (f.name.as_str(), f.ty.as_str(), f.offset, f.size))
            .collect();
        let expected = [
            ("first", "u32", 0, 4),
            ("inner", "", 8, 16),
            ("many", "[f32; 3]", 24, 12),
            ("x", "u32", 36, 4),
            ("y", "u32", 40, 4),
        ];
        assert_eq!(fields, expected);
        assert_eq!((outer.size, outer.align), (48, 8));
    }

    #[repr(C)]
    struct Strided {
        strides: [u64; 8],
        dims: [u32; 8],
        rank: u32,
        count: u32,
    }

    #[test]
    #[should_panic(expected = "Rust on the left")]
    fn an_exchange_is_noticed() {
        assert_mirrors!(Strided => "copy" StridedParams { strides, dims, rank, count });
    }
}
