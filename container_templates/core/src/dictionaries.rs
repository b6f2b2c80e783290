//! Dictionaries of texts in replies (`docs/protocol.md` §7.9): a handler may give the distinct texts of a column, and for each row
//! the number of its text. A client that does not take them gets the texts.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, DictionaryArray, Int32Array, make_array};
use arrow_schema::DataType;
use arrow_select::take::take;
use udf_codec::adapt::adapt;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::textual_type;
use udf_types::types::Type;

/// Whether an Arrow type is that of dictionaries of texts in replies.
pub(crate) fn is_dictionary(ty: &DataType) -> bool {
    matches!(ty, DataType::Dictionary(..))
}

/// A column that is a dictionary of some type as one of a type that travels as text, with numbers of 32 bits. The error says what
/// does not fit.
pub(crate) fn encoded(column: &ArrayRef) -> Result<ArrayRef, String> {
    let wanted = DataType::Utf8;
    let values = adapt(column.as_any_dictionary().values(), &wanted)?;
    with_values(column, values)
}

/// The same numbers with other values, of which there are as many.
pub(crate) fn with_values(column: &ArrayRef, values: ArrayRef) -> Result<ArrayRef, String> {
    let array = DictionaryArray::<Int32Type>::try_new(numbers_of(column)?, values);
    Ok(Arc::new(array.map_err(|cause| format!("{cause}."))?))
}

/// The columns as a client wants them: dictionaries of texts stay if it takes them, and are worth it. The error says what does not
/// fit.
pub(crate) fn settle(columns: &mut [ArrayRef], types: &[Type], may_encode: bool) -> Result<(), String> {
    for (column, ty) in columns.iter_mut().zip(types) {
        if !is_dictionary(column.data_type()) {
            continue;
        }
        if matches!(ty, textual_type!()) {
            *column = encoded(column)?;
            let values = column.as_any_dictionary().values();
            if may_encode && values.null_count() == 0 && values.len() <= column.len() {
                continue;
            }
        }
        *column = unpacked(column)?;
    }
    Ok(())
}

/// The values of all rows. The error says that they are too many.
pub(crate) fn unpacked(column: &ArrayRef) -> Result<ArrayRef, String> {
    let values = column.as_any_dictionary().values();
    let numbers = numbers_of(column)?;
    let lengths = lengths_of(values)?;
    // A few bytes may stand for any number of them.
    let texts = numbers.iter().flatten().filter_map(|number| lengths.get(usize::try_from(number).ok()?));
    if texts.fold(0, |sum: usize, length| sum.saturating_add(*length)) > MAX_MESSAGE_BYTES {
        return Err("Its texts are larger than 1 GiB.".to_string());
    }
    take(values, &numbers, None).map_err(|cause| format!("{cause}."))
}

/// The bytes of each text; none for values of a fixed size. The error says that values are of another type.
fn lengths_of(values: &ArrayRef) -> Result<Vec<usize>, String> {
    Ok(match values.data_type() {
        DataType::Utf8 => values.as_string::<i32>().offsets().lengths().collect(),
        DataType::Binary => values.as_binary::<i32>().offsets().lengths().collect(),
        DataType::LargeUtf8 => values.as_string::<i64>().offsets().lengths().collect(),
        DataType::LargeBinary => values.as_binary::<i64>().offsets().lengths().collect(),
        // The length is a view's first four bytes.
        DataType::Utf8View => values.as_string_view().views().iter().map(|view| *view as u32 as usize).collect(),
        DataType::BinaryView => values.as_binary_view().views().iter().map(|view| *view as u32 as usize).collect(),
        DataType::FixedSizeBinary(length) => vec![usize::try_from(*length).unwrap_or(0); values.len()],
        DataType::Null | DataType::Boolean => Vec::new(),
        ty if ty.is_primitive() => Vec::new(),
        ty => return Err(format!("Its dictionary has values of type {ty}.")),
    })
}

/// For each row the number of its value.
pub(crate) fn numbers_of(column: &ArrayRef) -> Result<Int32Array, String> {
    let numbers = make_array(column.as_any_dictionary().keys().to_data());
    Ok(adapt(&numbers, &DataType::Int32)?.as_primitive::<Int32Type>().clone())
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int8Type;
    use arrow_array::{Int8Array, LargeStringArray, StringArray, StringViewArray};

    use super::*;

    fn dictionary(numbers: Vec<Option<i8>>, values: ArrayRef) -> ArrayRef {
        Arc::new(DictionaryArray::<Int8Type>::try_new(Int8Array::from(numbers), values).unwrap())
    }

    fn settled(column: ArrayRef, ty: &str, may_encode: bool) -> Result<ArrayRef, String> {
        let mut columns = [column];
        settle(&mut columns, &[Type::from_name(ty).unwrap()], may_encode)?;
        let [column] = columns;
        Ok(column)
    }

    #[test]
    fn texts_stay_a_dictionary_where_a_client_takes_one() {
        let numbers = vec![Some(1), None, Some(0), Some(1)];
        let column = dictionary(numbers, Arc::new(LargeStringArray::from(vec!["a", "b"])));
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), Some("b")]));
        let kept = settled(column.clone(), "text", true).unwrap();
        assert_eq!(*kept.data_type(), DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)));
        assert_eq!(
            kept.as_any_dictionary().keys().as_primitive::<Int32Type>(),
            &Int32Array::from(vec![Some(1), None, Some(0), Some(1)])
        );
        assert_eq!(&settled(column, "text", false).unwrap(), &texts);
        assert_eq!(&settled(texts.clone(), "text", true).unwrap(), &texts);
    }

    #[test]
    fn a_dictionary_that_is_not_worth_it_is_unpacked() {
        let values = || Arc::new(StringArray::from(vec![Some("a"), None])) as ArrayRef;
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        assert_eq!(&settled(dictionary(vec![Some(0), Some(1)], values()), "text", true).unwrap(), &texts);
        let one: ArrayRef = Arc::new(StringArray::from(vec!["b"]));
        let many = Arc::new(StringArray::from(vec!["a", "b", "c"]));
        assert_eq!(&settled(dictionary(vec![Some(1)], many), "numeric", true).unwrap(), &one);
    }

    #[test]
    fn numbers_are_unpacked_and_endless_texts_refused() {
        let column = dictionary(vec![Some(1), Some(1)], Arc::new(Int32Array::from(vec![7, 8])));
        assert_eq!(&settled(column, "int4", true).unwrap(), &(Arc::new(Int32Array::from(vec![8, 8])) as ArrayRef));
        let text = "x".repeat(1 << 20);
        let forms: [ArrayRef; 3] = [
            Arc::new(StringArray::from(vec![text.clone()])),
            Arc::new(LargeStringArray::from(vec![text.clone()])),
            Arc::new(StringViewArray::from(vec![text.as_str()])),
        ];
        for values in forms {
            let column = dictionary(vec![Some(0); 1025], values);
            assert!(settled(column.clone(), "text", true).is_ok());
            assert!(settled(column.clone(), "text", false).is_err());
            assert!(unpacked(&column).is_err());
        }
    }
}
