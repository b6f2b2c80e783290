//! Every setting of the extension: name, default, bounds, sentence.
//!
//! A setting is an environment variable, `TRANSSHIP_` and its name (`ENVIRONMENT_VARIABLES` of `CREATE EXTERNAL
//! LANGUAGE`), or `name=value` in `PARAMETERS` of the same statement, where semicolons stand between several; the latter
//! wins. `docs/sqlserver.md` lists them.

use std::path::PathBuf;
use std::time::Duration;

use udf_client::pace::{Bounds, Pace};
use udf_project::options::{self, NumberOption};
use udf_types::transport_name::TransportName;
use udf_types::{Error, Kind, Result};

/// The extension's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// `socket`: Unix socket of the container manager.
    pub socket: PathBuf,
    /// `allowed`: which images, inline templates (`inline:python`) and endpoints (`endpoint:...`) scripts may name; none if left
    /// out.
    pub allowed: String,
    /// `transport`: how batches travel, for scripts that do not say it.
    pub transport: TransportName,
    /// `batch_rows`: most rows in one batch; 1 to 1,000,000.
    pub batch_rows: usize,
    /// `batch_bytes`: size at which a batch is sent, however few rows it has; 1,024 to 1,073,741,824.
    pub batch_bytes: usize,
    /// `batch_window`: most batches that are out at a time; 1 to 64.
    pub batch_window: usize,
    /// `batch_time_ms`: longest that a container should compute at one batch, 0 for no such bound; 0 to 86,400,000.
    pub batch_time: Duration,
    /// `max_reply_size`: most memory for a container's reply to one batch while it is read, in bytes; 65,536 to 1,073,741,824.
    pub max_reply_size: usize,
    /// `batch_timeout_ms`: longest wait for the answer to one batch; 1 to 86,400,000.
    pub batch_timeout: Duration,
    /// `start_timeout_ms`: longest wait for a container to start; 1 to 86,400,000.
    pub start_timeout: Duration,
    /// `build_timeout_ms`: longest wait for inline code or a library to be built; 1 to 86,400,000.
    pub build_timeout: Duration,
    /// `guid`: whether uuids come back as `guid` (uniqueidentifier) or as `char` (char(36)).
    pub guid: GuidForm,
}

/// How uuids come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuidForm {
    /// As SQL_C_GUID.
    Guid,
    /// As SQL_C_CHAR, which `WITH RESULT SETS` converts.
    Char,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            socket: PathBuf::from("/run/transship/transshipd.sock"),
            allowed: String::new(),
            transport: TransportName::default(),
            batch_rows: options::BATCH_ROWS.default_size(),
            batch_bytes: options::BATCH_BYTES.default_size(),
            batch_window: options::BATCH_WINDOW.default_size(),
            batch_time: default_time(options::BATCH_TIME_MS),
            max_reply_size: options::REPLY_BYTES.default_size(),
            batch_timeout: default_time(options::BATCH_TIMEOUT_MS),
            start_timeout: default_time(options::START_TIMEOUT_MS),
            build_timeout: default_time(options::BUILD_TIMEOUT_MS),
            guid: GuidForm::Guid,
        }
    }
}

