//! The version of macOS that softmetal stands for.

/// macOS 15.0
const MACOS: (u32, u32) = (15, 0);

/// The answer of `available!`: `wanted` has platforms with versions such as `15` or `13.3`; `otherwise` is the
/// answer if macOS is not among them.
pub fn is_available(wanted: &[(&str, &str)], otherwise: bool) -> bool {
    match wanted.iter().find(|(os, _)| *os == "macos") {
        Some((_, version)) => parse(version) <= MACOS,
        None => otherwise,
    }
}

fn parse(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn stands_for_macos_15() {
        assert!(crate::available!(macos = 15, ios = 18));
        assert!(crate::available!(ios = 99, macos = 14.4));
        assert!(!crate::available!(macos = 15.1));
        assert!(!crate::available!(macos = 26, ios = 1));
        assert!(!crate::available!(ios = 1));
        assert!(crate::available!(ios = 1, ..));
    }
}
