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

    /** Opens an offer, which the caller closes by Core.closeOffer; 0 if there is none. */
    static long open(String name) {
        return isLoaded ? Core.openOffer(name) : 0;
    }
}
