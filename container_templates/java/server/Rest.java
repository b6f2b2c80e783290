package transship.server;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;
import org.eclipse.jetty.http.HttpHeader;
import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.util.Callback;
import org.eclipse.jetty.util.URIUtil;

/** The JSON form, docs/protocol.md §6. */
final class Rest extends Handler.Abstract {
    private static final String FUNCTIONS = "/v1/functions/";
    private static final String EXCHANGES = "/v1/exchanges/";
    private static final int MAX_BODY_BYTES = 1 << 30;
    private static final long EXCHANGE_IDLE_NANOS = 600_000_000_000L;

    private final Map<String, UserFunction> functions;
    private final BufferAllocator allocator;
    private final JsonNode greeting;
    private final AtomicInteger running = new AtomicInteger();
    private final Map<String, Groups> exchanges = new ConcurrentHashMap<>();

    Rest(Map<String, UserFunction> functions, BufferAllocator allocator, JsonNode greeting) {
        this.functions = functions;
        this.allocator = allocator;
        this.greeting = greeting;
    }

    /** Waits until no request is being answered, at most so long. */
    void awaitNone(long seconds) throws InterruptedException {
        long deadline = System.nanoTime() + seconds * 1_000_000_000L;
        while (running.get() > 0 && System.nanoTime() < deadline) Thread.sleep(10);
    }

    @Override
    public boolean handle(Request request, Response response, Callback callback) throws Exception {
        running.incrementAndGet();
        callback = Callback.from(callback, running::decrementAndGet);
        JsonNode body;
        try {
            body = answer(request);
        } catch (UserFunction.Cancelled cancelled) {
            callback.failed(cancelled);
            return true;
        } catch (CallError error) {
            response.setStatus(switch (error.kind) {
                case "function_not_found" -> 404;
                case "protocol_violation" -> 400;
                default -> 500;
            });
            body = Json.MAPPER.createObjectNode().set("error", error.toWire());
        }
        response.getHeaders().put(HttpHeader.CONTENT_TYPE, "application/json");
        response.write(true, ByteBuffer.wrap(Json.MAPPER.writeValueAsBytes(body)), callback);
        return true;
    }

    private JsonNode answer(Request request) throws Exception {
        String path = request.getHttpURI().getPath();
        String method = request.getMethod();
        if (method.equals("GET") && path.equals("/v1")) return greeting;
        if (method.equals("DELETE") && path.startsWith(EXCHANGES)) {
            exchanges.remove(path.substring(EXCHANGES.length()));
            return Json.MAPPER.createObjectNode();
        }
        String name = path.startsWith(FUNCTIONS) ? URIUtil.decodePath(path.substring(FUNCTIONS.length())) : path;
        byte[] body;
        try (InputStream input = Content.Source.asInputStream(request)) {
            body = input.readNBytes(MAX_BODY_BYTES);
        }
        UserFunction function = functions.get(name);
        if (function == null) throw CallError.unknownFunction(name);
        if (method.equals("GET")) return describe(function);
        JsonNode call;
        try {
            call = Json.readRequest(body);
        } catch (JsonProcessingException cause) {
            throw CallError.violation("the request cannot be read: " + cause.getOriginalMessage());
        }
        return call(function, call);
    }

    private static JsonNode describe(UserFunction function) {
        ObjectNode description = Json.MAPPER.createObjectNode().put("name", function.name).put("kind", function.kind);
        ArrayNode arguments = description.putArray("arguments");
        for (SqlType.Column argument : function.arguments) arguments.addObject().put("name", argument.name()).put("type", argument.type().text());
        return description.put("returns", function.returns.text());
    }

