//! Requests of other engines, each in its own JSON envelope (`docs/dialects.md`): Snowflake, SingleStore, Redshift, BigQuery, and
//! clients of MLflow and of functions on Azure call the same functions.
//!
//! The function is the one that the request names (a header of Snowflake and SingleStore, a member of Redshift), or the last part of
//! the path, or the only one. In: a body that nobody has checked. Out: the status and the JSON text of the answer.

use std::borrow::Cow;

use arrow_array::{RecordBatch, RecordBatchOptions};
use hyper::StatusCode;
use hyper::header::HeaderMap;
use serde_json::json;
use udf_codec::constants::Constants;
use udf_codec::json::decode_column;
use udf_codec::json_text::Json;
use udf_types::signature::FunctionKind;

use crate::container::Container;
use crate::dialect_values::{Envelope, incoming, outgoing};
use crate::error::CallError;
use crate::function::{Arrived, Function};
use crate::handler::IsCancelled;
use crate::json::unreadable;

/// Headers that name the function.
const NAME_HEADERS: [&str; 2] = ["sf-external-function-name", "s2-ef-name"];
/// Members of MLflow's requests.
const MLFLOW_INPUTS: [&str; 4] = ["dataframe_split", "dataframe_records", "inputs", "instances"];
/// Characters of an error that BigQuery takes.
const BIGQUERY_CHARACTERS: usize = 1000;

/// The rows of a request.
struct Rows<'a> {
    /// In the order of the arguments.
    values: Vec<Vec<Json<'a>>>,
    /// What each row is called, where the engine numbers them.
    numbers: Vec<Json<'a>>,
}

/// Answers a request that is in an engine's envelope; none if it is in no engine's. `take_time` lets others answer connections.
pub(crate) fn answer(
    container: &Container,
    take_time: impl Fn(),
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
    is_cancelled: IsCancelled<'_>,
) -> Option<(StatusCode, String)> {
    let request = Json::parse(std::str::from_utf8(body).ok()?)?;
    let mut envelope = Envelope::of(&request, headers)?;
    let answered = find(container, path, headers, &request).and_then(|function| {
        if envelope == Envelope::AzureMl && are_numbered(function, request.get("data")) {
            // Gateways drop headers, and callers by hand do not write them.
            envelope = Envelope::Snowflake;
        }
        // Other engines' batches are not short.
        take_time();
        let rows = envelope.rows(function, request)?;
        let results = call(function, envelope, rows.values, is_cancelled)?;
        Ok(envelope.wrap(&results, &rows.numbers))
    });
    Some(answered.map_or_else(|error| envelope.fail(&error), |text| (StatusCode::OK, text)))
}

impl Envelope {
    /// Whose envelope a request has.
    fn of(request: &Json<'_>, headers: &HeaderMap) -> Option<Envelope> {
        let has = |name: &str| request.get(name).is_some();
        let has_headers = |prefix: &str| headers.keys().any(|name| name.as_str().starts_with(prefix));
        match request {
            Json::Array(_) => Some(Envelope::Array),
            Json::Object(_) if has("data") && !has("columns") => Some(match () {
                () if has_headers("sf-") => Envelope::Snowflake,
                () if has_headers("s2-ef-") => Envelope::SingleStore,
                () => Envelope::AzureMl,
            }),
            Json::Object(_) if has("arguments") && has("external_function") => Some(Envelope::Redshift),
            Json::Object(_) if has("calls") => Some(Envelope::BigQuery),
            Json::Object(_) if MLFLOW_INPUTS.iter().any(|name| has(name)) => Some(Envelope::MlFlow),
            _ => None,
        }
    }

