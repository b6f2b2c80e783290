//! References of images, by the grammar of OCI and Docker (github.com/distribution/reference):
//! `[HOST[:PORT]/]NAME[/NAME...][:TAG][@DIGEST]`, or a digest alone. A reference becomes paths, patterns and arguments of
//! programs, so nothing else is one.

use std::fmt;

use udf_types::{Error, Result};

/// Longest reference without its digest.
const MAX_BYTES: usize = 255 + 1 + 128;

/// A reference that is well-formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageReference {
    /// Registry and name; empty if there is a digest alone.
    pub repository: String,
    /// Tag.
    pub tag: Option<String>,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: Option<String>,
}

impl ImageReference {
    /// Reads a reference; anything else is an invalid definition.
    pub fn parse(text: &str) -> Result<ImageReference> {
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(MAX_BYTES).collect();
            Error::invalid_definition(format!("\"{shown}\" is not a reference of an image"))
                .with_hint("Write name:tag, registry.example/team/name:tag, or a digest.")
        })
    }

    fn read(text: &str) -> Option<ImageReference> {
        if is_digest(text) {
            return Some(ImageReference { repository: String::new(), tag: None, digest: Some(text.to_string()) });
        }
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest).filter(|digest| is_digest(digest))?.to_string().into()),
            None => (text, None),
        };
        // A colon before the last slash is a registry's port.
        let (repository, tag) = match named.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (named, None),
        };
        // Container engines take sha256:0a for the beginning of a digest.
        let is_right =
            named.len() <= MAX_BYTES && repository != "sha256" && is_repository(repository) && tag.is_none_or(is_tag);
        is_right.then(|| ImageReference { repository: repository.to_string(), tag: tag.map(str::to_string), digest })
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) if self.repository.is_empty() => f.write_str(digest),
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Whether a text is `sha256:` and 64 hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex_digit))
}

fn is_hex_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Whether a text is a tag.
pub fn is_tag(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Whether a text is a name without registry, as the manifest of a project gives it.
pub fn is_name(text: &str) -> bool {
    text.len() <= 255 && text.split('/').all(is_component)
}

/// A name, behind a registry or not: what comes before the first slash is a registry if it can be no part of a name.
fn is_repository(text: &str) -> bool {
    is_name(text) || text.split_once('/').is_some_and(|(host, name)| is_host(host) && is_name(name))
}

/// Runs of lower-case letters and digits with `.`, `_`, `__` or dashes between them.
fn is_component(text: &str) -> bool {
    let mut rest = text;
    loop {
        let run = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).len();
        if run == 0 {
            return false;
        }
        rest = &rest[run..];
        if rest.is_empty() {
            return true;
        }
        rest = match rest.strip_prefix("__").or_else(|| rest.strip_prefix(['.', '_'])) {
            Some(behind) => behind,
            None => rest.strip_prefix('-').map_or(rest, |behind| behind.trim_start_matches('-')),
        };
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_address = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':');
    let is_right = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => !address.is_empty() && is_address(address),
        None => host.split('.').all(is_label),
    };
    is_right && port.is_none_or(|port| !port.is_empty() && port.len() <= 5 && port.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn references_have_a_repository_a_tag_and_a_digest() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (text, repository, tag, has_digest) in [
            ("flights", "flights", None, false),
            ("flights:1.0", "flights", Some("1.0"), false),
            ("team/my-flights__x.y:1.0_A", "team/my-flights__x.y", Some("1.0_A"), false),
            ("localhost:5000/team/flights", "localhost:5000/team/flights", None, false),
            ("localhost:5000/flights:1", "localhost:5000/flights", Some("1"), false),
            ("Registry.example/flights:1", "Registry.example/flights", Some("1"), false),
            ("[::1]:5000/flights", "[::1]:5000/flights", None, false),
            (&format!("flights:1@{digest}"), "flights", Some("1"), true),
            (&format!("flights@{digest}"), "flights", None, true),
            (&digest, "", None, true),
        ] {
            let read = ImageReference::parse(text).unwrap();
            assert_eq!(
                (read.repository.as_str(), read.tag.as_deref(), read.digest.is_some()),
                (repository, tag, has_digest),
                "{text}"
            );
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn what_leads_elsewhere_is_no_reference() {
        for text in [
            "",
            ":",
            "faults:../secret/1.0",
            "../secret",
            "flights/../secret:1",
            "flights:1/../2",
            "/flights",
            "flights/",
            "flights//x",
            "-v",
            "--help",
            "Flights",
            "flights:",
            "flights:-1",
            "flights:1 2",
            "flights 1",
            "flights\n",
            "a..b",
            "a___b",
            "a-",
            "localhost:x/flights",
            "sha256:../../x",
            "sha256:00",
            &format!("sha256:{}", "A".repeat(64)),
            &format!("flights@sha256:{}", "0".repeat(63)),
            &format!("flights:{}", "1".repeat(129)),
            &"a".repeat(256),
            "fl\u{0}ights",
            "flüge:1",
        ] {
            assert!(ImageReference::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_plain(text in "[a-z0-9A-Z:@/._\\- \u{0}\\[\\]]{0,40}") {
            if let Ok(read) = ImageReference::parse(&text) {
                prop_assert_eq!(read.to_string(), text);
                prop_assert!(!read.repository.contains("..") && !read.repository.starts_with(['-', '/', '.']));
                prop_assert!(read.tag.is_none_or(|tag| !tag.contains('/') && !tag.starts_with(['-', '.'])));
            }
        }
    }
}
