//! Judges servers that run already: `udf_conformance ENDPOINT...`. `transship conformance` also starts containers of images.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use udf_client::transport::credentials::{Authorities, Credentials, Token};
use udf_conformance::{judge_server, print_verdicts};
use udf_project::endpoint::Endpoint;
use udf_types::{Error, Kind, Result};

/// Judges servers against docs/protocol.md.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Endpoints of servers.
    #[arg(required = true)]
    endpoints: Vec<String>,
    /// A token that the servers ask for.
    #[arg(long, env = "TRANSSHIP_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// File with the certificates, in PEM, of those whose signature on a server's certificate is believed; the system's if left
    /// out.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print failures and the count only.
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("udf_conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all servers passed every case that could be judged.
fn run(flags: &Flags) -> Result<bool> {
    let authorities = flags.ca.as_deref().map(|path| {
        let pem = std::fs::read_to_string(path).map_err(|cause| {
            Error::new(Kind::InvalidDefinition, format!("could not read \"{}\": {cause}", path.display()))
        })?;
        Authorities::from_pem(&pem)
    });
    let credentials = Credentials {
        token: flags.token.as_deref().map(Token::new).transpose()?,
        authorities: authorities.transpose()?,
        ..Credentials::default()
    };
    let mut has_failed = false;
    for server in &flags.endpoints {
        judge_server(&Endpoint::parse(server)?, &credentials, |transport, verdicts| {
            has_failed |= !print_verdicts(&format!("{server} over {transport}"), verdicts, flags.quiet);
        })?;
    }
    Ok(!has_failed)
}
