//! JSON servers that speak another protocol than this one: rows go out in an envelope of the dialect's, results come back in
//! another (`docs/dialects.md`, which names the sources of each format).
//!
//! The writer is strict about what each dialect's own engine would send; the reader takes whatever keeps its meaning: NaN
//! and Infinity as bare words, bodies that are a string of JSON, results that are objects with one member.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::Value;
use udf_codec::batch::CallBatch;
use udf_codec::json::{decode_column, encode_value_or_null};
use udf_codec::json_reply::tree_bytes;
use udf_codec::json_text::{Json, integer_text, read_value, value_of};
use udf_codec::wire::{ServerInfo, shorten};
use udf_project::dialect::Dialect;
use udf_project::endpoint::Endpoint;
use udf_types::signature::{FunctionKind, Signature};
use udf_types::textual_type;
use udf_types::types::Type;
use udf_types::{Error, Result};

use crate::inbox::{Inbox, Reply};
use crate::outbox::Outbox;
use crate::transport::credentials::Credentials;
use crate::transport::http::{Http, Most};
use crate::transport::status::{error_of_gateway, is_of_request};
use crate::transport::{Transport, answer_each};

/// Between two looks at whether a result that was promised (HTTP 202) is there: twice as long each time, up to the second.
const FIRST_POLL: Duration = Duration::from_millis(50);
const LAST_POLL: Duration = Duration::from_secs(2);

/// A JSON server of another dialect.
#[derive(Debug)]
pub(crate) struct Envelope {
    http: Http,
    path: String,
    dialect: Dialect,
}

impl Envelope {
    /// A client of the server at `endpoint`; `path` is empty for the dialect's own.
    pub(crate) fn new(endpoint: Endpoint, path: &str, dialect: Dialect, credentials: &Credentials) -> Envelope {
        Envelope { http: Http::new(endpoint, credentials), path: path.to_string(), dialect }
    }

    fn path_of(&self, function: &str) -> String {
        if !self.path.is_empty() {
            return self.path.clone();
        }
        match self.dialect {
            Dialect::Singlestore => "/invoke".to_string(),
            Dialect::Redshift => "/2015-03-31/functions/function/invocations".to_string(),
            Dialect::Mlflow | Dialect::MlflowRecords | Dialect::MlflowInputs | Dialect::MlflowSplit => {
                "/invocations".to_string()
            }
            Dialect::AzureMl => "/score".to_string(),
            Dialect::Array => format!("/api/{function}"),
            Dialect::Transship | Dialect::PutGet | Dialect::Snowflake | Dialect::Bigquery => "/".to_string(),
        }
    }

