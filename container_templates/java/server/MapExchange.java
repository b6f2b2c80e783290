package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.arrow.flight.FlightProducer.CallContext;
import org.apache.arrow.flight.FlightProducer.ServerStreamListener;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;

/** An exchange of a map function: all rows of the stream in, any number of results out (docs/protocol.md §4.6). */
final class MapExchange {
    private static final int RESULTS_PER_PART = 1024;
    /** Between two looks at whether the client has gone. */
    private static final long WATCH_MS = 20;

    private final UserFunction function;
    private final CallContext context;
    private final FlightStream reader;
    private final ServerStreamListener writer;
    private final BufferAllocator allocator;
    private final Layout layout;
    /** Why the calls ended early. The handler may have caught it. */
    private volatile Exception cut;
    /** Whether the handler was told why the calls ended. One that has caught it gets no more calls, so that a loop around them ends. */
    private volatile boolean isTold;
    /** Whether the handler is done. Threads of its own may still ask for rows, and get none. */
    private volatile boolean isEnded;
    /** Guards what follows, up to the row. Nobody holds it while the stream waits for its client: isReading says that somebody does. */
    private final Object reading = new Object();
    private boolean isReading;
    private boolean isOver;
    private JsonNode metadata = Json.MAPPER.createObjectNode();
    private long batch;
    private CallBatch calls;
    private VectorSchemaRoot owned;
    private int row;
    private VectorSchemaRoot results;
    private VectorSchemaRoot laidOut;
    private int count;

    MapExchange(UserFunction function, CallContext context, FlightStream reader, ServerStreamListener writer, BufferAllocator allocator) {
        this.function = function;
        this.context = context;
        this.reader = reader;
        this.writer = writer;
        this.allocator = allocator;
        layout = Layout.of(reader.getSchema());
    }

    /** Ends the calls. The handler that asked for them does not get this as an error of its own. */
    private static final class Cut extends RuntimeException {
        private static final long serialVersionUID = 1;

        Cut(Exception cause) {
            super(cause);
        }
    }

    private Cut tell(Exception cause) {
        isTold = true;
        return new Cut(cause);
    }

    /** Answers the whole stream. */
    void run() throws Exception {
        try (VectorSchemaRoot own = VectorSchemaRoot.create(function.replySchema(null), allocator);
                VectorSchemaRoot sent = layout.equals(Layout.OWN) ? own : VectorSchemaRoot.create(layout.schema(own.getSchema()), allocator)) {
            results = own;
            laidOut = sent;
            writer.start(sent);
            results.allocateNew();
            try {
                Iterator<?> answers = start();
                while (hasNext(answers)) add(next(answers));
                if (cut != null) throw cut;
                flush();
                end();
                drain();
            } catch (CallError error) {
                end();
                Producer.fail(error, metadata, batch, writer, allocator);
            } finally {
                end();
            }
        } finally {
            synchronized (reading) {
                if (owned != null) owned.close();
            }
        }
    }

    /** From now on no thread of the handler's reads calls or sends results. */
    private void end() {
        synchronized (this) {
            isEnded = true;
        }
        synchronized (reading) {
            reading.notifyAll();
        }
    }

    /** The stream ends when all of it has been read. */
    private void drain() throws Exception {
        synchronized (reading) {
            while (isReading) {
                reading.wait(WATCH_MS);
                UserFunction.checkCancelled(context::isCancelled);
            }
        }
        while (!isOver && reader.next()) UserFunction.checkCancelled(context::isCancelled);
    }

    private Iterator<?> start() throws Exception {
        try {
            return function.map(rows(), allocator);
        } catch (CallError error) {
            if (cut != null) throw cut;
            throw error;
        }
    }

    private boolean hasNext(Iterator<?> answers) throws Exception {
        try {
            return answers.hasNext();
        } catch (RuntimeException | Error cause) {
            if (cut != null) throw cut;
            throw CallError.fromHandler(cause, null);
        }
    }

    private Object next(Iterator<?> answers) throws Exception {
        try {
            return answers.next();
        } catch (RuntimeException | Error cause) {
            if (cut != null) throw cut;
            throw CallError.fromHandler(cause, null);
        }
    }

