//! §4 and §5 of `docs/protocol.md`: exchanges of functions of each kind, and errors.

use super::*;

impl Judge {
    pub(super) fn judge_exchanges(&mut self) {
        let add = binary("add");
        self.with("4.3", "answers batches in order, and rows in order", add.clone(), |judge, signature| {
            judge.expect_sums(&judge.client, signature, 40)
        });
        self.with(
            "4.4",
            &format!("answers {CONCURRENT_EXCHANGES} exchanges at a time"),
            add.clone(),
            |judge, signature| {
                thread::scope(|scope| {
                    let threads: Vec<_> = (0..CONCURRENT_EXCHANGES)
                        .map(|_| {
                            scope.spawn(|| {
                                let client = Client::start().map_err(|error| say(&error))?;
                                judge.expect_sums(&client, signature, 10)
                            })
                        })
                        .collect();
                    threads
                        .into_iter()
                        .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a case failed".to_string())))
                })
            },
        );
        if !self.functions.iter().any(|name| name == "add") {
            return self.skip("4.8", "lives on when a client loses interest", "the server has no function \"add\"");
        }
        self.with("4.8", "lives on when a client loses interest", unary("wait", Type::Float8), |judge, signature| {
            let mut exchange = judge.open(signature);
            exchange.send(batch(signature, 0, 1, vec![Arc::new(Float64Array::from(vec![0.5])) as ArrayRef], None));
            thread::sleep(2 * SHORT_WAIT);
            drop(exchange);
            judge.expect_sums(&judge.client, &add, 2)?;
            // Not later than now it sees that the client has gone.
            thread::sleep(5 * SHORT_WAIT);
            judge.expect_sums(&judge.client, &add, 2)
        });
        if !self.functions.iter().any(|name| name == "rows_waited") {
            let reason = "the server has no function \"rows_waited\"";
            return self.skip("4.8", "stops when a client loses interest", reason);
        }
        if self.transport == TransportName::Parquet
            && let Err(error) = parquet::check_types(&rows_waited())
        {
            return self.skip("4.8", "stops when a client loses interest", &say(&error));
        }
        self.with("4.8", "stops when a client loses interest", unary("wait", Type::Float8), Judge::expect_stop);
    }

    /// A batch whose rows take ten seconds does not go on once its client has gone.
    fn expect_stop(&self, signature: &Signature) -> Finding {
        let counter = rows_waited();
        let count = || {
            let answers = self.call(&counter, vec![(1, Vec::new())])?;
            Ok::<i64, String>(answers[0].as_primitive::<Int64Type>().value(0))
        };
        let before = count()?;
        let mut exchange = self.open(signature);
        // More than the server has patience for.
        let seconds: ArrayRef = Arc::new(Float64Array::from(vec![0.02; 2000]));
        exchange.send(batch(signature, 0, 2000, vec![seconds], None));
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        while count()? == before {
            if Instant::now() > deadline {
                return Err("it does not begin".to_string());
            }
            thread::sleep(SHORT_WAIT);
        }
        drop(exchange);
        // docs/protocol.md §4.8: "as soon as it can, at the latest after the running row or batch function returns".
        let (dropped_at, mut counted) = (Instant::now(), count()?);
        loop {
            thread::sleep(5 * SHORT_WAIT);
            let now = count()?;
            if now == counted {
                return Ok(());
            }
            if dropped_at.elapsed() > STOP_PATIENCE {
                return Err(format!("after {} s it still called the function", STOP_PATIENCE.as_secs()));
            }
            counted = now;
        }
    }

    /// Batches of 0, 1, 2, ... rows, all sent before the first is answered.
    fn expect_sums(&self, client: &Client, signature: &Signature, count: i64) -> Finding {
        let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let rows = |number: i64| 0..number * 7 % 50;
        let batches = (0..count).map(|number| {
            let (ones, others) = rows(number).map(|row| (row * 1000, number)).unzip();
            (rows(number).count(), vec![column(ones), column(others)])
        });
        let answers = self.call_with(client, signature, batches.collect())?;
        for (number, answer) in (0..count).zip(answers) {
            expect(&Type::Int8, &answer, &column(rows(number).map(|row| row * 1000 + number).collect()))?;
        }
        Ok(())
    }

