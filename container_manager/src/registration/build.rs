//! A project or inline code to an image: stages the build context, then lets the runtime build it.
//!
//! The context holds the template's folder, the project's files under `function/`, and what the manifest says as the
//! files that a Dockerfile can copy one by one, so that each layer depends on no more than it needs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use udf_client::control::ImageInfo;
use udf_project::manifest::{FunctionEntry, INLINE_REPOSITORY, Limits, Manifest};
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use super::template::Template;
use crate::runtime::{BuildOptions, Runtime};

/// Builds the project in a folder.
pub fn build_project(
    runtime: &dyn Runtime,
    templates: &Path,
    project: &Path,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let path = project.join("transship.toml");
    let text = fs::read_to_string(&path).map_err(|cause| {
        Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", path.display()))
    })?;
    build_files(runtime, templates, project, &Manifest::parse(&text)?, options)
}

/// Builds a manifest's files, which lie in a folder.
pub fn build_files(
    runtime: &dyn Runtime,
    templates: &Path,
    project: &Path,
    manifest: &Manifest,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let template = Template::load(templates, &manifest.template)?;
    let context = stage(&template, manifest)?;
    for file in manifest.files.iter().chain([&manifest.handler]) {
        let target = context.path().join("function").join(file);
        fs::create_dir_all(target.parent().expect("a file lies in a folder")).map_err(staging_failed)?;
        fs::copy(project.join(file), &target).map_err(|cause| {
            Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", project.join(file).display()))
        })?;
    }
    runtime.build(context.path(), manifest, &template, options)
}

/// The manifest of inline code's image, whose tag is made from its content.
pub fn name_inline(templates: &Path, manifest: &Manifest, source: &str) -> Result<Manifest> {
    // It is JSON of the user's making, and names a folder.
    let manifest = Manifest::from_label(&manifest.to_label())?;
    check_inline(&manifest)?;
    let template = Template::load(templates, &manifest.template)?;
    let mut hash = Sha256::new();
    hash.update(manifest.to_label());
    hash.update(source);
    let tag = tag_of(hash);
    let handler = template.handler().to_string();
    let manifest = Manifest { name: INLINE_REPOSITORY.to_string(), version: tag, handler, ..manifest };
    Manifest::from_label(&manifest.to_label())
}

/// Refuses what no function's body can say: a role that may write inline code need not be trusted with the host.
fn check_inline(manifest: &Manifest) -> Result<()> {
    let keys = [
        ("limits", manifest.limits != Limits::default()),
        ("replicas", manifest.replicas != 1),
        ("prewarm", manifest.prewarm != 0),
        ("pause", manifest.pause),
        ("system_packages", !manifest.system_packages.is_empty()),
        ("files", !manifest.files.is_empty()),
    ];
    match keys.iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => Err(Error::new(Kind::NotAllowed, format!("inline code may not set \"{key}\""))
            .with_hint("Build a project with \"transship build\" and name its image instead.")),
        None => Ok(()),
    }
}

/// Builds inline code, with the manifest that [`name_inline`] gave.
pub fn build_inline(
    runtime: &dyn Runtime,
    templates: &Path,
    manifest: &Manifest,
    source: &str,
    options: &BuildOptions,
) -> Result<ImageInfo> {
    let template = Template::load(templates, &manifest.template)?;
    let context = stage(&template, manifest)?;
    fs::write(context.path().join("function").join(&manifest.handler), source).map_err(staging_failed)?;
    runtime.build(context.path(), manifest, &template, options)
}