impl Settings {
    /// Reads the environment, then the language's parameters.
    pub fn read(environment: impl Iterator<Item = (String, String)>, parameters: &str) -> Result<Settings> {
        let mut settings = Settings::default();
        for (name, value) in environment {
            if let Some(name) = name.strip_prefix("TRANSSHIP_") {
                // Others of that prefix belong to the manager and the command line, in whose company the host may run.
                let name = name.to_ascii_lowercase();
                if NAMES.contains(&name.as_str()) {
                    settings.set(&name, &value)?;
                }
            }
        }
        for pair in parameters.split(';').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| invalid("PARAMETERS", pair, "name=value"))?;
            let name = name.trim().to_ascii_lowercase();
            if !NAMES.contains(&name.as_str()) {
                return Err(invalid("PARAMETERS", &name, &format!("one of {}", NAMES.join(", "))));
            }
            settings.set(&name, value.trim())?;
        }
        Ok(settings)
    }

    /// The pace of a script that has not begun, whose largest and first batch may have so many rows, where it says so.
    pub fn pace(&self, [most_rows, first_rows]: [Option<usize>; 2]) -> Pace {
        let rows = most_rows.unwrap_or(self.batch_rows);
        Pace::new(Bounds {
            rows,
            bytes: self.batch_bytes,
            reply_bytes: Bounds::reply_bytes(self.batch_bytes, self.max_reply_size),
            window: self.batch_window,
            time: self.batch_time,
        })
        .starting_with(first_rows)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let number = |option: NumberOption| {
            let parsed = value.parse().ok().filter(|number| option.allows(*number));
            parsed.ok_or_else(|| invalid(name, value, &format!("a number from {} to {}", option.min, option.max)))
        };
        let duration = |option| number(option).map(Duration::from_millis);
        let size = |option| number(option).map(|number| usize::try_from(number).unwrap_or(usize::MAX));
        match name {
            "socket" if value.starts_with('/') => self.socket = PathBuf::from(value),
            "socket" => return Err(invalid(name, value, "an absolute path")),
            "allowed" => self.allowed = value.to_string(),
            "transport" => {
                self.transport = TransportName::from_name(value)
                    .ok_or_else(|| invalid(name, value, "auto, shm, flight, socket, parquet or json"))?;
            }
            "batch_rows" => self.batch_rows = size(options::BATCH_ROWS)?,
            "batch_bytes" => self.batch_bytes = size(options::BATCH_BYTES)?,
            "batch_window" => self.batch_window = size(options::BATCH_WINDOW)?,
            "batch_time_ms" => self.batch_time = duration(options::BATCH_TIME_MS)?,
            "max_reply_size" => self.max_reply_size = size(options::REPLY_BYTES)?,
            "batch_timeout_ms" => self.batch_timeout = duration(options::BATCH_TIMEOUT_MS)?,
            "start_timeout_ms" => self.start_timeout = duration(options::START_TIMEOUT_MS)?,
            "build_timeout_ms" => self.build_timeout = duration(options::BUILD_TIMEOUT_MS)?,
            "guid" => {
                self.guid = match value {
                    "guid" => GuidForm::Guid,
                    "char" => GuidForm::Char,
                    _ => return Err(invalid(name, value, "guid or char")),
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The names of the settings.
const NAMES: &[&str] = &[
    "socket",
    "allowed",
    "transport",
    "batch_rows",
    "batch_bytes",
    "batch_window",
    "batch_time_ms",
    "max_reply_size",
    "batch_timeout_ms",
    "start_timeout_ms",
    "build_timeout_ms",
    "guid",
];

/// The interface version that the extension reports: `TRANSSHIP_INTERFACE_VERSION`, 1 to 3. It is asked for before the
/// parameters are known, so it is an environment variable only. 2 by default: nobody has run 3 on a server of 2019 or
/// 2022.
pub fn interface_version() -> u16 {
    let wanted = std::env::var("TRANSSHIP_INTERFACE_VERSION").ok().and_then(|text| text.parse().ok());
    wanted.filter(|version| (1..=3).contains(version)).unwrap_or(2)
}

fn default_time(option: NumberOption) -> Duration {
    Duration::from_millis(option.default)
}

fn invalid(name: &str, value: &str, expected: &str) -> Error {
    Error::new(Kind::InvalidDefinition, format!("invalid value for setting \"{name}\": \"{value}\""))
        .with_detail(format!("Expected {expected}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(environment: &[(&str, &str)], parameters: &str) -> Result<Settings> {
        Settings::read(environment.iter().map(|(name, value)| (name.to_string(), value.to_string())), parameters)
    }

    #[test]
    fn parameters_win_over_the_environment() {
        let environment = [("TRANSSHIP_SOCKET", "/a"), ("TRANSSHIP_BATCH_ROWS", "5"), ("TRANSSHIP_RUNTIME", "docker")];
        let settings = read(&environment, " socket = /b ; guid=char; ").unwrap();
        let expected = Settings { socket: "/b".into(), batch_rows: 5, guid: GuidForm::Char, ..Settings::default() };
        assert_eq!(settings, expected);
        assert_eq!(read(&[], "").unwrap(), Settings::default());
    }

    #[test]
    fn wrong_settings_are_named() {
        for (parameters, word) in [
            ("nonsense", "nonsense"),
            ("sockett=/a", "sockett"),
            ("socket=a", "absolute"),
            ("batch_rows=0", "1000000"),
            ("max_reply_size=65535", "from 65536"),
            ("guid=x", "char"),
        ] {
            let error = read(&[], parameters).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(read(&[("TRANSSHIP_TRANSPORT", "smoke")], "").is_err());
    }

    #[test]
    fn every_name_sets_something() {
        let values = ["/x", "a:*", "json", "7", "2048", "7", "7", "65536", "7", "7", "7", "char"];
        let mut settings = Settings::default();
        for (name, value) in NAMES.iter().zip(values) {
            let before = settings.clone();
            settings.set(name, value).unwrap();
            assert_ne!(settings, before, "{name}");
        }
    }
}