    /// The headers of a batch of an exchange of that name. They are the same each time it is sent: servers know by them that
    /// they have it already.
    fn headers_of(&self, signature: &Signature, batch: u64, exchange: &str) -> HeaderMap {
        let text = |value: &str| HeaderValue::from_str(value).unwrap_or_else(|_| HeaderValue::from_static(""));
        let mut headers = HeaderMap::new();
        let mut insert = |name: &'static str, value: &str| {
            headers.insert(HeaderName::from_static(name), text(value));
        };
        match self.dialect {
            Dialect::Snowflake => {
                let arguments: Vec<String> =
                    signature.arguments.iter().map(|argument| argument.ty.to_string()).collect();
                insert("sf-external-function-format", "json");
                insert("sf-external-function-format-version", "1.0");
                insert("sf-external-function-name", &signature.function);
                insert("sf-external-function-signature", &format!("({})", arguments.join(", ")));
                insert("sf-external-function-return-type", &signature.result.to_string());
                insert("sf-external-function-current-query-id", exchange);
                insert("sf-external-function-query-batch-id", &format!("{exchange}:{batch}"));
            }
            Dialect::Singlestore => {
                insert("s2-ef-name", &signature.function);
                insert("s2-ef-version", "1.0");
                // SingleStore spells it so.
                insert("accepts", "application/json");
            }
            _ => {}
        }
        headers
    }

    /// One batch, there and back.
    async fn call(&self, signature: &Signature, batch: &CallBatch, exchange: &str, inbox: &Inbox) -> Result<Reply> {
        let function = signature.function.as_str();
        let batch = &batch.clone().with_repeated_constants(signature)?;
        let body = write_request(self.dialect, signature, batch, exchange);
        let bytes_sent = body.len();
        let (path, headers) = (self.path_of(function), self.headers_of(signature, batch.number, exchange));
        let lost = |error: Error| {
            if error.is_retryable() { Error::connection_lost(function, error.message()) } else { error }
        };
        let mut share = inbox.budget().share_of_text(batch.number);
        let most = Most { function, share: &mut share, bytes: usize::MAX };
        let mut answer =
            self.http.request_within(Method::POST, &path, headers.clone(), body, most).await.map_err(lost)?;
        let mut pause = FIRST_POLL;
        while self.dialect == Dialect::Snowflake && answer.status == StatusCode::ACCEPTED {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LAST_POLL);
            let most = Most { function, share: &mut share, bytes: usize::MAX };
            let asking = self.http.request_within(Method::GET, &path, headers.clone(), String::new(), most);
            answer = asking.await.map_err(lost)?;
        }
        let bytes_received = answer.body.len();
        let rows = batch.columns.num_rows();
        let inner = match text_of(&answer.body) {
            Cow::Owned(inner) => Some(inner),
            Cow::Borrowed(_) => None,
        };
        if inner.is_some() {
            // All of it is there already.
            answer.body = Bytes::new();
        }
        let text = inner.as_deref().unwrap_or_else(|| std::str::from_utf8(&answer.body).unwrap_or_default());
        // Strings may hold lists and rows that are parsed in their turn, where a text is not what is wanted.
        let tree_bytes = tree_bytes(text.as_bytes(), !matches!(signature.result, textual_type!()));
        if tree_bytes > share.limit() {
            return Err(share.exceeded(function));
        }
        share.make_room(bytes_received + tree_bytes).await;
        let columns = read_columns(self.dialect, signature, rows, answer.status, text)
            .map_err(|error| error.with_retry_after(answer.retry_after))?;
        share.hold(columns.get_array_memory_size());
        let bytes_needed = bytes_received + tree_bytes;
        let reply = Reply::whole(batch.number, columns, bytes_sent, bytes_received);
        Ok(Reply { bytes_needed, share: Some(share), ..reply })
    }

    async fn run_exchange(&self, signature: &Signature, outbox: &mut Outbox, inbox: &Inbox) -> Result<()> {
        check_scalar(self.dialect, signature)?;
        let exchange = outbox.name().to_string();
        let exchange = exchange.as_str();
        answer_each(outbox, inbox, |batch| Box::pin(async move { self.call(signature, &batch, exchange, inbox).await }))
            .await
    }
}

/// Dialects have scalar functions only.
pub(crate) fn check_scalar(dialect: Dialect, signature: &Signature) -> Result<()> {
    if signature.kind == FunctionKind::Scalar {
        return Ok(());
    }
    let (kind, name) = (signature.kind.name(), dialect.name());
    Err(Error::invalid_definition(format!(
        "{kind} function \"{}\" cannot be called in dialect \"{name}\"",
        signature.function
    )))
}

/// The greeting of a server that has none.
pub(crate) fn no_greeting(dialect: Dialect) -> ServerInfo {
    ServerInfo { server: dialect.name().to_string(), ..ServerInfo::default() }
}

/// What is said where a signature is wanted of a server that tells none.
pub(crate) fn no_signature(dialect: Dialect, function: &str) -> Error {
    let name = dialect.name();
    Error::invalid_definition(format!(
        "a server of dialect \"{name}\" does not say the signature of function \"{function}\""
    ))
}

