//! The command line's main: one match on the command.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{ExitCode, Stdio};

use clap::Parser;
use container_manager::advice::advised;
use container_manager::flags::{CliFlags, Command, Engine, PathFlags};
use container_manager::monitoring::series;
use container_manager::registration::project::build_project;
use container_manager::template::Template;
use container_manager::{deploy, registry_login, setup_checks, signature_check};
use nix::unistd::{Uid, User};
use udf_client::control::{CheckInfo, CircuitInfo, LeaseHolder, Request, Response, ask, unexpected};
use udf_client::dispatch::Target;
use udf_client::lease::Lease;
use udf_client::route::Route;
use udf_client::transport::credentials::Authorities;
use udf_client::transport::credentials::{Credentials, Token};
use udf_conformance::print_verdicts;
use udf_project::ddl;
use udf_project::endpoint::Endpoint;
use udf_project::manifest::Manifest;
use udf_types::signature::FunctionKind;
use udf_types::terminal::printable;
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

fn main() -> ExitCode {
    match run(CliFlags::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // It may quote what a container has written.
            let text = advised(error).to_string();
            eprintln!("transship: {}", if std::io::stderr().is_terminal() { printable(&text) } else { text.into() });
            ExitCode::FAILURE
        }
    }
}

fn run(flags: CliFlags) -> Result<bool> {
    let paths = flags.paths.absolute()?;
    match flags.command {
        Command::New { name, template } => {
            Template::load(&paths.templates, &template)?.write_project(Path::new(&name), &name)?;
            println!("Wrote project {name}; build it with \"transship build {name}\".");
            Ok(true)
        }
        Command::Build { project } => {
            let image = block_on(build_project(&paths.socket, &project, show_progress))?;
            println!("{} {}", image.manifest.image(), image.digest);
            Ok(true)
        }
        Command::Push { image, reference } => {
            let reference = reference.unwrap_or_else(|| image.clone());
            let login = registry_login::find(&reference)?;
            let Response::Pushed { reference } = ask_manager(&paths, Request::Push { image, reference, login })? else {
                return Err(unexpected("It did not answer with a reference."));
            };
            println!("{reference}");
            Ok(true)
        }
        Command::Pull { reference, replace, verify } => {
            // As the user who asks; what is pulled then is the digest that was looked at.
            if let Some(verifier) = &verify {
                signature_check::check(verifier, &reference)?;
            }
            let login = registry_login::find(&reference)?;
            let Response::Image(image) = ask_manager(&paths, Request::Pull { reference, replace, login })? else {
                return Err(unexpected("It did not answer with an image."));
            };
            println!("{} {}", image.manifest.image(), image.digest);
            Ok(true)
        }
        Command::Ddl { image, engine, schema, endpoint } => {
            let Response::Image(found) = ask_manager(&paths, Request::Resolve { image })? else {
                return Err(unexpected("It did not answer with an image."));
            };
            print!("{}", write_ddl(&found.manifest, engine, schema.as_deref(), &endpoint, &paths)?);
            Ok(true)
        }
        Command::Deploy { image, target, reference, gateway, publish, flight_port, json_port } => {
            let Response::Image(found) = ask_manager(&paths, Request::Resolve { image })? else {
                return Err(unexpected("It did not answer with an image."));
            };
            let published = deploy::Published { gateway, address: publish, flight_port, json_port };
            print!("{}", deploy::describe(&found.manifest, reference.as_deref(), target, &published)?);
            Ok(true)
        }
        Command::Register { image, dsn, schema } => {
            run_in_postgres(&dsn, "register", &image, &schema)?;
            Ok(true)
        }
        Command::Rollback { name, dsn, schema } => {
            run_in_postgres(&dsn, "rollback", &name, &schema)?;
            Ok(true)
        }
        Command::Conformance { servers, token, ca, quiet } => {
            let credentials = Credentials {
                token: token.as_deref().map(Token::new).transpose()?,
                authorities: ca.as_deref().map(read_authorities).transpose()?,
                ..Credentials::default()
            };
            judge_servers(&paths, &servers, &credentials, quiet)
        }
        Command::Ps => {
            let Response::Replicas { replicas, circuits } = ask_manager(&paths, Request::Replicas)? else {
                return Err(unexpected("It did not answer with replicas."));
            };
            println!("{:<40} {:<28} {:<9} {:>6} {:>8}  LEASED BY", "REPLICA", "IMAGE", "STATE", "LEASES", "AGE");
            for replica in replicas {
                let holders: Vec<String> = replica.holders.iter().map(describe_holder).collect();
                let line = format!(
                    "{:<40} {:<28} {:<9} {:>6} {:>6} s  {}",
                    replica.name,
                    replica.image,
                    replica.state,
                    replica.leases,
                    replica.age_s,
                    holders.join(", ")
                );
                println!("{}", line.trim_end());
            }
            for CircuitInfo { image, state, endings, wait_s, last, .. } in circuits {
                let refused =
                    if state == "closed" { String::new() } else { format!(", none is started for {wait_s} s") };
                // It may quote what the container has written.
                println!("{}", printable(&format!("{image}: the last {endings} ended by themselves{refused}. {last}")));
            }
            Ok(true)
        }
        Command::Logs { replica } => {
            let Response::Logs { text } = ask_manager(&paths, Request::Logs { replica })? else {
                return Err(unexpected("It did not answer with a log."));
            };
            print!("{}", for_output(&text));
            Ok(true)
        }
        Command::Prune { older_than } => {
            let Response::Pruned { images } = ask_manager(&paths, Request::Prune { older_than_days: older_than })?
            else {
                return Err(unexpected("It did not answer with the images that it removed."));
            };
            for image in images {
                println!("{image}");
            }
            Ok(true)
        }
        Command::Stats { dsn: Some(dsn), .. } => {
            show_functions(&dsn)?;
            Ok(true)
        }
        Command::Stats { prometheus, dsn: None } => {
            let Response::Metrics { text } = ask_manager(&paths, Request::Metrics)? else {
                return Err(unexpected("It did not answer with metrics."));
            };
            print!("{}", for_output(&if prometheus { text } else { series::table(&text) }));
            Ok(true)
        }
        Command::Doctor => Ok(examine(&paths)),
    }
}

