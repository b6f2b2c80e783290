//! Under which names results are kept.
//!
//! A namespace is what answers: the image's content or the server's address, the function's name there, and the types of its
//! arguments and result. It does not matter how an engine calls the function, in which database or schema, in which collation or
//! encoding: a container sees none of that. A row is its arguments' values, to the bit as in `duplicates.rs`, together with the
//! credentials with which the function is called.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_row::{RowConverter, SortField};
use arrow_schema::SchemaRef;
use udf_codec::batch::CallBatch;
use udf_types::signature::Signature;

use super::message::{Key, Namespace};
use crate::dispatch::Target;

/// Names for the rows of one function.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) namespace: Namespace,
    /// Of the hash of rows.
    row_key: [u8; 32],
    schema: SchemaRef,
    /// For columns of some types. Constants are dictionaries among them.
    converter: Option<(SchemaRef, RowConverter)>,
}

/// What a result begins with, so that one of another row is not taken for it.
pub(super) type Tag = [u8; 8];

/// A row: the key by which its result is asked for, and more bits of the same hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RowName {
    pub(super) key: Key,
    pub(super) tag: Tag,
}

/// The namespace of a function.
pub fn namespace_of(target: &Target, signature: &Signature) -> Namespace {
    first_half(&hash_of(target, signature).0.finalize())
}

/// What derived implementations of [`Hash`] write, which tells any two values apart: texts and lists have their ends or lengths.
struct Blake(blake3::Hasher);

impl Hasher for Blake {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        unreachable!("the hash has more bits")
    }
}

fn hash_of(target: &Target, signature: &Signature) -> Blake {
    // Versions of this program may write types and results otherwise, and share none.
    let context = concat!("transship cached results ", env!("CARGO_PKG_VERSION"));
    let mut hasher = Blake(blake3::Hasher::new_derive_key(context));
    match target {
        // The manager is that beside the store.
        Target::Image { manager: _, digest } => (0_u8, digest).hash(&mut hasher),
        Target::Remote { remote, credentials: _ } => (1_u8, remote).hash(&mut hasher),
    }
    let Signature { function, kind, arguments, result, row_errors: _ } = signature;
    (function, *kind as u8, result).hash(&mut hasher);
    // Servers that speak another dialect are given the names.
    arguments.len().hash(&mut hasher);
    arguments.iter().for_each(|argument| (&argument.name, &argument.ty).hash(&mut hasher));
    hasher
}

