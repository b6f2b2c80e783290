//! A shared table that a language has opened, and what it is told of the columns.

use std::ffi::CString;
use std::sync::{Arc, OnceLock};

use arrow_schema::ffi::FFI_ArrowSchema;
use udf_types::error::Result;
use udf_types::types::Type;

use crate::ffi::{Failure, c_text};
use crate::plain::plain_type;
use crate::tables::Table;

/// `transship_table`.
pub struct OpenTable {
    pub(crate) table: Arc<Table>,
    /// The columns as a language without Arrow is told of them, once it asks.
    columns: OnceLock<Arc<[TableColumn]>>,
}

pub(crate) fn failed(cause: impl std::fmt::Display) -> Failure {
    Failure::Failed(cause.to_string())
}

/// A column of a table.
pub(crate) struct TableColumn {
    pub(crate) name: CString,
    ty: Result<Type>,
    pub(crate) type_name: CString,
    pub(crate) format: u8,
    /// Its place in the key, counted from 0; -1 if it is not in it.
    pub(crate) key: i32,
}

impl TableColumn {
    fn of(table: &Table, number: usize) -> TableColumn {
        let field = table.schema().field(number);
        let ty = Type::from_field(field);
        let type_name = ty.as_ref().map_or_else(|_| String::new(), Type::to_string);
        // A format in the C data interface is a letter for each of the four types.
        let schema = ty.as_ref().ok().and_then(|ty| FFI_ArrowSchema::try_from(&plain_type(ty)).ok());
        let format = schema.and_then(|schema| schema.format().bytes().next()).unwrap_or_default();
        let key = table.key().iter().position(|position| *position == number);
        let key = key.and_then(|key| i32::try_from(key).ok()).unwrap_or(-1);
        TableColumn { name: c_text(field.name()), ty, type_name: c_text(&type_name), format, key }
    }

    pub(crate) fn ty(&self) -> std::result::Result<&Type, Failure> {
        self.ty.as_ref().map_err(|cause| Failure::Failed(format!("column {:?}: {cause}", self.name)))
    }
}

impl OpenTable {
    pub(crate) fn new(table: Arc<Table>) -> OpenTable {
        OpenTable { table, columns: OnceLock::new() }
    }

    /// The columns as a language without Arrow is told of them.
    pub(crate) fn columns(&self) -> &Arc<[TableColumn]> {
        let count = self.table.schema().fields().len();
        self.columns.get_or_init(|| (0..count).map(|number| TableColumn::of(&self.table, number)).collect())
    }
}
