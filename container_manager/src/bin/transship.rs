//! The command line's main: one match on the command.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use container_manager::config::absolute_place;
use container_manager::doctor;
use container_manager::flags::{CliFlags, Command, Engine, PlaceFlags};
use container_manager::registration::build::build_project;
use container_manager::registration::template::Template;
use container_manager::runtime;
use udf_protocol::control::{Request, Response, ask, unexpected};
use udf_protocol::ddl;
use udf_protocol::manifest::Manifest;
use udf_protocol::{Error, Kind, Result};

fn main() -> ExitCode {
    match run(CliFlags::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("transship: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: CliFlags) -> Result<bool> {
    let place = absolute_place(flags.place)?;
    match flags.command {
        Command::New { name, template } => {
            Template::load(&place.templates, &template)?.write_project(Path::new(&name), &name)?;
            println!("Wrote project {name}; build it with \"transship build {name}\".");
            Ok(true)
        }
        Command::Build { project } => {
            let runtime = runtime::choose(&place)?;
            let image = build_project(runtime.as_ref(), &place.templates, &project, true)?;
            println!("{} {}", image.manifest.image(), image.digest);
            Ok(true)
        }
        Command::Ddl { image, engine, schema } => {
            let Response::Image(found) = ask_manager(&place, Request::Resolve { image })? else {
                return Err(unexpected("It did not answer with an image."));
            };
            print!("{}", write_ddl(&found.manifest, engine, schema.as_deref(), &place)?);
            Ok(true)
        }
        Command::Ps => {
            let Response::Replicas { replicas } = ask_manager(&place, Request::Replicas)? else {
                return Err(unexpected("It did not answer with replicas."));
            };
            println!("{:<40} {:<28} {:<9} {:>6} {:>8}", "REPLICA", "IMAGE", "STATE", "LEASES", "AGE");
            for replica in replicas {
                println!(
                    "{:<40} {:<28} {:<9} {:>6} {:>6} s",
                    replica.name, replica.image, replica.state, replica.leases, replica.age_s
                );
            }
            Ok(true)
        }
        Command::Logs { replica } => {
            let Response::Logs { text } = ask_manager(&place, Request::Logs { replica })? else {
                return Err(unexpected("It did not answer with a log."));
            };
            print!("{text}");
            Ok(true)
        }
        Command::Doctor => block_on(async { Ok(doctor::examine(&place).await) }),
    }
}

/// The statements, as the engine's own client takes them.
fn write_ddl(manifest: &Manifest, engine: Engine, schema: Option<&str>, place: &PlaceFlags) -> Result<String> {
    let (statements, end) = match engine {
        Engine::Postgres => (ddl::postgres(manifest, schema.unwrap_or("public"))?, ";\n"),
        Engine::Mssql => (ddl::mssql(manifest, schema.unwrap_or("dbo"), &place.socket.to_string_lossy())?, "\nGO\n"),
    };
    Ok(statements.iter().map(|statement| format!("{statement}{end}")).collect())
}

fn ask_manager(place: &PlaceFlags, request: Request) -> Result<Response> {
    block_on(ask(&place.socket, &request))
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Error::new(Kind::InvalidDefinition, format!("could not start: {cause}")))?;
    runtime.block_on(work)
}
