package transship.server;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import io.netty.buffer.ByteBuf;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;

/** A batch of calls as columns in memory (docs/protocol.md §7). Nobody has checked its bytes. */
final class ColumnsRequest implements AutoCloseable {
    static final String CONTENT_TYPE = "application/vnd.transship.columns";
    /** Every buffer begins at a multiple of this. */
    static final int ALIGNMENT = 8;
    private static final int MAX_DATA_BYTES = 1 << 30;
    private static final int LENGTH_BYTES = 4;

    /** The constants that a connection's last request with constants brought (§7.11): buffers as that request's, in data of their own. */
    record Kept(UserFunction function, String id, List<Integer> positions, byte[] data, int[] places) {}

    final CallBatch batch;
    /** The segment into which the reply may be written; null if there is none. */
    final String replySegment;
    final boolean mayEncode;
    /** The offset and the length of each buffer of the calls. */
    private final int[] places;
    /** The data of the calls. */
    private final ArrowBuf data;
    private final List<FieldVector> vectors = new ArrayList<>();
    private final BufferAllocator allocator;
    private Kept kept;

    /**
     * Reads a request.
     *
     * @param kept the constants that the connection keeps; null if it keeps none
     */
    ColumnsRequest(UserFunction function, ByteBuf body, Kept kept, BufferAllocator allocator) throws CallError {
        this.allocator = allocator;
        this.kept = kept;
        JsonNode header = readHeader(body);
        int rows = Rest.rows(header);
        places = readPlaces(header.path("buffers"));
        String segment = text(header, "segment");
        replySegment = text(header, "reply_segment");
        mayEncode = header.path("may_encode").asBoolean();
        CallBatch.RowErrors rowErrors = CallBatch.RowErrors.of(text(header, "row_errors"));
        List<SqlType.Column> columns = function.callColumns();
        boolean[] isConstant = Rest.constants(header, function);
        data = segment == null ? inline(body) : Segments.read(segment, extent(), allocator);
        try {
            readColumns(function, header, columns, rows, isConstant);
            batch = new CallBatch(header.path("batch").asLong(), rows, vectors, isConstant, rowErrors, Objects.requireNonNullElse(text(header, "exchange"), ""), Objects.requireNonNullElse(text(header, "step"), ""));
        } catch (CallError | RuntimeException cause) {
            close();
            throw cause;
        }
    }

    /** The constants to keep for the connection's next requests. */
    Kept kept() {
        return kept;
    }

    private static CallError unreadable(String fact) {
        return CallError.violation("the request cannot be read: " + fact);
    }

    /** A member that is a text; null if it is missing. */
    static String text(JsonNode header, String name) throws CallError {
        JsonNode value = header.path(name);
        if (value.isMissingNode() || value.isNull()) return null;
        if (!value.isTextual()) throw unreadable(name + " is not a text");
        return value.textValue();
    }

    /** Reads the header, and leaves the data in the body. */
    private static JsonNode readHeader(ByteBuf body) throws CallError {
        if (body.readableBytes() < LENGTH_BYTES || Integer.toUnsignedLong(body.getIntLE(body.readerIndex())) > body.readableBytes() - LENGTH_BYTES) {
            throw unreadable("its header is cut off");
        }
        byte[] bytes = new byte[body.readIntLE()];
        body.readBytes(bytes);
        int padding = -(LENGTH_BYTES + bytes.length) & ALIGNMENT - 1;
        body.skipBytes(Math.min(padding, body.readableBytes()));
        try {
            JsonNode header = Json.readRequest(bytes);
            if (!header.isObject()) throw unreadable("its header is not an object");
            return header;
        } catch (JsonProcessingException cause) {
            throw unreadable(cause.getOriginalMessage());
        } catch (IOException cause) {
            throw unreadable(cause.getMessage());
        }
    }

    private static int[] readPlaces(JsonNode buffers) throws CallError {
        if (!buffers.isArray() || buffers.size() % 2 != 0) throw unreadable("it has no pairs of offsets and lengths");
        int[] places = new int[buffers.size()];
        for (int i = 0; i < places.length; i++) {
            JsonNode number = buffers.get(i);
            if (!number.isIntegralNumber() || !number.canConvertToInt() || number.intValue() < 0 || number.intValue() > MAX_DATA_BYTES) {
                throw unreadable("no buffer has the offset or length " + number);
            }
            places[i] = number.intValue();
        }
        return places;
    }

    /** The end of the last buffer. */
    private int extent() throws CallError {
        long end = 0;
        for (int i = 0; i < places.length; i += 2) end = Math.max(end, (long) places[i] + places[i + 1]);
        if (end > MAX_DATA_BYTES) throw unreadable("its data is longer than 1 GiB");
        return (int) end;
    }

    private ArrowBuf inline(ByteBuf body) {
        ArrowBuf copy = allocator.buffer(body.readableBytes());
        body.getBytes(body.readerIndex(), copy.nioBuffer(0, body.readableBytes()));
        copy.writerIndex(body.readableBytes());
        return copy;
    }

