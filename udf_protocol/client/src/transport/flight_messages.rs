//! Flight's messages of columns, and what it says of a function, as protobuf writes them.
//!
//! Reading a message gives its columns, its metadata and its length. The columns are slices of the message, and keep all of it in memory.
//! Other fields are skipped: the names in a descriptor, or endpoints, could take far more memory than their bytes.

use arrow_flight::FlightData;
use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// What is sent: fields that have a length, with their numbers.
pub(super) type Fields = Vec<(u64, Bytes)>;

// The fields of `FlightData`.
const DESCRIPTOR: u64 = 1;
const DATA_HEADER: u64 = 2;
const APP_METADATA: u64 = 3;
const DATA_BODY: u64 = 1000;

// The fields of `FlightInfo`.
const SCHEMA: u64 = 1;
const TOTAL_RECORDS: u64 = 4;

/// The only field of `Ticket`.
const TICKET: u64 = 1;

// How a field is written, which protobuf calls its wire type.
const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const WITH_LENGTH: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// Longest key and length of a field.
const MOST_PREFIX_BYTES: usize = 20;

/// A message of columns.
#[derive(Debug)]
pub(super) struct Received {
    /// Without a descriptor.
    pub(super) message: FlightData,
    /// The length of the whole message.
    pub(super) bytes: usize,
}

impl Received {
    /// Bytes of the columns.
    pub(super) fn column_bytes(&self) -> usize {
        self.message.data_header.len() + self.message.data_body.len()
    }

    /// Bytes beside the columns. Without a header, the body belongs to no column.
    pub(super) fn asides(&self) -> usize {
        match self.message.data_header.is_empty() {
            true => self.bytes,
            false => self.bytes - self.column_bytes(),
        }
    }
}

/// What a server says of a function.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Info {
    pub(super) schema: Bytes,
    pub(super) total_records: i64,
}

/// The fields of a message of columns.
pub(super) fn fields_of(message: FlightData) -> Fields {
    let FlightData { data_header, app_metadata, data_body, .. } = message;
    let mut fields = vec![(DATA_HEADER, data_header), (APP_METADATA, app_metadata), (DATA_BODY, data_body)];
    fields.retain(|(_, bytes)| !bytes.is_empty());
    fields
}

/// The fields of the message that opens an exchange of a function: the schema with a descriptor of type PATH.
pub(super) fn opening_fields(function: &str, schema: FlightData) -> Fields {
    let mut fields = fields_of(schema);
    fields.insert(0, (DESCRIPTOR, descriptor_of(function)));
    fields
}

/// A descriptor of type PATH.
pub(super) fn descriptor_of(function: &str) -> Bytes {
    let (kind, path, parts) = (1, 1, 3);
    let mut descriptor = Vec::new();
    write_number(kind << 3 | VARINT, &mut descriptor);
    write_number(path, &mut descriptor);
    write_field(parts, function.as_bytes(), &mut descriptor);
    descriptor.into()
}

/// The fields of a ticket.
pub(super) fn ticket_fields(name: &'static str) -> Fields {
    vec![(TICKET, name.into())]
}

pub(super) fn write(fields: &Fields, to: &mut impl BufMut) {
    for (number, bytes) in fields {
        write_field(*number, bytes, to);
    }
}

fn write_field(number: u64, bytes: &[u8], to: &mut impl BufMut) {
    write_number(number << 3 | WITH_LENGTH, to);
    write_number(bytes.len() as u64, to);
    to.put_slice(bytes);
}

fn write_number(mut number: u64, to: &mut impl BufMut) {
    while number > 0x7f {
        to.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    to.put_u8(number as u8);
}

/// Reads a whole message; none if it is not protobuf, or has a group, of which proto3 has none. Of a field that is repeated, the last
/// one counts.
pub(super) fn read(from: &mut impl Buf) -> Option<Received> {
    let mut received = Received { message: FlightData::default(), bytes: from.remaining() };
    while from.has_remaining() {
        let (field, length) = match next_field(from)? {
            (DATA_HEADER, Value::Bytes(length)) => (&mut received.message.data_header, length),
            (APP_METADATA, Value::Bytes(length)) => (&mut received.message.app_metadata, length),
            (DATA_BODY, Value::Bytes(length)) => (&mut received.message.data_body, length),
            (_, other) => {
                other.skip(from);
                continue;
            }
        };
        *field = from.copy_to_bytes(length);
    }
    Some(received)
}

/// The same of what a server says of a function.
fn read_info(from: &mut impl Buf) -> Option<Info> {
    let mut info = Info::default();
    while from.has_remaining() {
        match next_field(from)? {
            (SCHEMA, Value::Bytes(length)) => info.schema = from.copy_to_bytes(length),
            (TOTAL_RECORDS, Value::Number(number)) => info.total_records = number as i64,
            (_, other) => other.skip(from),
        }
    }
    Some(info)
}

/// What a field holds: a number that was read, or so many bytes that are to be read.
enum Value {
    Number(u64),
    Bytes(usize),
    Fixed(usize),
}

impl Value {
    fn skip(self, from: &mut impl Buf) {
        match self {
            Value::Number(_) => {}
            Value::Bytes(length) | Value::Fixed(length) => from.advance(length),
        }
    }
}

/// The number of the next field, and what it holds.
fn next_field(from: &mut impl Buf) -> Option<(u64, Value)> {
    let key = read_number(from)?;
    let value = match key & 7 {
        VARINT => Value::Number(read_number(from)?),
        EIGHT_BYTES => Value::Fixed(8),
        FOUR_BYTES => Value::Fixed(4),
        WITH_LENGTH => Value::Bytes(usize::try_from(read_number(from)?).ok()?),
        _ => return None,
    };
    match value {
        Value::Bytes(length) | Value::Fixed(length) if length > from.remaining() => None,
        value => Some((key >> 3, value)),
    }
}

fn read_number(from: &mut impl Buf) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Writes fields, and reads messages of columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Messages;

impl Codec for Messages {
    type Encode = Fields;
    type Decode = Received;
    type Encoder = Messages;
    type Decoder = Messages;

    fn encoder(&mut self) -> Messages {
        Messages
    }

    fn decoder(&mut self) -> Messages {
        Messages
    }
}

impl Encoder for Messages {
    type Item = Fields;
    type Error = Status;

    fn encode(&mut self, fields: Fields, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(fields.iter().map(|(_, bytes)| bytes.len() + MOST_PREFIX_BYTES).sum());
        write(&fields, to);
        Ok(())
    }
}

impl Decoder for Messages {
    type Item = Received;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Received>, Status> {
        read(from).map(Some).ok_or_else(not_protobuf)
    }
}

/// Writes a descriptor, and reads what a server says of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Infos;

impl Codec for Infos {
    type Encode = Bytes;
    type Decode = Info;
    type Encoder = Infos;
    type Decoder = Infos;

    fn encoder(&mut self) -> Infos {
        Infos
    }

    fn decoder(&mut self) -> Infos {
        Infos
    }
}

impl Encoder for Infos {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, descriptor: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(descriptor);
        Ok(())
    }
}

