//! The manifest (`transship.toml`) of a UDF project. Keys, defaults and bounds are defined here once; unknown keys are refused.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};
use udf_types::signature::{Argument, FunctionKind, Signature, Volatility};
use udf_types::types::Type;
use udf_types::{Error, Result};

use crate::keys::{bad_value, check_bounds, check_concurrency, check_length, is_template_name, malformed};
use crate::reference::{is_name, is_tag};

/// The name of images that are built from inline code.
pub const INLINE_REPOSITORY: &str = "transship-inline";

/// Names that stand for something else in lists of allowed images.
const RESERVED_NAMES: [&str; 4] = ["sha256", "inline", "library", "endpoint"];

/// The label under which an image carries its manifest, as JSON.
pub const MANIFEST_LABEL: &str = "org.transship.manifest";

/// `transship.toml`: the one description of a UDF project.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the image, without tag.
    pub name: String,
    /// Tag of the image.
    #[serde(default = "default_version")]
    pub version: String,
    /// The template: a folder of `container_templates/`.
    pub template: String,
    /// File with the user's code, relative to the project.
    #[serde(default = "default_handler")]
    pub handler: String,
    /// Packages of the template's language, as its package manager writes them.
    #[serde(default)]
    pub requirements: Vec<String>,
    /// Packages of the image's operating system.
    #[serde(default)]
    pub system_packages: Vec<String>,
    /// Further files for the image (models, data), relative to the project.
    #[serde(default)]
    pub files: Vec<String>,
    /// The image's functions.
    pub functions: Vec<FunctionEntry>,
    /// What each container may use.
    #[serde(default)]
    pub limits: Limits,
    /// Most containers of this image at a time; 1 to 64.
    #[serde(default = "default_replicas")]
    pub replicas: u32,
    /// Containers kept running before the first call; 0 to `replicas`.
    #[serde(default)]
    pub prewarm: u32,
    /// Whether containers that nobody uses are paused: they keep their memory and get no processor until the next call.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pause: bool,
}

/// One function of a manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionEntry {
    /// Its name in the handler and in SQL.
    pub name: String,
    /// Arguments, each `"name type"` or `"type"`. Left out: taken from the handler's annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Vec<String>>,
    /// Result type. Left out: taken from the handler's annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub returns: Option<String>,
    /// What it makes of its calls.
    #[serde(default)]
    pub kind: FunctionKind,
    /// Whether an aggregate function can merge states; the handler says it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merges: bool,
    /// How the handler takes its arguments.
    #[serde(default)]
    pub batch: BatchForm,
    /// Whether a NULL argument makes the result NULL without a call.
    #[serde(default)]
    pub strict: bool,
    /// How often the result may change.
    #[serde(default)]
    pub volatility: Volatility,
    /// Most calls of a batch that are under way at a time, of a handler that waits, such as for a web service; 1 to 1,000.
    #[serde(default = "default_concurrency", skip_serializing_if = "is_default_concurrency")]
    pub concurrency: u32,
}

/// How a handler takes its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BatchForm {
    /// One call per row, with plain values of the language.
    #[default]
    Row,
    /// One call per batch, with arrays of the language's plain values.
    Columns,
    /// One call per batch, with Arrow arrays.
    Arrow,
    /// One call per batch, with NumPy arrays.
    Numpy,
    /// One call per batch, with pandas series.
    Pandas,
}

impl BatchForm {
    /// The form's name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            BatchForm::Row => "row",
            BatchForm::Columns => "columns",
            BatchForm::Arrow => "arrow",
            BatchForm::Numpy => "numpy",
            BatchForm::Pandas => "pandas",
        }
    }
}

/// What a container may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory in MiB; 32 to 1,048,576.
    pub memory_mb: u64,
    /// Processor cores; 0.1 to 256.
    pub cpus: f64,
    /// Processes and threads; 8 to 32,768.
    pub pids: u32,
    /// Whether the container has a network. Off, it has nothing but its socket directory.
    pub network: bool,
    /// GPUs; 0 to 64.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpus: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_mb: 1024, cpus: 1.0, pids: 128, network: false, gpus: 0 }
    }
}

