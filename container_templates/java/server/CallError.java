package transship.server;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.PrintWriter;
import java.io.StringWriter;
import org.apache.arrow.memory.OutOfMemoryException;
import org.apache.arrow.vector.util.OversizedAllocationException;

/** A call that failed; kind is one of docs/protocol.md §5, row counts from zero within the batch. */
final class CallError extends Exception {
    private static final long serialVersionUID = 1;

    final String kind;
    final Integer row;
    final String traceback;

    CallError(String kind, String message, Integer row, String traceback) {
        super(message);
        this.kind = kind;
        this.row = row;
        this.traceback = traceback;
    }

    static CallError violation(String message) {
        return new CallError("protocol_violation", message, null, null);
    }

    static CallError unknownFunction(String name) {
        return new CallError("function_not_found", "there is no function \"" + name + "\"", null, null);
    }

    /** The error for an exception of the handler. */
    static CallError fromHandler(Throwable cause, Integer row) {
        if (cause instanceof CallError error) return error;
        StringWriter text = new StringWriter();
        cause.printStackTrace(new PrintWriter(text));
        return new CallError("user_code", cause.toString(), row, text.toString());
    }

    /**
     * The error for what the handler's code raised where no method of its own was called, such as an iterator of a result. Memory that is
     * missing there is the batch's, which is told elsewhere.
     */
    static CallError fromCode(Throwable cause, Integer row) {
        if (cause instanceof OutOfMemoryError error) throw error;
        if (cause instanceof OutOfMemoryException exception) throw exception;
        if (cause instanceof OversizedAllocationException exception) throw exception;
        return fromHandler(cause, row);
    }

    /** Whether the handler raised it. */
    boolean isOfHandler() {
        return kind.equals("user_code");
    }

    ObjectNode toWire() {
        ObjectNode wire = Json.MAPPER.createObjectNode().put("kind", kind).put("message", getMessage());
        if (row != null) wire.put("row", row);
        if (traceback != null) wire.put("traceback", traceback);
        return wire;
    }
}
