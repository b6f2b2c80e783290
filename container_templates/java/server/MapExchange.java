package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.arrow.flight.FlightProducer.CallContext;
import org.apache.arrow.flight.FlightProducer.ServerStreamListener;
import org.apache.arrow.flight.FlightStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;

/** An exchange of a map function: all rows of the stream in, any number of results out (docs/protocol.md §4.6). */
final class MapExchange {
    private static final int RESULTS_PER_PART = 1024;
    private static final long BYTES_PER_PART = 1 << 20;
    /** Between two looks at whether the client has gone, and for results that wait for others. */
    private static final long WATCH_MS = 20;
    /** Looks for results of all exchanges. It waits for nobody. */
    private static final ScheduledThreadPoolExecutor LOOKS = new ScheduledThreadPoolExecutor(1, work -> {
        Thread thread = new Thread(work, "map-looks");
        thread.setDaemon(true);
        return thread;
    });

    static {
        LOOKS.setRemoveOnCancelPolicy(true);
    }

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
    /** The thread that reads, and whether it was told that the exchange has failed. */
    private Thread whoReads;
    private boolean isInterrupted;
    private boolean isOver;
    private JsonNode metadata = Json.MAPPER.createObjectNode();
    private long batch;
    private CallBatch calls;
    private VectorSchemaRoot owned;
    private int row;
    /** Guards what follows. Code of the handler's never runs under it: it may wait for a thread that waits for this. */
    private final ReentrantLock writing = new ReentrantLock();
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
            ScheduledFuture<?> looks = startLooks();
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
                if (looks != null) looks.cancel(false);
                end();
                interruptReader();
            }
        } finally {
            synchronized (reading) {
                if (owned != null) owned.close();
            }
        }
    }

    /** From now on no thread of the handler's reads calls or sends results. */
    private void end() {
        writing.lock();
        try {
            isEnded = true;
        } finally {
            writing.unlock();
        }
        synchronized (reading) {
            reading.notifyAll();
        }
    }

    /** Flight leaves a thread alone that waits for calls of an exchange which the server has ended: it would wait for ever. */
    private void interruptReader() {
        synchronized (reading) {
            if (whoReads == null || whoReads == Thread.currentThread()) return;
            isInterrupted = true;
            whoReads.interrupt();
        }
    }

    /** Has results of rows go out soon, whatever the handler waits for; null if there is no thread for that. */
    private ScheduledFuture<?> startLooks() {
        if (function.batch.equals("arrow")) return null;
        try {
            // Otherwise a look that no thread was there for would stay in the queue.
            LOOKS.prestartCoreThread();
            return LOOKS.scheduleWithFixedDelay(this::look, WATCH_MS, WATCH_MS, TimeUnit.MILLISECONDS);
        } catch (OutOfMemoryError cause) {
            return null;
        }
    }

    private void look() {
        // Whoever has the lock sends results, or adds to them.
        if (!writing.tryLock()) return;
        try {
            if (cut == null && !isEnded && writer.isReady()) flush();
        } catch (Exception | Error cause) {
            // It is noted as what cuts the calls off.
        } finally {
            writing.unlock();
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

    private void add(Object value) throws Exception {
        if (cut != null) throw cut;
        UserFunction.checkCancelled(context::isCancelled);
        if (function.batch.equals("arrow")) {
            addVector(value);
            return;
        }
        Object settled;
        try {
            settled = function.settled(value);
        } catch (CallError error) {
            // The value may be one that asks for rows.
            if (cut != null) throw cut;
            throw error;
        }
        writing.lock();
        try {
            function.write(settled, results.getVector(0), count, null);
            if (++count == RESULTS_PER_PART || Values.heldBytes(results.getVector(0), count) >= BYTES_PER_PART) flush();
        } finally {
            writing.unlock();
        }
    }

    private void addVector(Object value) throws Exception {
        if (!(value instanceof FieldVector vector) || !function.returns.accepts(vector.getField())) {
            throw new CallError("bad_result", "It returned " + value + "; the declared result is " + function.returns.text() + ".", null, null);
        }
        writing.lock();
        try {
            int rows = vector.getValueCount();
            Layout.plain(vector).makeTransferPair(results.getVector(0)).transfer();
            count = rows;
            vector.close();
            flush();
        } finally {
            writing.unlock();
        }
    }

    /** Sends the results that there are. The handler may take rows on another thread than the one that gives results. */
    private void flush() throws Exception {
        writing.lock();
        try {
            if (cut != null) throw cut;
            if (isEnded) throw new UserFunction.Cancelled();
            if (count == 0) return;
            results.setRowCount(count);
            count = 0;
            if (results != laidOut) Layout.move(results, laidOut);
            Producer.awaitRoom(writer, context);
            writer.putNext();
            laidOut.clear();
            results.clear();
            results.allocateNew();
        } catch (Exception cause) {
            // Under the lock: none goes out behind results that are lost.
            cut = cause;
            throw cause;
        } catch (Error cause) {
            cut = new IllegalStateException("the results cannot be sent: " + cause, cause);
            throw cause;
        } finally {
            writing.unlock();
        }
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
                    whoReads = Thread.currentThread();
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
            // A client that goes away may close its side first.
            if (!hasBatch) UserFunction.checkCancelled(context::isCancelled);
            hasRead = true;
        } finally {
            synchronized (reading) {
                isReading = false;
                whoReads = null;
                // The thread is the handler's.
                if (isInterrupted) Thread.interrupted();
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