pub(super) fn write_request(dialect: Dialect, signature: &Signature, batch: &CallBatch, exchange: &str) -> String {
    let rows = batch.columns.num_rows();
    let names: Vec<String> = signature.call_schema().fields().iter().map(|field| quote(field.name())).collect();
    let cell = |out: &mut String, column: usize, row: usize| {
        write_value(out, dialect, &signature.arguments[column].ty, batch.columns.column(column), row);
    };
    let write_rows = |out: &mut String, is_numbered: bool| {
        out.push('[');
        for row in 0..rows {
            out.push_str(if row > 0 { ",[" } else { "[" });
            if is_numbered {
                let _ = write!(out, "{row}");
            }
            for column in 0..names.len() {
                if column > 0 || is_numbered {
                    out.push(',');
                }
                cell(out, column, row);
            }
            out.push(']');
        }
        out.push(']');
    };
    let mut out = String::with_capacity(64 + rows * (names.len() + 1) * 8);
    match dialect {
        Dialect::Snowflake | Dialect::Singlestore => {
            out.push_str("{\"data\":");
            write_rows(&mut out, true);
            out.push('}');
        }
        Dialect::AzureMl => {
            out.push_str("{\"data\":");
            write_rows(&mut out, false);
            out.push('}');
        }
        Dialect::Redshift => {
            let _ = write!(
                out,
                "{{\"request_id\":\"{exchange}:{}\",\"cluster\":\"transship\",\"user\":\"transship\",\"database\":\"transship\",\
                 \"external_function\":{},\"query_id\":0,\"num_records\":{rows},\"arguments\":",
                batch.number,
                quote(&signature.function)
            );
            write_rows(&mut out, false);
            out.push('}');
        }
        Dialect::Bigquery => {
            let _ = write!(
                out,
                "{{\"requestId\":\"{exchange}:{}\",\"caller\":\"transship\",\"sessionUser\":\"transship\",\
                 \"userDefinedContext\":{{\"function\":{}}},\"calls\":",
                batch.number,
                quote(&signature.function)
            );
            write_rows(&mut out, false);
            out.push('}');
        }
        Dialect::Mlflow | Dialect::MlflowSplit => {
            let (open, close) = if dialect == Dialect::Mlflow { ("{\"dataframe_split\":{", "}}") } else { ("{", "}") };
            let _ = write!(out, "{open}\"columns\":[{}],\"data\":", names.join(","));
            write_rows(&mut out, false);
            out.push_str(close);
        }
        Dialect::MlflowRecords => {
            out.push_str("{\"dataframe_records\":[");
            for row in 0..rows {
                out.push_str(if row > 0 { ",{" } else { "{" });
                for (column, name) in names.iter().enumerate() {
                    let _ = write!(out, "{}{name}:", if column > 0 { "," } else { "" });
                    cell(&mut out, column, row);
                }
                out.push('}');
            }
            out.push_str("]}");
        }
        Dialect::MlflowInputs => {
            out.push_str("{\"inputs\":{");
            for (column, name) in names.iter().enumerate() {
                let _ = write!(out, "{}{name}:[", if column > 0 { "," } else { "" });
                for row in 0..rows {
                    if row > 0 {
                        out.push(',');
                    }
                    cell(&mut out, column, row);
                }
                out.push(']');
            }
            out.push_str("}}");
        }
        Dialect::Array | Dialect::Transship | Dialect::PutGet => write_rows(&mut out, false),
    }
    out
}

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// Writes a value as the dialect's own engine does.
fn write_value(out: &mut String, dialect: Dialect, ty: &Type, column: &ArrayRef, row: usize) {
    let mut native = String::new();
    encode_value_or_null(&mut native, ty, column, row);
    let Some(text) = native.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        out.push_str(&native);
        return;
    };
    use Dialect::*;
    let is_python = matches!(dialect, Mlflow | MlflowRecords | MlflowInputs | MlflowSplit | Array | AzureMl);
    match ty {
        // Only BigQuery sends big integers as strings.
        Type::Int8 if dialect != Bigquery => out.push_str(text),
        // Python's word for it, which these servers read.
        Type::Float4 | Type::Float8 if is_python || dialect == Singlestore => out.push_str(text),
        Type::Numeric if (is_python || matches!(dialect, Snowflake | Redshift)) && !text.ends_with(['N', 'y']) => {
            out.push_str(text);
        }
        Type::Bytea if dialect == Snowflake => {
            use arrow_array::cast::AsArray;
            let bytes = column.as_binary::<i32>().value(row);
            out.push('"');
            for byte in bytes {
                let _ = write!(out, "{byte:02X}");
            }
            out.push('"');
        }
        Type::Timestamp if matches!(dialect, Snowflake | Singlestore) => out.push_str(&native.replacen('T', " ", 1)),
        Type::Json if matches!(dialect, Snowflake | Bigquery) => {
            use arrow_array::cast::AsArray;
            out.push_str(column.as_string::<i32>().value(row));
        }
        _ => out.push_str(&native),
    }
}

/// The results of an answer to so many rows, as a column.
pub(super) fn read_columns(
    dialect: Dialect,
    signature: &Signature,
    rows: usize,
    status: StatusCode,
    text: &str,
) -> Result<RecordBatch> {
    let function = signature.function.as_str();
    let values = read_reply(dialect, function, rows, status, text)?;
    let values: Vec<Value> = values.into_iter().map(|value| normalize(dialect, signature, value)).collect();
    if values.len() != rows {
        return Err(Error::protocol(function, format!("Its reply has {} rows for {rows} calls.", values.len())));
    }
    let column = decode_column(&signature.result, &values).map_err(|fact| Error::bad_result(function, fact))?;
    let schema = arrow_schema::Schema::new(vec![signature.result.field(function)]);
    RecordBatch::try_new(schema.into(), vec![column])
        .map_err(|cause| Error::bad_result(function, format!("The reply is malformed: {cause}.")))
}

