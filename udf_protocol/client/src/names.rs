//! Names that no other has, and names as addresses hold them.

use std::fmt::Write as _;

/// 128 random bits, in hexadecimal digits.
///
/// # Panics
/// If the system has no random bits to give, which does not happen once it has started.
pub fn random_name() -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system gives random bits");
    // Every exchange has a name, so this goes without a formatter.
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// A random number from 0 to 1.
///
/// # Panics
/// As [`random_name`].
pub fn random_part() -> f64 {
    let random = getrandom::u32().expect("the system gives random bits");
    f64::from(random) / f64::from(u32::MAX)
}

/// A name with all percent-encoded but RFC 3986's unreserved characters, and those of `plain`.
pub fn percent_encoded(name: &str, plain: &[u8]) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_are_encoded() {
        let name = random_name();
        assert!(name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(name, random_name());
        assert!((0.0..=1.0).contains(&random_part()));
        assert_eq!(percent_encoded("a_b.c", b""), "a_b.c");
        assert_eq!(percent_encoded("größe/x", b""), "gr%C3%B6%C3%9Fe%2Fx");
        assert_eq!(percent_encoded("a/b:1 %", b"/:"), "a/b:1%20%25");
    }
}
