//! §1 of `docs/protocol.md`: values of every type, NULL, and batches of every shape.

use super::*;

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