    private synchronized void add(Object value) throws Exception {
        if (cut != null) throw cut;
        UserFunction.checkCancelled(context::isCancelled);
        if (function.batch.equals("arrow")) {
            if (!(value instanceof FieldVector vector) || !function.returns.accepts(vector.getField())) {
                throw new CallError("bad_result", "It returned " + value + "; the declared result is " + function.returns.text() + ".", null, null);
            }
            count = vector.getValueCount();
            Layout.plain(vector).makeTransferPair(results.getVector(0)).transfer();
            vector.close();
            flush();
            return;
        }
        try {
            function.write(value, results.getVector(0), count, null);
        } catch (CallError error) {
            // The value may be one that asks for rows.
            if (cut != null) throw cut;
            throw error;
        }
        if (++count == RESULTS_PER_PART) flush();
    }

    /** The handler may take rows on another thread than the one that gives results. */
    private synchronized void flush() throws UserFunction.Cancelled {
        if (isEnded) throw new UserFunction.Cancelled();
        if (count == 0) return;
        results.setRowCount(count);
        if (results != laidOut) Layout.move(results, laidOut);
        Producer.awaitRoom(writer, context);
        writer.putNext();
        laidOut.clear();
        results.clear();
        results.allocateNew();
        count = 0;
    }

    /** The rows as the handler takes them, or its batches, which last until the next one is asked for. */
    private Iterator<Object> rows() {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return hasCall();
            }

            @Override
            public Object next() {
                while (hasCall()) {
                    Object call = takeCall();
                    if (call != null) return call;
                }
                throw new NoSuchElementException();
            }
        };
    }

    /** Whether the handler has all rows of the batch, or the batch itself. */
    private boolean isTaken() {
        return function.batch.equals("arrow") ? row > 0 : row >= calls.rows();
    }

    /** The next row or batch; null if another thread has taken it. */
    private Object takeCall() {
        synchronized (reading) {
            checkOpen();
            if (isReading || isTaken()) return null;
            try {
                if (function.batch.equals("row")) return function.element(calls, row++);
                row = 1;
                return new VectorSchemaRoot(calls.columns().stream().map(FieldVector::getField).toList(), calls.columns(), calls.rows());
            } catch (CallError error) {
                throw tell(cut = error);
            }
        }
    }

    private void checkOpen() {
        if (cut != null) throw tell(cut);
        if (isEnded) throw tell(new UserFunction.Cancelled());
    }

    /** Whether there is a row or batch to take, which the stream may wait for. */
    private boolean hasCall() {
        while (true) {
            try {
                synchronized (reading) {
                    if (isTold) return false;
                    checkOpen();
                    while (isReading) {
                        reading.wait();
                        checkOpen();
                    }
                    if (calls != null && !isTaken()) return true;
                    if (isOver) return false;
                    isReading = true;
                }
                read();
            } catch (Cut cause) {
                throw cause;
            } catch (Exception cause) {
                throw tell(cut = cause);
            }
        }
    }

    /** Reads the next batch. */
    private void read() throws Exception {
        boolean hasBatch = false;
        boolean hasRead = false;
        try {
            // Results do not wait for calls that may never come.
            flush();
            hasBatch = reader.next();
            hasRead = true;
        } finally {
            synchronized (reading) {
                isReading = false;
                isOver = hasRead && !hasBatch;
                reading.notifyAll();
                if (hasBatch && !isEnded) take();
            }
        }
    }

    private void take() throws Exception {
        metadata = Producer.metadata(reader);
        batch = metadata.path("batch").asLong(batch + 1);
        VectorSchemaRoot root = reader.getRoot();
        if (!layout.equals(Layout.OWN)) {
            if (owned != null) owned.close();
            root = owned = Layout.read(root, allocator);
        }
        List<FieldVector> vectors = root.getFieldVectors();
        calls = new CallBatch(batch, root.getRowCount(), vectors, new boolean[vectors.size()], null, "", "");
        row = 0;
        function.check(calls);
    }
}
