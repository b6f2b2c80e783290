package transship.server;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.QueryStringDecoder;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.OutOfMemoryException;
import org.apache.arrow.vector.FieldVector;

/** The JSON form, docs/protocol.md §6, and columns in memory, §7. */
final class Rest implements HttpServer.Answering {
    private static final String FUNCTIONS = "/v1/functions/";
    private static final String EXCHANGES = "/v1/exchanges/";
    private static final String JSON = "application/json";
    private static final long EXCHANGE_IDLE_NANOS = 600_000_000_000L;
    private static final List<String> OUT_OF_RANGE = List.of("infinity", "-infinity", "NaN", "Infinity", "-Infinity", "24:00:00.000000");

    private final Map<String, UserFunction> functions;
    private final BufferAllocator allocator;
    private final JsonNode greeting;
    private final Map<String, Groups> exchanges = new ConcurrentHashMap<>();

    Rest(Map<String, UserFunction> functions, BufferAllocator allocator, JsonNode greeting) {
        this.functions = functions;
        this.allocator = allocator;
        this.greeting = greeting;
    }

    @Override
    public boolean isImmediate(FullHttpRequest request) {
        return request.method().name().equals("GET");
    }

    @Override
    public HttpServer.Response refuse() {
        return failure(new CallError("busy", "the server has no room for another call", null, null));
    }

    private static HttpServer.Response success(JsonNode body) {
        return new HttpServer.Response(200, JSON, bytes(body));
    }

    private static HttpServer.Response failure(CallError error) {
        int status = switch (error.kind) {
            case "function_not_found" -> 404;
            case "protocol_violation" -> 400;
            case "busy" -> 503;
            default -> 500;
        };
        return new HttpServer.Response(status, JSON, bytes(Json.MAPPER.createObjectNode().set("error", error.toWire())));
    }

    private static ByteBuf bytes(JsonNode body) {
        try {
            return Unpooled.wrappedBuffer(Json.MAPPER.writeValueAsBytes(body));
        } catch (JsonProcessingException cause) {
            throw new IllegalStateException(cause);
        }
    }

    @Override
    public HttpServer.Response answer(FullHttpRequest request, HttpServer.Connection connection) throws UserFunction.Cancelled {
        try {
            return route(request, connection);
        } catch (CallError error) {
            return failure(error);
        } catch (OutOfMemoryError | OutOfMemoryException cause) {
            // The batch, or its results; the handler's own errors are known by now.
            return failure(new CallError("user_code", "the container has no memory for this batch: " + cause.getMessage(), null, null));
        } catch (RuntimeException cause) {
            cause.printStackTrace();
            return failure(CallError.violation("the request cannot be answered: " + cause));
        } catch (Error cause) {
            // The server's own code raises none: a class of the handler's cannot be used.
            return failure(CallError.fromHandler(cause, null));
        }
    }

    private HttpServer.Response route(FullHttpRequest request, HttpServer.Connection connection) throws CallError, UserFunction.Cancelled {
        String path;
        try {
            path = new QueryStringDecoder(request.uri()).path();
        } catch (IllegalArgumentException cause) {
            throw CallError.violation("the path cannot be read: " + cause.getMessage());
        }
        String method = request.method().name();
        if (method.equals("GET") && path.equals("/v1")) return success(greeting);
        if (method.equals("DELETE") && path.startsWith(EXCHANGES)) {
            exchanges.remove(path.substring(EXCHANGES.length()));
            return success(Json.MAPPER.createObjectNode());
        }
        String name = path.startsWith(FUNCTIONS) ? path.substring(FUNCTIONS.length()) : path;
        UserFunction function = functions.get(name);
        if (function == null) throw CallError.unknownFunction(name);
        if (method.equals("GET")) return success(describe(function));
        if (function.kind.equals("map")) throw CallError.violation(name + " is a map function, which has a form in Flight only");
        boolean isColumns = ColumnsRequest.CONTENT_TYPE.equals(request.headers().get(HttpHeaderNames.CONTENT_TYPE));
        try (CallTables tables = CallTables.of(request.headers().get(CallTables.FIELD))) {
            if (tables != null) tables.check();
            return isColumns ? callColumns(function, request.content(), connection) : callJson(function, request.content(), connection);
        }
    }

