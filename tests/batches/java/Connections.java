package transship.server;

import io.netty.buffer.Unpooled;
import io.netty.channel.unix.DomainSocketAddress;
import io.netty.handler.codec.http.FullHttpRequest;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Looks at how the server of HTTP bounds its connections, in less time than they have otherwise. */
public final class Connections {
    private static final int MOST = 4;
    private static final long UNREAD_MS = 300;
    private static final long PATIENCE_MS = 10_000;
    private static final int ANSWER_BYTES = 8 << 20;

    private Connections() {}

    /** What is wrong; "" if nothing is. */
    public static String check() throws Exception {
        HttpServer.Answering answering = new HttpServer.Answering() {
            @Override
            public boolean isImmediate(FullHttpRequest request) {
                return false;
            }

            @Override
            public HttpServer.Response answer(FullHttpRequest request, HttpServer.Connection connection) {
                try {
                    if (request.uri().equals("/slow")) Thread.sleep(4 * UNREAD_MS);
                } catch (InterruptedException cause) {
                    throw new IllegalStateException(cause);
                }
                return new HttpServer.Response(200, "text/plain", Unpooled.wrappedBuffer(new byte[ANSWER_BYTES]));
            }

            @Override
            public HttpServer.Response refuse() {
                return new HttpServer.Response(503, "text/plain", Unpooled.EMPTY_BUFFER);
            }
        };
        HttpServer server = new HttpServer(answering, 4, 4, new HttpServer.Limits(MOST, 60_000, UNREAD_MS));
        Path folder = Files.createTempDirectory("connections");
        Path socket = folder.resolve("http.sock");
        server.listen(new DomainSocketAddress(socket.toString()));
        try {
            return checkUnread(server, socket) + checkSlow(socket) + checkMost(socket);
        } finally {
            server.stop(0);
            Files.deleteIfExists(socket);
            Files.delete(folder);
        }
    }

    private static SocketChannel ask(Path socket, String path) throws IOException {
        return ask(socket, path, "POST");
    }

    private static SocketChannel ask(Path socket, String path, String method) throws IOException {
        SocketChannel client = SocketChannel.open(StandardProtocolFamily.UNIX);
        client.connect(UnixDomainSocketAddress.of(socket));
        client.write(ByteBuffer.wrap((method + " " + path + " HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").getBytes(StandardCharsets.US_ASCII)));
        return client;
    }

    /** The status of an answer, all of which is read, with pauses. */
    private static int read(SocketChannel client, long pauseMs) throws Exception {
        ByteBuffer part = ByteBuffer.allocate(ANSWER_BYTES / 32);
        StringBuilder head = new StringBuilder();
        for (int count = 0; count < ANSWER_BYTES; ) {
            part.clear();
            int more = client.read(part);
            if (more < 0) break;
            count += more;
            if (head.length() == 0) head.append(StandardCharsets.US_ASCII.decode(part.flip().limit(Math.min(more, 12))));
            Thread.sleep(pauseMs);
        }
        return head.length() == 0 ? 0 : Integer.parseInt(head.substring(9, 12));
    }

    /** A client that reads nothing is cut off, whether its answer came at once or not. */
    private static String checkUnread(HttpServer server, Path socket) throws Exception {
        for (String path : List.of("/", "/slow")) {
            try (SocketChannel client = ask(socket, path)) {
                long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(PATIENCE_MS);
                Thread.sleep(UNREAD_MS / 2);
                while (server.isAnswering() && System.nanoTime() < deadline) Thread.sleep(10);
                if (server.isAnswering()) return "The answer at " + path + " is kept, though nobody reads it. ";
            }
        }
        return "";
    }

    /** A client that reads slowly gets all of an answer, and a slow function has its time. */
    private static String checkSlow(Path socket) throws Exception {
        for (String path : List.of("/", "/slow")) {
            try (SocketChannel client = ask(socket, path)) {
                int status = read(client, UNREAD_MS / 6);
                if (status != 200 || client.write(ByteBuffer.wrap(new byte[1])) != 1) return "A slow client at " + path + " got the status " + status + ". ";
            }
        }
        return "";
    }

    private static String checkMost(Path socket) throws Exception {
        List<SocketChannel> clients = new ArrayList<>();
        try {
            // Those before are closed by now, or soon.
            Thread.sleep(UNREAD_MS);
            for (int i = 0; i <= MOST; i++) clients.add(ask(socket, "/"));
            // Whether the server is there, it says on any connection.
            clients.add(ask(socket, "/", "GET"));
            int greeting = read(clients.get(MOST + 1), 0);
            if (greeting != 200) return "A request without a call got the status " + greeting + ". ";
            for (int i = 0; i <= MOST; i++) {
                int status = read(clients.get(i), 0);
                if (status != (i < MOST ? 200 : 503)) return "Connection " + i + " got the status " + status + ". ";
            }
        } finally {
            for (SocketChannel client : clients) client.close();
        }
        Thread.sleep(UNREAD_MS);
        try (SocketChannel client = ask(socket, "/")) {
            int status = read(client, 0);
            return status == 200 ? "" : "A connection after others got the status " + status + ". ";
        }
    }
}