/// Standard output is for the image's digest; the build is talk.
fn show_progress(text: &str) {
    eprint!("{}", if std::io::stderr().is_terminal() { printable(text) } else { text.into() });
}

/// Prints one line per check; false if any failed.
fn examine(paths: &PathFlags) -> bool {
    let (mut checks, doubts) = match ask_manager(paths, Request::Doctor) {
        Ok(Response::Doctor { checks, doubts }) => (checks, doubts),
        Ok(_) => (vec![failed_check("host", unexpected("It did not answer with what it found."))], Vec::new()),
        Err(error) => (vec![failed_check("host", error)], Vec::new()),
    };
    match ask_manager(paths, Request::Ping) {
        Ok(Response::Pong { version, runtime }) => {
            let fact = format!("transshipd {version} with runtime {runtime} at \"{}\"", paths.socket.display());
            checks.push(CheckInfo { name: "manager".to_string(), is_well: true, fact });
            checks.push(check_of("version", setup_checks::check_version(&version)));
            if let Ok(Response::Replicas { replicas, circuits }) = ask_manager(paths, Request::Replicas) {
                checks.push(check_of("replicas", setup_checks::check_replicas(&replicas, &circuits)));
            }
        }
        Ok(_) => checks.push(failed_check("manager", unexpected("It did not answer to a ping."))),
        // Without it, nobody looks at the rest.
        Err(error) => checks = vec![failed_check("manager", error)],
    }
    for CheckInfo { name, is_well, fact } in &checks {
        let result = if *is_well { "ok     " } else { "FAILED " };
        println!("{result} {name}: {}", for_output(&fact.replace('\n', "\n        ")));
    }
    for doubt in doubts {
        println!("WARNING runtime: {}", for_output(&doubt));
    }
    checks.iter().all(|check| check.is_well)
}

fn check_of(name: &str, found: Result<String>) -> CheckInfo {
    match found {
        Ok(fact) => CheckInfo { name: name.to_string(), is_well: true, fact },
        Err(error) => failed_check(name, error),
    }
}

fn failed_check(name: &str, error: Error) -> CheckInfo {
    CheckInfo { name: name.to_string(), is_well: false, fact: advised(error).to_string() }
}

/// `USER pid PID AGE s`.
fn describe_holder(holder: &LeaseHolder) -> String {
    let user = User::from_uid(Uid::from_raw(holder.uid)).ok().flatten();
    let user = user.map_or_else(|| holder.uid.to_string(), |user| user.name);
    let pid = holder.pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
    format!("{user}{pid} {} s", holder.age_s)
}

/// The statements, as the engine's own client takes them.
fn write_ddl(
    manifest: &Manifest,
    engine: Engine,
    schema: Option<&str>,
    endpoint: &str,
    paths: &PathFlags,
) -> Result<String> {
    let (statements, end) = match engine {
        Engine::Postgres => (ddl::postgres(manifest, schema.unwrap_or("public"), &ddl::Pin::default())?, ";\n"),
        Engine::Mssql => (ddl::mssql(manifest, schema.unwrap_or("dbo"), &paths.socket.to_string_lossy())?, "\nGO\n"),
        Engine::Spark => (ddl::spark(manifest, endpoint)?, "\n\n\n"),
    };
    Ok(statements.iter().map(|statement| format!("{statement}{end}")).collect())
}