    pub(super) fn judge_kinds(&mut self) {
        let repeat = Signature { kind: FunctionKind::Table, ..unary("repeat", Type::Int4) };
        self.with("4.5", "gives a table function's results with their rows", repeat, |judge, signature| {
            let counts: ArrayRef = Arc::new(Int32Array::from(vec![Some(2), Some(0), None, Some(3)]));
            let mut exchange = judge.open(signature);
            exchange.send(batch(signature, 0, 4, vec![counts.clone()], None));
            exchange.send(batch(signature, 1, 4, vec![counts], None));
            for _ in 0..2 {
                let (mut rows, mut values) = (Vec::new(), Vec::new());
                loop {
                    let reply = exchange.receive(&PlainHost).map_err(|error| say(&error))?;
                    rows.extend(reply.columns.column(0).as_primitive::<Int32Type>().values());
                    values.extend(reply.columns.column(1).as_primitive::<Int32Type>().values());
                    if reply.is_last {
                        break;
                    }
                }
                let found = (rows.as_slice(), values.as_slice());
                if found != (&[0, 0, 3, 3, 3], &[1, 2, 1, 2, 3]) {
                    return Err(format!("rows and results are {found:?}"));
                }
            }
            Ok(())
        });
        if self.transport != TransportName::Flight {
            self.skip("4.6", "streams a map function", "there is a form for it in Flight only");
        } else {
            let sums = Signature { kind: FunctionKind::Map, ..unary("running_sum", Type::Int8) };
            self.with("4.6", "streams a map function", sums, Judge::expect_running_sums);
        }
        let total = Signature { kind: FunctionKind::Aggregate, ..unary("total", Type::Int8) };
        let clause = if self.transport == TransportName::Flight { "4.7" } else { "6" };
        self.with(clause, "keeps an aggregate function's groups, and merges them", total.clone(), Judge::expect_totals);
        self.with(clause, "forgets the groups that it is told to", total.clone(), Judge::expect_forgotten);
        self.with(clause, "keeps the groups of exchanges apart", total, Judge::expect_groups_apart);
    }

