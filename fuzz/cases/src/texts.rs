//! Texts of users, of images and of the manager.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use udf_client::control::{Request, Response};
use udf_project::allow_list;
use udf_project::body::FunctionBody;
use udf_project::ddl::{self, Pin};
use udf_project::manifest::{FunctionEntry, Manifest};
use udf_project::reference::ImageReference;
use udf_types::types::Type;

use crate::memory::{LIMIT, within};

/// The text of an input; of one that is no text, as much as is one.
fn text_of(input: &[u8]) -> &str {
    let end = std::str::from_utf8(input).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&input[..end]).expect("so much is text")
}

/// Two texts, parted by the first line that is empty.
fn two_texts_of(input: &[u8]) -> (&str, &str) {
    let text = text_of(input);
    text.split_once("\n\n").unwrap_or((text, ""))
}

pub fn type_text(input: &[u8]) {
    let text = text_of(input);
    let Ok(ty) = within(LIMIT, || Type::from_name(text)) else { return };
    within(4 * LIMIT, || {
        let written = ty.to_string();
        assert_eq!(Type::from_name(&written).as_ref(), Ok(&ty), "{written}");
        assert_eq!(Type::from_field(&ty.field("x")).as_ref(), Ok(&ty), "{written}");
        assert!(ty.accepts(&ty));
    });
}

pub fn manifest(input: &[u8]) {
    let text = text_of(input);
    let read = within(LIMIT, || [Manifest::parse(text), Manifest::from_label(text)]);
    for manifest in read.into_iter().flatten() {
        check_manifest(&manifest);
    }
}

/// What an image's handler says of its functions.
pub fn described(input: &[u8]) {
    let (label, described) = two_texts_of(input);
    let Ok(manifest) = Manifest::from_label(label) else { return };
    let Ok(found) = within(LIMIT, || manifest.with_described(described)) else { return };
    // All else stays as it was.
    let functions = |manifest: &Manifest| -> Vec<FunctionEntry> {
        let bare = |function: &FunctionEntry| FunctionEntry {
            arguments: None,
            returns: None,
            merges: false,
            ..function.clone()
        };
        manifest.functions.iter().map(bare).collect()
    };
    assert_eq!(functions(&found), functions(&manifest));
    assert_eq!(Manifest { functions: Vec::new(), ..found.clone() }, Manifest { functions: Vec::new(), ..manifest });
    check_manifest(&found);
}

fn check_manifest(manifest: &Manifest) {
    assert_eq!(Manifest::from_label(&manifest.to_label()).as_ref(), Ok(manifest));
    assert!(ImageReference::parse(&manifest.image()).is_ok(), "{}", manifest.image());
    let statements = within(4 * LIMIT, || {
        [
            ddl::postgres(manifest, "public", &Pin::default()),
            ddl::mssql(manifest, "dbo", "/run/x.sock"),
            ddl::spark(manifest, "grpc://host:1"),
        ]
    });
    let [postgres, mssql, spark] = statements.map(|statements| statements.expect("its types were checked"));
    postgres.iter().for_each(|statement| check_quoted(statement, &[('"', '"')], false));
    mssql.iter().for_each(|statement| check_quoted(statement, &[('[', ']'), ('\'', '\'')], true));
    // What a manifest says is in strings and comments.
    for part in &spark[1..spark.len() - 1] {
        assert!(part.starts_with("def function_") || (part.starts_with('#') && !part.contains(['\n', '\r'])), "{part}");
    }
    // Of what stands in an f-string no name is run.
    let last = spark.last().expect("there are parts");
    for (_, text) in last.lines().filter_map(|line| line.split_once(", f\"")) {
        let text = text.replace("{{", "").replace("}}", "");
        let mut inside = text.split('{').skip(1).map(|rest| rest.split_once('}').map_or(rest, |(name, _)| name));
        assert!(inside.all(|name| matches!(name, "PRECISION" | "SCALE")), "{last}");
    }
}

