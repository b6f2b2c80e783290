//! Which images may be named by those who are not trusted with all: patterns such as `flights:*, models/*@sha256:...`.
//!
//! A pattern is `name:tag` or `name:tag@digest`; `*` stands for any characters, also none. Inline code goes by the name
//! `inline:TEMPLATE`.

/// Whether a comma-separated list of patterns lets an image through. A digest, where the user gave one, must be in the
/// pattern as well: a name says nothing about another image's content.
pub fn allows(patterns: &str, image: &str, digest: Option<&str>) -> bool {
    patterns.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).any(|pattern| {
        let (name, wanted) = pattern.split_once('@').map_or((pattern, None), |(name, digest)| (name, Some(digest)));
        let has_digest = match (wanted, digest) {
            (Some(wanted), Some(digest)) => matches(wanted, digest),
            (Some(_), None) => false,
            (None, None) => true,
            (None, Some(_)) => pattern == "*",
        };
        has_digest && matches(name, image)
    })
}

/// Whether `text` is what `pattern` says, with `*` for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(position) => rest = &rest[position + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, expected) in [
            ("flights:1.0", "flights:1.0", true),
            ("flights:1.0", "flights:1.00", false),
            ("flights:*", "flights:2", true),
            ("flights:*", "my/flights:2", false),
            ("*/flights:*", "my/flights:2", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn digests_need_a_pattern_of_their_own() {
        assert!(!allows("", "a:1", None));
        assert!(allows(" b:*, a:1 ", "a:1", None));
        assert!(!allows("a:1", "a:1", Some("sha256:x")));
        assert!(allows("a:1@sha256:x", "a:1", Some("sha256:x")));
        assert!(!allows("a:1@sha256:x", "a:1", Some("sha256:y")));
        assert!(!allows("a:1@sha256:x", "a:1", None));
        assert!(allows("a:1@*", "a:1", Some("sha256:y")));
        assert!(allows("*", "a:1", Some("sha256:y")));
    }
}
