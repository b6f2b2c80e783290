//! §6 and §7 of `docs/protocol.md`: JSON, and columns as they lie in memory.

use udf_codec::columns::{ReplyHeader, read_frame};

use super::*;

impl Judge {
    pub(super) fn judge_json(&mut self) {
        if self.transport != TransportName::Json {
            return;
        }
        let server = HttpServer::new(self.endpoint.clone(), &self.credentials, None);
        let post = |path: &str, body: String| {
            block_on(server.post(path, "application/json", body.into())).map_err(|error| say(&error))
        };
        for (case, body) in [
            ("refuses what is not JSON", "{\"batch\": 0, ".to_string()),
            ("refuses JSON that is no call", "[1, 2]".to_string()),
            ("refuses a call with too few columns", json!({"batch": 0, "rows": 1, "columns": [[1]]}).to_string()),
            (
                "refuses columns of other lengths than it has rows",
                json!({"batch": 0, "rows": 2, "columns": [[1, 2], [1]]}).to_string(),
            ),
        ] {
            self.with("6", case, binary("add"), |_, _| {
                let (status, answer) = post("/v1/functions/add", body)?;
                let kind = serde_json::from_slice::<Value>(&answer)
                    .ok()
                    .and_then(|answer| answer.pointer("/error/kind").cloned());
                if status == 400 && kind == Some(json!("protocol_violation")) {
                    Ok(())
                } else {
                    Err(format!("the status is {status}, the kind {kind:?}"))
                }
            });
        }
        let step = |exchange: &str, number: u64| json!({"batch": number, "rows": 1, "columns": [[0], [1], [null]], "exchange": exchange, "step": "accumulate"});
        let total = Signature { kind: FunctionKind::Aggregate, ..unary("total", Type::Int8) };
        self.with("6", "refuses to go on with an exchange that it does not know", total, |_, _| {
            let (first, _) = post("/v1/functions/total", step("conformance-a", 0).to_string())?;
            let (later, _) = post("/v1/functions/total", step("conformance-b", 1).to_string())?;
            if (first, later) == (200, 400) { Ok(()) } else { Err(format!("the statuses are {first} and {later}")) }
        });
        let total = Signature { kind: FunctionKind::Aggregate, ..unary("total", Type::Int8) };
        self.with("6", "forgets an exchange that is deleted", total, |_, _| {
            let (first, _) = post("/v1/functions/total", step("conformance-c", 0).to_string())?;
            let deleted = block_on(server.delete("/v1/exchanges/conformance-c")).map_err(|error| say(&error))?;
            let (later, _) = post("/v1/functions/total", step("conformance-c", 1).to_string())?;
            if first == 200 && deleted < 300 && later == 400 {
                return Ok(());
            }
            Err(format!("the statuses are {first}, {deleted} and {later}"))
        });
        self.with("6", "reads base64 with white space", unary("echo_bytea", Type::Bytea), |_, _| {
            let body = json!({"batch": 0, "rows": 2, "columns": [["AAEC\r\nAwQ=", " A P + A "]]});
            let (status, answer) = post("/v1/functions/echo_bytea", body.to_string())?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            if status == 200 && answer["columns"] == json!([["AAECAwQ=", "AP+A"]]) {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
        let decimals = ["12345678901234567890.12", "99999999999999.9999", "-0.1000000000000000000000001", "0.10"];
        self.with("6", "reads decimals as numbers, to the last digit", unary("echo_numeric", Type::Numeric), |_, _| {
            let rows = decimals.len();
            let body = format!(r#"{{"batch": 0, "rows": {rows}, "columns": [[{}]]}}"#, decimals.join(", "));
            let (status, answer) = post("/v1/functions/echo_numeric", body)?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            if status == 200 && answer["columns"] == json!([decimals]) {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
        self.with(
            "6",
            "reads decimals with exponents, and gives digits",
            unary("echo_numeric", Type::Numeric),
            |_, _| {
                let body = r#"{"batch": 0, "rows": 3, "columns": [[1.5e3, -12E-3, 25e+1]]}"#;
                let (status, answer) = post("/v1/functions/echo_numeric", body.to_string())?;
                let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
                if status == 200 && answer["columns"] == json!([["1500", "-0.012", "250"]]) {
                    return Ok(());
                }
                Err(format!("the status is {status}, the answer {answer}"))
            },
        );
        self.with("6", "reads decimals that no double can hold", unary("echo_numeric", Type::Numeric), |_, _| {
            let digits = "1234567890".repeat(32);
            let body = format!(r#"{{"batch": 0, "rows": 2, "columns": [[-{digits}, 7]]}}"#);
            let (status, answer) = post("/v1/functions/echo_numeric", body)?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            let is_held = status == 200 && answer["columns"] == json!([[format!("-{digits}"), "7"]]);
            // A language whose decimals have fewer digits says so.
            if is_held || answer.pointer("/error/kind") == Some(&json!("out_of_range")) {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
        self.with("6", "rounds no integer that is written as a float", binary("add"), |_, _| {
            let body = r#"{"batch": 0, "rows": 1, "columns": [[9007199254740993.0], [0]]}"#;
            let (status, answer) = post("/v1/functions/add", body.to_string())?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            if status == 400 || (status == 200 && answer["columns"] == json!([["9007199254740993"]])) {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
        self.with("6", "refuses numbers that no double can hold", unary("echo_float8", Type::Float8), |_, _| {
            let body = r#"{"batch": 0, "rows": 1, "columns": [[1e400]]}"#;
            let (status, answer) = post("/v1/functions/echo_float8", body.to_string())?;
            let kind = serde_json::from_slice::<Value>(&answer).map_err(|cause| cause.to_string())?;
            let kind = kind.pointer("/error/kind").and_then(Value::as_str).unwrap_or_default().to_string();
            if ["protocol_violation", "out_of_range"].contains(&kind.as_str()) {
                return Ok(());
            }
            Err(format!("the status is {status}, the kind \"{kind}\""))
        });
        let nested = r#"{"a": 12345678901234567890.12, "b": [99999999999999.9999, null, "1.50", 0.10, 7]}"#;
        self.with("6", "reads decimals as numbers in arrays and composite values", echo_decimals(), |_, _| {
            let body = format!(r#"{{"batch": 0, "rows": 2, "columns": [[{nested}, null]]}}"#);
            let (status, answer) = post("/v1/functions/echo_decimals", body)?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            let expected = json!({"a": decimals[0], "b": [decimals[1], null, "1.50", "0.10", "7"]});
            if status == 200 && answer["columns"] == json!([[expected, null]]) {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
        self.with("6", "reads numbers as strings, and integral floats", binary("add"), |_, _| {
            let body = json!({"batch": 3, "rows": 2, "columns": [["1", 2.0], ["9007199254740993", null]]});
            let (status, answer) = post("/v1/functions/add", body.to_string())?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|cause| cause.to_string())?;
            if status == 200 && answer["columns"] == json!([["9007199254740994", null]]) && answer["batch"] == json!(3)
            {
                return Ok(());
            }
            Err(format!("the status is {status}, the answer {answer}"))
        });
    }

    pub(super) fn judge_columns(&mut self) {
        if self.transport != TransportName::Socket {
            return;
        }
        let server = HttpServer::new(self.endpoint.clone(), &self.credentials, None);
        let numbers = |buffers: Value| json!({"batch": 0, "rows": 1, "buffers": buffers});
        let text_function =
            Signature::scalar("echo_text", vec![Argument { name: String::new(), ty: Type::Text }], Type::Text);
        let no_text: &[u8] = b"\0\0\0\0\x01\0\0\0\xff";
        for (case, function, body) in [
            ("refuses a header that is cut off", "add", vec![255, 0, 0, 0, b'{']),
            ("refuses a header that is not JSON", "add", framed(&json!("x"), &[])),
            (
                "refuses buffers outside of the data",
                "add",
                framed(&numbers(json!([0, 0, 0, 8, 0, 0, 8, 16])), &[0; 16]),
            ),
            ("refuses buffers that are too short", "add", framed(&numbers(json!([0, 0, 0, 8, 0, 0, 8, 4])), &[0; 16])),
            (
                "refuses buffers whose ends cannot be counted",
                "add",
                framed(&numbers(json!([0, 0, 8, u64::MAX, 0, 0, 0, 8])), &[0; 16]),
            ),
            ("refuses too few buffers", "add", framed(&numbers(json!([0, 0, 0, 8])), &[0; 16])),
            ("refuses too many buffers", "add", framed(&numbers(json!([0, 0, 0, 8, 0, 0, 8, 8, 0, 0])), &[0; 16])),
            (
                "refuses more rows than there are values",
                "add",
                framed(&json!({"batch": 0, "rows": 1_u64 << 60, "buffers": [0, 0, 0, 8, 0, 0, 8, 8]}), &[0; 16]),
            ),
            (
                "refuses offsets that point outside",
                "echo_text",
                framed(&numbers(json!([0, 0, 0, 8, 8, 1])), b"\0\0\0\0\x09\0\0\0x"),
            ),
            (
                "refuses offsets that descend",
                "echo_text",
                framed(
                    &json!({"batch": 0, "rows": 2, "buffers": [0, 0, 0, 12, 16, 4]}),
                    b"\0\0\0\0\x04\0\0\0\x02\0\0\0\0\0\0\0abcd",
                ),
            ),
            ("refuses text that is not UTF-8", "echo_text", framed(&numbers(json!([0, 0, 0, 8, 8, 1])), no_text)),
            (
                "refuses a segment that is not there",
                "add",
                framed(
                    &json!({"batch": 0, "rows": 1, "segment": "0".repeat(32), "reply_segment": "1".repeat(32), "buffers": [0, 0, 0, 8, 0, 0, 8, 8]}),
                    &[],
                ),
            ),
            (
                "refuses a segment outside of the folder",
                "add",
                framed(
                    &json!({"batch": 0, "rows": 1, "segment": "../http.sock", "reply_segment": "../http.sock", "buffers": [0, 0, 0, 8, 0, 0, 8, 8]}),
                    &[],
                ),
            ),
        ] {
            let signature = if function == "add" { binary("add") } else { text_function.clone() };
            self.with("7", case, signature, |_, _| {
                let path = format!("/v1/functions/{function}");
                expect_violation(block_on(server.post(&path, COLUMNS, body)))
            });
        }
    }

    pub(super) fn judge_references(&mut self) {
        if self.transport != TransportName::Socket {
            return;
        }
        let server = HttpServer::new(self.endpoint.clone(), &self.credentials, None);
        let call = |function: &str, header: Value, data: &[u8]| {
            let path = format!("/v1/functions/{function}");
            let (status, answer) =
                block_on(server.post(&path, COLUMNS, framed(&header, data))).map_err(|error| say(&error))?;
            if status != 200 {
                return Err(format!("the status is {status}"));
            }
            let (header, own) = read_frame::<ReplyHeader>(&answer)?;
            let buffer = |number: usize| {
                let (offset, length) = (*header.buffers.get(2 * number)?, *header.buffers.get(2 * number + 1)?);
                if length == 0 {
                    return Some(Vec::new());
                }
                let source = if header.aliases.contains(&number) { data } else { own };
                source.get(offset..offset.checked_add(length)?).map(<[u8]>::to_vec)
            };
            let buffers: Option<Vec<_>> = (0..header.buffers.len() / 2).map(buffer).collect();
            Ok((buffers.ok_or("a buffer lies outside of the data")?, header))
        };
        // Three rows, of which the last is NULL.
        let numbers = [&[0b011, 0, 0, 0, 0, 0, 0, 0][..], &[10_i32, 20, 30].map(i32::to_le_bytes).concat()].concat();
        for (function, ty) in [("echo_date", Type::Date), ("echo_int4", Type::Int4)] {
            for (may_alias, case) in [
                (false, "refers to no buffers of the calls unasked"),
                (true, "refers to the right buffers of the calls"),
            ] {
                self.with("7.8", &format!("{case}: {function}"), unary(function, ty.clone()), |_, _| {
                    let header = json!({"batch": 0, "rows": 3, "may_alias": may_alias, "buffers": [0, 1, 8, 12]});
                    let (buffers, reply) = call(function, header, &numbers)?;
                    let is_valid = buffers.first().and_then(|validity| validity.first()).map(|bits| bits & 0b111);
                    let is_right = reply.rows == 3
                        && is_valid == Some(0b011)
                        && buffers.get(1).and_then(|values| values.get(..8)) == Some(&numbers[8..16]);
                    if is_right && (may_alias || reply.aliases.is_empty()) {
                        return Ok(());
                    }
                    Err(format!("its reply is {reply:?}, with {buffers:?}"))
                });
            }
        }
        let texts = [&[0_i32, 1, 2, 3].map(i32::to_le_bytes).concat()[..], b"xyx"].concat();
        for (may_encode, case) in
            [(false, "encodes no texts unasked"), (true, "encodes texts as indexes into a dictionary")]
        {
            self.with("7.9", case, unary("label", Type::Text), |_, _| {
                let header = json!({"batch": 0, "rows": 3, "may_encode": may_encode, "buffers": [0, 0, 0, 16, 16, 3]});
                let (buffers, reply) = call("label", header, &texts)?;
                let found = texts_of(&buffers, &reply);
                let is_allowed = may_encode || reply.dictionaries.is_empty();
                if is_allowed && found == Some(["x", "y", "x"].map(|text| text.as_bytes().to_vec()).to_vec()) {
                    return Ok(());
                }
                Err(format!("its reply is {reply:?}, with {buffers:?}"))
            });
        }
    }

    pub(super) fn judge_constants(&mut self) {
        let clause = match self.transport {
            TransportName::Flight => "4.10",
            TransportName::Json => "6",
            TransportName::Socket | TransportName::Shm => "7.11",
            TransportName::Auto | TransportName::Parquet => return,
        };
        if !self.takes_constants {
            return;
        }
        self.with(clause, "takes constants, and those of the batch before", binary("add"), |judge, signature| {
            let constant = |value: Option<i64>| Arc::new(Int64Array::from(vec![value])) as ArrayRef;
            let (first, second) = (constant(Some(40)), constant(Some(-7)));
            let calls =
                [Some(first.clone()), Some(first.clone()), Some(second), None, Some(first), Some(constant(None))];
            let mut exchange = judge.open(signature);
            for (number, call) in calls.iter().enumerate() {
                exchange.send(batch_with_constant(signature, number as u64, call.clone()));
            }
            for (number, call) in calls.iter().enumerate() {
                let reply = exchange.receive(&PlainHost).map_err(|error| say(&error))?;
                let value = match call {
                    Some(call) => call.as_primitive::<Int64Type>().iter().next().flatten(),
                    None => Some(0),
                };
                let sums: Int64Array = (0..=number as i64).map(|row| value.map(|value| row + value)).collect();
                expect(&Type::Int8, reply.columns.column(0), &(Arc::new(sums) as ArrayRef))?;
            }
            Ok(())
        });
        if self.transport != TransportName::Socket {
            return;
        }
        let server = HttpServer::new(self.endpoint.clone(), &self.credentials, None);
        for (case, more) in [
            (
                "refuses constants of a batch before that brought none",
                json!({"constants": [0], "constants_id": "a", "same_constants": true}),
            ),
            ("refuses constants that are no columns", json!({"constants": [2]})),
        ] {
            self.with("7.11", case, binary("add"), |_, _| {
                let mut header = json!({"batch": 0, "rows": 2, "buffers": [0, 0, 0, 16]});
                header
                    .as_object_mut()
                    .into_iter()
                    .for_each(|header| header.extend(more.as_object().cloned().unwrap_or_default()));
                expect_violation(block_on(server.post("/v1/functions/add", COLUMNS, framed(&header, &[0; 16]))))
            });
        }
        // Two requests on one connection; only the first brings the constant.
        let twice = |id: &str| {
            let numbers = [1_i64, 2, 40].map(i64::to_le_bytes).concat();
            let first = json!({"batch": 0, "rows": 2, "buffers": [0, 0, 0, 16, 0, 0, 16, 8], "constants": [1], "constants_id": "a"});
            let second = json!({"batch": 1, "rows": 2, "buffers": [0, 0, 0, 16], "constants": [1], "constants_id": id, "same_constants": true});
            block_on(async {
                let (status, _) = server.post("/v1/functions/add", COLUMNS, framed(&first, &numbers)).await?;
                let answer = server.post("/v1/functions/add", COLUMNS, framed(&second, &numbers[..16])).await?;
                Ok((status, answer))
            })
        };
        self.with("7.11", "keeps constants for the requests that follow", binary("add"), |_, _| {
            let (first, (second, answer)) = twice("a").map_err(|error: Error| say(&error))?;
            let (header, data) = read_frame::<ReplyHeader>(&answer)?;
            let place = header.buffers.get(2).copied().unwrap_or(0);
            let sums = data.get(place..place + 16);
            if (first, second) == (200, 200) && sums == Some([41_i64, 42].map(i64::to_le_bytes).concat().as_slice()) {
                return Ok(());
            }
            Err(format!("the statuses are {first} and {second}, the sums {sums:?}"))
        });
        self.with("7.11", "refuses constants of a batch before that had another name", binary("add"), |_, _| {
            expect_violation(twice("b").map(|(_, answer)| answer))
        });
    }
}

/// The texts of a reply's only column, none of which is NULL; nothing if they do not lie there.
fn texts_of(buffers: &[Vec<u8>], reply: &ReplyHeader) -> Option<Vec<Vec<u8>>> {
    let numbers = |bytes: &[u8]| {
        let (chunks, _) = bytes.as_chunks();
        chunks.iter().map(|chunk| usize::try_from(i32::from_le_bytes(*chunk)).ok()).collect::<Option<Vec<_>>>()
    };
    let (count, first) = match reply.dictionaries.as_slice() {
        [] => (reply.rows, 1),
        [0, count] => (*count, 2),
        _ => return None,
    };
    let offsets = numbers(buffers.get(first)?)?;
    let bytes = buffers.get(first + 1)?;
    let values = offsets.get(..=count)?.windows(2).map(|pair| bytes.get(pair[0]..pair[1]).map(<[u8]>::to_vec));
    let values = values.collect::<Option<Vec<_>>>()?;
    if reply.dictionaries.is_empty() {
        return Some(values);
    }
    numbers(buffers.get(1)?)?.get(..reply.rows)?.iter().map(|index| values.get(*index).cloned()).collect()
}

/// Calls of "add" with the numbers from 0 to that of the batch, and a constant or zeros.
fn batch_with_constant(signature: &Signature, number: u64, constant: Option<ArrayRef>) -> CallBatch {
    let rows = number as usize + 1;
    let numbers: ArrayRef = Arc::new((0..=number as i64).map(Some).collect::<Int64Array>());
    let Some(constant) = constant else {
        let zeros: ArrayRef = Arc::new(Int64Array::from(vec![0; rows]));
        return batch(signature, number, rows, vec![numbers, zeros], None);
    };
    let constants = Constants::new(vec![(1, constant)]);
    let schema = Arc::new(constants.schema_of_others(&signature.call_schema()));
    let columns = RecordBatch::try_new(schema, vec![numbers]).expect("the suite's columns are of its types");
    CallBatch { constants, ..CallBatch::new(number, columns) }
}

fn framed(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut body = (header.len() as u32).to_le_bytes().to_vec();
    body.extend_from_slice(header.as_bytes());
    body.resize(body.len().next_multiple_of(8), 0);
    body.extend_from_slice(data);
    body
}

fn expect_violation(answer: Result<(u16, impl AsRef<[u8]>)>) -> Finding {
    let (status, answer) = answer.map_err(|error| say(&error))?;
    let answer = serde_json::from_slice::<Value>(answer.as_ref()).unwrap_or_default();
    if status == 400 && answer.pointer("/error/kind") == Some(&json!("protocol_violation")) {
        return Ok(());
    }
    Err(format!("the status is {status}, the answer {answer}"))
}
