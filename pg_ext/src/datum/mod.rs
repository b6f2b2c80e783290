//! PostgreSQL's types to the type table, and values both ways.

pub mod argument_columns;
pub mod from_arrow;
pub mod result_column;
pub mod to_arrow;

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::Arc;

use pgrx::{PgTupleDesc, pg_sys};
use udf_types::limits::MAX_DEPTH;
use udf_types::types::{Attribute, Type};
use udf_types::{Error, Kind, Result};

use crate::pg::catalog::{extension_of_type, type_name};
use crate::pg::text;

/// Parts that a type may be made of, attributes of attributes included.
const MOST_PARTS: usize = 10_000;
/// Days from 1970-01-01, Arrow's epoch, to 2000-01-01, PostgreSQL's.
const EPOCH_DAYS: i32 = 10_957;
/// The same in microseconds.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

/// A SQL type, and how its values are read and written; looked up once per function.
#[derive(Debug)]
pub struct SqlType {
    /// The type, looked through domains.
    pub oid: pg_sys::Oid,
    /// What its values travel as.
    pub ty: Type,
    /// How values are converted.
    pub form: Form,
    /// Precision or length, where an attribute or a domain has one.
    typmod: i32,
    /// The input function and its parameter, for values made from text.
    input: (pg_sys::Oid, pg_sys::Oid),
    /// The domain whose constraints a value must meet.
    domain: Option<Domain>,
}

/// How values of a type are converted.
#[derive(Debug)]
pub enum Form {
    /// By the column's type alone.
    Plain,
    /// The value's bytes are its text.
    Text,
    /// Text through the type's output and input functions.
    Output(pg_sys::Oid),
    /// pgvector's vector, through its text.
    Vector(pg_sys::Oid),
    /// An array.
    Array(ArrayForm),
    /// A composite type; none for an attribute that was dropped.
    Composite { typmod: i32, attributes: Vec<Option<SqlType>> },
    /// A range.
    Range(Box<SqlType>),
}

/// An array's element.
#[derive(Debug)]
pub struct ArrayForm {
    element: Box<SqlType>,
    /// The element's declared type: of a domain the domain itself.
    element_oid: pg_sys::Oid,
    length: i16,
    is_by_value: bool,
    alignment: std::ffi::c_char,
}

/// A domain, and what PostgreSQL remembers of its constraints.
#[derive(Debug)]
struct Domain {
    oid: pg_sys::Oid,
    memory: Cell<*mut std::ffi::c_void>,
    /// Whether a value is being checked. What its constraints call may have others checked, which must not take its place.
    is_in_use: Cell<bool>,
}

/// A composite type as it was when it was looked up: PostgreSQL gives it a new number when it changes.
pub type CompositeVersion = (pg_sys::Oid, i32, u64);

impl SqlType {
    /// The SQL type with this oid.
    pub fn new(oid: pg_sys::Oid) -> Result<SqlType> {
        SqlType::at_depth(oid, -1, 0)
    }

    /// Whether every value of the type it travels as is one of this type, as it is.
    pub fn has_any_value(&self) -> bool {
        self.domain.is_none() && self.typmod < 0
    }

    /// Whether a container's results of this type may go on as arguments without becoming SQL values: a value, or each attribute of a
    /// row, is the same afterwards.
    pub fn may_go_on(&self) -> bool {
        let goes_on = |part: &SqlType| part.has_any_value() && travels_unchanged(part.oid);
        match &self.form {
            Form::Composite { attributes, .. } => self.has_any_value() && attributes.iter().flatten().all(goes_on),
            _ => goes_on(self),
        }
    }

    /// Whether a value stays the same, whatever happens to other types and settings: none is of a domain, whose constraints change,
    /// has attributes, is known by a label, or is read as a setting says.
    pub fn is_self_contained(&self) -> bool {
        self.domain.is_none()
            && match &self.form {
                Form::Plain => true,
                Form::Text => self.oid != pg_sys::XMLOID,
                // SAFETY: a lookup of a type that exists.
                Form::Output(_) => unsafe { !pg_sys::type_is_enum(self.oid) },
                Form::Array(form) => form.element.is_self_contained(),
                Form::Vector(_) | Form::Composite { .. } | Form::Range(_) => false,
            }
    }

    /// Whether its texts are padded with blanks, which other types of text keep, and a cast to them takes away.
    pub fn is_padded(&self) -> bool {
        match &self.form {
            Form::Array(form) => form.element.is_padded(),
            _ => self.oid == pg_sys::BPCHAROID,
        }
    }

