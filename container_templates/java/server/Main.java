package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.grpc.netty.NettyServerBuilder;
import io.netty.channel.unix.DomainSocketAddress;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.arrow.flight.FlightServer;
import org.apache.arrow.flight.Location;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;

/** Starts the server: Main [serve | describe], docs/protocol.md §8. */
public final class Main {
    private static final long STOP_PATIENCE_S = 10;
    /** With those of the JVM and of Netty they stay below a container's 128; what comes on top waits. */
    private static final int REST_THREADS = 32;
    private static final int FLIGHT_THREADS = 48;
    private static final int FLIGHT_CALLBACK_THREADS = 4;
    private static final int MOST_WAITING = 256;
    /** Exchanges of one connection of Flight at a time. Clients have one for each function of a running query; further ones wait. */
    private static final int MOST_STREAMS = 1024;
    /** After so long without a word, a client of Flight is asked whether it is there. It may read on whenever its engine wants more rows. */
    private static final long KEEP_ALIVE_MIN = 10;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        String root = System.getenv().getOrDefault("TRANSSHIP_ROOT", "/opt/transship");
        // What the handler prints is a log, not an answer.
        PrintStream output = System.out;
        System.setOut(System.err);
        Map<String, UserFunction> functions;
        try {
            functions = UserFunction.load(root);
        } catch (IllegalArgumentException | ClassNotFoundException cause) {
            System.err.println("transship: " + cause.getMessage());
            System.exit(1);
            return;
        }
        if (arguments.length > 0 && arguments[0].equals("describe")) describe(root, functions, output);
        else serve(functions);
    }

    private static void describe(String root, Map<String, UserFunction> functions, PrintStream output) throws Exception {
        JsonNode manifest = Json.MAPPER.readTree(new File(root, "manifest.json"));
        for (JsonNode entry : manifest.get("functions")) {
            if (functions.get(entry.get("name").asText()).merges) ((ObjectNode) entry).put("merges", true);
        }
        output.println(manifest);
    }

    private static void serve(Map<String, UserFunction> functions) throws Exception {
        ObjectNode greeting = Json.MAPPER.createObjectNode().put("protocol", 1).put("server", "transship-java/0.2.0");
        functions.keySet().forEach(greeting.putArray("functions")::add);
        greeting.putArray("transports").add("flight").add("json").add("socket");
        if (Segments.areShared()) ((ArrayNode) greeting.get("transports")).add("shm");
        String folder = System.getenv("TRANSSHIP_SOCKET_DIR");
        boolean takesTables = folder != null && Offers.canTake();
        greeting.put("keep_alive", true).put("constants", true).put("row_errors", true).put("tables", takesTables);
        BufferAllocator allocator = new RootAllocator();
        Producer producer = new Producer(functions, allocator, greeting);
        List<FlightServer> flights = new ArrayList<>();
        HttpServer rest = new HttpServer(new Rest(functions, allocator, greeting), REST_THREADS, MOST_WAITING, HttpServer.Limits.ofProcess());
        ExecutorService exchanges = Executors.newFixedThreadPool(FLIGHT_THREADS);
        // What tells exchanges of messages waits for nothing, and must not wait for exchanges, which wait for messages.
        ExecutorService callbacks = Executors.newFixedThreadPool(FLIGHT_CALLBACK_THREADS);
        Consumer<NettyServerBuilder> settings =
            builder -> builder.executor(callbacks).maxConcurrentCallsPerConnection(MOST_STREAMS).keepAliveTime(KEEP_ALIVE_MIN, TimeUnit.MINUTES);

        String httpPort = System.getenv("TRANSSHIP_HTTP_PORT");
        String flightPort = System.getenv("TRANSSHIP_FLIGHT_PORT");
        List<Location> locations = new ArrayList<>();
        if (folder != null) {
            for (String name : List.of("http.sock", "flight.sock", "tables.sock")) Files.deleteIfExists(Path.of(folder, name));
            // Before anybody is told that it is there.
            if (takesTables) {
                Offers.listen(folder + "/tables.sock", rest.loop());
                openToAll(folder, "tables.sock");
            }
            locations.add(Location.forGrpcDomainSocket(folder + "/flight.sock"));
            rest.listen(new DomainSocketAddress(folder + "/http.sock"));
        }
        if (httpPort != null) rest.listen(new InetSocketAddress(Integer.parseInt(httpPort)));
        if (flightPort != null) locations.add(Location.forGrpcInsecure("0.0.0.0", Integer.parseInt(flightPort)));
        if (locations.isEmpty() && httpPort == null) {
            System.err.println("transship: set TRANSSHIP_SOCKET_DIR, TRANSSHIP_HTTP_PORT or TRANSSHIP_FLIGHT_PORT");
            System.exit(1);
        }
        for (Location location : locations) {
            flights.add(FlightServer.builder(allocator, location, producer).executor(exchanges).transportHint("grpc.builderConsumer", settings)
                .maxInboundMessageSize(1 << 30).build().start());
        }
        if (folder != null) {
            openToAll(folder, "http.sock");
            openToAll(folder, "flight.sock");
        }
        System.err.println("transship: ready, " + functions.size() + " functions");

        CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            // What is running is finished.
            flights.forEach(FlightServer::shutdown);
            try {
                rest.stop(STOP_PATIENCE_S);
                for (FlightServer flight : flights) flight.awaitTermination(STOP_PATIENCE_S, TimeUnit.SECONDS);
                exchanges.shutdown();
                callbacks.shutdown();
            } catch (Exception cause) {
                System.err.println("transship: " + cause);
            }
            stopped.countDown();
        }));
        stopped.await();
    }

    /** The engine that connects is another user than this one; the directory around the socket decides who gets here. */
    private static void openToAll(String folder, String socket) throws IOException {
        Files.setPosixFilePermissions(Path.of(folder, socket), PosixFilePermissions.fromString("rwxrwxrwx"));
    }
}