    private static JsonNode describe(UserFunction function) {
        ObjectNode description = Json.MAPPER.createObjectNode().put("name", function.name).put("kind", function.kind);
        ArrayNode arguments = description.putArray("arguments");
        for (SqlType.Column argument : function.arguments) arguments.addObject().put("name", argument.name()).put("type", argument.type().text());
        return description.put("returns", function.returns.text());
    }

    private HttpServer.Response callColumns(UserFunction function, ByteBuf body, HttpServer.Connection connection) throws CallError, UserFunction.Cancelled {
        try (ColumnsRequest request = new ColumnsRequest(function, body, connection.kept, allocator);
                VectorReply reply = new VectorReply(function, request.batch.rowErrors(), allocator, Integer.MAX_VALUE, request.mayEncode, isLast -> {})) {
            connection.kept = request.kept();
            long start = System.nanoTime();
            fill(reply, function, request.batch, connection);
            long micros = (System.nanoTime() - start) / 1000;
            return new HttpServer.Response(200, ColumnsRequest.CONTENT_TYPE, ColumnsReply.write(request, function, reply, micros, body.alloc()));
        }
    }

    private HttpServer.Response callJson(UserFunction function, ByteBuf body, HttpServer.Connection connection) throws CallError, UserFunction.Cancelled {
        JsonNode call;
        try {
            call = Json.readRequest(ByteBufUtil.getBytes(body));
        } catch (JsonProcessingException cause) {
            throw CallError.violation("the request cannot be read: " + cause.getOriginalMessage());
        } catch (IOException cause) {
            throw CallError.violation("the request cannot be read: " + cause.getMessage());
        }
        List<FieldVector> vectors = new ArrayList<>();
        try {
            CallBatch batch = read(function, call, vectors);
            try (VectorReply reply = new VectorReply(function, batch.rowErrors(), allocator, Integer.MAX_VALUE, false, isLast -> {})) {
                long start = System.nanoTime();
                fill(reply, function, batch, connection);
                return success(write(function, batch, reply, (System.nanoTime() - start) / 1000));
            }
        } finally {
            vectors.forEach(FieldVector::close);
        }
    }

    private void fill(VectorReply reply, UserFunction function, CallBatch batch, HttpServer.Connection connection) throws CallError, UserFunction.Cancelled {
        Groups groups = begin(function, batch);
        try {
            reply.answer(batch, groups, connection::isClosed);
        } finally {
            if (groups != null) groups.end();
        }
    }

    /** The number of rows of a call. */
    static int rows(JsonNode call) throws CallError {
        JsonNode rows = call.path("rows");
        if (!rows.isIntegralNumber() || !rows.canConvertToInt() || rows.intValue() < 0) {
            throw CallError.violation("the request cannot be read: it has no number of rows, or one outside 0 to 2147483647");
        }
        return rows.intValue();
    }

    /** For each column of a call, whether it is a constant (docs/protocol.md §6, §7.11). */
    static boolean[] constants(JsonNode call, UserFunction function) throws CallError {
        boolean[] isConstant = new boolean[function.callColumns().size()];
        JsonNode positions = call.path("constants");
        if (positions.isMissingNode() || positions.isNull()) return isConstant;
        int before = -1;
        for (JsonNode position : positions) {
            boolean isColumn = position.isIntegralNumber() && position.canConvertToInt() && position.intValue() > before && position.intValue() < isConstant.length;
            if (!isColumn) throw CallError.violation("the request cannot be read: constants are ascending numbers of columns, not " + positions);
            before = position.intValue();
            isConstant[before] = true;
        }
        if (!positions.isArray()) throw CallError.violation("the request cannot be read: constants are a list of numbers");
        return isConstant;
    }