    /// How many types it is made of, itself included.
    fn parts(&self) -> usize {
        1 + match &self.form {
            Form::Array(form) => form.element.parts(),
            Form::Range(element) => element.parts(),
            Form::Composite { attributes, .. } => attributes.iter().flatten().map(SqlType::parts).sum(),
            _ => 0,
        }
    }

    /// Of a type `(value T, error text)` the type T.
    pub fn reported(&self) -> Option<&SqlType> {
        let Form::Composite { attributes, .. } = &self.form else { return None };
        let names: Vec<_> = self.ty.attributes().iter().map(|attribute| attribute.name.clone()).collect();
        let mut attributes = attributes.iter().flatten();
        match (attributes.next(), attributes.next(), attributes.next()) {
            (Some(value), Some(error), None) if names == ["value", "error"] => {
                (error.oid == pg_sys::TEXTOID && error.domain.is_none()).then_some(value)
            }
            _ => None,
        }
    }

    /// The composite type that a tuple descriptor describes.
    ///
    /// # Safety
    /// `descriptor` is valid and blessed.
    pub unsafe fn of_record(descriptor: pg_sys::TupleDesc) -> Result<SqlType> {
        // SAFETY: the caller says so.
        let (oid, typmod) = unsafe { ((*descriptor).tdtypeid, (*descriptor).tdtypmod) };
        // SAFETY: as above.
        unsafe { SqlType::composite(oid, typmod, descriptor, 0) }
    }

    fn at_depth(declared: pg_sys::Oid, typmod: i32, depth: usize) -> Result<SqlType> {
        let refused = || {
            let message = format!("type {} is not supported by container functions", type_name(declared));
            Error::new(Kind::UnsupportedType, message)
        };
        if depth > MAX_DEPTH {
            return Err(refused().with_detail("It is nested too deeply."));
        }
        let mut typmod = typmod;
        // SAFETY: a lookup of a type that exists, since something is declared with it.
        let oid = unsafe { pg_sys::getBaseTypeAndTypmod(declared, &mut typmod) };
        let domain = (oid != declared).then(|| Domain {
            oid: declared,
            memory: Cell::new(std::ptr::null_mut()),
            is_in_use: Cell::new(false),
        });
        let plain = |ty| Ok((ty, Form::Plain));
        let output = |ty| Ok((ty, Form::Output(output_function(oid))));
        let (ty, form) = match oid {
            pg_sys::BOOLOID => plain(Type::Bool),
            pg_sys::INT2OID => plain(Type::Int2),
            pg_sys::INT4OID => plain(Type::Int4),
            pg_sys::INT8OID => plain(Type::Int8),
            pg_sys::FLOAT4OID => plain(Type::Float4),
            pg_sys::FLOAT8OID => plain(Type::Float8),
            pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID | pg_sys::XMLOID => Ok((Type::Text, Form::Text)),
            pg_sys::JSONOID => Ok((Type::Json, Form::Text)),
            pg_sys::NAMEOID => output(Type::Text),
            pg_sys::JSONBOID => output(Type::Json),
            pg_sys::NUMERICOID => output(Type::Numeric),
            pg_sys::TIMETZOID => output(Type::TimeTz),
            pg_sys::INETOID => output(Type::Inet),
            pg_sys::CIDROID => output(Type::Cidr),
            pg_sys::MACADDROID => output(Type::MacAddr),
            pg_sys::BYTEAOID => plain(Type::Bytea),
            pg_sys::DATEOID => plain(Type::Date),
            pg_sys::TIMEOID => plain(Type::Time),
            pg_sys::TIMESTAMPOID => plain(Type::Timestamp),
            pg_sys::TIMESTAMPTZOID => plain(Type::TimestampTz),
            pg_sys::INTERVALOID => plain(Type::Interval),
            pg_sys::UUIDOID => plain(Type::Uuid),
            _ => SqlType::built(oid, typmod, depth),
        }
        .map_err(|error: Option<Error>| error.unwrap_or_else(|| refused().with_hint(advice(oid))))?;
        Ok(SqlType { oid, ty, form, typmod, input: input_function(oid), domain })
    }