/// The image of a manifest whose version is made from its content, unless it has to be built. An error if the runtime does not
/// say whether it is there. An image that was not built here may be anything, whatever its name and labels say.
pub fn find_built(runtime: &dyn Runtime, manifest: &Manifest) -> Result<Option<ImageInfo>> {
    match runtime.resolve(&manifest.image()) {
        Err(error) if error.kind() == Kind::ContainerFailed => Err(error),
        // One that is of no use, or is another in spite of its name, is built over. The handler has said what its functions take.
        found => Ok(found.ok().filter(|found| {
            runtime.was_built_here(&found.digest)
                && manifest.with_described(&found.manifest.to_label()).is_ok_and(|wanted| wanted == found.manifest)
        })),
    }
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
pub(super) struct HashWriter<'a>(pub(super) &'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// So many bytes of its content's SHA-256 are a tag: nobody finds two contents that have them in common.
const TAG_BYTES: usize = 16;

/// A tag made from the content of an image.
pub fn tag_of(hash: Sha256) -> String {
    hash.finalize().iter().take(TAG_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

fn stage(template: &Template, manifest: &Manifest) -> Result<TempDir> {
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
        Ok(json!({"name": name, "kind": kind, "batch": batch, "arguments": arguments, "returns": returns}))
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

fn staging_failed(cause: std::io::Error) -> Error {
    Error::new(Kind::BuildFailed, format!("could not stage the build: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{FoundReplica, ReplicaSpec, ReplicaStatus, image_not_found};

    /// A runtime that knows one image, or why it cannot say; and whether it was built here.
    struct Known(Result<ImageInfo>, bool);

    impl Runtime for Known {
        fn name(&self) -> &str {
            "known"
        }

        fn resolve(&self, _: &str) -> Result<ImageInfo> {
            self.0.clone()
        }

        fn was_built_here(&self, digest: &str) -> bool {
            assert_eq!(digest, self.0.as_ref().unwrap().digest);
            self.1
        }

        fn check(&self) -> Result<String> {
            unimplemented!()
        }

        fn images(&self) -> Result<Vec<ImageInfo>> {
            unimplemented!()
        }

        fn build(&self, _: &Path, _: &Manifest, _: &Template, _: &BuildOptions) -> Result<ImageInfo> {
            unimplemented!()
        }

        fn remove_image(&self, _: &ImageInfo) -> Result<()> {
            unimplemented!()
        }

        fn push(&self, _: &str, _: &str) -> Result<String> {
            unimplemented!()
        }

        fn pull(&self, _: &str, _: bool) -> Result<ImageInfo> {
            unimplemented!()
        }

        fn start(&self, _: &ReplicaSpec) -> Result<()> {
            unimplemented!()
        }

        fn status(&self, _: &str) -> Result<ReplicaStatus> {
            unimplemented!()
        }

        fn pause(&self, _: &str) -> Result<()> {
            unimplemented!()
        }

        fn resume(&self, _: &str) -> Result<()> {
            unimplemented!()
        }

        fn stop(&self, _: &str) -> Result<()> {
            unimplemented!()
        }

        fn logs(&self, _: &str) -> Result<String> {
            unimplemented!()
        }

        fn find_replicas(&self) -> Result<Vec<FoundReplica>> {
            unimplemented!()
        }
    }

    fn manifest_of(more: &str) -> Manifest {
        let functions = "functions = [{ name = 'f', arguments = ['x int8'], returns = 'int8' }, { name = 'g' }]";
        Manifest::parse(&format!("name = 'a'\nversion = '1'\ntemplate = 'python'\n{functions}\n{more}")).unwrap()
    }

    /// What a build makes of `manifest_of`: the handler has said what `g` takes.
    fn described(more: &str) -> Manifest {
        let mut manifest = manifest_of(more);
        (manifest.functions[1].arguments, manifest.functions[1].returns) =
            (Some(vec!["text".to_string()]), Some("text".to_string()));
        manifest
    }

    #[test]
    fn an_image_is_found_if_it_was_built_here_of_this_manifest() {
        let digest = format!("sha256:{}", "5e".repeat(32));
        let find = |manifest: Manifest, is_built: bool| {
            let image = ImageInfo { digest: digest.clone(), manifest };
            find_built(&Known(Ok(image), is_built), &manifest_of("")).unwrap().map(|image| image.manifest)
        };
        assert_eq!(find(described(""), true), Some(described("")));
        // Labels say nothing of an image that came from elsewhere.
        assert_eq!(find(described(""), false), None);
        // One with limits, a network or containers of its own is another, in spite of its name.
        for more in ["replicas = 2", "prewarm = 1", "pause = true", "limits = { network = true }"] {
            assert_eq!(find(described(more), true), None, "{more}");
        }
        for change in [
            |manifest: &mut Manifest| manifest.name = "b".to_string(),
            |manifest: &mut Manifest| manifest.limits.memory_mb *= 2,
            |manifest: &mut Manifest| manifest.requirements.push("numpy".to_string()),
            |manifest: &mut Manifest| manifest.functions[0].name = "h".to_string(),
            |manifest: &mut Manifest| manifest.functions[0].strict = true,
            |manifest: &mut Manifest| manifest.functions.truncate(1),
            |manifest: &mut Manifest| manifest.functions.swap(0, 1),
            |manifest: &mut Manifest| manifest.functions.push(described("").functions[1].clone()),
        ] {
            let mut manifest = described("");
            change(&mut manifest);
            assert_eq!(find(manifest.clone(), true), None, "{manifest:?}");
        }
    }

    #[test]
    fn an_image_is_missing_only_if_the_engine_says_so() {
        let find = |error: Error| find_built(&Known(Err(error), true), &manifest_of(""));
        assert_eq!(find(image_not_found("a:1")).unwrap(), None);
        // One whose label nobody can read is built over.
        assert_eq!(find(Error::invalid_definition("it is no UDF image")).unwrap(), None);
        assert!(find(Error::new(Kind::ContainerFailed, "the engine hangs")).is_err());
    }

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
