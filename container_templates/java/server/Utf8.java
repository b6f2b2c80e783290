package transship.server;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import org.apache.arrow.memory.ArrowBuf;

/** Checks texts, without a copy of all of them. */
final class Utf8 {
    private static final int CHUNK_BYTES = 1 << 16;

    private Utf8() {}

    /** Whether the bytes from first to end are UTF-8. */
    static boolean isValid(ArrowBuf bytes, int first, int end) {
        CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
        ByteBuffer chunk = ByteBuffer.allocate(Math.min(CHUNK_BYTES, end - first));
        // A character takes at least as many bytes as Java's chars.
        CharBuffer ignored = CharBuffer.allocate(chunk.capacity() + 1);
        for (int at = first; at < end; ) {
            int length = Math.min(chunk.remaining(), end - at);
            bytes.getBytes(at, chunk.array(), chunk.position(), length);
            chunk.position(chunk.position() + length).flip();
            at += length;
            CoderResult result = decoder.decode(chunk, ignored.clear(), at == end);
            if (result.isError()) return false;
            // The beginning of a character waits for its end.
            chunk.compact();
        }
        return true;
    }
}
