//! What the functions of the simulation do, what their answers must be, and what was found to be wrong.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use arrow_array::builder::{Int64Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use transship_core::{CallError, Calls, Emit, Function, Groups, Handler};
use udf_types::signature::{Argument, Signature};
use udf_types::types::Type;

/// A row whose second argument leaves this rest by [`PICKY`] is one on which picky functions raise an error.
const BAD: i64 = 13;
const PICKY: i64 = 211;

/// What a function does beside computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behaviour {
    /// Its calls are counted by their first arguments, no two of which are equal.
    pub is_counted: bool,
    /// It raises an error on some rows.
    pub is_picky: bool,
}

impl Behaviour {
    /// Every one of them.
    pub const ALL: [Behaviour; 4] = [
        Behaviour { is_counted: false, is_picky: false },
        Behaviour { is_counted: true, is_picky: false },
        Behaviour { is_counted: false, is_picky: true },
        Behaviour { is_counted: true, is_picky: true },
    ];

    /// The name of the function that does it.
    pub fn name(self) -> &'static str {
        match (self.is_counted, self.is_picky) {
            (false, false) => "plain",
            (true, false) => "counted",
            (false, true) => "picky",
            (true, true) => "counted_picky",
        }
    }

    /// Its signature.
    pub fn signature(self) -> Signature {
        let argument = |name: &str, ty| Argument { name: name.to_string(), ty };
        let arguments = vec![argument("id", Type::Int8), argument("x", Type::Int8), argument("label", Type::Text)];
        Signature::scalar(self.name(), arguments, Type::Int8)
    }

    /// Whether it raises an error on a row.
    pub fn is_bad(self, x: i64) -> bool {
        self.is_picky && x.rem_euclid(PICKY) == BAD
    }

    /// What it answers on a row.
    pub fn value(self, salt: i64, id: i64, x: i64, label: &str) -> i64 {
        let text = label.bytes().fold(0_i64, |sum, byte| sum.wrapping_mul(31).wrapping_add(i64::from(byte)));
        id.wrapping_mul(1_000_003).wrapping_add(x.wrapping_mul(7)).wrapping_add(text).wrapping_add(salt)
    }
}

/// What has happened so far.
#[derive(Debug, Clone, Default)]
pub struct Model(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    run: BTreeSet<i64>,
    wrong: Vec<String>,
    next_id: i64,
}

impl Model {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no holder panics")
    }

    /// A first argument that no other call has.
    pub fn new_id(&self) -> i64 {
        let mut seen = self.lock();
        seen.next_id += 1;
        seen.next_id
    }

    /// A function that counts is called.
    fn note_run(&self, id: i64) {
        let mut seen = self.lock();
        if !seen.run.insert(id) {
            seen.wrong.push(format!("call {id} of a VOLATILE function was made twice"));
        }
    }

    /// Whether a call was made.
    pub fn has_run(&self, id: i64) -> bool {
        self.lock().run.contains(&id)
    }

    /// Notes something that must not be.
    pub fn note_wrong(&self, fact: String) {
        self.lock().wrong.push(fact);
    }

    /// The first thing that was wrong.
    pub fn wrong(&self) -> Option<String> {
        self.lock().wrong.first().cloned()
    }

    /// The functions of an image, whose answers differ from other images' by `salt`.
    pub fn functions(&self, salt: i64) -> Vec<Function> {
        let function = |behaviour: Behaviour| {
            let handler = Simulated { behaviour, salt, model: self.clone() };
            Function::new(Arc::new(behaviour.signature()), Box::new(handler))
        };
        Behaviour::ALL.map(function).into()
    }
}

struct Simulated {
    behaviour: Behaviour,
    salt: i64,
    model: Model,
}

impl Handler for Simulated {
    fn answer(&self, calls: &Calls<'_>, emit: Emit<'_>) -> Result<(), CallError> {
        let rows = Rows::of(calls.batch);
        let (mut results, mut errors) = (Int64Builder::new(), StringBuilder::new());
        for row in 0..calls.batch.num_rows() {
            let (id, x, label) = rows.at(row);
            if self.behaviour.is_counted {
                self.model.note_run(id);
            }
            match (self.behaviour.is_bad(x), calls.row_errors) {
                (false, _) => {
                    results.append_value(self.behaviour.value(self.salt, id, x, label));
                    errors.append_null();
                }
                (true, Some(_)) => {
                    results.append_null();
                    errors.append_value(words_of_bad(x));
                }
                (true, None) => return Err(CallError::user_code(words_of_bad(x)).at(row)),
            }
        }
        let mut reply: Vec<ArrayRef> = vec![Arc::new(results.finish())];
        if calls.row_errors.is_some() {
            reply.push(Arc::new(errors.finish()));
        }
        emit(reply, true)
    }

    fn groups(&self) -> Box<dyn Groups> {
        unreachable!("no function of the simulation is an aggregate")
    }
}

/// What a picky function says of a bad row.
pub fn words_of_bad(x: i64) -> String {
    format!("{x} is bad")
}

struct Rows<'a>(&'a RecordBatch);

impl Rows<'_> {
    fn of(batch: &RecordBatch) -> Rows<'_> {
        Rows(batch)
    }

    fn at(&self, row: usize) -> (i64, i64, &str) {
        let number = |column: usize| self.0.column(column).as_primitive::<Int64Type>().value(row);
        let labels = self.0.column(2).as_string::<i32>();
        (number(0), number(1), if labels.is_null(row) { "" } else { labels.value(row) })
    }
}
