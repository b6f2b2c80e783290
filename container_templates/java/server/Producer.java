package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.arrow.flight.Action;
import org.apache.arrow.flight.ActionType;
import org.apache.arrow.flight.CallStatus;
import org.apache.arrow.flight.Criteria;
import org.apache.arrow.flight.FlightDescriptor;
import org.apache.arrow.flight.FlightInfo;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.flight.NoOpFlightProducer;
import org.apache.arrow.flight.Result;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.Schema;

/** The Flight form, docs/protocol.md §2 to §5. */
final class Producer extends NoOpFlightProducer {
    private static final int RESULTS_PER_PART = 1024;

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
        boolean isAggregate = function.kind.equals("aggregate");
        if (isAggregate) fields.add(function.returns.field(function.name));
        else fields.addAll(function.replySchema().getFields());
        Schema schema = new Schema(fields, isAggregate ? Map.of("transship.kind", "aggregate") : null);
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
        String name = nameOf(reader.getDescriptor());
        UserFunction function = functions.get(name);
        Schema schema = function == null ? new Schema(List.of()) : function.replySchema();
        // The schema comes with the descriptor, or next.
        Layout layout = function == null ? Layout.OWN : Layout.of(reader.getSchema());
        try (VectorSchemaRoot reply = VectorSchemaRoot.create(schema, allocator);
                VectorSchemaRoot laidOut = layout.equals(Layout.OWN) ? reply : VectorSchemaRoot.create(layout.schema(schema), allocator)) {
            writer.start(laidOut);
            Groups groups = new Groups(function);
            boolean hasCalls = false;
            for (long next = 0; reader.next(); next++) {
                hasCalls = true;
                JsonNode metadata = metadata(reader);
                next = metadata.path("batch").asLong(next);
                try {
                    if (function == null) throw CallError.unknownFunction(name);
                    Exchange exchange = new Exchange(context, writer, reply, laidOut, function, groups, next);
                    String step = metadata.path("step").asText();
                    if (reply == laidOut) {
                        answer(exchange, reader.getRoot(), step);
                    } else {
                        try (VectorSchemaRoot calls = Layout.read(reader.getRoot(), allocator)) {
                            answer(exchange, calls, step);
                        }
                    }
                } catch (CallError error) {
                    if (metadata.isEmpty()) {
                        writer.error(statusOf(error));
                        return;
                    }
                    ObjectNode wire = Json.MAPPER.createObjectNode().put("batch", next);
                    wire.set("error", error.toWire());
                    writer.putMetadata(buffer(wire));
                    break;
                }
            }
            if (function == null && !hasCalls) {
                writer.error(statusOf(CallError.unknownFunction(name)));
                return;
            }
            writer.completed();
        } catch (UserFunction.Cancelled cancelled) {
            writer.error(CallStatus.CANCELLED.toRuntimeException());
        } catch (IOException | RuntimeException cause) {
            writer.error(CallStatus.INVALID_ARGUMENT.withDescription(cause.toString()).withCause(cause).toRuntimeException());
        } catch (Exception cause) {
            writer.error(CallStatus.INTERNAL.withDescription(cause.toString()).withCause(cause).toRuntimeException());
        }
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

    /** reply is in the protocol's layout, laidOut in the client's: they are one unless the client has another. */
    private record Exchange(CallContext context, ServerStreamListener writer, VectorSchemaRoot reply, VectorSchemaRoot laidOut, UserFunction function, Groups groups, long number) {}

    private static JsonNode metadata(FlightStream reader) throws IOException {
        ArrowBuf buffer = reader.getLatestMetadata();
        if (buffer == null) return Json.MAPPER.createObjectNode();
        byte[] bytes = new byte[(int) buffer.readableBytes()];
        buffer.getBytes(buffer.readerIndex(), bytes);
        return Json.MAPPER.readTree(bytes);
    }

    private void answer(Exchange exchange, VectorSchemaRoot calls, String step) throws CallError, UserFunction.Cancelled {
        UserFunction function = exchange.function;
        function.check(calls);
        long start = System.nanoTime();
        int rows = calls.getRowCount();
        VectorSchemaRoot reply = exchange.reply;
        if (function.batch.equals("arrow")) {
            try (FieldVector vector = function.answerVector(calls, allocator)) {
                vector.makeTransferPair(reply.getVector(0)).transfer();
            }
            send(exchange, rows, start, true);
            return;
        }
        List<SqlType.Column> columns = function.callColumns();
        List<FieldVector> vectors = calls.getFieldVectors();
        UserFunction.Calls values = (column, row) -> Values.read(columns.get(column).type(), vectors.get(column), row);
        int[] count = {0};
        reply.allocateNew();
        if (function.kind.equals("aggregate")) {
            exchange.groups.answer(values, rows, step, exchange.context::isCancelled, (row, result, state) -> {
                write(function, reply.getVector(0), row, result);
                Values.write(SqlType.BYTEA, reply.getVector(1), row, state);
                count[0]++;
            });
        } else {
            boolean isTable = function.kind.equals("table");
            FieldVector results = reply.getVector(isTable ? 1 : 0);
            function.answer(values, rows, exchange.context::isCancelled, (row, value) -> {
                if (isTable && count[0] == RESULTS_PER_PART) {
                    send(exchange, count[0], start, false);
                    reply.allocateNew();
                    count[0] = 0;
                }
                if (isTable) Values.write(SqlType.INT4, reply.getVector(0), count[0], row);
                try {
                    Values.write(function.returns, results, count[0]++, value);
                } catch (Values.Misfit cause) {
                    throw function.badResult(cause, row);
                }
            });
        }
        send(exchange, count[0], start, true);
    }

    private static void write(UserFunction function, FieldVector vector, int row, Object value) throws CallError {
        try {
            Values.write(function.returns, vector, row, value);
        } catch (Values.Misfit cause) {
            throw function.badResult(cause, row);
        }
    }

    private void send(Exchange exchange, int rows, long start, boolean isLast) {
        exchange.reply.setRowCount(rows);
        ObjectNode metadata = Json.MAPPER.createObjectNode().put("batch", exchange.number).put("micros", (System.nanoTime() - start) / 1000);
        if (!isLast) metadata.put("more", true);
        if (exchange.laidOut != exchange.reply) Layout.move(exchange.reply, exchange.laidOut);
        exchange.writer.putNext(buffer(metadata));
        exchange.laidOut.clear();
        exchange.reply.clear();
    }

    private ArrowBuf buffer(JsonNode node) {
        byte[] bytes = node.toString().getBytes(StandardCharsets.UTF_8);
        ArrowBuf buffer = allocator.buffer(bytes.length);
        buffer.writeBytes(bytes);
        return buffer;
    }
}
