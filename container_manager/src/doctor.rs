//! `transship doctor`: looks at everything the manager needs, and says what is missing and what to do.

use std::path::Path;

use udf_client::control::{Request, Response, ask};
use udf_types::{Error, Result};

use crate::config::HostConfig;
use crate::runtime;
use crate::setup_checks;
use crate::template::Template;

/// Prints one line per check; false if any failed.
pub async fn examine(host: &HostConfig) -> bool {
    let runtime = runtime::choose(host)
        .and_then(|engine| Ok(format!("{}: {}", engine.containers.name(), engine.containers.check()?)));
    let mut checks = vec![
        ("runtime", runtime),
        ("templates", list_templates(&host.paths.templates)),
        ("manager", ask_manager(&host.paths.socket).await),
    ];
    checks.extend(setup_checks::examine(host).await);
    let doubts = runtime::choose(host).and_then(|engine| engine.doubts()).unwrap_or_default();
    let mut is_well = true;
    for (name, result) in checks {
        match result {
            Ok(fact) => println!("ok      {name}: {fact}"),
            Err(error) => {
                is_well = false;
                println!("FAILED  {name}: {}", error.to_string().replace('\n', "\n        "));
            }
        }
    }
    for doubt in doubts {
        println!("WARNING runtime: {doubt}");
    }
    is_well
}

fn list_templates(folder: &Path) -> Result<String> {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|cause| {
        Error::new(
            udf_types::error::Kind::InvalidDefinition,
            format!("could not read \"{}\": {cause}", folder.display()),
        )
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

async fn ask_manager(socket: &Path) -> Result<String> {
    match ask(socket, &Request::Ping).await? {
        Response::Pong { version, runtime } => {
            Ok(format!("transshipd {version} with runtime {runtime} at \"{}\"", socket.display()))
        }
        other => Err(udf_client::control::unexpected(&format!("It answered {other:?} to a ping."))),
    }
}
