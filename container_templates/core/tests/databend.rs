//! A client of Databend's calls a program (`databend.c`) that was compiled against the library's header, with columns in either form.
#![allow(missing_docs)]

mod program;

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    ArrayRef, LargeBinaryArray, LargeStringArray, ListArray, RecordBatch, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use program::{Server, start_program};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use udf_codec::arrow_ipc::{BatchEncoder, decode_described_schema, encode_schema};
use udf_codec::call_decoder::CallDecoder;
use udf_types::limits::MAX_MESSAGE_BYTES;
use udf_types::signature::ROW_ERRORS_KEY;

const FUNCTIONS: &str = r#"
name = "databend"
template = "cpp"
functions = [
  { name = "same", arguments = ["w (n numeric, j json, t text[], z timestamptz, u uuid)"], returns = "(n numeric, j json, t text[], z timestamptz, u uuid)" },
  { name = "same_json", arguments = ["j json"], returns = "json", batch = "columns" },
  { name = "again", arguments = ["w (t text, u uuid)"], returns = "(t text, u uuid)", kind = "table" },
  { name = "fail", arguments = ["int8"], returns = "int8" },
]"#;

const UUID: &str = "00000000-0000-0000-0000-0000000000ff";
const INPUT_COUNT: &str = "x-databend-udf-input-count";

fn variant(name: &str) -> Field {
    let metadata = HashMap::from([("Extension".to_string(), "Variant".to_string())]);
    Field::new(name, DataType::LargeBinary, true).with_metadata(metadata)
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::LargeUtf8, true)
}

/// What Databend's catalog has for the parts of `same`'s argument.
fn parts() -> Fields {
    let texts = DataType::List(Arc::new(text("item")));
    let moment = DataType::Timestamp(TimeUnit::Microsecond, None);
    let fields = [text("n"), variant("j"), Field::new("t", texts, true), Field::new("z", moment, true), text("u")];
    fields.into_iter().collect()
}

/// The tenant is what tells Databend's calls.
fn request<T>(message: T, has_headers: bool) -> Request<T> {
    let mut request = Request::new(message);
    if has_headers {
        request.metadata_mut().insert("x-databend-tenant", "t".parse().unwrap());
    }
    request
}

struct Client<'a>(&'a Server);

impl Client<'_> {
    fn run<T>(&self, act: impl AsyncFnOnce(FlightServiceClient<tonic::transport::Channel>) -> T) -> T {
        let path = format!("unix://{}/flight.sock", self.0.folder.path().display());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            act(FlightServiceClient::new(Endpoint::from_shared(path).unwrap().connect().await.unwrap())).await
        })
    }

    /// The schema of a function, and how many of its fields are said to be arguments, twice.
    fn schema(&self, function: &str, has_headers: bool) -> (Schema, String, i64) {
        let descriptor = FlightDescriptor::new_path(vec![function.to_string()]);
        let info = self.run(async |mut client| client.get_flight_info(request(descriptor, has_headers)).await);
        let info = info.unwrap().into_inner();
        let schema = decode_described_schema(&info.schema).unwrap();
        (schema.clone(), schema.metadata()[INPUT_COUNT].clone(), info.total_records)
    }

    /// The reply to a batch, whose messages have no metadata.
    fn call(&self, function: &str, has_headers: bool, batch: &RecordBatch) -> Result<RecordBatch, Status> {
        let descriptor = FlightDescriptor::new_path(vec![function.to_string()]);
        let calls = [
            encode_schema(&batch.schema()).with_descriptor(descriptor),
            BatchEncoder::default().encode(batch).unwrap(),
        ];
        self.run(async |mut client| {
            let calls = request(tokio_stream::iter(calls), has_headers);
            let mut replies = client.do_exchange(calls).await?.into_inner();
            let mut messages = Vec::<FlightData>::new();
            while let Some(message) = replies.message().await? {
                messages.push(message);
            }
            let mut decoder = CallDecoder::new(&messages[0]).unwrap();
            let read = messages[1..].iter().map(|message| decoder.read(message, MAX_MESSAGE_BYTES).unwrap().unwrap());
            let read: Vec<_> = read.map(|decoded| decoded.others).collect();
            assert_eq!(read.len(), 1);
            Ok(read[0].clone())
        })
    }
}

fn batch(schema: Schema, column: ArrayRef) -> RecordBatch {
    RecordBatch::try_new(Arc::new(schema), vec![column]).unwrap()
}

fn reply_schema(fields: Vec<Field>) -> SchemaRef {
    Arc::new(Schema::new(fields))
}

/// Two rows of `same`, of which the second is NULL.
fn rows(number: &str, uuid: &str) -> ArrayRef {
    let texts = LargeStringArray::from(vec![Some("x"), None]);
    let texts = ListArray::new(Arc::new(text("item")), OffsetBuffer::from_lengths([2, 0]), Arc::new(texts), None);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(LargeStringArray::from(vec![Some(number), None])),
        Arc::new(LargeBinaryArray::from(vec![Some(b"{\"a\": [1, 2]}".as_slice()), None])),
        Arc::new(texts),
        Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None])),
        Arc::new(LargeStringArray::from(vec![Some(uuid), None])),
    ];
    Arc::new(StructArray::new(parts(), columns, Some(NullBuffer::from(vec![true, false]))))
}

