package transship.server;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.complex.ListVector;
import transship.Encoded;

/** The reply to a {@link ColumnsRequest}: its columns, one after the other, in a segment or behind the header (docs/protocol.md §7). */
final class ColumnsReply {
    private static final int ALIGNMENT = 64;
    private static final int OFFSET_BYTES = 4;

    /** Bytes of the reply's data. */
    record Piece(long offset, ByteBuffer bytes) {}

    private final ColumnsRequest request;
    private final List<Piece> pieces = new ArrayList<>();
    private final ObjectNode header = Json.MAPPER.createObjectNode();
    private final ArrayNode places = Json.MAPPER.createArrayNode();
    private long size;

    private ColumnsReply(ColumnsRequest request) {
        this.request = request;
    }

    /** The body of a reply, whose data is written to the segment if one was offered and has room. */
    static ByteBuf write(ColumnsRequest request, UserFunction function, VectorReply reply, long micros, ByteBufAllocator allocator) throws CallError {
        return new ColumnsReply(request).write(function, reply, micros, allocator);
    }

    private ByteBuf write(UserFunction function, VectorReply reply, long micros, ByteBufAllocator allocator) throws CallError {
        Encoded encoded = reply.encoded();
        int rows = encoded == null ? reply.root.getRowCount() : encoded.indexes().getValueCount();
        header.put("batch", request.batch.number()).put("rows", rows).put("micros", micros);
        header.set("buffers", places);
        if (encoded != null) {
            addEncoded(encoded, rows);
        } else {
            List<SqlType.Column> columns = function.replyColumns(request.batch.rowErrors());
            for (int i = 0; i < columns.size(); i++) add(columns.get(i).type(), reply.root.getVector(i), rows);
        }
        if (size > Integer.MAX_VALUE / 2) throw new CallError("bad_result", "Its results have " + size + " bytes; a reply has at most 1 GiB.", null, null);
        boolean isInSegment = request.replySegment != null && Segments.write(request.replySegment, pieces);
        if (isInSegment) header.put("segment", request.replySegment);
        byte[] text = header.toString().getBytes(java.nio.charset.StandardCharsets.UTF_8);
        int start = (OFFSET_BYTES + text.length + ColumnsRequest.ALIGNMENT - 1) / ColumnsRequest.ALIGNMENT * ColumnsRequest.ALIGNMENT;
        int length = start + (isInSegment ? 0 : (int) size);
        ByteBuf body = allocator.buffer(length, length);
        body.writeIntLE(text.length).writeBytes(text).writeZero(start - body.writerIndex());
        if (isInSegment) return body;
        for (Piece piece : pieces) body.writeZero(start + (int) piece.offset - body.writerIndex()).writeBytes(piece.bytes);
        return body;
    }

    private void add(SqlType type, FieldVector vector, int rows) {
        FieldVector plain = Layout.plain(vector);
        boolean hasNulls = rows > 0 && BitVectorHelper.getNullCount(plain.getValidityBuffer(), rows) > 0;
        buffer(hasNulls ? plain.getValidityBuffer() : null, (rows + 7L) / 8);
        if (type.parts() != null) {
            for (int i = 0; i < type.parts().size(); i++) add(type.parts().get(i).type(), plain.getChildrenFromFields().get(i), rows);
        } else if (type.element() != null) {
            add(type.element(), ((ListVector) plain).getDataVector(), offsets(plain.getOffsetBuffer(), rows));
        } else if (type.isText() || type.type().equals("bytea")) {
            int end = offsets(plain.getOffsetBuffer(), rows);
            buffer(plain.getDataBuffer(), end);
        } else {
            buffer(plain.getDataBuffer(), (rows * (long) type.bits() + 7) / 8);
        }
    }

    /** Adds indexes and the dictionary's texts. */
    private void addEncoded(Encoded encoded, int rows) {
        VarCharVector values = encoded.values();
        add(SqlType.INT4, encoded.indexes(), rows);
        int end = offsets(values.getOffsetBuffer(), values.getValueCount());
        buffer(values.getDataBuffer(), end);
        header.putArray("dictionaries").add(0).add(values.getValueCount());
    }

    /** Adds offsets, and gives the last. */
    private int offsets(ArrowBuf offsets, int rows) {
        buffer(offsets, rows == 0 ? 0 : OFFSET_BYTES * (rows + 1L));
        return rows == 0 ? 0 : offsets.getInt((long) OFFSET_BYTES * rows);
    }

    /** Adds the first bytes of a buffer. One of the calls is added as well: the handler may have written to it, so the reply has no references (§7.8). */
    private void buffer(ArrowBuf buffer, long length) {
        if (buffer == null || length == 0) {
            places.add(0).add(0);
            return;
        }
        long offset = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        places.add(offset).add(length);
        pieces.add(new Piece(offset, buffer.nioBuffer(0, Math.toIntExact(length))));
        size = offset + length;
    }
}