/// Manifests without GPUs are written as before there were any, so that images keep their names.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

pub(crate) fn default_version() -> String {
    "latest".to_string()
}

pub(crate) fn default_handler() -> String {
    "handler.py".to_string()
}

pub(crate) fn default_replicas() -> u32 {
    1
}

pub(crate) fn default_concurrency() -> u32 {
    1
}

fn is_default_concurrency(concurrency: &u32) -> bool {
    *concurrency == default_concurrency()
}

impl Manifest {
    /// Reads and checks `transship.toml`.
    pub fn parse(text: &str) -> Result<Manifest> {
        check_length("transship.toml", text.len())?;
        let manifest: Manifest = toml::from_str(text).map_err(|cause| malformed("transship.toml", &cause))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Reads the manifest that an image's label carries.
    pub fn from_label(text: &str) -> Result<Manifest> {
        let manifest: Manifest = serde_json::from_str(text).map_err(|cause| {
            Error::invalid_definition(format!("label \"{MANIFEST_LABEL}\" of the image is malformed: {cause}"))
        })?;
        manifest.check()?;
        Ok(manifest)
    }

    /// With the arguments, results and abilities that the image's handler says its functions have, as JSON. All else stays
    /// as it is: the handler is not asked what it may use.
    pub fn with_described(&self, text: &str) -> Result<Manifest> {
        let described = Manifest::from_label(text)?;
        let mut manifest = self.clone();
        let known: HashMap<&str, &FunctionEntry> =
            described.functions.iter().map(|found| (found.name.as_str(), found)).collect();
        for function in &mut manifest.functions {
            let found = known.get(function.name.as_str()).ok_or_else(|| {
                Error::invalid_definition(format!("the handler does not describe function \"{}\"", function.name))
            })?;
            function.arguments = found.arguments.clone().or(function.arguments.take());
            function.returns = found.returns.clone().or(function.returns.take());
            function.merges = found.merges;
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// The text of the label.
    pub fn to_label(&self) -> String {
        serde_json::to_string(self).expect("a manifest holds nothing that JSON cannot")
    }

    /// `name:version`, by which SQL names the image.
    pub fn image(&self) -> String {
        format!("{}:{}", self.name, self.version)
    }

    /// The name by which lists of allowed images know the image.
    pub fn listed_name(&self) -> String {
        if self.name == INLINE_REPOSITORY { format!("inline:{}", self.template) } else { self.image() }
    }

    /// Whether the image gives itself this name, which may lack its tag.
    pub fn is_named(&self, name: &str) -> bool {
        let listed = self.listed_name();
        name == listed || listed.strip_suffix(":latest").is_some_and(|untagged| name == untagged)
    }

    /// The function of this name, or the only one if no name is given. `place` is the image, or what stands for it, in errors.
    pub fn function(&self, name: Option<&str>, place: &str) -> Result<&FunctionEntry> {
        let found = match (name, self.functions.as_slice()) {
            (Some(name), all) => all.iter().find(|entry| entry.name == name),
            (None, [only]) => Some(only),
            (None, _) => None,
        };
        found.ok_or_else(|| {
            let names: Vec<String> = self.functions.iter().map(|entry| entry.name.clone()).collect();
            match name {
                Some(name) => Error::function_not_found(name, place, &names),
                None => Error::function_not_named(place, &names),
            }
        })
    }

    fn check(&self) -> Result<()> {
        if !(self.name.len() <= 200 && is_name(&self.name)) {
            return Err(bad_value(
                "name",
                &self.name,
                "lower-case letters and digits, with \"-\", \"_\", \".\" or \"/\" between them",
            ));
        }
        if RESERVED_NAMES.contains(&self.name.as_str()) {
            return Err(bad_value("name", &self.name, "a word that lists of allowed images do not use otherwise"));
        }
        if !is_tag(&self.version) {
            return Err(bad_value("version", &self.version, "letters, digits, \"-\", \"_\" and \".\""));
        }
        if !is_template_name(&self.template) {
            return Err(bad_value("template", &self.template, "the name of a folder of container_templates"));
        }
        for path in self.files.iter().chain([&self.handler]) {
            if !is_inside(path) {
                return Err(bad_value("files", path, "a path inside the project"));
            }
        }
        for requirement in self.requirements.iter().chain(&self.system_packages) {
            // A package manager takes a word that begins with a dash for an option.
            let has_option = requirement.split_whitespace().any(|word| word.starts_with('-'));
            let is_trimmed = !requirement.is_empty() && requirement.trim() == requirement;
            if has_option || !is_trimmed || requirement.contains(char::is_control) {
                return Err(bad_value("requirements", requirement, "a package name, with a version if you like"));
            }
        }
        check_bounds("limits.memory_mb", self.limits.memory_mb as f64, 32.0, 1_048_576.0)?;
        check_bounds("limits.cpus", self.limits.cpus, 0.1, 256.0)?;
        check_bounds("limits.pids", f64::from(self.limits.pids), 8.0, 32_768.0)?;
        check_bounds("limits.gpus", f64::from(self.limits.gpus), 0.0, 64.0)?;
        check_bounds("replicas", f64::from(self.replicas), 1.0, 64.0)?;
        check_bounds("prewarm", f64::from(self.prewarm), 0.0, f64::from(self.replicas))?;
        if self.functions.is_empty() {
            return Err(Error::invalid_definition("a UDF project needs at least one function"));
        }
        let mut names = HashSet::new();
        for function in &self.functions {
            if function.name.is_empty() || !names.insert(function.name.as_str()) {
                return Err(bad_value("functions.name", &function.name, "a name that no other function has"));
            }
            function.check_types()?;
            function.check_names()?;
            check_concurrency(function.concurrency)?;
        }
        Ok(())
    }
}

impl FunctionEntry {
    /// A function of which nothing is known but its name.
    pub fn named(name: &str) -> FunctionEntry {
        FunctionEntry {
            name: name.to_string(),
            arguments: None,
            returns: None,
            kind: FunctionKind::default(),
            merges: false,
            batch: BatchForm::default(),
            strict: false,
            volatility: Volatility::default(),
            concurrency: default_concurrency(),
        }
    }

    /// A function as an engine declares it.
    pub fn declared(signature: &Signature) -> FunctionEntry {
        let arguments = signature.arguments.iter().enumerate().map(|(position, argument)| {
            let name = if argument.name.is_empty() { format!("arg{}", position + 1) } else { argument.name.clone() };
            format!("{name} {}", argument.ty)
        });
        FunctionEntry {
            arguments: Some(arguments.collect()),
            returns: Some(signature.result.to_string()),
            kind: signature.kind,
            ..FunctionEntry::named(&signature.function)
        }
    }

    /// Refuses types that there are not, among those that are given.
    pub fn check_types(&self) -> Result<()> {
        self.arguments.iter().flatten().try_for_each(|text| parse_argument(text).map(drop))?;
        self.returns.iter().try_for_each(|text| Type::from_name(text).map(drop))
    }

    /// Refuses names with control characters. They go into scripts, where a line may end a statement: `GO` of SQL Server's clients does.
    fn check_names(&self) -> Result<()> {
        let refused = |name: &str| Err(bad_value("functions", name, "names without control characters"));
        if self.name.contains(char::is_control) {
            return refused(&self.name);
        }
        for text in self.arguments.iter().flatten() {
            let argument = parse_argument(text)?;
            if argument.name.contains(char::is_control) || argument.ty.has_control_characters() {
                return refused(text);
            }
        }
        match &self.returns {
            Some(text) if Type::from_name(text)?.has_control_characters() => refused(text),
            _ => Ok(()),
        }
    }

    /// The signature, if the manifest gives all of it; otherwise the handler's annotations do.
    pub fn signature(&self) -> Result<Option<Signature>> {
        let (Some(arguments), Some(returns)) = (&self.arguments, &self.returns) else {
            return Ok(None);
        };
        let mut parsed = Vec::with_capacity(arguments.len());
        for text in arguments {
            parsed.push(parse_argument(text)?);
        }
        Ok(Some(Signature {
            function: self.name.clone(),
            kind: self.kind,
            arguments: parsed,
            result: Type::from_name(returns)?,
            row_errors: None,
        }))
    }
}

/// `"name type"` or `"type"`; a type may itself have two words.
fn parse_argument(text: &str) -> Result<Argument> {
    if let Ok(ty) = Type::from_name(text) {
        return Ok(Argument { name: String::new(), ty });
    }
    let (name, ty) = text.trim().split_once(char::is_whitespace).unwrap_or(("", text));
    Ok(Argument { name: name.to_string(), ty: Type::from_name(ty)? })
}

fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use udf_types::limits::MAX_TOML_BYTES;

    use super::*;
    use crate::body::FunctionBody;

    /// Each break reads all of the text again.
    #[test]
    fn endless_lines_and_lists_take_no_time() {
        let begun = std::time::Instant::now();
        let line: String = (0..20_000).map(|number| format!("a{number} = 1 ")).collect();
        assert!(FunctionBody::parse(&line).is_err());
        assert!(FunctionBody::parse(&"[".repeat(1 << 20)).is_err());
        assert!(FunctionBody::parse(&format!("image = {}", "[".repeat(1 << 20))).is_err());
        let functions: Vec<String> = (0..100_000).map(|number| format!("{{\"name\":\"f{number:06}\"}}")).collect();
        let label = format!("{{\"name\":\"a\",\"template\":\"t\",\"functions\":[{}]}}", functions.join(","));
        let manifest = Manifest::from_label(&label).unwrap();
        assert_eq!(manifest.with_described(&label).as_ref(), Ok(&manifest));
        assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    }

    const PROJECT: &str = r#"
        name = "flights"
        version = "1.0"
        template = "python"
        requirements = ["numpy"]
        files = ["model.pkl"]
        [[functions]]
        name = "arrival_delay"
        arguments = ["distance float8", "departure timestamp with time zone", "text"]
        returns = "float8"
        batch = "numpy"
        volatility = "immutable"
    "#;

    #[test]
    fn texts_that_would_take_much_memory_are_not_read() {
        // Thirty times as large once it is read.
        let tables = |bytes: usize| format!("files = [{}{{}}]", "{},".repeat(bytes / 3));
        for bytes in [MAX_TOML_BYTES, 8 * MAX_TOML_BYTES] {
            for error in [
                Manifest::parse(&tables(bytes)).map(drop),
                FunctionBody::parse(&tables(bytes)).map(drop),
                FunctionBody::read_table(&tables(bytes)).map(drop),
            ] {
                let error = error.unwrap_err();
                assert!(error.message().ends_with(" is too long"), "{error}");
            }
        }
        let source = "#".repeat(MAX_TOML_BYTES - 100);
        assert!(FunctionBody::parse(&format!("template = \"python\"\nsource = '{source}'")).is_ok());
    }

    #[test]
    fn a_handler_says_what_its_functions_take_and_no_more() {
        let manifest = Manifest::parse(PROJECT).unwrap();
        let mut described = manifest.clone();
        described.limits = Limits { network: true, memory_mb: 1 << 20, gpus: 8, ..Limits::default() };
        (described.replicas, described.prewarm, described.pause) = (64, 64, true);
        described.name = "other".to_string();
        described.files = vec!["more".to_string()];
        let function = &mut described.functions[0];
        (function.volatility, function.strict, function.merges) = (Volatility::Immutable, true, true);
        function.arguments = Some(vec!["x int8".to_string()]);
        function.returns = Some("text".to_string());
        let mut expected = manifest.clone();
        expected.functions[0].merges = true;
        expected.functions[0].arguments = Some(vec!["x int8".to_string()]);
        expected.functions[0].returns = Some("text".to_string());
        assert_eq!(manifest.with_described(&described.to_label()).unwrap(), expected);
        described.functions[0].name = "unknown".to_string();
        let error = manifest.with_described(&described.to_label()).unwrap_err();
        assert!(error.message().contains(&manifest.functions[0].name), "{error}");
    }

    #[test]
    fn gpus_are_bounded_and_leave_other_manifests_as_they_were() {
        let parse = |gpus: &str| Manifest::parse(&format!("{PROJECT}\n[limits]\ngpus = {gpus}"));
        assert_eq!(parse("2").unwrap().limits, Limits { gpus: 2, ..Limits::default() });
        assert!(!Manifest::parse(PROJECT).unwrap().to_label().contains("gpus"));
        assert_eq!(Manifest::from_label(&parse("2").unwrap().to_label()).unwrap(), parse("2").unwrap());
        for wrong in ["65", "-1", "true", "'all'"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requirements_are_packages_and_no_options() {
        let with = |requirement: &str| PROJECT.replace("[\"numpy\"]", &format!("[\"{requirement}\"]"));
        for requirement in ["numpy", "numpy==2.*", "numpy >= 2 ; python_version > '3'"] {
            assert!(Manifest::parse(&with(requirement)).is_ok(), "{requirement}");
        }
        for requirement in ["", " ", " --index-url=x", "-r x", "numpy --config-settings=x", "numpy ", "\\tnumpy"] {
            assert!(Manifest::parse(&with(requirement)).is_err(), "{requirement}");
        }
    }

    /// Labels are anybody's, and lists of allowed images have words of their own.
    #[test]
    fn no_image_has_a_name_that_means_something_else() {
        for name in RESERVED_NAMES {
            let error = Manifest::parse(&PROJECT.replace("\"flights\"", &format!("\"{name}\""))).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
        assert!(Manifest::parse(&PROJECT.replace("\"flights\"", "\"inline/python\"")).is_ok());
    }

    #[test]
    fn no_name_ends_a_line_of_a_script() {
        let label = |function: &str, argument: &str, returns: &str| {
            let function = json!({"name": function, "arguments": [argument], "returns": returns});
            Manifest::from_label(&json!({"name": "a", "template": "t", "functions": [function]}).to_string())
        };
        assert!(label("f", "x int4", "(\n\"a\" int4)").is_ok());
        for (function, argument, returns) in [
            ("f\nGO\n", "x int4", "int4"),
            ("f", "x\u{1b} int4", "int4"),
            ("f", "x (\"a\nGO\" int4)[]", "int4"),
            ("f", "x int4", "(\"a\u{85}GO\" int4)"),
        ] {
            assert!(label(function, argument, returns).is_err(), "{function:?} {argument:?} {returns:?}");
        }
    }

    #[test]
    fn manifest_round_trips_through_the_label() {
        let manifest = Manifest::parse(PROJECT).unwrap();
        assert_eq!(Manifest::from_label(&manifest.to_label()).unwrap(), manifest);
        let signature = manifest.functions[0].signature().unwrap().unwrap();
        assert_eq!(signature.to_string(), "arrival_delay(float8, timestamptz, text) returns float8");
        assert_eq!(signature.arguments[1].name, "departure");
    }

    #[test]
    fn manifest_refuses_what_it_does_not_know() {
        for (from, to, word) in [
            ("version", "versoin", "versoin"),
            ("flights", "Flights", "Flights"),
            ("model.pkl", "../model.pkl", "../model.pkl"),
            ("\"numpy\"]", "\"--index\"]", "--index"),
            ("float8\"", "flaot8\"", "flaot8"),
            ("batch =", "concurrency = 0\nbatch =", "concurrency"),
            ("batch =", "concurrency = 1001\nbatch =", "concurrency"),
        ] {
            let error = Manifest::parse(&PROJECT.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn lists_know_images_by_the_names_that_these_give_themselves() {
        let mut manifest =
            Manifest::parse("name = \"team/flights\"\ntemplate = \"python\"\n[[functions]]\nname = \"f\"").unwrap();
        assert!(manifest.is_named("team/flights") && manifest.is_named("team/flights:latest"));
        assert!(
            !manifest.is_named("flights:latest") && !manifest.is_named("team/flights:1.0") && !manifest.is_named("")
        );
        manifest.version = "1.0".to_string();
        assert!(manifest.is_named("team/flights:1.0") && !manifest.is_named("team/flights"));
        manifest.name = INLINE_REPOSITORY.to_string();
        assert!(manifest.is_named("inline:python") && !manifest.is_named("inline:go"));
        assert!(!manifest.is_named("transship-inline:1.0"));
    }
}