    /// Enums, arrays, ranges, composite types and pgvector's vector; an error of none says that it is none of these. An array's type
    /// modifier is its elements'.
    fn built(oid: pg_sys::Oid, typmod: i32, depth: usize) -> std::result::Result<(Type, Form), Option<Error>> {
        // SAFETY: lookups of a type that exists. The tuple descriptor is released when it was read.
        unsafe {
            let element_oid = pg_sys::get_element_type(oid);
            if element_oid != pg_sys::InvalidOid {
                let element = SqlType::at_depth(element_oid, typmod, depth + 1)?;
                let (mut length, mut is_by_value, mut alignment) = (0, false, 0);
                pg_sys::get_typlenbyvalalign(element_oid, &mut length, &mut is_by_value, &mut alignment);
                let ty = Type::Array(Arc::new(element.ty.clone()));
                let form = ArrayForm { element: Box::new(element), element_oid, length, is_by_value, alignment };
                return Ok((ty, Form::Array(form)));
            }
            let typtype = pg_sys::get_typtype(oid) as u8;
            match typtype {
                pg_sys::TYPTYPE_ENUM => Ok((Type::Text, Form::Output(output_function(oid)))),
                pg_sys::TYPTYPE_RANGE => {
                    let element = SqlType::at_depth(pg_sys::get_range_subtype(oid), -1, depth + 1)?;
                    Ok((Type::Range(Arc::new(element.ty.clone())), Form::Range(Box::new(element))))
                }
                pg_sys::TYPTYPE_COMPOSITE => {
                    let descriptor = pg_sys::lookup_rowtype_tupdesc_copy(oid, -1);
                    let found = SqlType::composite(oid, -1, descriptor, depth)?;
                    Ok((found.ty, found.form))
                }
                _ if type_name(oid).ends_with("vector") && extension_of_type(oid).as_deref() == Some("vector") => {
                    Ok((Type::Array(Arc::new(Type::Float4)), Form::Vector(output_function(oid))))
                }
                _ => Err(None),
            }
        }
    }

    unsafe fn composite(oid: pg_sys::Oid, typmod: i32, descriptor: pg_sys::TupleDesc, depth: usize) -> Result<SqlType> {
        // SAFETY: the caller passes a valid descriptor, which is copied.
        let descriptor = unsafe { PgTupleDesc::from_pg_copy(descriptor) };
        let (mut named, mut attributes, mut parts) = (Vec::new(), Vec::new(), 0);
        for attribute in descriptor.iter() {
            if attribute.attisdropped {
                attributes.push(None);
                continue;
            }
            let found = SqlType::at_depth(attribute.atttypid, attribute.atttypmod, depth + 1)?;
            // A type may have parts of one type in many places, and so on down.
            parts += found.parts();
            if parts > MOST_PARTS {
                let message = format!("type {} is not supported by container functions", type_name(oid));
                let detail = format!("It has more than {MOST_PARTS} parts.");
                return Err(Error::new(Kind::UnsupportedType, message).with_detail(detail));
            }
            // SAFETY: a name ends in NUL.
            let name = unsafe { text::from_c(attribute.attname.data.as_ptr()) };
            named.push(Attribute { name, ty: found.ty.clone() });
            attributes.push(Some(found));
        }
        let form = Form::Composite { typmod, attributes };
        let input = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        Ok(SqlType { oid, ty: Type::Composite(named.into()), form, typmod: -1, input, domain: None })
    }

    /// Leaves out the attributes of composite types that `known` lacks, if it has all others in the same order. They are
    /// treated like those that were dropped.
    pub fn narrow(&mut self, known: &Type) {
        match (&mut self.form, known) {
            (Form::Array(form), Type::Array(known)) => {
                form.element.narrow(known);
                self.ty = Type::Array(Arc::new(form.element.ty.clone()));
            }
            (Form::Composite { attributes, .. }, Type::Composite(known)) => {
                let mut rest = known.iter();
                let mut next = rest.next();
                let own = self.ty.attributes();
                let is_known = own.iter().map(|attribute| {
                    let is_known = next.is_some_and(|known| known.name == attribute.name);
                    if is_known {
                        next = rest.next();
                    }
                    is_known
                });
                let is_known: Vec<bool> = is_known.collect();
                if next.is_some() {
                    return;
                }
                let mut named = Vec::new();
                let kept = attributes.iter_mut().filter(|attribute| attribute.is_some());
                for ((attribute, is_known), own) in kept.zip(is_known).zip(own.iter()) {
                    match attribute {
                        Some(kept) if is_known => {
                            kept.narrow(&known[named.len()].ty);
                            named.push(Attribute { name: own.name.clone(), ty: kept.ty.clone() });
                        }
                        _ => *attribute = None,
                    }
                }
                self.ty = Type::Composite(named.into());
            }
            _ => {}
        }
    }

