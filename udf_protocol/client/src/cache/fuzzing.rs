use arrow_array::ArrayRef;
use udf_types::types::Type;

use super::LookedUp;
use super::keys::RowName;
use super::message::{CallCost, Response, Results};
use super::values::Encoder;

const NAME: RowName = RowName { key: [0; 16], tag: [1; 8] };

/// A store's answer that it has all values of a column; none if results have no such type.
pub fn write_found(column: &ArrayRef) -> Option<Vec<u8>> {
    let encoder = Encoder::new(column)?;
    let mut results = Results::default();
    for row in 0..column.len() {
        let mut value = NAME.tag.to_vec();
        encoder.encode(row, &mut value);
        results.push(Some(&value));
    }
    Some(Response::Found { generation: 1, cost: CallCost::default(), results }.to_bytes())
}

/// The results in a store's answer, to as many rows as it answers, which may have `most` bytes; none if it is refused.
pub fn read_found(ty: &Type, bytes: &[u8], most: usize) -> Option<ArrayRef> {
    let Response::Found { generation, results, .. } = Response::from_bytes(bytes)? else { return None };
    let names = vec![NAME; results.len()];
    LookedUp::read(names, generation, &results, ty, most).map(|looked_up| looked_up.found)
}