    private void readColumns(UserFunction function, JsonNode header, List<SqlType.Column> columns, int rows, boolean[] isConstant) throws CallError {
        boolean isSame = header.path("same_constants").asBoolean();
        List<Integer> positions = new ArrayList<>();
        for (int column = 0; column < isConstant.length; column++) if (isConstant[column]) positions.add(column);
        String id = text(header, "constants_id");
        Reader arrived = new Reader(data, places, allocator);
        Reader known = null;
        if (isSame && !positions.isEmpty()) {
            boolean isKnown = kept != null && kept.function == function && kept.positions.equals(positions) && id != null && id.equals(kept.id);
            if (!isKnown) throw unreadable("it refers to constants that were not sent");
            known = new Reader(allocator.buffer(kept.data.length), kept.places, allocator);
        }
        List<int[]> brought = new ArrayList<>();
        try {
            if (known != null) known.data.setBytes(0, kept.data);
            for (int column = 0; column < columns.size(); column++) {
                Reader reader = isConstant[column] && known != null ? known : arrived;
                int first = reader.next;
                vectors.add(reader.column(columns.get(column), isConstant[column] ? 1 : rows));
                if (isConstant[column] && known == null) brought.add(Arrays.copyOfRange(places, first, reader.next));
            }
        } finally {
            // The vectors have references of their own.
            if (known != null) known.data.close();
        }
        if (arrived.next < places.length) throw unreadable("it has more buffers than columns");
        if (known == null && !positions.isEmpty()) kept = keep(function, id, positions, brought);
    }

    private Kept keep(UserFunction function, String id, List<Integer> positions, List<int[]> brought) {
        int size = 0;
        int[] moved = brought.stream().flatMapToInt(Arrays::stream).toArray();
        for (int i = 0; i < moved.length; i += 2) size += (moved[i + 1] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        byte[] bytes = new byte[size];
        int end = 0;
        for (int i = 0; i < moved.length; i += 2) {
            data.getBytes(moved[i], bytes, end, moved[i + 1]);
            moved[i] = end;
            end += (moved[i + 1] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
        return new Kept(function, id, positions, bytes, moved);
    }

    @Override
    public void close() {
        vectors.forEach(FieldVector::close);
        data.close();
    }

    /** Reads columns, one after the other, as vectors over the data. */
    private static final class Reader {
        final ArrowBuf data;
        private final int[] places;
        private final BufferAllocator allocator;
        /** The position of the next buffer's offset. */
        int next;

        Reader(ArrowBuf data, int[] places, BufferAllocator allocator) {
            this.allocator = allocator;
            this.data = data;
            this.places = places;
        }

        /** The next buffer, of at least so many bytes. */
        private ArrowBuf buffer(long least) throws CallError {
            if (next == places.length) throw unreadable("it has fewer buffers than columns");
            int offset = places[next];
            int length = places[next + 1];
            next += 2;
            if (length < least) throw unreadable("a buffer has " + length + " bytes, not " + least);
            if (length == 0) return data.slice(0, 0);
            if (offset % ALIGNMENT != 0 || (long) offset + length > data.capacity()) throw unreadable("no buffer of " + length + " bytes can be at " + offset);
            ArrowBuf slice = data.slice(offset, length);
            slice.writerIndex(length);
            return slice;
        }

        /** The next column, which the caller closes. */
        FieldVector column(SqlType.Column column, int rows) throws CallError {
            FieldVector vector = column.field().createVector(allocator);
            try {
                load(column.type(), vector, rows);
                return vector;
            } catch (CallError | RuntimeException cause) {
                vector.close();
                throw cause;
            }
        }

        private void load(SqlType type, FieldVector vector, int rows) throws CallError {
            ArrowBuf validity = buffer(0);
            long validityBytes = (rows + 7L) / 8;
            if (validity.capacity() > 0 && validity.capacity() < validityBytes) {
                throw unreadable("a validity buffer has " + validity.capacity() + " bytes for " + rows + " rows");
            }
            int nulls = validity.capacity() == 0 ? 0 : BitVectorHelper.getNullCount(validity, rows);
            List<ArrowBuf> buffers = new ArrayList<>(List.of(validity));
            if (type.parts() != null) {
                for (int i = 0; i < type.parts().size(); i++) load(type.parts().get(i).type(), vector.getChildrenFromFields().get(i), rows);
            } else if (type.isText() || type.type().equals("bytea") || type.element() != null) {
                ArrowBuf offsets = buffer(rows == 0 ? 0 : 4L * (rows + 1L));
                int end = checkOffsets(offsets, rows);
                if (type.element() != null) {
                    load(type.element(), vector.getChildrenFromFields().get(0), end);
                } else {
                    ArrowBuf bytes = buffer(end);
                    if (type.isText()) checkText(bytes, offsets, rows);
                    buffers.add(bytes);
                }
                buffers.add(1, offsets);
            } else {
                buffers.add(buffer((rows * (long) type.bits() + 7) / 8));
            }
            if (rows == 0) {
                vector.allocateNew();
                vector.setValueCount(0);
                return;
            }
            vector.loadFieldBuffers(new ArrowFieldNode(rows, nulls), buffers);
        }

        /** The last offset. */
        private static int checkOffsets(ArrowBuf offsets, int rows) throws CallError {
            int before = 0;
            for (int row = 0; rows > 0 && row <= rows; row++) {
                int offset = offsets.getInt(4L * row);
                if (offset < before) throw unreadable("offsets descend");
                before = offset;
            }
            return before;
        }

        /** Refuses bytes that are not UTF-8, and halves of characters. */
        private static void checkText(ArrowBuf bytes, ArrowBuf offsets, int rows) throws CallError {
            if (rows == 0) return;
            int first = offsets.getInt(0);
            int end = offsets.getInt(4L * rows);
            for (int row = 0; row <= rows; row++) {
                int offset = offsets.getInt(4L * row);
                if (offset < end && (bytes.getByte(offset) & 0xC0) == 0x80) throw unreadable("a text is not UTF-8");
            }
            if (!Utf8.isValid(bytes, first, end)) throw unreadable("a text is not UTF-8");
        }
    }
}