    /// A descriptor of rows of this type, in the current memory context; of one column for a type that is not composite.
    pub fn descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: lookups of a type that exists; the descriptors are palloc'd.
        unsafe {
            if let Form::Composite { typmod, .. } = self.form {
                return pg_sys::lookup_rowtype_tupdesc_copy(self.oid, typmod);
            }
            let oid = self.domain.as_ref().map_or(self.oid, |domain| domain.oid);
            let descriptor = pg_sys::CreateTemplateTupleDesc(1);
            pg_sys::TupleDescInitEntry(descriptor, 1, c"result".as_ptr(), oid, -1, 0);
            descriptor
        }
    }

    /// The composite types in it, as they are now.
    pub fn note_composites(&self, versions: &mut Vec<CompositeVersion>) {
        match &self.form {
            Form::Composite { typmod, attributes } => {
                versions.push(composite_version(self.oid, *typmod));
                attributes.iter().flatten().for_each(|attribute| attribute.note_composites(versions));
            }
            Form::Array(form) => form.element.note_composites(versions),
            Form::Range(element) => element.note_composites(versions),
            _ => {}
        }
    }
}

/// A composite type as it is now.
pub fn composite_version(oid: pg_sys::Oid, typmod: i32) -> CompositeVersion {
    // SAFETY: a lookup in the type cache.
    (oid, typmod, unsafe { pg_sys::assign_record_type_identifier(oid, typmod) })
}

/// Whether a value of a type that a container gives is the same, bit by bit, when it has been an SQL value. Others may be rounded,
/// padded, or written otherwise (numeric, json), and a domain's constraints are evaluated for SQL values.
pub fn travels_unchanged(oid: pg_sys::Oid) -> bool {
    match oid {
        pg_sys::BOOLOID
        | pg_sys::INT2OID
        | pg_sys::INT4OID
        | pg_sys::INT8OID
        | pg_sys::FLOAT4OID
        | pg_sys::FLOAT8OID
        | pg_sys::BYTEAOID
        | pg_sys::UUIDOID
        | pg_sys::DATEOID
        | pg_sys::TIMEOID
        | pg_sys::TIMESTAMPOID
        | pg_sys::TIMESTAMPTZOID => true,
        pg_sys::TEXTOID | pg_sys::VARCHAROID => text::is_utf8(),
        _ => false,
    }
}

/// What to do about a type that cannot be mapped.
fn advice(oid: pg_sys::Oid) -> &'static str {
    match oid {
        pg_sys::ANYELEMENTOID
        | pg_sys::ANYARRAYOID
        | pg_sys::ANYNONARRAYOID
        | pg_sys::ANYENUMOID
        | pg_sys::ANYRANGEOID
        | pg_sys::ANYOID => "Declare one function for each type; all of them can name the same image.",
        pg_sys::RECORDOID => "Use a composite type, RETURNS TABLE or OUT arguments, which say what the columns are.",
        pg_sys::MONEYOID => "Cast the value to numeric.",
        pg_sys::OIDOID | pg_sys::XIDOID | pg_sys::CIDOID => "Cast the value to bigint.",
        pg_sys::VOIDOID => "Return a value, for example a boolean.",
        _ => "docs/types.md lists the supported types; cast the value to one of them, for example to text.",
    }
}

fn output_function(oid: pg_sys::Oid) -> pg_sys::Oid {
    let (mut output, mut is_varlena) = (pg_sys::InvalidOid, false);
    // SAFETY: a lookup of a type that exists.
    unsafe { pg_sys::getTypeOutputInfo(oid, &mut output, &mut is_varlena) };
    output
}

fn input_function(oid: pg_sys::Oid) -> (pg_sys::Oid, pg_sys::Oid) {
    let (mut input, mut parameter) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: a lookup of a type that exists.
    unsafe { pg_sys::getTypeInputInfo(oid, &mut input, &mut parameter) };
    (input, parameter)
}

/// The value's text through an output function, which ends in NUL.
///
/// # Safety
/// The function belongs to the value's type.
unsafe fn output<'a>(function: pg_sys::Oid, datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: the caller says so; the text is palloc'd and lives as long as the current memory context.
    unsafe { CStr::from_ptr(pg_sys::OidOutputFunctionCall(function, datum)).to_bytes() }
}