#[test]
fn databend_calls_functions_with_its_own_types() {
    for form in ["arrow", "plain"] {
        let mut server = start_program("databend", FUNCTIONS, &[form]);
        let client = Client(&server);

        let (schema, count, records) = client.schema("same", true);
        let whole = DataType::Struct(parts());
        let (argument, output) = (Field::new("w", whole.clone(), true), Field::new("output", whole, true));
        assert_eq!(schema.fields().as_ref(), [argument.clone(), output.clone()].map(Arc::new));
        assert_eq!((count.as_str(), records), ("1", 1));
        let (schema, count, _) = client.schema("again", true);
        assert_eq!(schema.fields()[1..], [text("t"), text("u")].map(Arc::new));
        assert_eq!(count, "1");
        // A client without headers gets the protocol's types.
        let (schema, count, _) = client.schema("again", false);
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!((names, count.as_str()), (vec!["w", "row", "again"], "1"));

        let reply =
            client.call("same", true, &batch(Schema::new(vec![argument.clone()]), rows("1.5e2", UUID))).unwrap();
        assert_eq!(reply.schema(), reply_schema(vec![output]), "{form}");
        assert_eq!(reply.column(0), &rows("150", UUID), "{form}");
        let error = client.call("same", true, &batch(Schema::new(vec![argument]), rows("1", "x"))).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let expected = "the arguments of same cannot be read: column 1: row 1 holds \"x\", which is not of type uuid";
        assert_eq!(error.message(), expected);

        // A VARIANT is Databend's without its headers.
        let variants: ArrayRef = Arc::new(LargeBinaryArray::from(vec![Some(b"[1]".as_slice()), None]));
        let reply = client.call("same_json", false, &batch(Schema::new(vec![variant("")]), variants.clone())).unwrap();
        assert_eq!((reply.schema(), reply.column(0)), (reply_schema(vec![variant("output")]), &variants));
        let no_text: ArrayRef = Arc::new(LargeBinaryArray::from(vec![b"\x40\xff".as_slice()]));
        let error = client.call("same_json", false, &batch(Schema::new(vec![variant("")]), no_text)).unwrap_err();
        assert!(
            error.message().ends_with("row 1 holds a text that is not UTF-8, which is not of type json"),
            "{error}"
        );

        // Databend knows no errors of rows: a client that asks for them speaks this protocol.
        let texts: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("[1]"), None]));
        let metadata = HashMap::from([(ROW_ERRORS_KEY.to_string(), "once".to_string())]);
        let reply =
            client.call("same_json", true, &batch(Schema::new_with_metadata(vec![text("")], metadata), texts.clone()));
        let reply = reply.unwrap();
        let names: Vec<_> = reply.schema_ref().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!((names, reply.column(0)), (vec!["same_json".to_string(), "error".to_string()], &texts));

        // The columns of a table, without the numbers of rows.
        let columns: Vec<ArrayRef> = vec![
            Arc::new(LargeStringArray::from(vec![Some("a"), None])),
            Arc::new(LargeStringArray::from(vec![Some(UUID), None])),
        ];
        let fields: Fields = [text("t"), text("u")].into_iter().collect();
        let argument = Field::new("w", DataType::Struct(fields.clone()), true);
        let rows: ArrayRef = Arc::new(StructArray::new(fields.clone(), columns.clone(), None));
        let reply = client.call("again", true, &batch(Schema::new(vec![argument]), rows)).unwrap();
        assert_eq!(reply.schema(), reply_schema(vec![text("t"), text("u")]));
        assert_eq!(reply.columns(), columns);

        let number: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![3]));
        let numbers = batch(Schema::new(vec![Field::new("", DataType::Int64, true)]), number);
        let error = client.call("fail", true, &numbers).unwrap_err();
        assert!(error.code() == Code::Unknown && error.message().starts_with("ValueError: three"), "{error}");
        assert_eq!(server.end(), Some(0), "{}", server.log());
    }
}

/// Databend's own types keep the layout of lists.
#[test]
fn lists_have_the_offsets_of_the_clients() {
    let functions = r#"
name = "databend"
template = "cpp"
functions = [{ name = "same", arguments = ["uuid[]"], returns = "uuid[]" }]"#;
    for form in ["arrow", "plain"] {
        let server = start_program("databend", functions, &[form]);
        let uuids = LargeStringArray::from(vec![Some(UUID), None]);
        let offsets = OffsetBuffer::from_lengths([2, 0]);
        let lists: ArrayRef =
            Arc::new(arrow_array::LargeListArray::new(Arc::new(text("item")), offsets, Arc::new(uuids), None));
        let schema = Schema::new(vec![Field::new("", lists.data_type().clone(), true)]);
        let reply = Client(&server).call("same", true, &batch(schema, lists.clone())).unwrap();
        assert_eq!(reply.column(0), &lists, "{form}");
        assert_eq!(reply.column(0).as_list::<i64>().value(0).as_string::<i64>().value(0), UUID);
    }
}