    private JsonNode call(UserFunction function, JsonNode call) throws CallError, UserFunction.Cancelled {
        List<SqlType.Column> columns = function.callColumns();
        JsonNode given = call == null ? null : call.get("columns");
        if (given == null || !call.path("rows").isIntegralNumber() || !given.isArray()) throw CallError.violation("the request cannot be read: it has no rows and columns");
        int rows = call.get("rows").asInt();
        if (given.size() != columns.size()) throw CallError.violation(function.name + " takes " + columns.size() + " columns, not " + given.size());
        Object[][] values = new Object[columns.size()][rows];
        for (int column = 0; column < values.length; column++) {
            if (!given.get(column).isArray() || given.get(column).size() != rows) throw CallError.violation("column " + (column + 1) + " does not have " + rows + " values");
            for (int row = 0; row < rows; row++) values[column][row] = read(columns.get(column).type(), given.get(column).get(row), column, row);
        }
        long start = System.nanoTime();
        List<SqlType.Column> replied = function.replyColumns();
        ArrayNode[] reply = new ArrayNode[replied.size()];
        for (int i = 0; i < reply.length; i++) reply[i] = Json.MAPPER.createArrayNode();
        UserFunction.Calls calls = (column, row) -> values[column][row];
        if (function.kind.equals("aggregate")) {
            findGroups(function, call).answer(calls, rows, call.path("step").asText(), () -> false, (row, result, state) -> {
                reply[0].add(write(function, result, row));
                reply[1].add(Json.write(SqlType.BYTEA, state));
            });
        } else if (function.batch.equals("arrow")) {
            answerVector(function, values, rows, reply[0]);
        } else {
            function.answer(calls, rows, () -> false, (row, value) -> {
                if (reply.length == 2) reply[0].add(row);
                reply[reply.length - 1].add(write(function, value, row));
            });
        }
        ObjectNode answer = Json.MAPPER.createObjectNode();
        answer.set("batch", call.path("batch").isMissingNode() ? Json.MAPPER.getNodeFactory().numberNode(0) : call.get("batch"));
        answer.put("rows", reply[0].size()).put("micros", (System.nanoTime() - start) / 1000);
        answer.putArray("columns").addAll(List.of(reply));
        return answer;
    }

    /** Java's own classes cannot hold all that a type can: such a value is out of range, other misfits break the protocol. */
    private static Object read(SqlType type, JsonNode node, int column, int row) throws CallError {
        try {
            return Json.read(type, node);
        } catch (Values.Misfit | ArithmeticException cause) {
            boolean isSpecial = node.isTextual() && List.of("infinity", "-infinity", "NaN", "Infinity", "-Infinity", "24:00:00.000000").contains(node.textValue());
            if (isSpecial) throw new CallError("out_of_range", "Java cannot hold " + node + " of type " + type.text() + ".", row, null);
            throw CallError.violation("row " + row + " of column " + (column + 1) + " is not of type " + type.text() + ": " + cause.getMessage());
        }
    }

    private static JsonNode write(UserFunction function, Object value, int row) throws CallError {
        try {
            return Json.write(function.returns, value);
        } catch (Values.Misfit cause) {
            throw function.badResult(cause, row);
        }
    }

    private void answerVector(UserFunction function, Object[][] values, int rows, ArrayNode reply) throws CallError {
        Schema schema = new Schema(function.arguments.stream().map(SqlType.Column::field).toList());
        try (VectorSchemaRoot root = VectorSchemaRoot.create(schema, allocator)) {
            root.allocateNew();
            for (int column = 0; column < values.length; column++) {
                for (int row = 0; row < rows; row++) Values.write(function.arguments.get(column).type(), root.getVector(column), row, values[column][row]);
            }
            root.setRowCount(rows);
            try (FieldVector vector = function.answerVector(root, allocator)) {
                for (int row = 0; row < rows; row++) reply.add(write(function, Values.read(function.returns, vector, row), row));
            }
        }
    }

    private Groups findGroups(UserFunction function, JsonNode call) throws CallError {
        long now = System.nanoTime();
        exchanges.values().removeIf(groups -> now - groups.used > EXCHANGE_IDLE_NANOS);
        String name = call.path("exchange").asText();
        if (call.path("batch").asLong() == 0 && !name.isEmpty()) exchanges.put(name, new Groups(function));
        Groups groups = exchanges.get(name);
        if (groups == null || groups.function != function) throw CallError.violation("there is no exchange \"" + name + "\" of " + function.name);
        groups.used = now;
        return groups;
    }
}