    /// The rows of a request.
    fn rows<'a>(self, function: &Function, mut request: Json<'a>) -> Result<Rows<'a>, CallError> {
        let width = function.signature().arguments.len();
        let mut take = |name: &str| array(request.take(name), name);
        let mut numbers = Vec::new();
        let values = match self {
            Envelope::Array => rows_of(array(Some(request), "the request")?)?,
            Envelope::AzureMl => rows_of(take("data")?)?,
            Envelope::BigQuery => rows_of(take("calls")?)?,
            Envelope::Snowflake | Envelope::SingleStore => {
                let mut rows = rows_of(take("data")?)?;
                for row in &mut rows {
                    if row.is_empty() {
                        return Err(unreadable("a row has no number"));
                    }
                    numbers.push(row.remove(0));
                }
                rows
            }
            Envelope::Redshift => {
                // A record may be NULL as a whole, or a value where there is one argument.
                let row_of = |row| match row {
                    Json::Array(row) => row,
                    Json::Null => (0..width).map(|_| Json::Null).collect(),
                    value => vec![value],
                };
                take("arguments")?.into_iter().map(row_of).collect()
            }
            Envelope::MlFlow => inputs(function, request)?,
        };
        match values.iter().find(|row| row.len() != width) {
            Some(row) => {
                Err(unreadable(format!("{} takes {width} arguments, and a row has {}", function.name(), row.len())))
            }
            None => Ok(Rows { values, numbers }),
        }
    }

    /// The results, each of which is a JSON text, in the engine's envelope.
    fn wrap(self, results: &[String], numbers: &[Json<'_>]) -> String {
        let all = results.join(",");
        match self {
            Envelope::Snowflake | Envelope::SingleStore => {
                let rows = numbers.iter().zip(results).map(|(number, result)| format!("[{number},{result}]"));
                format!("{{\"data\":[{}]}}", rows.collect::<Vec<_>>().join(","))
            }
            Envelope::Redshift => {
                format!("{{\"success\":true,\"num_records\":{},\"results\":[{all}]}}", results.len())
            }
            Envelope::BigQuery => format!("{{\"replies\":[{all}]}}"),
            Envelope::MlFlow => format!("{{\"predictions\":[{all}]}}"),
            Envelope::Array | Envelope::AzureMl => format!("[{all}]"),
        }
    }

    /// An error as the engine reads it.
    fn fail(self, error: &CallError) -> (StatusCode, String) {
        let status = match error.kind {
            "function_not_found" => StatusCode::NOT_FOUND,
            "protocol_violation" => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let message = &error.message;
        match self {
            // Redshift reads failures only from answers.
            Envelope::Redshift => {
                (StatusCode::OK, json!({"success": false, "num_records": 0, "error_msg": message}).to_string())
            }
            // BigQuery asks again after status 500.
            Envelope::BigQuery => {
                let text: String = message.chars().take(BIGQUERY_CHARACTERS).collect();
                (StatusCode::BAD_REQUEST, json!({ "errorMessage": text }).to_string())
            }
            Envelope::MlFlow => {
                let trace = error.traceback.as_deref().unwrap_or_default();
                let text = json!({"error_code": "BAD_REQUEST", "message": message, "stack_trace": trace}).to_string();
                (status, text)
            }
            _ => (status, json!({ "error": message }).to_string()),
        }
    }
}

fn array<'a>(value: Option<Json<'a>>, what: &str) -> Result<Vec<Json<'a>>, CallError> {
    match value {
        Some(Json::Array(items)) => Ok(items),
        _ => Err(unreadable(format!("{what} is no array"))),
    }
}

