package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.TextNode;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.function.IntFunction;

/**
 * A plain column of the server core (transship_column), copied: bits ('b'), int64 ('l'), doubles ('g'), or bytes ('z'), which hold text, and the
 * JSON form of docs/types.md, without the quotes of a string, for types that are neither numbers, bool, text nor bytea.
 *
 * @param validity bits, of which 0 is NULL; null if no row is
 * @param numbers of 'l', and of 'g' the bits of the doubles
 * @param offsets of 'z', into the bytes behind the first
 * @param bytes of 'b' the bits
 */
record PlainColumn(char format, byte[] validity, long[] numbers, int[] offsets, byte[] bytes) {
    /** struct transship_column. */
    static final int STRUCT_BYTES = 32;
    private static final int VALIDITY_AT = 8, VALUES_AT = 16, BYTES_AT = 24;
    private static final int ALIGNMENT = 8;

    static int bitBytes(int rows) {
        return (int) ((rows + 7L) / 8);
    }

    static boolean isSet(byte[] bits, int row) {
        return (bits[row >> 3] >> (row & 7) & 1) != 0;
    }

    // From the library

    /** Copies the column of so many rows that a struct describes. */
    static PlainColumn copy(Pointer column, int rows) {
        char format = (char) column.getByte(0);
        if (rows == 0) return new PlainColumn(format, null, null, null, null);
        Pointer nulls = column.getPointer(VALIDITY_AT);
        byte[] validity = nulls == null ? null : nulls.getByteArray(0, bitBytes(rows));
        Pointer values = column.getPointer(VALUES_AT);
        switch (format) {
            case 'b': return new PlainColumn(format, validity, null, null, values.getByteArray(0, bitBytes(rows)));
            case 'l', 'g': return new PlainColumn(format, validity, values.getLongArray(0, rows), null, null);
            default:
                int[] offsets = values.getIntArray(0, Math.addExact(rows, 1));
                int length = offsets[rows] - offsets[0];
                return new PlainColumn(format, validity, null, offsets, length == 0 ? new byte[0] : column.getPointer(BYTES_AT).getByteArray(offsets[0], length));
        }
    }

    /** The value of a row, as Values.read gives that of an argument. Misfit where Java cannot hold it. */
    Object value(SqlType type, int row) {
        if (validity != null && !isSet(validity, row)) return null;
        switch (format) {
            case 'b': return isSet(bytes, row);
            case 'l': return Values.unwrap(type, numbers[row]);
            case 'g': {
                double number = Double.longBitsToDouble(numbers[row]);
                if (type.type().equals("float4")) return (float) number;
                return number;
            }
            default:
        }
        int start = offsets[row] - offsets[0];
        int end = offsets[row + 1] - offsets[0];
        if (type.type().equals("bytea")) return Arrays.copyOfRange(bytes, start, end);
        String text = new String(bytes, start, end - start, StandardCharsets.UTF_8);
        if (type.isText()) return text;
        boolean isNested = type.element() != null || type.type().equals("interval");
        try {
            JsonNode node = isNested ? Json.readRequest(Arrays.copyOfRange(bytes, start, end)) : TextNode.valueOf(text);
            return Json.read(type, node);
        } catch (IOException cause) {
            throw new Values.Misfit(text);
        }
    }

    // To the library

    /** A column of values of a type. Misfit if one is not of the type. */
    static PlainColumn of(SqlType type, char format, int rows, IntFunction<Object> values) {
        byte[] validity = new byte[bitBytes(rows)];
        long[] numbers = format == 'l' || format == 'g' ? new long[rows] : null;
        int[] offsets = format == 'z' ? new int[rows + 1] : null;
        byte[] bits = format == 'b' ? new byte[bitBytes(rows)] : null;
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        boolean hasNulls = false;
        for (int row = 0; row < rows; row++) {
            Object value = Values.unwrap(type, values.apply(row));
            if (value == null) hasNulls = true;
            else validity[row >> 3] |= (byte) (1 << (row & 7));
            if (value != null) {
                switch (format) {
                    case 'b' -> bits[row >> 3] |= (byte) ((Boolean) value ? 1 << (row & 7) : 0);
                    case 'l' -> numbers[row] = ((Number) value).longValue();
                    case 'g' -> numbers[row] = Double.doubleToRawLongBits(((Number) value).doubleValue());
                    default -> bytes.writeBytes(bytesOf(type, value));
                }
            }
            if (offsets != null) offsets[row + 1] = bytes.size();
        }
        return new PlainColumn(format, hasNulls ? validity : null, numbers, offsets, bits == null ? bytes.toByteArray() : bits);
    }

    private static byte[] bytesOf(SqlType type, Object value) {
        if (value instanceof byte[] bytes) return bytes;
        return Values.utf8(type.isText() ? (String) value : Json.write(type, value).asText());
    }

    private static long aligned(long bytes) {
        return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /** The bytes that its values take. */
    long size() {
        long size = validity == null ? 0 : aligned(validity.length);
        if (numbers != null) size += 8L * numbers.length;
        if (offsets != null) size += aligned(4L * offsets.length);
        return size + aligned(bytes.length);
    }

    /** Writes a struct, and the values behind the end of what is there; gives the new end. */
    long write(Memory memory, long struct, long end) {
        long start = Pointer.nativeValue(memory);
        memory.setByte(struct, (byte) format);
        memory.setLong(struct + VALIDITY_AT, validity == null ? 0 : start + end);
        if (validity != null) {
            memory.write(end, validity, 0, validity.length);
            end += aligned(validity.length);
        }
        memory.setLong(struct + VALUES_AT, start + end);
        if (numbers != null) {
            memory.write(end, numbers, 0, numbers.length);
            end += 8L * numbers.length;
        }
        if (offsets != null) {
            memory.write(end, offsets, 0, offsets.length);
            end += aligned(4L * offsets.length);
            memory.setLong(struct + BYTES_AT, start + end);
        }
        memory.write(end, bytes, 0, bytes.length);
        return end + aligned(bytes.length);
    }
}