/// The results of an answer, row by row.
fn read_reply<'a>(
    dialect: Dialect,
    function: &str,
    rows: usize,
    status: StatusCode,
    text: &'a str,
) -> Result<Vec<Json<'a>>> {
    let body = Json::parse(text);
    if status != StatusCode::OK {
        let words = short(body.as_ref().and_then(words_of).unwrap_or_else(|| text.to_string()));
        if let Some(error) = error_of_gateway(function, status, Some(&words)) {
            return Err(error);
        }
        let trace = body.as_ref().and_then(|body| body.get("stack_trace")).and_then(Json::as_str).map(str::to_string);
        let error = Error::user_code(function, &words, None, trace.map(short));
        return Err(if is_of_request(status) { error.with_doubt() } else { error });
    }
    let malformed = |fact: &str| Error::protocol(function, format!("Its reply cannot be read: {fact}."));
    let mut body = body.ok_or_else(|| malformed("it is not JSON"))?;
    let list = |found: Option<Json<'a>>, member: &str| match found {
        Some(Json::Array(items)) => Ok(items),
        _ => Err(malformed(&format!("it has no array \"{member}\""))),
    };
    match dialect {
        Dialect::Snowflake | Dialect::Singlestore => {
            let mut results = Vec::with_capacity(rows);
            for (number, row) in list(body.take("data"), "data")?.into_iter().enumerate() {
                match row {
                    Json::Array(mut pair) if pair.len() == 2 && is_number(&pair[0], number) => {
                        results.extend(pair.pop())
                    }
                    _ => return Err(malformed(&format!("row {number} is not its number and one value"))),
                }
            }
            Ok(results)
        }
        Dialect::Redshift => {
            let is_false = |success: &Json| *success == Json::Bool(false) || success.as_str() == Some("false");
            // A Lambda function that raised is answered with its own form, and status 200.
            if body.get("success").is_some_and(is_false) || body.get("results").is_none() {
                let trace = body.get("stackTrace").map(Json::to_string);
                let words = words_of(&body).ok_or_else(|| malformed("it has no array \"results\""))?;
                // Lambda's own words for a function that was not found, ended, or took too long.
                let ty = body.get("errorType").and_then(Json::as_str).unwrap_or_default();
                let is_lambdas = ["Runtime.", "Sandbox.", "Extension."].iter().any(|whose| ty.starts_with(whose));
                let error = Error::user_code(function, &short(words), None, trace.map(short));
                return Err(if is_lambdas { error.with_doubt() } else { error });
            }
            list(body.take("results"), "results")
        }
        Dialect::Bigquery => list(body.take("replies"), "replies"),
        Dialect::Mlflow | Dialect::MlflowRecords | Dialect::MlflowInputs if body.get("predictions").is_some() => {
            list(body.take("predictions"), "predictions")
        }
        _ => match body {
            Json::Array(items) => Ok(items),
            _ => Err(malformed("it is not an array")),
        },
    }
}

/// Whether a value is a row's number.
fn is_number(value: &Json, number: usize) -> bool {
    matches!(value, Json::Number(token) if token.parse() == Ok(number))
}

/// The JSON of a body, out of the string that some frameworks put it into; nothing if it is not UTF-8.
pub(super) fn text_of(body: &[u8]) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(std::str::from_utf8(body).unwrap_or_default());
    while text.trim_start().starts_with('"') {
        match serde_json::from_str::<String>(&text) {
            Ok(inner) if inner.starts_with(['{', '[', '"']) => text = Cow::Owned(inner),
            _ => break,
        }
    }
    text
}

/// What an answer says of a failure.
fn words_of(body: &Json) -> Option<String> {
    let found = ["errorMessage", "error_msg", "message", "error"].iter().find_map(|name| body.get(name));
    found.map(|found| found.as_str().map_or_else(|| found.to_string(), str::to_string))
}

fn short(mut text: String) -> String {
    shorten(&mut text);
    text
}

/// A result as this protocol's JSON form writes it.
fn normalize(dialect: Dialect, signature: &Signature, value: Json) -> Value {
    let ty = &signature.result;
    let is_object = matches!(ty, Type::Composite(_) | Type::Range(_) | Type::Interval | Type::Json);
    let value = match value {
        // A row of a data frame: the column of that name, or the only one.
        Json::Object(mut members) if !is_object => {
            match members.iter().rposition(|(name, _)| *name == signature.function) {
                Some(place) => members.swap_remove(place).1,
                None if members.len() == 1 => members.remove(0).1,
                None => Json::Object(members),
            }
        }
        // So do some servers give a row of one column.
        Json::Array(mut items) if items.len() == 1 && !matches!(ty, Type::Array(_) | Type::Json) => items.remove(0),
        other => other,
    };
    match (ty, &value) {
        (Type::Float4 | Type::Float8 | Type::Numeric | Type::Text, _) => value_of(ty, value),
        // Numbers with a NULL among them come back as floats from pandas.
        (_, Json::String(text)) if text == "NaN" => Value::Null,
        (Type::Bool, Json::Number(token)) => match integer_text(token).as_deref() {
            Some("0") => Value::Bool(false),
            Some("1") => Value::Bool(true),
            _ => value_of(ty, value),
        },
        (Type::Bool, Json::String(text)) if text == "true" || text == "false" => Value::Bool(text == "true"),
        (Type::Timestamp | Type::TimestampTz, Json::String(text)) if text.as_bytes().get(10) == Some(&b' ') => {
            Value::String(text.replacen(' ', "T", 1))
        }
        (Type::Bytea, Json::String(text)) if dialect == Dialect::Snowflake => {
            base64_of_hex(text).unwrap_or_else(|| Value::String(text.to_string()))
        }
        (Type::Array(_), Json::String(text)) => read_value(ty, text).unwrap_or_else(|| Value::String(text.to_string())),
        _ => value_of(ty, value),
    }
}