/// Calls one of the extension's functions with psql, which knows all that a connection string may say.
fn run_in_postgres(dsn: &str, function: &str, image: &str, schema: &str) -> Result<()> {
    let failed = |cause: &dyn std::fmt::Display| {
        Error::new(Kind::InvalidDefinition, format!("could not {function} \"{image}\"")).with_detail(cause.to_string())
    };
    let mut psql = std::process::Command::new("psql");
    psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", "--dbname", dsn]);
    psql.arg(format!("--set=image={image}")).arg(format!("--set=schema={schema}"));
    let mut child = psql.stdin(Stdio::piped()).spawn().map_err(|cause| failed(&format!("psql: {cause}")))?;
    // Variables are put in by psql, quoted, only in what it reads.
    let query = format!("SET client_min_messages = warning;\nSELECT transship.{function}(:'image', :'schema');\n");
    let written = child.stdin.take().map(|mut input| input.write_all(query.as_bytes()));
    written.transpose().map_err(|cause| failed(&cause))?;
    match child.wait().map_err(|cause| failed(&cause))? {
        status if status.success() => Ok(()),
        status => Err(failed(&format!("psql: {status}."))),
    }
}

/// Prints what the backends of a database have counted, busiest functions first.
fn show_functions(dsn: &str) -> Result<()> {
    let failed = |cause: String| {
        Error::new(Kind::InvalidDefinition, "could not read the statistics of container functions").with_detail(cause)
    };
    const QUERY: &str = "SELECT schema || '.' || name AS function, exchanges, calls, rows, batches, errors, retries, \
        round(wait_time::numeric) AS wait_ms, round(compute_time::numeric) AS compute_ms, \
        round(latency_p50::numeric, 2) AS p50_ms, round(latency_p99::numeric, 2) AS p99_ms \
        FROM transship.stat_functions ORDER BY wait_time DESC, function";
    let mut psql = std::process::Command::new("psql");
    psql.args([
        "--no-psqlrc",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        "--pset=pager=off",
        "--dbname",
        dsn,
        "--command",
        QUERY,
    ]);
    match psql.status().map_err(|cause| failed(format!("psql: {cause}")))? {
        status if status.success() => Ok(()),
        status => Err(failed(format!("psql: {status}."))),
    }
}

fn read_authorities(path: &Path) -> Result<Authorities> {
    let pem = std::fs::read_to_string(path).map_err(|cause| {
        Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", path.display()))
    })?;
    Authorities::from_pem(&pem)
}

/// Judges each server; whether all of them passed every case that could be judged.
fn judge_servers(paths: &PathFlags, servers: &[String], credentials: &Credentials, quiet: bool) -> Result<bool> {
    let mut has_failed = false;
    for server in servers {
        if let Ok(endpoint) = Endpoint::parse(server) {
            udf_conformance::judge_server(&endpoint, credentials, |transport, verdicts| {
                has_failed |= !print_verdicts(&format!("{server} over {transport}"), verdicts, quiet);
            })?;
            continue;
        }
        let Response::Image(image) = ask_manager(paths, Request::Resolve { image: server.clone() })? else {
            return Err(unexpected("It did not answer with an image."));
        };
        // The lease lasts as long as the runtime that holds its connection.
        let runtime = io_runtime()?;
        let lease = runtime.block_on(Lease::acquire(&paths.socket, &image.digest))?;
        for transport in TransportName::ALL {
            let Route { endpoint, protocol, .. } = Route::to_replica(&lease.info, transport, FunctionKind::Scalar)?;
            if protocol.name() != transport {
                continue;
            }
            let credentials = lease.credentials();
            let leased = Target::Image { manager: paths.socket.clone(), digest: image.digest.clone() };
            let verdicts = udf_conformance::judge(&endpoint, transport, Some(leased), &credentials)?;
            has_failed |= !print_verdicts(&format!("{server} over {}", transport.name()), &verdicts, quiet);
        }
    }
    Ok(!has_failed)
}

/// Text that a container or server has written, as it goes to standard output: as it is, unless that is a terminal.
fn for_output(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { printable(text) } else { text.into() }
}

fn ask_manager(paths: &PathFlags, request: Request) -> Result<Response> {
    block_on(ask(&paths.socket, &request))
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    io_runtime()?.block_on(work)
}

fn io_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|cause| Error::new(Kind::InvalidDefinition, format!("could not start: {cause}")))
}
