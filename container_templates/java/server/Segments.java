package transship.server;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;

/**
 * Segments: files in memory that a client shares with this server (docs/protocol.md §7.4). They are read and written, not mapped: if a
 * client truncates a file that is mapped, the JVM gets SIGBUS where it reads.
 */
final class Segments {
    private static final Pattern NAME = Pattern.compile("[0-9a-f]{32}");
    private static final String FOLDER = System.getenv("TRANSSHIP_SEGMENT_DIR");

    private Segments() {}

    /** Whether engines share a folder of segments with this container. */
    static boolean areShared() {
        return FOLDER != null;
    }

    private static FileChannel open(String name, OpenOption how) throws CallError {
        if (FOLDER == null || !NAME.matcher(name).matches()) throw CallError.violation("there is no segment \"" + name + "\"");
        try {
            return FileChannel.open(Path.of(FOLDER, name), Set.of(how, LinkOption.NOFOLLOW_LINKS));
        } catch (IOException cause) {
            throw unusable(name, cause);
        }
    }

    private static CallError unusable(String name, IOException cause) {
        return CallError.violation("segment " + name + " cannot be used: " + cause);
    }

    /** The first bytes of a segment, which the caller closes. */
    static ArrowBuf read(String name, int size, BufferAllocator allocator) throws CallError {
        try (FileChannel file = open(name, StandardOpenOption.READ)) {
            // A file that is too short must not cost the memory that the header asks for.
            if (file.size() < size) throw CallError.violation("segment " + name + " has fewer than " + size + " bytes");
            ArrowBuf data = allocator.buffer(size);
            try {
                ByteBuffer rest = data.nioBuffer(0, size);
                while (rest.hasRemaining()) {
                    // The client may truncate the file meanwhile.
                    if (file.read(rest, rest.position()) < 0) throw CallError.violation("segment " + name + " has fewer than " + size + " bytes");
                }
                return data;
            } catch (IOException | CallError cause) {
                data.close();
                throw cause;
            }
        } catch (IOException cause) {
            throw unusable(name, cause);
        }
    }

    /** Writes pieces to a segment. False if there is no memory left for it. */
    static boolean write(String name, Iterable<ColumnsReply.Piece> pieces) throws CallError {
        try (FileChannel file = open(name, StandardOpenOption.WRITE)) {
            for (ColumnsReply.Piece piece : pieces) {
                ByteBuffer rest = piece.bytes().duplicate();
                while (rest.hasRemaining()) file.write(rest, piece.offset() + rest.position());
            }
            return true;
        } catch (IOException cause) {
            return false;
        }
    }
}
