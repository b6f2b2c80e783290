//! The manager's log on standard error: text for people, or one line of JSON for each event, for programs.
//!
//! Text has the message alone, since whoever collects it adds the time; further lines of an event begin with
//! a tab. JSON has `time`, `level`, `event` and `message`, and those
//! of `image`, `replica`, `user` and `pid` that are known. What a handler wrote, and what a login holds, is in no line.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use clap::ValueEnum;
use serde::Serialize;

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// The message, after the program's name.
    #[default]
    Text,
    /// A JSON object.
    Json,
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Chooses the form, before anything is written. Text if nobody does.
pub fn set_format(format: LogFormat) {
    let _ = FORMAT.set(format);
}

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Info,
    Warning,
    Error,
}

/// A line that is to be written.
#[derive(Debug, Serialize)]
#[must_use = "nothing is written before `write`"]
pub struct Event<'a> {
    time: String,
    level: Level,
    event: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
}

/// Something that is in order.
pub fn info<'a>(event: &'static str) -> Event<'a> {
    Event::new(Level::Info, event)
}

/// Something that an operator should look at.
pub fn warning<'a>(event: &'static str) -> Event<'a> {
    Event::new(Level::Warning, event)
}

/// Why the manager ends.
pub fn error<'a>(event: &'static str) -> Event<'a> {
    Event::new(Level::Error, event)
}

impl<'a> Event<'a> {
    fn new(level: Level, event: &'static str) -> Event<'a> {
        let (time, message) = Default::default();
        Event { time, level, event, message, image: None, replica: None, lease: None, user: None, pid: None }
    }

    /// The image that it concerns.
    pub fn image(self, image: &'a str) -> Event<'a> {
        Event { image: Some(image), ..self }
    }

    /// The replica that it concerns.
    pub fn replica(self, replica: &'a str) -> Event<'a> {
        Event { replica: Some(replica), ..self }
    }

    /// The lease that it concerns, by what the names of its segments begin with.
    pub fn lease(self, lease: &'a str) -> Event<'a> {
        Event { lease: Some(lease), ..self }
    }

    /// Who caused it.
    pub fn peer(self, user: u32, pid: Option<i32>) -> Event<'a> {
        Event { user: Some(user), pid, ..self }
    }

    /// Writes the line. If nobody reads it, it is lost.
    pub fn write(self, message: impl Display) {
        let line = self.line(FORMAT.get().copied().unwrap_or_default(), message, SystemTime::now());
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn line(mut self, format: LogFormat, message: impl Display, now: SystemTime) -> String {
        self.message = message.to_string();
        match format {
            LogFormat::Text => format!("transshipd: {}\n", indented(&self.message)),
            LogFormat::Json => {
                self.time = DateTime::<Utc>::from(now).to_rfc3339_opts(SecondsFormat::Micros, true);
                let mut line = serde_json::to_string(&self).expect("an event is plain data");
                line.push('\n');
                line
            }
        }
    }
}

/// A message whose further lines are indented, since they may be foreign text: none looks like the first line of an event, and
/// nothing commands a terminal.
fn indented(message: &str) -> String {
    let escape = |c: char| match c {
        '\n' => "\n\t".to_string(),
        c if c.is_control() && c != '\t' => c.escape_default().to_string(),
        c => c.to_string(),
    };
    message.trim_end().chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    #[test]
    fn a_line_is_text_or_one_json_object_whatever_the_message_holds() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        let message = "could not \"do\" it:\n\u{1b}[2J";
        let lease = warning("lease_acquired").image("a:1").replica("r-1").lease("0f").peer(26, Some(7));
        let line = lease.line(LogFormat::Json, message, now);
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(
            serde_json::from_str::<Value>(&line).unwrap(),
            json!({
                "time": "1970-01-01T00:00:01.500000Z", "level": "warning", "event": "lease_acquired", "message": message,
                "image": "a:1", "replica": "r-1", "lease": "0f", "user": 26, "pid": 7,
            })
        );
        let short = info("ready").line(LogFormat::Json, "ready", now);
        let expected =
            json!({"time": "1970-01-01T00:00:01.500000Z", "level": "info", "event": "ready", "message": "ready"});
        assert_eq!(serde_json::from_str::<Value>(&short).unwrap(), expected);
        let text = warning("failed").line(LogFormat::Text, format_args!("{message}\r\ntransshipd: ready\n"), now);
        assert_eq!(text, "transshipd: could not \"do\" it:\n\t\\u{1b}[2J\\r\n\ttransshipd: ready\n");
        assert_eq!(error("failed").image("a:1").line(LogFormat::Text, "no", now), "transshipd: no\n");
    }
}
