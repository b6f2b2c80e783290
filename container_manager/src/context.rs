//! The context of an image's build: the template's folder, the project's files under `function/`, and what the manifest says as
//! the files that a Dockerfile can copy one by one, so that each layer depends on no more than it needs. The content of a
//! context tells its image from others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use udf_project::manifest::{FunctionEntry, Manifest};
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use crate::template::Template;

/// Makes the context of an image, with all but the project's files.
pub fn stage(template: &Template, manifest: &Manifest) -> Result<TempDir> {
    let context = tempfile::tempdir().map_err(staging_failed)?;
    for entry in fs::read_dir(&template.folder).map_err(staging_failed)?.flatten() {
        let name = entry.file_name();
        // The project's files take the place of the template's example; tests do not travel.
        if name != "function" && name != "tests" && name != "conformance" {
            copy_tree(&entry.path(), &context.path().join(name)).map_err(staging_failed)?;
        }
    }
    let write = |name: &str, text: String| fs::write(context.path().join(name), text).map_err(staging_failed);
    fs::create_dir(context.path().join("function")).map_err(staging_failed)?;
    write("manifest.json", manifest.to_label())?;
    write("functions.json", describe_functions(manifest)?.to_string())?;
    write("project-requirements.txt", lines(&manifest.requirements))?;
    write("system-packages.txt", lines(&manifest.system_packages))?;
    Ok(context)
}

/// The handler's file and its functions, with their types as trees: a server need not parse the names of types.
fn describe_functions(manifest: &Manifest) -> Result<Value> {
    let describe = |function: &FunctionEntry| -> Result<Value> {
        let signature = function.signature()?;
        let arguments = signature.as_ref().map(|signature| {
            let named = signature.arguments.iter().enumerate().map(|(position, argument)| {
                let name = Some(argument.name.clone()).filter(|name| !name.is_empty());
                json!({"name": name.unwrap_or_else(|| format!("arg{}", position + 1)), "type": describe_type(&argument.ty)})
            });
            named.collect::<Vec<Value>>()
        });
        let returns = signature.map(|signature| describe_type(&signature.result));
        let (name, kind, batch) = (&function.name, function.kind, function.batch);
        let mut described =
            json!({"name": name, "kind": kind, "batch": batch, "arguments": arguments, "returns": returns});
        if function.concurrency > 1 {
            described["concurrency"] = json!(function.concurrency);
        }
        Ok(described)
    };
    let functions = manifest.functions.iter().map(describe).collect::<Result<Vec<Value>>>()?;
    Ok(json!({"handler": manifest.handler, "functions": functions}))
}

/// `{"type": name, "text": as SQL writes it}`, with `"element"` or `"attributes"` where the type has such.
fn describe_type(ty: &Type) -> Value {
    let text = ty.to_string();
    match ty {
        Type::Array(element) => json!({"type": "array", "text": text, "element": describe_type(element)}),
        Type::Range(element) => json!({"type": "range", "text": text, "element": describe_type(element)}),
        Type::Composite(attributes) => {
            let attributes = attributes.iter().map(|attribute| {
                let mut described = describe_type(&attribute.ty);
                described["name"] = json!(attribute.name);
                described
            });
            json!({"type": "composite", "text": text, "attributes": attributes.collect::<Vec<Value>>()})
        }
        _ => json!({"type": text, "text": text}),
    }
}

fn lines(items: &[String]) -> String {
    items.iter().map(|item| format!("{item}\n")).collect()
}

fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop);
    }
    if from.file_name().is_some_and(|name| name == "__pycache__") {
        return Ok(());
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy_tree(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// The context could not be made or read.
pub fn staging_failed(cause: std::io::Error) -> Error {
    Error::new(Kind::BuildFailed, format!("could not stage the build: {cause}"))
}

/// The SHA-256, in hexadecimal, of the files of a staged context: paths, whether they can be run, contents.
pub fn content_of(context: &Path) -> Result<String> {
    content_without(context, &[])
}

/// `content_of` without the manifest's files that are no code: models and data, which do not change a signature. Code has
/// the handler's extension.
pub fn code_of(context: &Path, manifest: &Manifest) -> Result<String> {
    let extension = Path::new(&manifest.handler).extension();
    let is_data = |file: &&String| Path::new(file).extension() != extension;
    let data: Vec<String> = manifest.files.iter().filter(is_data).map(|file| format!("/function/{file}")).collect();
    content_without(context, &data)
}

fn content_without(context: &Path, left_out: &[String]) -> Result<String> {
    fn add(hash: &mut Sha256, folder: &Path, inside: &str, left_out: &[String]) -> std::io::Result<()> {
        let mut entries = fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = format!("{inside}/{}", entry.file_name().to_string_lossy());
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                add(hash, &entry.path(), &path, left_out)?;
                continue;
            }
            if left_out.contains(&path) {
                continue;
            }
            let is_program = metadata.permissions().mode() & 0o100 != 0;
            hash.update(format!("{path}\0{}\0{is_program}\0", metadata.len()));
            std::io::copy(&mut fs::File::open(entry.path())?, &mut HashWriter(hash))?;
        }
        Ok(())
    }
    let mut hash = Sha256::new();
    add(&mut hash, context, "", left_out).map_err(staging_failed)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes into a hash.
pub(crate) struct HashWriter<'a>(pub(crate) &'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_told_by_paths_modes_and_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let content = || content_of(folder.path()).unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        let file = folder.path().join("a/x");
        fs::write(&file, "1").unwrap();
        let first = content();
        assert_eq!(first.len(), 64);
        fs::write(&file, "2").unwrap();
        let second = content();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let third = content();
        fs::rename(&file, folder.path().join("a/y")).unwrap();
        let all = [first.clone(), second, third, content()];
        assert!((0..4).all(|i| (0..i).all(|j| all[i] != all[j])));
        fs::rename(folder.path().join("a/y"), &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, "1").unwrap();
        assert_eq!(content(), first);
    }

    #[test]
    fn a_model_is_no_code() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("function")).unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join("function").join(file), text).unwrap();
        let manifest = Manifest::parse(
            "name = 'a'\ntemplate = 'python'\nfiles = ['model.pkl', 'features.py']\nfunctions = [{ name = 'f' }]",
        )
        .unwrap();
        for file in ["handler.py", "model.pkl", "features.py"] {
            write(file, "1");
        }
        let both = || (content_of(folder.path()).unwrap(), code_of(folder.path(), &manifest).unwrap());
        let first = both();
        write("model.pkl", "2");
        let second = both();
        write("features.py", "2");
        let third = both();
        assert_ne!(first.0, second.0);
        assert_eq!(first.1, second.1);
        assert_ne!(second.1, third.1);
    }

    #[test]
    fn types_are_trees() {
        let manifest = Manifest::parse(
            "name = 'a'\ntemplate = 'go'\nhandler = 'handler.go'\nfunctions = [{ name = 'f', \
             arguments = ['x double precision[]', '(a int, \"b c\" text)'], returns = 'range(int8)' }, { name = 'g' }]",
        );
        let described = describe_functions(&manifest.unwrap()).unwrap();
        let f = &described["functions"][0];
        let float8 = json!({"type": "float8", "text": "float8"});
        assert_eq!(
            f["arguments"][0],
            json!({"name": "x", "type": {"type": "array", "text": "float8[]", "element": float8}})
        );
        let attributes = json!([
            {"name": "a", "type": "int4", "text": "int4"}, {"name": "b c", "type": "text", "text": "text"},
        ]);
        assert_eq!(f["arguments"][1]["name"], "arg2");
        assert_eq!(f["arguments"][1]["type"]["attributes"], attributes);
        assert_eq!(f["returns"]["element"]["type"], "int8");
        assert_eq!(described["functions"][1]["arguments"], Value::Null);
    }
}
