//! Templates: the fixed server of a language, as a folder of `container_templates/`. A template is its folder; adding a
//! language touches no other file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use udf_types::{Error, Kind, Result};

use crate::make_dir::make_dir;

/// A template's `template.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// Its folder.
    #[serde(skip)]
    pub folder: PathBuf,
    /// Files of `function/` that a new project starts with.
    pub project: Vec<String>,
    /// How the process runtime makes and starts an image; none if it cannot.
    pub process: Option<ProcessTemplate>,
}

/// How the process runtime makes and starts an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessTemplate {
    /// Files of the image whose contents decide which environment it needs.
    pub env_files: Vec<String>,
    /// Commands that make the environment.
    pub prepare: Vec<Vec<String>>,
    /// Variables of the server's environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// The server.
    pub serve: Vec<String>,
    /// Prints the manifest with every signature filled in.
    pub describe: Vec<String>,
}

impl Template {
    /// Reads the template `name` of the folder of templates.
    pub fn load(templates: &Path, name: &str) -> Result<Template> {
        let folder = templates.join(name);
        let path = folder.join("template.toml");
        let text = fs::read_to_string(&path).map_err(|cause| {
            Error::new(Kind::InvalidDefinition, format!("there is no template \"{name}\""))
                .with_detail(format!("\"{}\": {cause}.", path.display()))
                .with_hint("Set --templates or TRANSSHIP_TEMPLATES to the folder container_templates.")
        })?;
        let mut template: Template = toml::from_str(&text).map_err(|cause| {
            Error::new(Kind::InvalidDefinition, format!("\"{}\" is not valid: {}", path.display(), cause.message()))
        })?;
        template.folder = folder;
        Ok(template)
    }

    /// The file with the handler in a new project.
    pub fn handler(&self) -> &str {
        let found = self.project.iter().find(|file| *file != "transship.toml");
        found.map_or("handler", String::as_str)
    }

    /// Writes a new project into `target`, which must not exist.
    pub fn write_project(&self, target: &Path, name: &str) -> Result<()> {
        let failed = |cause: std::io::Error| {
            Error::new(Kind::InvalidDefinition, format!("could not write project \"{}\": {cause}", target.display()))
        };
        if target.exists() {
            return Err(Error::new(Kind::InvalidDefinition, format!("\"{}\" exists already", target.display())));
        }
        make_dir(target)?;
        for file in &self.project {
            let text = fs::read_to_string(self.folder.join("function").join(file)).map_err(failed)?;
            let text = text.replace("name = \"my_udf\"", &format!("name = \"{name}\""));
            fs::write(target.join(file), text).map_err(failed)?;
        }
        Ok(())
    }
}