fn rows_of(rows: Vec<Json<'_>>) -> Result<Vec<Vec<Json<'_>>>, CallError> {
    rows.into_iter().map(|row| array(Some(row), "a row")).collect()
}

/// The rows of an MLflow request, which names columns.
fn inputs<'a>(function: &Function, mut request: Json<'a>) -> Result<Vec<Vec<Json<'a>>>, CallError> {
    let names: Vec<&str> = function.signature().arguments.iter().map(|argument| argument.name.as_str()).collect();
    let by_name = |mut record: Json<'a>| {
        let value = |name: &&str| record.take(name).ok_or_else(|| unreadable(format!("there is no input {name:?}")));
        names.iter().map(value).collect::<Result<Vec<_>, _>>()
    };
    if let Some(mut split) = request.take("dataframe_split") {
        let columns = array(split.take("columns"), "columns")?;
        let position = |name: &&str| {
            let found = columns.iter().position(|column| column.as_str() == Some(*name));
            found.ok_or_else(|| unreadable(format!("there is no input {name:?}")))
        };
        let order = names.iter().map(position).collect::<Result<Vec<_>, _>>()?;
        let rows = rows_of(array(split.take("data"), "data")?)?;
        return rows
            .into_iter()
            .map(|row| {
                let value = |position: &usize| row.get(*position).cloned();
                order.iter().map(value).collect::<Option<Vec<_>>>().ok_or_else(|| unreadable("a row is too short"))
            })
            .collect();
    }
    if let Some(records) = request.take("dataframe_records") {
        return array(Some(records), "dataframe_records")?.into_iter().map(by_name).collect();
    }
    match request.take("inputs").or_else(|| request.take("instances")) {
        Some(columns @ Json::Object(_)) => {
            let columns = by_name(columns)?.into_iter().map(|column| array(Some(column), "an input"));
            let mut columns = columns.map(|column| Ok(column?.into_iter())).collect::<Result<Vec<_>, CallError>>()?;
            let rows = columns.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
            let mut row = || columns.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>();
            (0..rows).map(|_| row().ok_or_else(|| unreadable("the inputs have different lengths"))).collect()
        }
        rows => {
            let row_of = |row| match row {
                Json::Array(row) => Ok(row),
                Json::Object(_) => by_name(row),
                value => Ok(vec![value]),
            };
            array(rows, "inputs")?.into_iter().map(row_of).collect()
        }
    }
}

/// Whether each row has its number before its arguments.
fn are_numbered(function: &Function, rows: Option<&Json<'_>>) -> bool {
    let Some(Json::Array(rows)) = rows else { return false };
    let width = function.signature().arguments.len() + 1;
    let is_numbered = |(number, row): (usize, &Json<'_>)| match row {
        Json::Array(row) => row.len() == width && row[0] == Json::Number(&number.to_string()),
        _ => false,
    };
    !rows.is_empty() && rows.iter().enumerate().all(is_numbered)
}

fn find<'a>(
    container: &'a Container,
    path: &str,
    headers: &HeaderMap,
    request: &Json<'_>,
) -> Result<&'a Function, CallError> {
    let named = NAME_HEADERS.iter().filter_map(|name| headers.get(*name)?.to_str().ok());
    // Redshift writes schema.function.
    let external = request.get("external_function").and_then(Json::as_str);
    let external = external.map(|name| name.rsplit('.').next().unwrap_or(name));
    let named: Vec<&str> = named.chain(external).filter(|name| !name.is_empty()).collect();
    let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    for name in named.iter().copied().chain([last]) {
        // Snowflake may write "DATABASE"."SCHEMA"."NAME"; names without quotes are in upper case there.
        for known in [name, name.rsplit('.').next().unwrap_or(name).trim_matches('"')] {
            if let Ok(function) = container.find(known) {
                return Ok(function);
            }
            let is_alike = |function: &&Function| function.name().to_lowercase() == known.to_lowercase();
            let mut alike = container.functions.iter().filter(is_alike);
            if let (Some(function), None) = (alike.next(), alike.next()) {
                return Ok(function);
            }
        }
    }
    match container.functions.as_slice() {
        [only] if named.is_empty() => Ok(only),
        _ => Err(CallError::unknown_function(named.first().unwrap_or(&last))),
    }
}

