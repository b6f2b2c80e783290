//! Which images may be named by those who are not trusted with all: patterns such as `flights:*, models/*@sha256:...`.
//!
//! A pattern is `name:tag`, `name:tag@digest` or a digest; `*` stands for any characters, also none. Inline code goes by the
//! name `inline:TEMPLATE`.

use crate::reference::is_digest;

/// An entry of a list: `name`, `name@digest`, or a digest alone.
struct Entry<'a> {
    name: &'a str,
    digest: Option<&'a str>,
}

impl<'a> Entry<'a> {
    fn of(pattern: &'a str) -> Entry<'a> {
        if pattern.starts_with("sha256:") {
            return Entry { name: EVERYTHING, digest: Some(pattern) };
        }
        match pattern.split_once('@') {
            Some((name, digest)) => Entry { name, digest: Some(digest) },
            None => Entry { name: pattern, digest: None },
        }
    }

    fn is_everything(&self) -> bool {
        self.name == EVERYTHING && self.digest.is_none()
    }
}

/// The entry that lets everything through.
const EVERYTHING: &str = "*";

/// Whether a comma-separated list of patterns lets an image through. A digest, where the user gave one, in the image's
/// reference or beside it, must be in the pattern as well: a name says nothing about another image's content. Whether the
/// digest is one of that name's is not asked here.
pub fn allows(patterns: &str, image: &str, digest: Option<&str>) -> bool {
    let (name, own) = split(image);
    let digests: Vec<&str> = own.into_iter().chain(digest).collect();
    entries(patterns).any(|entry| {
        let has_digests = match entry.digest {
            Some(wanted) => !digests.is_empty() && digests.iter().all(|digest| matches(wanted, digest)),
            None => digests.is_empty() || entry.is_everything(),
        };
        has_digests && matches(entry.name, name)
    })
}

/// Whether a list lets an image through whose digest is known to be one of that name's.
pub fn allows_found(patterns: &str, name: &str, digest: &str) -> bool {
    [None, Some(digest)].into_iter().any(|digest| allows(patterns, name, digest))
}

/// Whether a list may let an image through, depending on its digest. What it certainly refuses need not be looked for. A
/// digest has no name yet.
pub fn may_allow(patterns: &str, image: &str) -> bool {
    let (name, own) = split(image);
    entries(patterns).any(|entry| name.is_empty() && own.is_some() || matches(entry.name, name))
}

/// Whether a list lets a digest through whatever image it is of: an entry spells it, or lets everything through.
pub fn spells(patterns: &str, image: &str, digest: &str) -> bool {
    let (name, _) = split(image);
    entries(patterns).any(|entry| entry.is_everything() || (entry.digest == Some(digest) && matches(entry.name, name)))
}

/// The name in a reference of an image, empty where there is a digest alone, and the digest.
pub fn split(image: &str) -> (&str, Option<&str>) {
    if is_digest(image) {
        return ("", Some(image));
    }
    // What stands for an address may have an @ as well.
    match image.rsplit_once('@').filter(|(_, digest)| is_digest(digest)) {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    }
}

fn entries(patterns: &str) -> impl Iterator<Item = Entry<'_>> {
    patterns.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).map(Entry::of)
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

    #[test]
    fn a_digest_in_a_reference_is_no_part_of_its_name() {
        let [secret, other] = ["5e", "07"].map(|byte| format!("sha256:{}", byte.repeat(32)));
        let image = format!("a:1@{secret}");
        for (patterns, expected) in [
            ("a:1", false),
            ("a:*", false),
            ("*:*", false),
            ("a*", false),
            ("*", true),
            ("a:1@*", true),
            (&image, true),
            (&secret, true),
            (&format!("a:1@{other}"), false),
            (&other, false),
        ] {
            assert_eq!(allows(patterns, &image, None), expected, "{patterns}");
            assert_eq!(allows(patterns, "a:1", Some(&secret)), expected, "{patterns}");
        }
        // Each of two digests counts.
        assert!(!allows(&format!("a:1@{other}"), &image, Some(&other)));
        // A digest alone has no name.
        for (patterns, expected) in
            [("*:*", false), ("sha*", false), ("a:*@*", false), ("sha256:5e*", true), ("*", true)]
        {
            assert_eq!(allows(patterns, &secret, None), expected, "{patterns}");
        }
        // An address has none.
        assert!(allows("endpoint:*", "endpoint:http://me@host:1", None));
    }

    #[test]
    fn what_is_certainly_refused_is_known_by_its_name() {
        let digest = format!("sha256:{}", "5e".repeat(32));
        assert!(may_allow("b:*, a:*@sha256:5e*", "a:1"));
        assert!(may_allow(&digest, "a:1"));
        assert!(!may_allow("b:*", "a:1"));
        assert!(!may_allow("b:*", &format!("a:1@{digest}")));
        assert!(may_allow("b:*", &digest));
        assert!(!may_allow("", &digest));
    }

    #[test]
    fn digests_that_are_spelled_need_no_name() {
        let digest = format!("sha256:{}", "5e".repeat(32));
        assert!(spells("*", "a:1", &digest));
        assert!(spells(&digest, "a:1", &digest));
        assert!(spells(&format!("a:*@{digest}"), "a:1", &digest));
        assert!(!spells(&format!("b:*@{digest}"), "a:1", &digest));
        assert!(!spells("a:1@*, a:1@sha256:5e*", "a:1", &digest));
        assert!(!spells("a:1", "a:1", &digest));
    }
}