fn base64_of_hex(text: &str) -> Option<Value> {
    use base64::Engine as _;
    // A sign would be taken for a part of a number.
    let digits = text.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(text)?;
    let bytes: Option<Vec<u8>> =
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect();
    Some(Value::String(base64::engine::general_purpose::STANDARD.encode(bytes?)))
}

impl Transport for Envelope {
    fn hello(&self) -> BoxFuture<'_, Result<ServerInfo>> {
        Box::pin(async { Ok(no_greeting(self.dialect)) })
    }

    fn signature<'a>(&'a self, function: &'a str) -> BoxFuture<'a, Result<Signature>> {
        Box::pin(async move { Err(no_signature(self.dialect, function)) })
    }

    fn exchange<'a>(
        &'a self,
        signature: &'a Signature,
        outbox: &'a mut Outbox,
        inbox: &'a Inbox,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.run_exchange(signature, outbox, inbox))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use udf_types::signature::Argument;

    fn signature(types: &[(&str, Type)], result: Type) -> Signature {
        let argument = |(name, ty): &(&str, Type)| Argument { name: name.to_string(), ty: ty.clone() };
        Signature::scalar("f", types.iter().map(argument).collect(), result)
    }

    /// The request for rows of JSON values.
    fn request(dialect: Dialect, types: &[(&str, Type)], rows: &[&str]) -> String {
        let signature = signature(types, Type::Int8);
        let rows: Vec<Vec<Value>> = rows.iter().map(|row| serde_json::from_str(row).unwrap()).collect();
        let columns = types.iter().enumerate().map(|(position, (_, ty))| {
            decode_column(ty, &rows.iter().map(|row| row[position].clone()).collect::<Vec<_>>()).unwrap()
        });
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let columns = RecordBatch::try_new_with_options(signature.call_schema(), columns.collect(), &options).unwrap();
        write_request(dialect, &signature, &CallBatch::new(0, columns), "id")
    }

    #[test]
    fn requests_are_those_of_the_dialects_engines() {
        let types = [("a", Type::Int8), ("b", Type::Float8), ("c", Type::Text)];
        let rows = ["[\"9007199254740993\", \"NaN\", \"x\"]", "[null, 1.5, null]"];
        for (dialect, expected) in [
            (Dialect::Snowflake, r#"{"data":[[0,9007199254740993,"NaN","x"],[1,null,1.5,null]]}"#),
            (Dialect::Singlestore, r#"{"data":[[0,9007199254740993,NaN,"x"],[1,null,1.5,null]]}"#),
            (Dialect::Array, r#"[[9007199254740993,NaN,"x"],[null,1.5,null]]"#),
            (Dialect::AzureMl, r#"{"data":[[9007199254740993,NaN,"x"],[null,1.5,null]]}"#),
            (
                Dialect::Mlflow,
                r#"{"dataframe_split":{"columns":["a","b","c"],"data":[[9007199254740993,NaN,"x"],[null,1.5,null]]}}"#,
            ),
            (Dialect::MlflowSplit, r#"{"columns":["a","b","c"],"data":[[9007199254740993,NaN,"x"],[null,1.5,null]]}"#),
            (
                Dialect::MlflowRecords,
                r#"{"dataframe_records":[{"a":9007199254740993,"b":NaN,"c":"x"},{"a":null,"b":1.5,"c":null}]}"#,
            ),
            (Dialect::MlflowInputs, r#"{"inputs":{"a":[9007199254740993,null],"b":[NaN,1.5],"c":["x",null]}}"#),
        ] {
            assert_eq!(request(dialect, &types, &rows), expected, "{}", dialect.name());
        }
        assert!(
            request(Dialect::Bigquery, &types, &rows)
                .ends_with(r#""calls":[["9007199254740993","NaN","x"],[null,1.5,null]]}"#)
        );
        let redshift = request(Dialect::Redshift, &types, &rows);
        assert!(
            redshift.contains(r#""external_function":"f""#)
                && redshift.contains(r#""num_records":2,"arguments":[[9007199254740993,"#)
        );
        assert_eq!(request(Dialect::Snowflake, &[], &["[]", "[]"]), r#"{"data":[[0],[1]]}"#);
        assert_eq!(request(Dialect::Bigquery, &[], &["[]"]).split("\"calls\":").nth(1), Some("[[]]}"));
        let special = [("t", Type::Timestamp), ("n", Type::Numeric), ("j", Type::Json), ("b", Type::Bytea)];
        let row = r#"["2016-01-01T16:00:00", "1.50", "{\"k\": 1}", "AP8="]"#;
        assert_eq!(
            request(Dialect::Snowflake, &special, &[row]),
            r#"{"data":[[0,"2016-01-01 16:00:00.000000",1.50,{"k": 1},"00FF"]]}"#
        );
    }

    fn reply(dialect: Dialect, result: Type, rows: usize, status: u16, body: &str) -> Result<Vec<Value>> {
        let text = text_of(body.as_bytes());
        let signature = signature(&[], result);
        let values = read_reply(dialect, "f", rows, StatusCode::from_u16(status).unwrap(), &text)?;
        Ok(values.into_iter().map(|value| normalize(dialect, &signature, value)).collect())
    }

    #[test]
    fn replies_of_servers_seen_in_the_field_are_read() {
        let json = |text: &str| serde_json::from_str::<Vec<Value>>(text).unwrap();
        for (dialect, result, body, expected) in [
            (Dialect::Snowflake, Type::Int8, r#"{"data": [[0, 7], [1, null]]}"#, "[7, null]"),
            (Dialect::Snowflake, Type::Bytea, r#"{"data": [[0, "00ff"]]}"#, "[\"AP8=\"]"),
            (Dialect::Snowflake, Type::Json, r#"{"data": [[0, {"City": "Warsaw"}]]}"#, r#"["{\"City\":\"Warsaw\"}"]"#),
            (Dialect::Singlestore, Type::Bool, r#"{"data": [[0, 1], [1, 0]]}"#, "[true, false]"),
            (
                Dialect::Redshift,
                Type::Int8,
                r#"{"success": true, "num_records": 2, "results": [1, null]}"#,
                "[1, null]",
            ),
            // json.dumps of what the framework dumps again, and no more than the results.
            (Dialect::Redshift, Type::Int8, r#""{\"results\": [1]}""#, "[1]"),
            (Dialect::Bigquery, Type::Int8, r#"{"replies": ["9007199254740993"]}"#, "[\"9007199254740993\"]"),
            (
                Dialect::Mlflow,
                Type::Float8,
                r#"{"predictions": [2.0, NaN, -Infinity]}"#,
                "[2.0, \"NaN\", \"-Infinity\"]",
            ),
            (Dialect::Mlflow, Type::Int8, r#"{"predictions": [{"p": 1.0}, {"p": NaN}]}"#, r#"["1", null]"#),
            (Dialect::Mlflow, Type::Int8, r#"{"predictions": [{"g": 2, "f": 1}]}"#, "[1]"),
            (Dialect::Mlflow, Type::Text, r#"{"predictions": ["a \" NaN"]}"#, r#"["a \" NaN"]"#),
            (Dialect::MlflowSplit, Type::Int8, "[1, 0]", "[1, 0]"),
            (Dialect::Array, Type::Int4, "[1, 0]", "[1, 0]"),
            (Dialect::AzureMl, Type::Float8, "\"[1.5, 2.5]\"", "[1.5, 2.5]"),
            (
                Dialect::Snowflake,
                Type::Timestamp,
                r#"{"data": [[0, "2016-01-01 16:00:00"]]}"#,
                "[\"2016-01-01T16:00:00\"]",
            ),
        ] {
            let rows = json(expected).len();
            assert_eq!(reply(dialect, result, rows, 200, body).unwrap(), json(expected), "{} {body}", dialect.name());
        }
    }

    /// A body of the dialect's with these results, written as they are.
    fn body_of(dialect: Dialect, results: &[&str]) -> String {
        let list = format!("[{}]", results.join(","));
        match dialect {
            Dialect::Snowflake | Dialect::Singlestore => {
                let rows: Vec<String> =
                    results.iter().enumerate().map(|(i, result)| format!("[{i},{result}]")).collect();
                format!("{{\"data\":[{}]}}", rows.join(","))
            }
            Dialect::Redshift => format!("{{\"success\":true,\"results\":{list}}}"),
            Dialect::Bigquery => format!("{{\"replies\":{list}}}"),
            Dialect::Mlflow | Dialect::MlflowRecords | Dialect::MlflowInputs => format!("{{\"predictions\":{list}}}"),
            _ => list,
        }
    }

    const JSON_DIALECTS: [Dialect; 10] = [
        Dialect::Snowflake,
        Dialect::Singlestore,
        Dialect::Redshift,
        Dialect::Bigquery,
        Dialect::Mlflow,
        Dialect::MlflowRecords,
        Dialect::MlflowInputs,
        Dialect::MlflowSplit,
        Dialect::Array,
        Dialect::AzureMl,
    ];

    #[test]
    fn numbers_are_read_exactly_in_every_dialect() {
        let tokens = [
            "99999999999999.9999",
            "12345678901234567890.5",
            "12345678901234567890.12",
            "0.1000",
            "-170141183460469231731687303715884105728",
        ];
        for dialect in JSON_DIALECTS {
            for body in [body_of(dialect, &tokens), Value::from(body_of(dialect, &tokens)).to_string()] {
                let read = reply(dialect, Type::Numeric, tokens.len(), 200, &body).unwrap();
                assert_eq!(read, tokens.map(Value::from), "{}", dialect.name());
                let column = decode_column(&Type::Numeric, &read).unwrap();
                let texts = arrow_array::cast::AsArray::as_string::<i32>(&column);
                assert_eq!(texts.iter().flatten().collect::<Vec<_>>(), tokens);
            }
            let column = |ty: Type, token: &str| {
                decode_column(&ty, &reply(dialect, ty.clone(), 1, 200, &body_of(dialect, &[token])).unwrap())
            };
            let integers = column(Type::Int8, "9007199254740993.0").unwrap();
            let integers = arrow_array::cast::AsArray::as_primitive::<arrow_array::types::Int64Type>(&integers);
            assert_eq!(integers.value(0), 9_007_199_254_740_993);
            let json = column(Type::Json, "{\"a\":[1.10,12345678901234567890.12]}").unwrap();
            let json = arrow_array::cast::AsArray::as_string::<i32>(&json);
            assert_eq!(json.value(0), "{\"a\":[1.10,12345678901234567890.12]}");
            for (ty, token) in [
                (Type::Numeric, "1e999999999"),
                (Type::Numeric, "\"1e999999999\""),
                (Type::Int8, "1e999999999"),
                (Type::Float8, "1e999999999"),
                (Type::Bool, "1e999999999"),
            ] {
                assert!(column(ty.clone(), token).is_err(), "{} {ty} {token}", dialect.name());
            }
        }
    }

    #[test]
    fn every_dialect_reads_what_servers_write_in_its_place() {
        for dialect in JSON_DIALECTS {
            for (ty, token, expected) in [
                (Type::Float8, "NaN", Value::from("NaN")),
                (Type::Float8, "Infinity", Value::from("Infinity")),
                (Type::Float4, "-Infinity", Value::from("-Infinity")),
                (Type::Int8, "\"9007199254740993\"", Value::from("9007199254740993")),
                (Type::Bool, "1", Value::from(true)),
                (Type::Bool, "0", Value::from(false)),
                (Type::Int8, "{\"p\": 7}", Value::from(7)),
                (Type::Int8, "{\"g\": 2, \"f\": 1}", Value::from(1)),
                (Type::Int8, "NaN", Value::Null),
                (Type::Bytea, "\"AP\\n8=\"", Value::from("AP8=")),
            ] {
                if dialect == Dialect::Snowflake && ty == Type::Bytea {
                    continue;
                }
                let read = reply(dialect, ty.clone(), 1, 200, &body_of(dialect, &[token])).unwrap();
                let read = decode_column(&ty, &read);
                assert_eq!(read.as_ref(), decode_column(&ty, &[expected]).as_ref(), "{} {ty} {token}", dialect.name());
            }
        }
    }

    #[test]
    fn batches_have_an_identity_and_a_path() {
        for (dialect, member) in
            [(Dialect::Redshift, "\"request_id\":\"id:0\""), (Dialect::Bigquery, "\"requestId\":\"id:0\"")]
        {
            assert!(request(dialect, &[("a", Type::Int8)], &["[1]"]).contains(member), "{}", dialect.name());
        }
        for (dialect, path) in [
            (Dialect::Snowflake, "/"),
            (Dialect::Singlestore, "/invoke"),
            (Dialect::Redshift, "/2015-03-31/functions/function/invocations"),
            (Dialect::Bigquery, "/"),
            (Dialect::Mlflow, "/invocations"),
            (Dialect::MlflowRecords, "/invocations"),
            (Dialect::MlflowInputs, "/invocations"),
            (Dialect::MlflowSplit, "/invocations"),
            (Dialect::Array, "/api/f"),
            (Dialect::AzureMl, "/score"),
        ] {
            for (given, expected) in [("", path), ("/mine", "/mine")] {
                let endpoint = Endpoint::JsonTcp("h:1".to_string());
                let envelope = Envelope::new(endpoint, given, dialect, &Credentials::default());
                assert_eq!(envelope.path_of("f"), expected, "{}", dialect.name());
            }
        }
    }

    #[test]
    fn only_scalar_functions_are_called() {
        for dialect in JSON_DIALECTS.into_iter().chain([Dialect::PutGet]) {
            for kind in [FunctionKind::Table, FunctionKind::Map, FunctionKind::Aggregate] {
                let other = Signature { kind, ..signature(&[], Type::Int8) };
                let error = check_scalar(dialect, &other).unwrap_err();
                assert!(error.message().ends_with(&format!("dialect \"{}\"", dialect.name())), "{error}");
            }
            assert!(check_scalar(dialect, &signature(&[], Type::Int8)).is_ok());
        }
    }

    proptest::proptest! {
        /// Decimals go out and come back in each dialect without a change, as the number or string that the dialect writes.
        #[test]
        fn decimals_return_as_they_were(whole in "0|-?[1-9][0-9]{0,40}", fraction in "(\\.[0-9]{1,30})?") {
            let decimal = format!("{whole}{fraction}");
            for dialect in JSON_DIALECTS {
                let column = decode_column(&Type::Numeric, &[Value::from(decimal.as_str())]).unwrap();
                let mut written = String::new();
                write_value(&mut written, dialect, &Type::Numeric, &column, 0);
                for token in [written.as_str(), decimal.as_str()] {
                    let read = reply(dialect, Type::Numeric, 1, 200, &body_of(dialect, &[token])).unwrap();
                    let returned = decode_column(&Type::Numeric, &read).unwrap();
                    proptest::prop_assert_eq!(&returned, &column, "{}", dialect.name());
                }
            }
        }
    }

    #[test]
    fn failures_are_told_apart() {
        for (dialect, status, body, words) in [
            (Dialect::Bigquery, 400, r#"{"errorMessage": "no"}"#, "no"),
            (Dialect::Redshift, 200, r#"{"success": false, "error_msg": "no"}"#, "no"),
            (Dialect::Redshift, 200, r#"{"errorMessage": "no", "errorType": "E", "stackTrace": ["a"]}"#, "no"),
            (Dialect::Mlflow, 400, r#"{"error_code": "BAD_REQUEST", "message": "no", "stack_trace": "t"}"#, "no"),
            (Dialect::Singlestore, 500, "Traceback: no", "no"),
        ] {
            let error = reply(dialect, Type::Int8, 1, status, body).unwrap_err();
            assert!(error.is_of_handler(), "{body}");
            assert!(error.message().contains(words), "{error}");
        }
        for ty in ["Sandbox.Timedout", "Runtime.ExitError", "Runtime.ImportModuleError"] {
            let body = format!(r#"{{"errorMessage": "no", "errorType": "{ty}"}}"#);
            let error = reply(Dialect::Redshift, Type::Int8, 1, 200, &body).unwrap_err();
            assert!(error.kind() == udf_types::error::Kind::UserCode && !error.is_of_handler(), "{ty}");
        }
        for status in [302, 404, 405, 413, 501] {
            let error = reply(Dialect::Array, Type::Int8, 1, status, r#"{"error": "no"}"#).unwrap_err();
            assert!(error.kind() == udf_types::error::Kind::UserCode && !error.is_of_handler(), "{status}");
        }
        for status in [408, 429, 502, 503, 504] {
            assert!(reply(Dialect::Bigquery, Type::Int8, 1, status, "busy").unwrap_err().is_retryable());
        }
        for status in [401, 403] {
            let error = reply(Dialect::Snowflake, Type::Int8, 1, status, r#"{"message": "who are you"}"#).unwrap_err();
            assert_eq!(error.kind(), udf_types::error::Kind::NotAllowed);
            assert!(error.detail().unwrap().ends_with(": who are you."), "{error}");
        }
        for (dialect, body) in [
            (Dialect::Snowflake, r#"{"data": [[1, 7]]}"#),
            (Dialect::Snowflake, r#"{"data": [[0, 7, 8]]}"#),
            (Dialect::Snowflake, "{}"),
            (Dialect::Bigquery, "not JSON"),
            (Dialect::Array, "{}"),
            (Dialect::Redshift, r#"{"success": true}"#),
        ] {
            let error = reply(dialect, Type::Int8, 1, 200, body).unwrap_err();
            assert_eq!(error.kind(), udf_types::error::Kind::ProtocolViolation, "{body}");
        }
    }
}