/// Calls the function, and gives each result as a JSON text.
fn call(
    function: &Function,
    envelope: Envelope,
    rows: Vec<Vec<Json<'_>>>,
    is_cancelled: IsCancelled<'_>,
) -> Result<Vec<String>, CallError> {
    let signature = function.signature();
    if signature.kind != FunctionKind::Scalar {
        return Err(CallError::violation(format!("{} is a {} function", function.name(), signature.kind.name())));
    }
    let count = rows.len();
    let mut values: Vec<_> = signature.arguments.iter().map(|_| Vec::with_capacity(count)).collect();
    for row in rows {
        for ((position, argument), value) in signature.arguments.iter().enumerate().zip(row) {
            let value = incoming(envelope, &argument.ty, value).map_err(|fact| misfit(position, &argument.ty, fact))?;
            values[position].push(value);
        }
    }
    let mut columns = Vec::with_capacity(values.len());
    for ((position, argument), values) in signature.arguments.iter().enumerate().zip(values) {
        columns.push(decode_column(&argument.ty, &values).map_err(|fact| misfit(position, &argument.ty, fact.into()))?);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    let others = RecordBatch::try_new_with_options(signature.call_schema(), columns, &options).map_err(unreadable)?;
    let (arrived, mut results) = (Arrived { others, constants: Constants::default() }, Vec::with_capacity(count));
    let result = &signature.result;
    function.answer(&arrived, None, false, is_cancelled, &mut |columns, _| {
        let column = columns.first().ok_or_else(|| CallError::bad_result("It returned nothing."))?;
        for row in 0..column.len() {
            let text = outgoing(envelope, result, column, row).map_err(|fact| {
                let fact = format!("It returned {fact}; the declared result is {result}.");
                CallError::bad_result(fact).at(results.len())
            })?;
            results.push(text);
        }
        Ok(())
    })?;
    if results.len() != count {
        return Err(CallError::bad_result(format!("It returned {} values for {count} rows.", results.len())));
    }
    Ok(results)
}

fn misfit(position: usize, ty: &udf_types::types::Type, fact: Cow<'_, str>) -> CallError {
    CallError::violation(format!("column {} is not of type {ty}: {fact}", position + 1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use serde_json::Value;
    use udf_types::signature::{Argument, Signature};
    use udf_types::types::Type;

    use super::*;
    use crate::exchanges::Exchanges;
    use crate::handler::{Calls, Emit, Groups, Handler};

    /// Gives its first argument back, and fails for the text "bad".
    struct Same;

    impl Handler for Same {
        fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
            let column = calls.batch.column(0).clone();
            if let Some(texts) = column.as_string_opt::<i32>()
                && let Some(row) = texts.iter().position(|text| text == Some("bad"))
            {
                return Err(CallError { traceback: Some("here".to_string()), ..CallError::user_code("no").at(row) });
            }
            emit(vec![column], true)
        }

        fn groups(&self) -> Box<dyn Groups> {
            unreachable!("no function is an aggregate function")
        }
    }

    fn container(functions: &[(&str, &[&str])]) -> Container {
        let functions = functions.iter().map(|(name, types)| {
            let argument = |(number, ty): (usize, &&str)| Argument {
                name: ["x", "y"][number].to_string(),
                ty: Type::from_name(ty).unwrap(),
            };
            let arguments: Vec<_> = types.iter().enumerate().map(argument).collect();
            let result = arguments[0].ty.clone();
            Function::new(Arc::new(Signature::scalar(name, arguments, result)), Box::new(Same))
        });
        Container { functions: functions.collect(), greeting: String::new(), exchanges: Exchanges::default() }
    }

    fn post(container: &Container, path: &str, headers: &[(&'static str, &str)], body: &str) -> (u16, Value) {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let (status, text) = answer(container, || (), path, &headers, body.as_bytes(), &|| false).unwrap();
        (status.as_u16(), serde_json::from_str(&text).unwrap())
    }

    fn all() -> Container {
        let types = [("t", "text"), ("b", "bytea"), ("bs", "bytea[]"), ("n", "numeric"), ("j", "json"), ("i", "int8")];
        let mut functions: Vec<(&str, Vec<&str>)> = types.iter().map(|(name, ty)| (*name, vec![*ty])).collect();
        functions.extend([("flag", vec!["bool"]), ("at", vec!["timestamptz"]), ("two", vec!["text", "int4"])]);
        functions.push(("c", vec!["(a json, b bytea)"]));
        container(&functions.iter().map(|(name, types)| (*name, types.as_slice())).collect::<Vec<_>>())
    }

    #[test]
    fn each_engine_is_answered_in_its_envelope() {
        let all = all();
        let same = |path: &str, headers: &[(&'static str, &str)], body: Value, answer: Value| {
            assert_eq!(post(&all, path, headers, &body.to_string()), (200, answer), "{body}");
        };
        let snowflake = [("sf-external-function-name", "T")];
        same("/", &snowflake, json!({"data": [[7, "a"], [8, null]]}), json!({"data": [[7, "a"], [8, null]]}));
        same("/", &[("s2-ef-name", "t")], json!({"data": [[0, "a"]]}), json!({"data": [[0, "a"]]}));
        let answer = json!({"success": true, "num_records": 3, "results": ["a", null, "b"]});
        same("/", &[], json!({"external_function": "s.t", "arguments": [["a"], null, "b"]}), answer);
        same("/x/t", &[], json!({"calls": [["a"]]}), json!({"replies": ["a"]}));
        same("/t/", &[], json!([["a"], ["b"]]), json!(["a", "b"]));
        same("/t", &[], json!({"data": [["a"], [null]]}), json!(["a", null]));
        // The header was lost on the way.
        same("/t", &[], json!({"data": [[0, "a"], [1, "b"]]}), json!({"data": [[0, "a"], [1, "b"]]}));
        let predictions = json!({"predictions": ["a", "b"]});
        let split = json!({"columns": ["z", "y", "x"], "data": [[0, 1, "a"], [0, 2, "b"]]});
        same("/two", &[], json!({ "dataframe_split": split }), predictions.clone());
        let records = json!([{"y": 1, "x": "a"}, {"x": "b", "y": null}]);
        same("/two", &[], json!({ "dataframe_records": records }), predictions.clone());
        same("/two", &[], json!({"inputs": {"x": ["a", "b"], "y": [1, 2]}}), predictions.clone());
        same("/two", &[], json!({"instances": [["a", 1], {"y": 2, "x": "b"}]}), predictions.clone());
        same("/t", &[], json!({"inputs": ["a", "b"]}), predictions);
        same("/t", &[], json!({"calls": []}), json!({"replies": []}));
    }

    #[test]
    fn values_are_written_as_each_engine_writes_them() {
        let all = all();
        let snowflake = |name: &str, sent: Value, answered: Value| {
            let body = json!({ "data": [[0, sent]] }).to_string();
            let found = post(&all, "/", &[("sf-external-function-name", name)], &body);
            assert_eq!(found, (200, json!({ "data": [[0, answered]] })), "{name}");
        };
        snowflake("b", json!("00ff01AA"), json!("00FF01AA"));
        snowflake("bs", json!(["00FF", null, ""]), json!(["00FF", null, ""]));
        snowflake("j", json!({"a": [1.50, null, "x"]}), json!({"a": [1.50, null, "x"]}));
        snowflake("j", json!("text"), json!("text"));
        snowflake("i", json!("9007199254740993"), json!(9_007_199_254_740_993_i64));
        snowflake("at", json!("2024-01-02 03:04:05.000001Z"), json!("2024-01-02T03:04:05.000001Z"));
        snowflake("c", json!({"a": {"k": 1}, "b": "0A"}), json!({"a": {"k": 1}, "b": "0A"}));
        let bigquery = |name: &str, sent: Value, answered: Value| {
            let found = post(&all, &format!("/{name}"), &[], &json!({ "calls": [[sent]] }).to_string());
            assert_eq!(found, (200, json!({ "replies": [answered] })), "{name}");
        };
        bigquery("b", json!("AP8="), json!("AP8="));
        bigquery("j", json!([1, "x"]), json!([1, "x"]));
        bigquery("i", json!("9007199254740993"), json!("9007199254740993"));
        let store = |name: &str, sent: Value| {
            post(&all, "/", &[("s2-ef-name", name)], &json!({"data": [[0, sent]]}).to_string())
        };
        assert_eq!(store("flag", json!(1)), (200, json!({"data": [[0, true]]})));
        assert_eq!(store("flag", json!(0)), (200, json!({"data": [[0, false]]})));
        assert_eq!(store("flag", json!(2)).0, 400);
        assert_eq!(store("j", json!("{\"a\": 1}")), (200, json!({"data": [[0, "{\"a\": 1}"]]})));
        // Digits are not lost on the way.
        for token in ["12345678901234567890.120", "0.10", "99999999999999.9999"] {
            let (_, answer) = post(&all, "/n", &[], &format!("{{\"calls\": [[{token}]]}}"));
            assert_eq!(answer, json!({ "replies": [token] }));
        }
        let (_, text) =
            answer(&all, || (), "/j", &HeaderMap::new(), b"{\"calls\": [[{\"a\": 1.2300}]]}", &|| false).unwrap();
        assert_eq!(text, "{\"replies\":[{\"a\":1.2300}]}");
    }

    #[test]
    fn functions_are_found_as_engines_write_their_names() {
        let all = all();
        let found =
            |headers: &[(&'static str, &str)], path: &str| post(&all, path, headers, r#"{"data": [[0, "x"]]}"#).0;
        for name in ["T", "t", "\"DB\".\"PUBLIC\".\"T\"", "db.public.t"] {
            assert_eq!(found(&[("sf-external-function-name", name)], "/"), 200, "{name}");
        }
        assert_eq!(found(&[("sf-external-function-name", "OTHER")], "/other"), 404);
        assert_eq!(found(&[], "/other"), 404);
        let alike = container(&[("f", &["text"]), ("F", &["text"])]);
        let name = |name| post(&alike, "/", &[("s2-ef-name", name)], r#"{"data": [[0, "x"]]}"#).0;
        assert_eq!((name("f"), name("F"), name("g")), (200, 200, 404));
        let only = container(&[("f", &["text"])]);
        assert_eq!(post(&only, "/", &[], r#"{"calls": [["x"]]}"#).0, 200);
    }

    #[test]
    fn errors_are_told_as_each_engine_reads_them() {
        let all = all();
        assert_eq!(post(&all, "/t", &[("sf-x", "")], r#"{"data": [[0, "bad"]]}"#), (500, json!({"error": "no"})));
        assert_eq!(post(&all, "/t", &[], r#"{"calls": [["bad"]]}"#), (400, json!({"errorMessage": "no"})));
        let expected = json!({"success": false, "num_records": 0, "error_msg": "no"});
        assert_eq!(post(&all, "/", &[], r#"{"external_function": "t", "arguments": [["bad"]]}"#), (200, expected));
        let expected = json!({"error_code": "BAD_REQUEST", "message": "no", "stack_trace": "here"});
        assert_eq!(post(&all, "/t", &[], r#"{"inputs": ["bad"]}"#), (500, expected));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let all = all();
        for (path, body) in [
            ("/b", r#"{"data": [[0, "0"]]}"#),
            ("/i", r#"{"calls": [[1.5]]}"#),
            ("/i", r#"{"calls": [[1, 2]]}"#),
            ("/i", r#"{"calls": [[]]}"#),
            ("/i", r#"{"calls": [7]}"#),
            ("/i", r#"{"calls": 7}"#),
            ("/i", r#"{"calls": [[{"a": 1}]]}"#),
            ("/two", r#"{"inputs": {"x": ["a", "b"], "y": [1]}}"#),
            ("/two", r#"{"inputs": {"x": ["a"]}}"#),
            ("/two", r#"{"dataframe_records": [["a", 1]]}"#),
            ("/two", r#"{"dataframe_split": {"columns": ["x"], "data": [["a"]]}}"#),
            ("/two", r#"{"dataframe_split": {"columns": ["x", "y"], "data": [["a"]]}}"#),
            ("/t", r#"["a"]"#),
        ] {
            assert_eq!(post(&all, path, &[], body).0, 400, "{path} {body}");
        }
        assert_eq!(post(&all, "/b", &[("sf-x", "")], r#"{"data": [[0, "AFDTRUHT"]]}"#).0, 400);
        assert_eq!(post(&all, "/b", &[("sf-x", "")], r#"{"data": [[0, 7]]}"#).0, 400);
        assert_eq!(post(&all, "/t", &[("sf-x", "")], r#"{"data": [[]]}"#).0, 400);
        for body in ["{", "7", "{}", r#"{"columns": [[1]], "data": []}"#, "\u{ff}"] {
            assert!(answer(&all, || (), "/t", &HeaderMap::new(), body.as_bytes(), &|| false).is_none(), "{body}");
        }
    }
}
