//! §1 of `docs/protocol.md`: values of every type, NULL, and batches of every shape.

use arrow_array::ListArray;
use arrow_schema::{DataType, Field, Schema};
use udf_codec::adapt::adapt;

use super::*;

/// Decimals for which many languages have an exponent, and that all can hold.
const DECIMALS: [&str; 4] = ["0.00000001", "-0.0000000000000000000012", "120000000000000000000000000", "0.10"];

impl Judge {
    pub(super) fn judge_values(&mut self) {
        for entry in TABLE {
            let texts: Vec<Value> =
                entry.examples.iter().filter_map(|(_, text)| serde_json::from_str(text).ok()).collect();
            self.judge_echo(&format!("echo_{}", entry.name), &entry.ty, texts);
        }
        for (name, ty, values) in [
            ("echo_array", "int4[]", json!([[1, null, -3], []])),
            (
                "echo_range",
                "range(int8)",
                json!([{"lower": 1, "upper": null, "lower_inc": true, "upper_inc": false, "empty": false}]),
            ),
            ("echo_composite", "(a int4, b text)", json!([{"a": 1, "b": null}, {"a": null, "b": "ü"}])),
        ] {
            let ty = Type::from_name(ty).expect("the suite's types are types");
            self.judge_echo(name, &ty, values.as_array().cloned().unwrap_or_default());
        }
        let text = StringArray::from(vec!["ü".repeat(LARGE_VALUE_BYTES / 2)]);
        self.with("1", "takes and gives 1 MiB of text", unary("echo_text", Type::Text), |judge, signature| {
            judge.expect_same(signature, &(Arc::new(text) as ArrayRef))
        });
        let bytes = BinaryArray::from_vec(vec![&[0xff; LARGE_VALUE_BYTES]]);
        self.with("1", "takes and gives 1 MiB of bytes", unary("echo_bytea", Type::Bytea), |judge, signature| {
            judge.expect_same(signature, &(Arc::new(bytes) as ArrayRef))
        });
        self.with("1", "writes decimals as digits", unary("echo_numeric", Type::Numeric), |judge, signature| {
            judge.expect_same(signature, &(Arc::new(StringArray::from(DECIMALS.to_vec())) as ArrayRef))
        });
        if self.transport == TransportName::Flight {
            self.judge_layouts();
        }
        let constant = Signature::scalar("constant", Vec::new(), Type::Int4);
        self.with("1", "answers a function without arguments once per row", constant, |judge, signature| {
            let answers = judge.call(signature, vec![(3, Vec::new())])?;
            expect(&Type::Int4, &answers[0], &(Arc::new(Int32Array::from(vec![7; 3])) as ArrayRef))
        });
    }

    fn judge_echo(&mut self, name: &str, ty: &Type, mut values: Vec<Value>) {
        values.push(Value::Null);
        let case = format!("keeps every value of {ty}, and NULL");
        self.with("1", &case, unary(name, ty.clone()), |judge, signature| {
            // docs/protocol.md §5: a language that cannot hold a value says so.
            let mut held = Vec::new();
            for value in values {
                let column = read_column(ty, std::slice::from_ref(&value))?;
                match judge.exchange(&judge.client, signature, vec![(1, vec![column])]) {
                    Err(error) if error.kind() == Kind::OutOfRange && !value.is_null() => {}
                    _ => held.push(value),
                }
            }
            if held.len() < 2 {
                return Err("it cannot hold any".to_string());
            }
            judge.expect_same(signature, &read_column(ty, &held)?)
        });
    }

    /// Columns in the layouts that other engines have come back as they went.
    fn judge_layouts(&mut self) {
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("größer als zwölf Bytes"), None, Some("")]));
        let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"\0\xff"[..]), None, Some(&[7; 20][..])]));
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None, Some(-3)]),
            None,
            Some(vec![]),
        ]));
        let decimals = echo_decimals().result;
        let values = [json!({"a": "0.10", "b": ["1.5", null]}), Value::Null, json!({"a": null, "b": null})];
        let composites = read_column(&decimals, &values).expect("the suite's values are of their types");
        let large_list = DataType::LargeList(Arc::new(Field::new("item", DataType::Int32, true)));
        for (case, layouts) in [
            (
                "takes large offsets, and answers with them",
                vec![
                    ("echo_text", Type::Text, &text, DataType::LargeUtf8),
                    ("echo_bytea", Type::Bytea, &bytes, DataType::LargeBinary),
                    ("echo_array", array_of_int4(), &lists, large_list),
                    (
                        "echo_decimals",
                        decimals.clone(),
                        &composites,
                        decimals_in(DataType::LargeUtf8, DataType::LargeList),
                    ),
                ],
            ),
            (
                "takes views, and answers with them",
                vec![
                    ("echo_text", Type::Text, &text, DataType::Utf8View),
                    ("echo_bytea", Type::Bytea, &bytes, DataType::BinaryView),
                    ("echo_decimals", decimals.clone(), &composites, decimals_in(DataType::Utf8View, DataType::List)),
                ],
            ),
        ] {
            for (function, ty, column, layout) in layouts {
                let case = format!("{case}, of {ty}");
                self.with("4.1", &case, unary(function, ty), |judge, signature| {
                    judge.expect_layout(signature, column, &layout)
                });
            }
        }
    }

    fn expect_layout(&self, signature: &Signature, column: &ArrayRef, layout: &DataType) -> Finding {
        let sent = adapt(column, layout).map_err(|fact| format!("the suite is wrong: {fact}"))?;
        let schema = Arc::new(Schema::new(vec![Field::new("", layout.clone(), true)]));
        let batch = RecordBatch::try_new(schema, vec![sent]).map_err(|cause| format!("the suite is wrong: {cause}"))?;
        let answer = block_on(async { self.flight().answer(&signature.function, &batch).await });
        let answer = answer.map_err(|error| say(&error))?;
        let found = answer.columns().first().ok_or("it answered without a column")?;
        // Names and NULL rules of parts carry no meaning.
        if !found.data_type().equals_datatype(layout) {
            return Err(format!("it answered with {} to {layout}", found.data_type()));
        }
        let found = adapt(found, column.data_type()).map_err(|fact| format!("its answer cannot be read: {fact}"))?;
        expect(&signature.result, &found, column)
    }

    /// A column comes back as it went, and so does one without rows.
    pub(super) fn expect_same(&self, signature: &Signature, column: &ArrayRef) -> Finding {
        let empty = column.slice(0, 0);
        let batches = [column, &empty, column].map(|column| (column.len(), vec![column.clone()]));
        let answers = self.call(signature, batches.to_vec())?;
        for (answer, (_, sent)) in answers.iter().zip(&batches) {
            expect(&signature.result, answer, &sent[0])?;
        }
        Ok(())
    }
}

/// The type of `echo_decimals` in another layout.
fn decimals_in(text: DataType, list: fn(Arc<Field>) -> DataType) -> DataType {
    let element = Arc::new(Field::new("item", text.clone(), true));
    DataType::Struct(vec![Field::new("a", text, true), Field::new("b", list(element), true)].into())
}

fn array_of_int4() -> Type {
    Type::from_name("int4[]").expect("the suite's types are types")
}