impl Decoder for Infos {
    type Item = Info;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Info>, Status> {
        read_info(from).map(Some).ok_or_else(not_protobuf)
    }
}

/// The library's own words for messages that are none.
fn not_protobuf() -> Status {
    Status::internal("failed to decode Protobuf message")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> FlightData {
        FlightData {
            data_header: "head".into(),
            app_metadata: "{}".into(),
            data_body: vec![7; 300].into(),
            ..FlightData::default()
        }
    }

    fn written(fields: &Fields) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(fields, &mut bytes);
        bytes
    }

    #[test]
    fn messages_are_what_protobuf_says() {
        let schema = FlightData { data_header: "head".into(), ..FlightData::default() };
        assert_eq!(written(&opening_fields("f", schema)), b"\x0a\x05\x08\x01\x1a\x01f\x12\x04head");
        assert_eq!(written(&ticket_fields("scored")), b"\x0a\x06scored");
        let expected = [b"\x12\x04head\x1a\x02{}\xc2\x3e\xac\x02", &[7; 300][..]].concat();
        assert_eq!(written(&fields_of(message())), expected);
        let received = read(&mut expected.as_slice()).unwrap();
        assert_eq!((received.message, received.bytes), (message(), expected.len()));
    }

    #[test]
    fn what_is_not_a_column_is_counted_and_not_made() {
        let own = written(&fields_of(message()));
        // A descriptor of a million empty names, an unrecognized field of each kind, and a field that comes again.
        let names = [0x1a, 0].repeat(1_000_000);
        for other in [
            written(&vec![(DESCRIPTOR, names.into())]),
            written(&vec![(77, vec![1; 1_000_000].into())]),
            b"\x08\x80\x80\x01".repeat(1_000),
            b"\x09\x01\x02\x03\x04\x05\x06\x07\x08".repeat(1_000),
            b"\x0d\x01\x02\x03\x04".repeat(1_000),
            written(&vec![(DATA_BODY, vec![1; 1_000_000].into()), (DATA_HEADER, "other".into())]),
        ] {
            let bytes = [other.clone(), own.clone()].concat();
            let received = read(&mut bytes.as_slice()).unwrap();
            // Of its own: keys and lengths, and metadata.
            assert_eq!((received.bytes, received.asides()), (bytes.len(), other.len() + 8 + 2));
            assert_eq!(received.message, message());
        }
        let body = written(&vec![(DATA_BODY, vec![1; 1_000].into())]);
        assert_eq!(read(&mut body.as_slice()).unwrap().asides(), body.len());
    }

    #[test]
    fn of_what_a_server_says_of_a_function_endpoints_are_not_made() {
        // Endpoints without anything, which would be 100 bytes each and more, and a descriptor.
        let others = [b"\x1a\x00".repeat(1_000_000), b"\x12\x02\x1a\x00\x28\x07".to_vec()].concat();
        let unknown = [0xff; 9];
        for (total_records, number) in
            [(3, b"\x20\x03".to_vec()), (-1, [b"\x20", &unknown[..], b"\x01"].concat()), (0, vec![])]
        {
            let bytes = [&others[..], b"\x0a\x06schema", &number, &others].concat();
            assert_eq!(read_info(&mut bytes.as_slice()), Some(Info { schema: "schema".into(), total_records }));
        }
        assert_eq!(read_info(&mut &b"\x0a\x07schema"[..]), None);
        assert_eq!(descriptor_of("f"), &b"\x08\x01\x1a\x01f"[..]);
    }

    #[test]
    fn what_is_not_protobuf_is_refused() {
        let own = written(&fields_of(message()));
        for end in 0..own.len() {
            // It may end after a field.
            let ends_well = [0, 6, 10].contains(&end);
            assert_eq!(read(&mut &own[..end]).is_some(), ends_well, "{end}");
        }
        for bytes in [
            // A number without an end, groups, wire types that do not exist, and lengths beyond the end.
            &[0xff; 11][..],
            b"\x0b\x0c",
            b"\x0e",
            b"\x0f",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x09\x00",
            b"\x0d\x00",
            b"\x08",
        ] {
            assert!(read(&mut &bytes[..]).is_none(), "{bytes:?}");
        }
    }
}
