//! §2 and §3 of `docs/protocol.md`: the handshake, and what functions are described as.

use super::*;

impl Judge {
    pub(super) fn judge_handshake(&mut self) {
        let hello = block_on(async { connect::to_endpoint(&self.endpoint, &self.credentials).hello().await });
        let finding = match &hello {
            Err(error) => Err(say(error)),
            Ok(info) if info.protocol != PROTOCOL_VERSION => Err(format!("it says protocol {}", info.protocol)),
            Ok(info) if info.server.is_empty() => Err("it does not say what server it is".to_string()),
            Ok(info) if info.functions.is_empty() => Err("it names no functions".to_string()),
            Ok(_) => Ok(()),
        };
        self.note("2", "says who it is and what it offers", finding);
        if let Ok(info) = hello {
            self.takes_constants = info.constants;
            self.has_tables = info.tables;
            self.has_row_errors = info.row_errors;
            self.has_lines = info.lines;
            self.functions = info.functions;
        }
        if self.is_known() && self.transport == TransportName::Flight {
            let answer = block_on(async { self.flight().act("protocol_version").await });
            let finding = match answer {
                Ok(body) if body == [2] => Ok(()),
                Ok(body) => Err(format!("it answered {body:?}")),
                Err(error) => Err(say(&error)),
            };
            self.note("2", "answers protocol_version as arrow-udf does", finding);
        }
    }

    // §3

    pub(super) fn judge_signatures(&mut self) {
        let names = self.functions.clone();
        let wrong: Vec<String> = names
            .iter()
            .filter_map(|name| self.signature(name).err().map(|error| format!("\"{name}\": {}", say(&error))))
            .collect();
        let finding = if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) };
        self.note("3", &format!("describes its {} functions", names.len()), finding);
        let finding = match self.signature("no such function") {
            Err(error) if error.kind() == Kind::FunctionNotFound => Ok(()),
            Err(error) => Err(say(&error)),
            Ok(signature) => Err(format!("it describes it as {signature}")),
        };
        self.note("3", "does not know an unrecognized function", finding);
        for (name, kind, ty) in [
            ("repeat", FunctionKind::Table, Type::Int4),
            ("running_sum", FunctionKind::Map, Type::Int8),
            ("total", FunctionKind::Aggregate, Type::Int8),
        ] {
            let case = format!("says that \"{name}\" is of kind {}", kind.name());
            if !names.iter().any(|offered| offered == name) {
                self.skip("3", &case, &format!("the server has no function \"{name}\""));
                continue;
            }
            // One with these types would be the suite's, if it were of that kind.
            let expected = Signature { kind, ..unary(name, ty) };
            match self.signature(name) {
                Ok(offered) if Signature { kind, ..offered.clone() }.check_against(&expected, "").is_err() => {
                    self.skip("3", &case, &format!("the server's is {offered}, the suite's {expected}"));
                }
                Ok(offered) if offered.kind != kind => {
                    self.note("3", &case, Err(format!("it describes it as {offered}")));
                }
                Ok(_) => self.note("3", &case, Ok(())),
                Err(error) => self.note("3", &case, Err(say(&error))),
            }
        }
        if self.transport == TransportName::Flight {
            let finding = self.expect_list(&names);
            self.note("3", "lists its functions as it describes them", finding);
        }
    }

    /// What `ListFlights` says of each function is what `GetFlightInfo` does.
    fn expect_list(&self, names: &[String]) -> Finding {
        let described = |name: &str| block_on(async { self.flight().info(name).await }).map_err(|error| say(&error));
        let listed = block_on(async { self.flight().list().await }).map_err(|error| say(&error))?;
        if let Some(other) = listed.iter().find(|described| !names.contains(&described.function)) {
            return Err(format!("it lists \"{}\", which the greeting lacks", other.function));
        }
        for name in names {
            let mut entries = listed.iter().filter(|described| described.function == *name);
            let (Some(entry), None) = (entries.next(), entries.next()) else {
                return Err(format!("it does not list \"{name}\" once"));
            };
            let described = described(name)?;
            if *entry != described {
                return Err(format!("it lists \"{name}\" otherwise than it describes it"));
            }
            if described.endpoints > 0 {
                return Err(format!("it gives \"{name}\" {} endpoints", described.endpoints));
            }
        }
        Ok(())
    }
}
