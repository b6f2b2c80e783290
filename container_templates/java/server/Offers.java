package transship.server;

import io.netty.channel.IoEvent;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.IoRegistration;
import io.netty.channel.epoll.EpollIoHandle;
import io.netty.channel.epoll.EpollIoOps;
import io.netty.channel.unix.DomainSocketAddress;
import io.netty.channel.unix.FileDescriptor;
import io.netty.channel.unix.Socket;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Offers of shared tables (docs/protocol.md §10). The library of the server core takes them, on a thread of its own. It is loaded once a client
 * connects, so containers without tables do without it.
 */
final class Offers {
    /** JNA finds its own library beside it. */
    static final Path LIBRARY = Path.of(System.getProperty("jna.boot.library.path", "/opt/transship/native"), "libtransship_core.so");
    private static final int BACKLOG = 128;
    /** What the library says of an offer that it does not have. */
    private static final String UNKNOWN = "The server does not have the offer of tables that the call names.";

    private static volatile boolean isLoaded;

    private Offers() {}

    /** Whether the image has the library. */
    static boolean canTake() {
        return Files.exists(LIBRARY);
    }

    /** Takes offers on a Unix socket from now on. The first client waits in its queue for the library. */
    static void listen(String path, IoEventLoopGroup loop) throws IOException, InterruptedException {
        Socket listener = Socket.newSocketDomain();
        listener.bind(new DomainSocketAddress(path));
        listener.listen(BACKLOG);
        loop.register(new EpollIoHandle() {
            @Override
            public FileDescriptor fd() {
                return listener;
            }

            @Override
            public void handle(IoRegistration registration, IoEvent event) {
                if (!registration.cancel()) return;
                Thread thread = new Thread(() -> serve(listener), "tables");
                thread.setDaemon(true);
                try {
                    thread.start();
                } catch (OutOfMemoryError cause) {
                    refuse(listener, cause);
                }
            }

            @Override
            public void close() {
                // The library has the socket until the process ends.
            }
        }).sync().getNow().submit(EpollIoOps.EPOLLIN);
    }

    private static void serve(Socket listener) {
        try {
            // It loads the library.
            Core.message();
            isLoaded = true;
            Core.serve(listener.intValue());
        } catch (RuntimeException | Error cause) {
            refuse(listener, cause);
        }
    }

    /** Takes no offers any more, also of clients that wait. */
    private static void refuse(Socket listener, Throwable cause) {
        System.err.println("transship: cannot take shared tables: " + cause);
        try {
            listener.close();
        } catch (IOException ignored) {
            // Nobody can connect any more.
        }
    }

    /** Whether there is an offer of this name. */
    static boolean isThere(String offer) {
        if (!isLoaded) return false;
        long table = Core.open(offer, "");
        if (table == 0) return !Core.message().endsWith(UNKNOWN);
        Core.close(table);
        return true;
    }

    /** Opens a table of an offer, which the caller closes. IllegalStateException if there is none. */
    static long open(String offer, String name) {
        long table = isLoaded ? Core.open(offer, name) : 0;
        if (table != 0) return table;
        String fact = isLoaded ? Core.message() : UNKNOWN;
        throw fact.endsWith(UNKNOWN) ? new CallTables.UnknownOffer() : new IllegalStateException(fact);
    }
}