    /// Each batch's running sums, over the whole stream.
    fn expect_running_sums(&self, signature: &Signature) -> Finding {
        let mut exchange = self.open(signature);
        for number in 0..3 {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 10]));
            exchange.send(batch(signature, number, 2, vec![column], None));
        }
        exchange.close();
        let mut found = Vec::new();
        loop {
            match exchange.receive_from_map(&PlainHost).map_err(|error| say(&error))? {
                MapEvent::Results(reply) => {
                    found.extend_from_slice(reply.columns.column(0).as_primitive::<Int64Type>().values())
                }
                MapEvent::Taken => {}
                MapEvent::End => break,
            }
        }
        if found == [1, 11, 12, 22, 23, 33] { Ok(()) } else { Err(format!("its results are {found:?}")) }
    }

    /// Two groups that grow, give their states, take each other's, and are asked for again.
    fn expect_totals(&self, signature: &Signature) -> Finding {
        let mut groups = Groups::open(self, signature);
        groups.accumulate(&[0, 1, 0], &[5, 7, 6])?;
        groups.expect_results(&[1, 0], &[7, 11])?;
        let states = groups.step(&[0], None, None, AggregateStep::State)?;
        groups.step(&[1], None, Some(states.column(1).clone()), AggregateStep::Merge)?;
        groups.step(&[0], None, None, AggregateStep::Forget)?;
        groups.expect_results(&[1], &[18])
    }

    /// A group that is named again after it was forgotten begins again; another one does not.
    fn expect_forgotten(&self, signature: &Signature) -> Finding {
        let mut groups = Groups::open(self, signature);
        groups.accumulate(&[0, 1], &[5, 7])?;
        groups.step(&[0], None, None, AggregateStep::Forget)?;
        groups.accumulate(&[0, 1], &[3, 1])?;
        groups.expect_results(&[0, 1], &[3, 8])
    }

    /// Groups of the same numbers, in exchanges at the same time and in a later one.
    fn expect_groups_apart(&self, signature: &Signature) -> Finding {
        let (mut first, mut second) = (Groups::open(self, signature), Groups::open(self, signature));
        first.accumulate(&[0], &[100])?;
        second.accumulate(&[0], &[1])?;
        first.expect_results(&[0], &[100])?;
        second.expect_results(&[0], &[1])?;
        drop((first, second));
        let mut third = Groups::open(self, signature);
        third.accumulate(&[0], &[2])?;
        third.expect_results(&[0], &[2])
    }

    pub(super) fn judge_row_errors(&mut self) {
        if !self.has_row_errors {
            return;
        }
        for row_errors in [RowErrors::Once, RowErrors::Again] {
            for (function, whose) in [("fail_at", "the handler"), ("fail_in_batch", "a handler of batches")] {
                let case = format!("goes on after rows on which {whose} raises an error, run {}", row_errors.name());
                let fail = Signature { row_errors: Some(row_errors), ..unary(function, Type::Int8) };
                self.with("4.9", &case, fail, Judge::expect_row_errors);
            }
        }
    }

    /// Batches with errors in the first, the last, no and every row.
    fn expect_row_errors(&self, signature: &Signature) -> Finding {
        let column = |values: &[Option<i64>]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let batches: [&[i64]; 5] = [&[13, 1, 2], &[1, 13, 13], &[4, 5], &[13], &[7]];
        let mut exchange = self.open(signature);
        for (number, values) in (0..).zip(batches) {
            let values: Vec<_> = values.iter().copied().map(Some).collect();
            exchange.send(batch(signature, number, values.len(), vec![column(&values)], None));
        }
        for values in batches {
            let reply = exchange.receive(&PlainHost).map_err(|error| say(&error))?;
            let results: Vec<_> = values.iter().map(|value| Some(*value).filter(|value| *value != 13)).collect();
            expect(&Type::Int8, reply.columns.column(0), &column(&results))?;
            let errors = reply.columns.column(1).as_string::<i32>();
            let are_right = errors.iter().zip(&results).all(|(error, result)| match result {
                Some(_) => error.is_none(),
                None => error.is_some_and(|text| text.contains("13 is bad") && !text.contains('\n')),
            });
            if !are_right {
                return Err(format!("its errors for {values:?} are {:?}", errors.iter().collect::<Vec<_>>()));
            }
        }
        Ok(())
    }

    pub(super) fn judge_lines(&mut self) {
        if self.has_lines {
            let case = "sends each client the lines of its own calls";
            self.with("4.11", case, unary("write_line", Type::Text), Judge::expect_lines);
        }
    }

    /// Of two exchanges at a time, each has its own lines, and one that does not ask has none.
    fn expect_lines(&self, signature: &Signature) -> Finding {
        let column = |text: &str| vec![Arc::new(StringArray::from(vec![text, "end"])) as ArrayRef];
        let texts = ["first", "größer 🚢\ttab", "not asked for"];
        let mut exchanges: Vec<_> = texts.iter().map(|text| self.open_asking(signature, *text != texts[2])).collect();
        for (exchange, text) in exchanges.iter_mut().zip(texts) {
            exchange.send(batch(signature, 0, 2, column(text), None));
        }
        for (exchange, text) in exchanges.iter_mut().zip(texts) {
            let reply = exchange.receive(&PlainHost).map_err(|error| say(&error))?;
            expect(&Type::Text, reply.columns.column(0), &column(text)[0])?;
            let expected: &[&str] = if text == texts[2] { &[] } else { &[text, "end"] };
            let found = exchange.take_lines();
            if found != expected {
                return Err(format!("its lines are {found:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn judge_errors(&mut self) {
        let fail = unary("fail_at", Type::Int8);
        self.with("5", "tells the batch, the row and the text of an exception", fail, |judge, signature| {
            let column = |values: Vec<i64>| vec![Arc::new(Int64Array::from(values)) as ArrayRef];
            let mut exchange = judge.open(signature);
            exchange.send(batch(signature, 0, 2, column(vec![1, 2]), None));
            exchange.send(batch(signature, 1, 3, column(vec![1, 2, 13]), None));
            exchange
                .receive(&PlainHost)
                .map_err(|error| format!("the batch before the exception failed: {}", say(&error)))?;
            match exchange.receive(&PlainHost) {
                Ok(_) => Err("there was none".to_string()),
                Err(error) if error.kind() != Kind::UserCode => {
                    Err(format!("it is of kind {:?}: {}", error.kind(), say(&error)))
                }
                // As a status, or without a kind, it could be a gateway's.
                Err(error) if !error.is_of_handler() => Err("its kind is not said".to_string()),
                Err(error) if error.row() != Some(2) => Err(format!("the row is {:?}", error.row())),
                Err(error) if !error.message().contains("13 is bad") => Err(format!("the text is {}", error.message())),
                Err(error) if error.detail().is_none() => Err("there is no traceback".to_string()),
                Err(_) => Ok(()),
            }
        });
        if self.transport == TransportName::Flight {
            let fail = unary("fail_at", Type::Int8);
            self.with("5", "ends the exchange with an error", fail, Judge::expect_end);
        }
        let echo = unary("echo_int4", Type::Int4);
        self.with("5", "refuses arguments of other types, and lives on", echo, |judge, signature| {
            // The result's type is right: a server may say it before it reads the first batch.
            let wrong = Signature { result: Type::Int4, ..unary("echo_int4", Type::Text) };
            let column: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
            let refused = judge.exchange(&judge.client, &wrong, vec![(1, vec![column])]);
            match refused {
                Err(error) if error.kind() == Kind::ProtocolViolation => {}
                Err(error) => return Err(format!("it is of kind {:?}: {}", error.kind(), say(&error))),
                Ok(_) => return Err("it answered".to_string()),
            }
            judge.expect_same(signature, &(Arc::new(Int32Array::from(vec![1])) as ArrayRef))
        });
        let unknown = unary("no such function", Type::Int4);
        let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        let finding = match self.exchange(&self.client, &unknown, vec![(1, vec![column])]) {
            Err(error) if error.kind() == Kind::FunctionNotFound => Ok(()),
            Err(error) => Err(format!("it is of kind {:?}: {}", error.kind(), say(&error))),
            Ok(_) => Err("it answered".to_string()),
        };
        self.note("5", "refuses to call an unrecognized function", finding);
        if self.transport == TransportName::Flight {
            let finding = self.expect_refusal_without_batches(&unknown);
            self.note("5", "refuses an exchange of an unrecognized function that has no batches", finding);
        }
    }

    /// The exchange of an unrecognized function fails even if nothing is called.
    fn expect_refusal_without_batches(&self, unknown: &Signature) -> Finding {
        let schema = unknown.call_schema();
        match block_on(async { self.flight().converse(&unknown.function, &schema, &[]).await }) {
            Err(error) if error.kind() == Kind::FunctionNotFound => Ok(()),
            Err(error) => Err(format!("it is of kind {:?}: {}", error.kind(), say(&error))),
            Ok(found) => match found.iter().find_map(|metadata| metadata.pointer("/error/kind")) {
                Some(kind) if kind == "function_not_found" => Ok(()),
                Some(kind) => Err(format!("it is of kind {kind}")),
                None => Err("it ended as if all were well".to_string()),
            },
        }
    }

    /// Of three batches, of which the second fails, the first is answered, and the last is not.
    fn expect_end(&self, signature: &Signature) -> Finding {
        let columns = [1, 13, 2].map(|value| {
            let column: ArrayRef = Arc::new(Int64Array::from(vec![value]));
            batch(signature, 0, 1, vec![column], None).columns
        });
        let schema = signature.call_schema();
        let found = block_on(async { self.flight().converse(&signature.function, &schema, &columns).await });
        let found = found.map_err(|error| say(&error))?;
        let batches: Vec<_> = found.iter().map(|metadata| metadata["batch"].as_u64()).collect();
        if batches != [Some(0), Some(1)] || found[1].get("error").is_none() {
            return Err(format!("its messages are {}", Value::from(found)));
        }
        Ok(())
    }
}

fn rows_waited() -> Signature {
    Signature::scalar("rows_waited", Vec::new(), Type::Int8)
}

/// An aggregate function's exchange, step by step.
struct Groups<'a> {
    exchange: Exchange,
    signature: &'a Signature,
    next_number: u64,
}

impl Groups<'_> {
    fn open<'a>(judge: &Judge, signature: &'a Signature) -> Groups<'a> {
        Groups { exchange: judge.open(signature), signature, next_number: 0 }
    }

    fn step(
        &mut self,
        groups: &[i64],
        values: Option<&[i64]>,
        states: Option<ArrayRef>,
        step: AggregateStep,
    ) -> std::result::Result<RecordBatch, String> {
        let rows = groups.len();
        let values = values.map_or_else(|| vec![None; rows], |values| values.iter().copied().map(Some).collect());
        let states = states.unwrap_or_else(|| Arc::new(BinaryArray::from(vec![None::<&[u8]>; rows])));
        let columns =
            vec![Arc::new(Int64Array::from(groups.to_vec())) as ArrayRef, Arc::new(Int64Array::from(values)), states];
        self.exchange.send(batch(self.signature, self.next_number, rows, columns, Some(step)));
        self.next_number += 1;
        self.exchange.receive(&PlainHost).map(|reply| reply.columns).map_err(|error| say(&error))
    }

    fn accumulate(&mut self, groups: &[i64], values: &[i64]) -> Finding {
        self.step(groups, Some(values), None, AggregateStep::Accumulate).map(|_| ())
    }

    fn expect_results(&mut self, groups: &[i64], results: &[i64]) -> Finding {
        let finished = self.step(groups, None, None, AggregateStep::Finish)?;
        expect(&Type::Int8, finished.column(0), &(Arc::new(Int64Array::from(results.to_vec())) as ArrayRef))
    }
}