    private CallBatch read(UserFunction function, JsonNode call, List<FieldVector> vectors) throws CallError {
        List<SqlType.Column> columns = function.callColumns();
        JsonNode given = call.path("columns");
        if (!given.isArray()) throw CallError.violation("the request cannot be read: it has no columns");
        int rows = rows(call);
        boolean[] isConstant = constants(call, function);
        if (given.size() != columns.size()) throw CallError.violation(function.name + " takes " + columns.size() + " columns, not " + given.size());
        for (int column = 0; column < columns.size(); column++) {
            JsonNode values = given.get(column);
            int count = isConstant[column] ? 1 : rows;
            if (!values.isArray() || values.size() != count) throw CallError.violation("column " + (column + 1) + " does not have " + count + " values");
            FieldVector vector = columns.get(column).field().createVector(allocator);
            vectors.add(vector);
            vector.setInitialCapacity(count);
            vector.allocateNew();
            for (int row = 0; row < count; row++) read(columns.get(column).type(), values.get(row), vector, column, row);
            vector.setValueCount(count);
        }
        CallBatch.RowErrors rowErrors = CallBatch.RowErrors.of(ColumnsRequest.text(call, "row_errors"));
        String exchange = Objects.requireNonNullElse(ColumnsRequest.text(call, "exchange"), "");
        String step = Objects.requireNonNullElse(ColumnsRequest.text(call, "step"), "");
        return new CallBatch(call.path("batch").asLong(), rows, vectors, isConstant, rowErrors, exchange, step);
    }

    /** Java's own classes cannot hold all that a type can: such a value is out of range, other misfits break the protocol. */
    private static void read(SqlType type, JsonNode node, FieldVector vector, int column, int row) throws CallError {
        try {
            Values.write(type, vector, row, Json.read(type, node));
        } catch (Values.Misfit | ArithmeticException cause) {
            if (node.isTextual() && OUT_OF_RANGE.contains(node.textValue())) throw new CallError("out_of_range", "Java cannot hold " + node + " of type " + type.text() + ".", row, null);
            throw CallError.violation("row " + row + " of column " + (column + 1) + " is not of type " + type.text() + ": " + cause.getMessage());
        }
    }

    private static JsonNode write(UserFunction function, CallBatch batch, VectorReply reply, long micros) throws CallError {
        int rows = reply.root.getRowCount();
        ObjectNode answer = Json.MAPPER.createObjectNode().put("batch", batch.number()).put("rows", rows).put("micros", micros);
        ArrayNode columns = answer.putArray("columns");
        List<SqlType.Column> declared = function.replyColumns(batch.rowErrors());
        for (int column = 0; column < declared.size(); column++) {
            SqlType type = declared.get(column).type();
            ArrayNode values = columns.addArray();
            for (int row = 0; row < rows; row++) {
                try {
                    values.add(Json.write(type, Values.read(type, reply.root.getVector(column), row)));
                } catch (Values.Misfit cause) {
                    throw function.badResult(cause, row);
                }
            }
        }
        return answer;
    }

    /** The groups of a batch's exchange, which is not forgotten until their step ends; null if the function is no aggregate function. */
    private synchronized Groups begin(UserFunction function, CallBatch batch) throws CallError {
        if (!function.kind.equals("aggregate")) return null;
        exchanges.values().removeIf(groups -> groups.isIdle(EXCHANGE_IDLE_NANOS));
        String name = batch.exchange();
        if (batch.number() == 0 && !name.isEmpty()) exchanges.put(name, new Groups(function));
        Groups groups = exchanges.get(name);
        if (groups == null || groups.function != function) throw CallError.violation("there is no exchange \"" + name + "\" of " + function.name);
        groups.begin();
        return groups;
    }
}
