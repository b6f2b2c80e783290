package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import org.apache.arrow.flight.Action;
import org.apache.arrow.flight.ActionType;
import org.apache.arrow.flight.CallStatus;
import org.apache.arrow.flight.Criteria;
import org.apache.arrow.flight.FlightConstants;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.NoOpFlightProducer;
import org.apache.arrow.flight.Result;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.dictionary.Dictionary;
import org.apache.arrow.vector.types.pojo.DictionaryEncoding;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/** The Flight form, docs/protocol.md §2 to §5. */
final class Producer extends NoOpFlightProducer {
    private static final int RESULTS_PER_PART = 1024;
    /** Bytes of an error that a status has beside its metadata: a status is a header, and they are bounded. */
    private static final int MOST_IN_STATUS = 1000;
    /** Between two looks at whether a client has taken what was sent. */
    private static final long LEAST_PAUSE_NS = 20_000, MOST_PAUSE_NS = 5_000_000;

    private final Map<String, UserFunction> functions;
    private final BufferAllocator allocator;
    private final byte[] greeting;

    Producer(Map<String, UserFunction> functions, BufferAllocator allocator, JsonNode greeting) {
        this.functions = functions;
        this.allocator = allocator;
        this.greeting = greeting.toString().getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public void listActions(CallContext context, StreamListener<ActionType> listener) {
        listener.onNext(new ActionType("transship.hello", "Who answers."));
        listener.onNext(new ActionType("protocol_version", "The arrow-udf version."));
        listener.onCompleted();
    }

    @Override
    public void doAction(CallContext context, Action action, StreamListener<Result> listener) {
        switch (action.getType()) {
            case "transship.hello" -> listener.onNext(new Result(greeting));
            case "protocol_version" -> listener.onNext(new Result(new byte[] {2}));
            default -> throw CallStatus.UNIMPLEMENTED.withDescription("unrecognized action " + action.getType()).toRuntimeException();
        }
        listener.onCompleted();
    }

    private static String nameOf(FlightDescriptor descriptor) {
        return descriptor.isCommand() || descriptor.getPath().isEmpty() ? "" : descriptor.getPath().get(0);
    }

    private static FlightInfo describe(UserFunction function) {
        List<Field> fields = new ArrayList<>(function.arguments.stream().map(SqlType.Column::field).toList());
        boolean hasKind = function.kind.equals("aggregate") || function.kind.equals("map");
        if (hasKind) fields.add(function.returns.field(function.name));
        else fields.addAll(function.replySchema(null).getFields());
        Schema schema = new Schema(fields, hasKind ? Map.of("transship.kind", function.kind) : null);
        return new FlightInfo(schema, FlightDescriptor.path(function.name), List.of(), 0, function.arguments.size());
    }

    @Override
    public FlightInfo getFlightInfo(CallContext context, FlightDescriptor descriptor) {
        UserFunction function = functions.get(nameOf(descriptor));
        if (function == null) throw CallStatus.NOT_FOUND.withDescription("there is no function \"" + nameOf(descriptor) + "\"").toRuntimeException();
        return describe(function);
    }

    @Override
    public void listFlights(CallContext context, Criteria criteria, StreamListener<FlightInfo> listener) {
        functions.values().forEach(function -> listener.onNext(describe(function)));
        listener.onCompleted();
    }

    @Override
    public void doExchange(CallContext context, FlightStream reader, ServerStreamListener writer) {
        try (CallTables tables = CallTables.of(context.getMiddleware(FlightConstants.HEADER_KEY).headers().get(CallTables.FIELD))) {
            exchange(context, reader, writer, tables);
            writer.completed();
        } catch (UserFunction.Cancelled cancelled) {
            writer.error(CallStatus.CANCELLED.toRuntimeException());
        } catch (CallError error) {
            writer.error(statusOf(error));
        } catch (IOException | RuntimeException cause) {
            writer.error(CallStatus.INVALID_ARGUMENT.withDescription(cause.toString()).withCause(cause).toRuntimeException());
        } catch (Throwable cause) {
            // Otherwise the client would wait for an end that never comes.
            writer.error(CallStatus.INTERNAL.withDescription(cause.toString()).withCause(cause).toRuntimeException());
        }
    }

    private void exchange(CallContext context, FlightStream reader, ServerStreamListener writer, CallTables tables) throws Exception {
        String name = nameOf(reader.getDescriptor());
        UserFunction function = functions.get(name);
        // The schema comes with the descriptor, or next.
        try {
            if (function == null) throw CallError.unknownFunction(name);
            if (tables != null) tables.check();
        } catch (CallError error) {
            refuse(error, reader, writer);
            return;
        }
        if (function.kind.equals("map")) new MapExchange(function, context, reader, writer, allocator).run();
        else answer(function, context, reader, writer);
    }

    /** Ends an exchange with an error: at its first batch, or without one. */
    private void refuse(CallError error, FlightStream reader, ServerStreamListener writer) throws Exception {
        if (!reader.next()) throw error;
        try (VectorSchemaRoot nothing = VectorSchemaRoot.create(new Schema(List.of()), allocator)) {
            writer.start(nothing);
            fail(error, metadata(reader), metadata(reader).path("batch").asLong(), writer, allocator);
        }
    }

    /**
     * Reports an error, first in metadata to clients that send some, and throws it to become the status: Arrow's C++ clients drop replies that
     * they have not read yet once they cannot send.
     */
    static void fail(CallError error, JsonNode metadata, long batch, ServerStreamListener writer, BufferAllocator allocator) throws CallError {
        if (!metadata.isEmpty()) {
            ObjectNode wire = Json.MAPPER.createObjectNode().put("batch", batch);
            wire.set("error", error.toWire());
            writer.putMetadata(buffer(wire, allocator));
            byte[] message = error.getMessage().getBytes(StandardCharsets.UTF_8);
            if (message.length > MOST_IN_STATUS) throw new CallError(error.kind, new String(message, 0, MOST_IN_STATUS, StandardCharsets.UTF_8), null, null);
        }
        throw error;
    }

    private void answer(UserFunction function, CallContext context, FlightStream reader, ServerStreamListener writer) throws Exception {
        Schema arriving = reader.getSchema();
        CallBatch.RowErrors rowErrors;
        try {
            rowErrors = CallBatch.RowErrors.of(arriving.getCustomMetadata() == null ? null : arriving.getCustomMetadata().get("transship.row_errors"));
        } catch (CallError error) {
            refuse(error, reader, writer);
            return;
        }
        Layout layout = Layout.of(arriving);
        Groups groups = function.kind.equals("aggregate") ? new Groups(function) : null;
        Part part = new Part(context, writer, layout);
        try (VectorReply reply = new VectorReply(function, rowErrors, allocator, RESULTS_PER_PART, false, part::send)) {
            try (VectorSchemaRoot laidOut = layout.equals(Layout.OWN) ? reply.root : VectorSchemaRoot.create(layout.schema(reply.root.getSchema()), allocator)) {
                part.reply = reply.root;
                part.laidOut = laidOut;
                writer.start(laidOut);
                for (long next = 0; reader.next(); next++) {
                    JsonNode metadata = metadata(reader);
                    next = metadata.path("batch").asLong(next);
                    part.begin(next);
                    try {
                        if (layout.equals(Layout.OWN)) {
                            reply.answer(batch(reader, reader.getRoot(), next, rowErrors, metadata), groups, context::isCancelled);
                        } else {
                            try (VectorSchemaRoot calls = Layout.read(reader.getRoot(), allocator)) {
                                reply.answer(batch(reader, calls, next, rowErrors, metadata), groups, context::isCancelled);
                            }
                        }
                    } catch (CallError error) {
                        fail(error, metadata, next, writer, allocator);
                    }
                }
            }
        }
    }

    /** A batch of calls, in which a dictionary of one value is a constant (docs/protocol.md §4.10). */
    private static CallBatch batch(FlightStream reader, VectorSchemaRoot calls, long number, CallBatch.RowErrors rowErrors, JsonNode metadata) throws CallError {
        List<FieldVector> vectors = new ArrayList<>();
        boolean[] isConstant = new boolean[calls.getFieldVectors().size()];
        for (FieldVector vector : calls.getFieldVectors()) {
            DictionaryEncoding encoding = vector.getField().getDictionary();
            if (encoding != null) {
                isConstant[vectors.size()] = true;
                vector = constant(vector, reader.getDictionaryProvider().lookup(encoding.getId()), calls.getRowCount());
            }
            vectors.add(vector);
        }
        return new CallBatch(number, calls.getRowCount(), vectors, isConstant, rowErrors, "", metadata.path("step").asText());
    }

    private static FieldVector constant(FieldVector indexes, Dictionary dictionary, int rows) throws CallError {
        boolean isRight = dictionary != null && dictionary.getVector().getValueCount() == 1 && indexes instanceof TinyIntVector;
        for (int row = 0; isRight && row < rows; row++) isRight = !indexes.isNull(row) && ((TinyIntVector) indexes).get(row) == 0;
        if (!isRight) throw CallError.violation("a dictionary has one value, and int8 indexes that are 0");
        return dictionary.getVector();
    }

    /** The error as clients know it that send no metadata, such as RisingWave's. */
    private static Exception statusOf(CallError error) {
        CallStatus status = switch (error.kind) {
            case "function_not_found" -> CallStatus.NOT_FOUND;
            case "protocol_violation" -> CallStatus.INVALID_ARGUMENT;
            default -> CallStatus.UNKNOWN;
        };
        return status.withDescription(error.getMessage()).toRuntimeException();
    }

    static JsonNode metadata(FlightStream reader) throws IOException {
        ArrowBuf buffer = reader.getLatestMetadata();
        if (buffer == null) return Json.MAPPER.createObjectNode();
        byte[] bytes = new byte[(int) buffer.readableBytes()];
        buffer.getBytes(buffer.readerIndex(), bytes);
        return Json.MAPPER.readTree(bytes);
    }

    /** Waits until the client has taken what was sent: a fast handler must not fill the memory with results for a slow client. */
    static void awaitRoom(ServerStreamListener writer, CallContext context) throws UserFunction.Cancelled {
        // Handlers that gRPC calls can only be set before the exchange has its thread.
        for (long pause = LEAST_PAUSE_NS; !writer.isReady(); pause = Math.min(2 * pause, MOST_PAUSE_NS)) {
            UserFunction.checkCancelled(() -> context.isCancelled() || writer.isCancelled());
            LockSupport.parkNanos(pause);
        }
    }

    /** Sends the parts of replies. */
    private final class Part {
        private final CallContext context;
        private final ServerStreamListener writer;
        private final Layout layout;
        /** In the protocol's layout, and in the client's: they are one unless the client has another. */
        private VectorSchemaRoot reply;
        private VectorSchemaRoot laidOut;
        private long number;
        private long start;

        Part(CallContext context, ServerStreamListener writer, Layout layout) {
            this.context = context;
            this.writer = writer;
            this.layout = layout;
        }

        void begin(long batch) {
            number = batch;
            start = System.nanoTime();
        }

        void send(boolean isLast) throws UserFunction.Cancelled {
            ObjectNode metadata = Json.MAPPER.createObjectNode().put("batch", number).put("micros", (System.nanoTime() - start) / 1000);
            if (!isLast) metadata.put("more", true);
            if (!layout.equals(Layout.OWN)) Layout.move(reply, laidOut);
            awaitRoom(writer, context);
            writer.putNext(buffer(metadata, allocator));
            laidOut.clear();
            reply.clear();
            start = System.nanoTime();
        }
    }

    private static ArrowBuf buffer(JsonNode node, BufferAllocator allocator) {
        byte[] bytes = node.toString().getBytes(StandardCharsets.UTF_8);
        ArrowBuf buffer = allocator.buffer(bytes.length);
        buffer.writeBytes(bytes);
        return buffer;
    }
}
