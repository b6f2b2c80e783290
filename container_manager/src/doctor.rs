//! What the manager needs on its host, and what is missing, for `transship doctor`.

use std::path::Path;

use clap::ValueEnum;
use udf_client::control::CheckInfo;
use udf_types::error::Kind;
use udf_types::{Error, Result};

use crate::config::{HostConfig, RuntimeConfig, RuntimeName};
use crate::runtime;
use crate::setup_checks;
use crate::template::Template;

/// Looks at everything, with the manager's runtime asked anew; then what replicas and builds are not kept from, though they should
/// be. Blocks.
pub fn examine(host: &HostConfig, runtime_name: &str) -> (Vec<CheckInfo>, Vec<String>) {
    let name = RuntimeName::from_str(runtime_name, false).unwrap_or(host.runtime.name);
    let host = HostConfig { runtime: RuntimeConfig { name, ..host.runtime.clone() }, ..host.clone() };
    let runtime = runtime::choose(&host)
        .and_then(|engine| Ok(format!("{}: {}", engine.containers.name(), engine.containers.check()?)));
    let mut checks = vec![("runtime", runtime), ("templates", list_templates(&host.paths.templates))];
    checks.extend(setup_checks::of_host(&host));
    let checks = checks.into_iter().map(|(name, found)| CheckInfo {
        name: name.to_string(),
        is_well: found.is_ok(),
        fact: found.unwrap_or_else(|error| error.to_string()),
    });
    let doubts = runtime::choose(&host).and_then(|engine| engine.doubts()).unwrap_or_default();
    (checks.collect(), doubts)
}

fn list_templates(folder: &Path) -> Result<String> {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|cause| {
        Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", folder.display()))
            .with_hint("Set --templates or TRANSSHIP_TEMPLATES to the folder container_templates.")
    })?;
    for entry in entries.flatten() {
        if entry.path().join("template.toml").exists() {
            let name = entry.file_name().to_string_lossy().into_owned();
            Template::load(folder, &name)?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names.join(", "))
}
