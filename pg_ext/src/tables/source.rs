//! Where the rows of a shared table come from: a query, a file of this host, or a statement that has inserted them.

use std::ffi::{CStr, CString, c_char};
use std::fs::{File, Metadata, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use nix::fcntl::OFlag;
use pgrx::pg_sys;
use udf_client::file_rows::FileRows;
use udf_codec::batch::BatchBuilder;
use udf_types::terminal::quoted;
use udf_types::types::Type;
use udf_types::{Error, Kind, Result};

use super::followed_rows::FollowedRows;
use crate::datum::{SqlType, from_arrow, to_arrow};
use crate::host::Backend;
use crate::pg::memory::{OwnedContext, within};
use crate::pg::text;
use crate::query::{Query, QueryColumn};
use crate::{report, settings};

/// What the text of a file begins with. No query does.
const SCHEME: &str = "file:";

/// Rows, one after the other.
pub(super) enum Source {
    Query(Query),
    File(Box<FileSource>),
    Followed(FollowedRows),
}

impl Source {
    /// Starts a query or opens a file, and connects SPI for it. Raises an error if it has columns of types that cannot be mapped, or
    /// the user may not read it; `caller` is the SQL function that needs it.
    ///
    /// # Safety
    /// The text ends in NUL. SPI's state is cleaned up by PostgreSQL if an error ends the statement.
    pub unsafe fn open(source: *const c_char, caller: &str) -> Source {
        // SAFETY: the caller says so.
        unsafe {
            let said = text::from_c(source);
            match path_of(said.trim()) {
                None => Source::Query(Query::open(source, caller)),
                Some(path) => Source::File(Box::new(FileSource::open(&report::unwrap(path)))),
            }
        }
    }

    /// The columns.
    pub fn columns(&self) -> &[QueryColumn] {
        match self {
            Source::Query(query) => query.columns(),
            Source::File(file) => &file.columns,
            Source::Followed(rows) => rows.columns(),
        }
    }

    /// Adds the next rows to a builder that was made for the columns' types, and calls `after` after each; how many.
    ///
    /// # Safety
    /// SPI is connected as [`Source::open`] has left it.
    pub unsafe fn fetch(&mut self, builder: &mut BatchBuilder, after: impl FnMut(&mut BatchBuilder)) -> usize {
        match self {
            // SAFETY: the caller says so.
            Source::Query(query) => unsafe { query.fetch(builder, usize::MAX, after) },
            Source::File(file) => report::unwrap(file.fetch(builder, after)),
            Source::Followed(rows) => rows.fetch(builder, after),
        }
    }

    /// Ends it, and the connection of SPI that it has.
    pub fn close(self) {
        match self {
            Source::Query(query) => query.close(),
            // SAFETY: SPI is connected.
            Source::File(_) => unsafe {
                pg_sys::SPI_finish();
            },
            Source::Followed(rows) => rows.close(),
        }
    }
}

/// The path that a source names; none of a query.
fn path_of(source: &str) -> Option<Result<String>> {
    let address = source.get(..SCHEME.len()).filter(|scheme| scheme.eq_ignore_ascii_case(SCHEME))?;
    let path = &source[address.len()..];
    let path = path.strip_prefix("//").unwrap_or(path);
    // As in COPY, it is the server's folder that a relative path would be in.
    Some(match path.starts_with('/') && !path.starts_with("//") && !path.contains('\0') {
        true => Ok(path.to_string()),
        false => Err(Error::invalid_definition(format!("\"{source}\" names no file"))
            .with_hint("Write file:// and the absolute path of a file on the server's host.")),
    })
}

/// A file, whose rows a process of the manager's decodes. They are read as values of their types, as those of a container are, so that
/// what PostgreSQL cannot hold is found now.
pub(super) struct FileSource {
    rows: FileRows,
    file: File,
    /// What it was when it was opened.
    before: Metadata,
    columns: Vec<QueryColumn>,
    values_context: OwnedContext,
}

impl FileSource {
    fn open(path: &str) -> FileSource {
        // SAFETY: SPI's state and memory are cleaned up by PostgreSQL; the role exists in every database.
        unsafe {
            if !pg_sys::has_privs_of_role(pg_sys::GetUserId(), pg_sys::Oid::from(pg_sys::ROLE_PG_READ_SERVER_FILES)) {
                let error = Error::new(Kind::NotAllowed, format!("permission denied to read file \"{path}\""));
                let hint = "Only superusers and members of pg_read_server_files may read files of the server's host.";
                report::raise_error(&error.with_hint(hint), None);
            }
            let (file, before) = report::unwrap(open_file(path));
            let rows = report::unwrap(FileRows::open(&Backend, &settings::manager_socket(), file.as_fd(), path));
            let columns = rows.columns().iter().map(|(name, ty)| column_of(name, ty)).collect::<Result<_>>();
            let columns = report::unwrap(columns);
            pg_sys::SPI_connect();
            FileSource { rows, file, before, columns, values_context: OwnedContext::new(pg_sys::CurrentMemoryContext) }
        }
    }

    fn fetch(&mut self, builder: &mut BatchBuilder, mut after: impl FnMut(&mut BatchBuilder)) -> Result<usize> {
        let batch = loop {
            match self.rows.next(&Backend)? {
                None => return self.check_unchanged().map(|()| 0),
                Some(batch) if batch.num_rows() > 0 => break batch,
                // No rows are not the end of them.
                Some(_) => {
                    pgrx::check_for_interrupts!();
                }
            }
        };
        for row in 0..batch.num_rows() {
            // SAFETY: the builder's columns have the types; values live until the context is reset.
            unsafe {
                within(self.values_context.as_ptr(), || {
                    for (i, column) in self.columns.iter().enumerate() {
                        let datum = from_arrow::datum(&column.sql_type, batch.column(i), row);
                        let datum = datum.map_err(|what| {
                            self.rows.failed(Kind::OutOfRange, &format!("Column \"{}\" holds {what}.", column.name))
                        })?;
                        let value = datum.unwrap_or(pg_sys::Datum::from(0usize));
                        to_arrow::append(builder.column(i), &column.sql_type, value, datum.is_none());
                    }
                    Ok(())
                })?;
            }
            self.values_context.reset();
            builder.finish_row();
            after(builder);
        }
        pgrx::check_for_interrupts!();
        Ok(batch.num_rows())
    }

    /// Refuses a file that somebody has written to meanwhile: some of the rows would be old ones.
    fn check_unchanged(&self) -> Result<()> {
        let now = self.file.metadata().map_err(|cause| self.rows.failed(Kind::OutOfRange, &format!("{cause}.")))?;
        let state = |data: &Metadata| (data.len(), data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec());
        match state(&now) == state(&self.before) {
            true => Ok(()),
            false => Err(self.rows.failed(Kind::OutOfRange, "It was changed while it was read.")),
        }
    }
}

fn open_file(path: &str) -> Result<(File, Metadata)> {
    let opened = || {
        // A pipe without a writer would be waited for.
        let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    let (file, metadata) = opened().map_err(|cause: std::io::Error| {
        let message = format!("could not open file \"{path}\"");
        Error::invalid_definition(message).with_detail(format!("The system said: {cause}."))
    })?;
    if !metadata.is_file() {
        return Err(Error::invalid_definition(format!("\"{path}\" is not a file")));
    }
    Ok((file, metadata))
}

/// The column that a table of the file's has.
fn column_of(name: &str, ty: &Type) -> Result<QueryColumn> {
    let refuse = |fact: &str| {
        Error::invalid_definition(format!("column \"{}\" cannot be a column of a table", quoted(name)))
            .with_detail(fact)
    };
    if name.is_empty() || name.contains('\0') {
        return Err(refuse("Its name is empty, or has zeros."));
    }
    let in_database = CString::new(name).unwrap_or_default();
    // SAFETY: what it becomes ends in NUL.
    let in_database = unsafe { CStr::from_ptr(text::to_server(&in_database)).to_bytes().len() };
    if in_database >= pg_sys::NAMEDATALEN as usize {
        return Err(refuse(&format!(
            "Its name has {in_database} bytes, and at most {} are kept.",
            pg_sys::NAMEDATALEN - 1
        )));
    }
    let base = match ty {
        Type::Array(element) => element,
        ty => ty,
    };
    if base.entry().is_none() {
        return Err(Error::unsupported_type(&quoted(&ty.to_string())));
    }
    // Of PostgreSQL's own, whatever else a schema has under that name.
    let type_name = CString::new(format!("pg_catalog.{ty}")).unwrap_or_default();
    let (mut declared, mut typmod) = (pg_sys::InvalidOid, -1);
    // SAFETY: the text ends in NUL; the results are written to locals.
    let collation = unsafe {
        #[cfg(feature = "pg15")]
        pg_sys::parseTypeString(type_name.as_ptr(), &mut declared, &mut typmod, false);
        #[cfg(not(feature = "pg15"))]
        pg_sys::parseTypeString(type_name.as_ptr(), &mut declared, &mut typmod, std::ptr::null_mut());
        pg_sys::get_typcollation(declared)
    };
    Ok(QueryColumn { name: name.to_string(), declared, typmod, collation, sql_type: SqlType::new(declared)? })
}