fn first_half(hash: &blake3::Hash) -> [u8; 16] {
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl Keys {
    /// Those of a function of a server.
    pub(super) fn new(target: &Target, signature: &Signature) -> Keys {
        let mut hasher = hash_of(target, signature);
        let namespace = first_half(&hasher.0.finalize());
        match target {
            Target::Image { .. } => {}
            Target::Remote { credentials, .. } => credentials.hash(&mut hasher),
        }
        // So that it differs from the namespace's in any case.
        hasher.write(b"rows");
        Keys { namespace, row_key: *hasher.0.finalize().as_bytes(), schema: signature.call_schema(), converter: None }
    }

    /// One per row of a batch; none if values of its types cannot be compared.
    pub(super) fn of(&mut self, calls: &CallBatch) -> Option<Vec<RowName>> {
        let rows = calls.columns.num_rows();
        let columns: RecordBatch = calls.constants.encode_in(&self.schema, &calls.columns);
        if columns.num_columns() == 0 {
            return Some(vec![self.name(&[]); rows]);
        }
        if self.converter.as_ref().is_none_or(|(schema, _)| *schema != columns.schema()) {
            let fields = columns.schema_ref().fields().iter();
            let fields = fields.map(|field| SortField::new(field.data_type().clone())).collect();
            self.converter = Some((Arc::clone(columns.schema_ref()), RowConverter::new(fields).ok()?));
        }
        let (_, converter) = self.converter.as_ref()?;
        let converted = converter.convert_columns(columns.columns()).ok()?;
        Some(converted.iter().map(|row| self.name(row.as_ref())).collect())
    }

    fn name(&self, row: &[u8]) -> RowName {
        let hash = blake3::keyed_hash(&self.row_key, row);
        let tag = hash.as_bytes().last_chunk().expect("a hash has 32 bytes");
        RowName { key: first_half(&hash), tag: *tag }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use arrow_array::{ArrayRef, Float64Array, Int64Array, StringArray};
    use proptest::prelude::*;
    use udf_codec::constants::Constants;
    use udf_project::endpoint::Endpoint;
    use udf_types::signature::Argument;
    use udf_types::types::{Attribute, Type};

    use super::*;
    use crate::transport::credentials::{Credentials, Token};

    fn signature(arguments: &[Type], result: Type) -> Signature {
        let arguments = arguments.iter().map(|ty| Argument { name: String::new(), ty: ty.clone() }).collect();
        Signature::scalar("f", arguments, result)
    }

    fn image(digest: &str) -> Target {
        Target::Image { manager: "/run/a".into(), digest: digest.to_string() }
    }

    fn remote(address: &str, token: Option<&str>) -> Target {
        let token = token.map(|token| Token::new(token).unwrap());
        let credentials = Credentials { token, ..Credentials::default() };
        Target::Remote { remote: Endpoint::parse(address).unwrap().into(), credentials }
    }

    fn keys_of(target: &Target, signature: &Signature, columns: Vec<ArrayRef>, constants: Constants) -> Vec<RowName> {
        let columns = columns.into_iter().map(|column| ("x", column, true));
        let columns = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        Keys::new(target, signature).of(&CallBatch { constants, ..CallBatch::new(0, columns) }).unwrap()
    }

    #[test]
    fn what_may_answer_otherwise_has_another_namespace() {
        let composite =
            |name: &str, ty| Type::Composite([Attribute { name: name.to_string(), ty }].into_iter().collect());
        let one = signature(&[Type::Int8], Type::Int8);
        let named = Signature { arguments: vec![Argument { name: "x".to_string(), ty: Type::Int8 }], ..one.clone() };
        let other_function = Signature { function: "g".to_string(), ..one.clone() };
        let signatures = [
            one.clone(),
            named,
            other_function,
            signature(&[Type::Int4], Type::Int8),
            signature(&[Type::Int8], Type::Int4),
            signature(&[Type::Int8, Type::Int8], Type::Int8),
            signature(&[], Type::Int8),
            signature(&[Type::Text], Type::Json),
            signature(&[Type::Json], Type::Text),
            signature(&[Type::Array(Arc::new(Type::Text))], Type::Text),
            signature(&[composite("a", Type::Text)], Type::Text),
            signature(&[composite("b", Type::Text)], Type::Text),
            signature(&[composite("a", Type::Int8)], Type::Text),
            signature(&[Type::Range(Arc::new(Type::Int8))], Type::Text),
        ];
        let targets = [
            image("sha256:a"),
            image("sha256:b"),
            remote("grpc://127.0.0.1:1", None),
            remote("grpc://127.0.0.1:2", None),
        ];
        let all: HashSet<Namespace> =
            targets.iter().flat_map(|target| signatures.iter().map(|it| namespace_of(target, it))).collect();
        assert_eq!(all.len(), signatures.len() * targets.len());
        // Whichever socket its manager has.
        let moved = Target::Image { manager: "/run/b".into(), digest: "sha256:a".to_string() };
        assert_eq!(namespace_of(&moved, &one), namespace_of(&image("sha256:a"), &one));
    }

    #[test]
    fn credentials_change_rows_and_not_the_namespace() {
        let signature = signature(&[Type::Int8], Type::Int8);
        let targets = [None, Some("a"), Some("b")].map(|token| remote("grpc://127.0.0.1:1", token));
        assert_eq!(namespace_of(&targets[0], &signature), namespace_of(&targets[1], &signature));
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let keys: HashSet<_> = targets
            .iter()
            .map(|target| keys_of(target, &signature, vec![column.clone()], Constants::default()))
            .collect();
        assert_eq!(keys.len(), 3);
    }

    #[test]
    fn rows_are_the_same_to_the_bit() {
        let signature = signature(&[Type::Float8], Type::Int8);
        let values = [0.0, -0.0, f64::NAN, -f64::NAN, f64::from_bits(f64::NAN.to_bits() + 1), 1.0];
        let column = values.iter().map(|value| Some(*value)).chain([None]).collect::<Float64Array>();
        let keys = keys_of(&image("a"), &signature, vec![Arc::new(column)], Constants::default());
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), 7);
    }

    #[test]
    fn a_row_is_the_same_whether_an_argument_is_a_constant_or_a_column() {
        let signature = signature(&[Type::Text, Type::Int8, Type::Text], Type::Int8);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        for (first, last) in [(Some("a"), Some("b")), (None, Some("a")), (Some(""), None)] {
            let text = |value: Option<&str>, rows| Arc::new(StringArray::from(vec![value; rows])) as ArrayRef;
            let columns = vec![text(first, 2), numbers.clone(), text(last, 2)];
            let whole = keys_of(&image("a"), &signature, columns, Constants::default());
            let constants = Constants::new(vec![(0, text(first, 1)), (2, text(last, 1))]);
            assert_eq!(keys_of(&image("a"), &signature, vec![numbers.clone()], constants), whole);
        }
    }

    proptest! {
        #[test]
        fn rows_have_the_same_key_if_they_are_the_same(
            rows in prop::collection::vec((prop::option::of("[ab\0]{0,3}"), prop::option::of("[ab\0]{0,3}")), 1..50),
        ) {
            let signature = signature(&[Type::Text, Type::Text], Type::Int8);
            let column = |values: Vec<Option<&str>>| Arc::new(StringArray::from(values)) as ArrayRef;
            let first = column(rows.iter().map(|row| row.0.as_deref()).collect());
            let second = column(rows.iter().map(|row| row.1.as_deref()).collect());
            let keys = keys_of(&image("a"), &signature, vec![first, second], Constants::default());
            for (i, a) in rows.iter().enumerate() {
                for (j, b) in rows.iter().enumerate() {
                    prop_assert_eq!(a == b, keys[i] == keys[j]);
                }
            }
        }
    }
}
