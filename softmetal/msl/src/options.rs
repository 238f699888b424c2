//! How a source is to be compiled, and the values of its function constants.

/// A version of the Metal Shading Language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    pub major: u16,
    pub minor: u16,
}

impl Version {
    pub const V2_4: Self = Self::new(2, 4);
    pub const V3_0: Self = Self::new(3, 0);
    pub const V3_1: Self = Self::new(3, 1);
    pub const V3_2: Self = Self::new(3, 2);
    pub const V4_0: Self = Self::new(4, 0);

    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// The value of `__METAL_VERSION__`.
    pub fn number(self) -> u32 {
        u32::from(self.major) * 100 + u32::from(self.minor) * 10
    }

    pub(crate) fn has_bfloat(self) -> bool {
        self >= Self::V3_1
    }

    pub(crate) fn has_lambdas(self) -> bool {
        self >= Self::V3_2
    }
}

/// What the optimiser may assume of floating-point numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MathMode {
    Safe,
    Relaxed,
    Fast,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    pub language: Version,
    /// What the host asked for. The arithmetic is that of `Safe`, which all modes allow, but for conversions to half
    /// that `Fast` leaves out.
    pub math: MathMode,
    /// Functions of `metal::precise` rather than `metal::fast` where the source names neither.
    pub precise_functions: bool,
    /// Macros, as `preprocessorMacros` has them.
    pub defines: Vec<(String, String)>,
    /// Report every access to memory to the runtime.
    pub instrument: bool,
    /// Refuse what Apple's compiler refuses and clang accepts.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            language: Version::V3_1,
            math: MathMode::Fast,
            precise_functions: false,
            defines: Vec::new(),
            instrument: true,
            strict: true,
        }
    }
}

/// The value of a function constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    Bool(bool),
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    /// The bits of a half.
    F16(u16),
    /// The bits of a bfloat.
    BF16(u16),
}

impl Constant {
    /// The types a source may declare the constant with.
    pub(crate) fn type_names(self) -> &'static [&'static str] {
        match self {
            Self::Bool(_) => &["bool"],
            Self::U8(_) => &["uchar", "uint8_t", "unsigned char"],
            Self::I8(_) => &["char", "int8_t", "signed char"],
            Self::U16(_) => &["ushort", "uint16_t", "unsigned short"],
            Self::I16(_) => &["short", "int16_t"],
            Self::U32(_) => &["uint", "uint32_t", "unsigned", "unsigned int"],
            Self::I32(_) => &["int", "int32_t"],
            Self::U64(_) => &["ulong", "uint64_t", "size_t", "unsigned long"],
            Self::I64(_) => &["long", "int64_t", "ptrdiff_t"],
            Self::F32(_) => &["float"],
            Self::F16(_) => &["half"],
            Self::BF16(_) => &["bfloat"],
        }
    }

    /// A constant expression of the type `name`.
    pub(crate) fn expression(self, name: &str) -> String {
        match self {
            Self::Bool(v) => v.to_string(),
            Self::U8(v) => v.to_string(),
            Self::I8(v) => v.to_string(),
            Self::U16(v) => v.to_string(),
            Self::I16(v) => v.to_string(),
            Self::U32(v) => format!("{v}u"),
            Self::I32(v) => format!("({name})({}L)", v),
            Self::U64(v) => format!("{v}ul"),
            Self::I64(v) => format!("__builtin_bit_cast({name}, {}ul)", v as u64),
            Self::F32(v) => format!("__builtin_bit_cast({name}, {}u)", v.to_bits()),
            Self::F16(v) | Self::BF16(v) => {
                format!("__builtin_bit_cast({name}, (unsigned short){v})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbered_like_the_macro() {
        assert_eq!(Version::V3_1.number(), 310);
        assert_eq!(Version::V4_0.number(), 400);
        assert!(!Version::V3_0.has_bfloat() && Version::V3_1.has_bfloat());
        assert!(!Version::V3_1.has_lambdas() && Version::V3_2.has_lambdas());
    }

    #[test]
    fn values_keep_their_bits() {
        assert_eq!(
            Constant::F32(-0.0).expression("float"),
            "__builtin_bit_cast(float, 2147483648u)"
        );
        assert_eq!(
            Constant::I32(i32::MIN).expression("int"),
            "(int)(-2147483648L)"
        );
        assert_eq!(
            Constant::I64(-1).expression("long"),
            "__builtin_bit_cast(long, 18446744073709551615ul)"
        );
        assert_eq!(Constant::U64(7).expression("size_t"), "7ul");
    }
}