/// Whether a statement is one, and has no comment that ends it, outside of what is quoted.
fn check_quoted(statement: &str, quotes: &[(char, char)], has_comments: bool) {
    let mut rest = statement;
    while let Some(first) = rest.chars().next() {
        if let Some(tag) =
            rest.strip_prefix('$').and_then(|rest| rest.split_once('$')).map(|(tag, _)| format!("${tag}$"))
        {
            let Some((_, behind)) = rest[tag.len()..].split_once(&tag) else { panic!("{statement}") };
            rest = behind;
            continue;
        }
        if has_comments && rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, behind)| behind);
            continue;
        }
        let Some((_, close)) = quotes.iter().find(|(open, _)| *open == first) else {
            assert!(has_comments || !(first == ';' || rest.starts_with("--") || rest.starts_with("/*")), "{statement}");
            rest = &rest[first.len_utf8()..];
            continue;
        };
        rest = &rest[first.len_utf8()..];
        loop {
            let Some((_, behind)) = rest.split_once(*close) else { panic!("{statement}") };
            rest = behind;
            match rest.strip_prefix(*close) {
                Some(behind) => rest = behind,
                None => break,
            }
        }
    }
}

pub fn function_body(input: &[u8]) {
    let text = text_of(input);
    let Ok(body) = within(LIMIT, || FunctionBody::parse(text)) else { return };
    let _ = body.place();
    let remote = body.remote().expect("it was checked");
    assert_eq!(remote.is_some(), body.endpoint.is_some());
    if let Some(manifest) = body.inline_manifest(FunctionEntry::named("f")) {
        assert_eq!(Some(&manifest.template), body.template.as_ref());
    }
    let written = toml::to_string(&body).expect("a body is TOML");
    assert_eq!(FunctionBody::parse(&written).as_ref(), Ok(&body), "{written}");
    if body.digest.is_none() {
        let digest = format!("sha256:{}", "0".repeat(64));
        if let Ok(pinned) = FunctionBody::parse(&FunctionBody::pin_digest(text, &digest)) {
            assert_eq!(pinned.digest.as_ref(), Some(&digest));
        }
    }
}

pub fn reference(input: &[u8]) {
    let text = text_of(input);
    let Ok(read) = within(LIMIT, || ImageReference::parse(text)) else { return };
    assert_eq!(read.to_string(), text);
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
    assert!(!text.starts_with(['-', '/', '.']) && !read.repository.contains(".."), "{text}");
    assert!(read.tag.is_none_or(|tag| !tag.contains('/') && !tag.starts_with(['-', '.'])), "{text}");
}

pub fn allow_list(input: &[u8]) {
    let (patterns, image) = two_texts_of(input);
    let digest = format!("sha256:{}", "5e".repeat(32));
    for given in [None, Some(digest.as_str())] {
        let is_allowed = within(LIMIT, || allow_list::allows(patterns, image, given));
        // What may not be allowed whatever its digest is, is not allowed.
        assert!(!is_allowed || allow_list::may_allow(patterns, image), "{patterns} {image}");
        assert!(allow_list::allows("*", image, given));
        assert!(!allow_list::allows("", image, given));
        if given.is_none() && !patterns.contains('*') && is_allowed {
            // Without wildcards, only what is spelled.
            let (name, own) = allow_list::split(image);
            assert!(patterns.contains(name) && own.is_none_or(|own| patterns.contains(own)), "{patterns} {image}");
        }
    }
    let _ = allow_list::spells(patterns, image, &digest);
}

/// What clients and the manager say to each other.
pub fn control(input: &[u8]) {
    let text = text_of(input);
    returns_as_it_was::<Request>(text);
    returns_as_it_was::<Response>(text);
}

fn returns_as_it_was<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &str) {
    let Ok(read) = within(LIMIT, || serde_json::from_str::<T>(text)) else { return };
    let written = serde_json::to_string(&read).expect("it can be written");
    assert!(!written.contains('\n'));
    assert_eq!(serde_json::from_str::<T>(&written).expect("it can be read"), read);
}
