import java.nio.charset.StandardCharsets;
import java.util.AbstractCollection;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import transship.Encoded;
import transship.server.Connections;

/** Functions of whole batches and streams. */
final class Handler {
    private Handler() {}

    private static final AtomicLong ENDED = new AtomicLong();

    record Row(Long x, String t) {}

    private static long checked(long x) {
        if (x == 13) throw new IllegalArgumentException("13 is bad");
        return x;
    }

    static String[] joinColumns(long[] x, String[] t) {
        String[] results = new String[x.length];
        for (int row = 0; row < x.length; row++) results[row] = t[row] + checked(x[row]);
        return results;
    }

    static FieldVector addArrow(VectorSchemaRoot batch, BufferAllocator allocator) {
        BigIntVector x = (BigIntVector) batch.getVector(0);
        BigIntVector y = (BigIntVector) batch.getVector(1);
        for (int row = 0; row < batch.getRowCount(); row++) if (!x.isNull(row)) checked(x.get(row));
        BigIntVector results = new BigIntVector("results", allocator);
        results.allocateNew(batch.getRowCount());
        for (int row = 0; row < batch.getRowCount(); row++) if (!x.isNull(row) && !y.isNull(row)) results.set(row, x.get(row) + y.get(row));
        results.setValueCount(batch.getRowCount());
        return results;
    }

    /** Writes to its argument, and fails once it has. */
    static FieldVector doubleInPlace(VectorSchemaRoot batch, BufferAllocator allocator) {
        BigIntVector x = (BigIntVector) batch.getVector(0);
        boolean isBad = false;
        for (int row = 0; row < batch.getRowCount(); row++) {
            isBad |= x.get(row) == 13;
            x.set(row, 2 * x.get(row));
        }
        if (isBad) checked(13);
        return x;
    }

    static FieldVector echoList(VectorSchemaRoot batch, BufferAllocator allocator) {
        return batch.getVector(0);
    }

    static FieldVector echoPair(VectorSchemaRoot batch, BufferAllocator allocator) {
        return batch.getVector(0);
    }

    static FieldVector echoFlag(VectorSchemaRoot batch, BufferAllocator allocator) {
        return batch.getVector(0);
    }

    /** Writes to its arguments: no other row has the same array. */
    static Long[] sizeColumns(Long[] x, byte[][] y) {
        Long[] results = new Long[x.length];
        for (int row = 0; row < results.length; row++) {
            results[row] = y[row][0] == 7 ? y[row].length : -1L;
            y[row][0] = 0;
        }
        return results;
    }

    static FieldVector sizeArrow(VectorSchemaRoot batch, BufferAllocator allocator) {
        VarBinaryVector y = (VarBinaryVector) batch.getVector(1);
        BigIntVector results = new BigIntVector("results", allocator);
        results.allocateNew(batch.getRowCount());
        for (int row = 0; row < batch.getRowCount(); row++) results.set(row, y.getValueLength(row));
        results.setValueCount(batch.getRowCount());
        return results;
    }

    static Encoded label(VectorSchemaRoot batch, BufferAllocator allocator) {
        VarCharVector texts = (VarCharVector) batch.getVector(0);
        IntVector indexes = new IntVector("indexes", allocator);
        VarCharVector values = new VarCharVector("values", allocator);
        Map<String, Integer> found = new HashMap<>();
        for (int row = 0; row < batch.getRowCount(); row++) {
            if (texts.isNull(row)) continue;
            String text = new String(texts.get(row), StandardCharsets.UTF_8);
            if (!found.containsKey(text)) {
                values.setSafe(found.size(), texts.get(row));
                found.put(text, found.size());
            }
            indexes.setSafe(row, found.get(text));
        }
        indexes.setValueCount(batch.getRowCount());
        values.setValueCount(found.size());
        return new Encoded(indexes, values);
    }

    static Encoded mislabel(VectorSchemaRoot batch, BufferAllocator allocator) {
        Encoded labels = label(batch, allocator);
        labels.indexes().setSafe(0, 77);
        return labels;
    }

    /** One text of a megabyte for every row. */
    static Encoded bloat(VectorSchemaRoot batch, BufferAllocator allocator) {
        IntVector indexes = new IntVector("indexes", allocator);
        VarCharVector values = new VarCharVector("values", allocator);
        for (int row = 0; row < batch.getRowCount(); row++) indexes.setSafe(row, 0);
        indexes.setValueCount(batch.getRowCount());
        values.setSafe(0, "x".repeat(1 << 20).getBytes(StandardCharsets.UTF_8));
        values.setValueCount(1);
        return new Encoded(indexes, values);
    }

    static List<String> spell(Integer n, String text) {
        return n == null ? null : Collections.nCopies(n, text);
    }

    static Iterator<String> joinRows(Iterator<Row> rows) {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return rows.hasNext();
            }

            @Override
            public String next() {
                Row row = rows.next();
                return row.x() + row.t();
            }
        };
    }

    static Stream<FieldVector> sums(Stream<VectorSchemaRoot> batches, BufferAllocator allocator) {
        long[] sum = {0};
        return batches.map(batch -> {
            BigIntVector x = (BigIntVector) batch.getVector(0);
            for (int row = 0; row < batch.getRowCount(); row++) sum[0] += x.get(row);
            BigIntVector result = new BigIntVector("sum", allocator);
            result.allocateNew(1);
            result.set(0, sum[0]);
            result.setValueCount(1);
            return result;
        });
    }

    static Stream<Long> failAt(Stream<Long> rows) {
        return rows.map(Handler::checked);
    }

    static Stream<Long> endless(Stream<Long> rows) {
        return LongStream.iterate(0, x -> x + 1).boxed().onClose(() -> {}).peek(x -> ENDED.set(-x));
    }

    static Stream<Long> nothing(Stream<Long> rows) {
        return null;
    }

    /** Takes rows on another thread. */
    static Iterator<Long> pumped(Iterator<Long> rows) {
        SynchronousQueue<List<Long>> taken = new SynchronousQueue<>();
        CompletableFuture.runAsync(() -> {
            try {
                while (rows.hasNext()) taken.put(List.of(rows.next()));
                taken.put(List.of());
            } catch (InterruptedException cause) {
                throw new IllegalStateException(cause);
            }
        });
        return Stream.generate(() -> {
            try {
                return taken.take();
            } catch (InterruptedException cause) {
                throw new IllegalStateException(cause);
            }
        }).takeWhile(row -> !row.isEmpty()).map(row -> row.get(0)).iterator();
    }

    /** Three rows at a time, in collections that ask for them when they are written. */
    static Iterator<Collection<Long>> triples(Iterator<Long> rows) {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return rows.hasNext();
            }

            @Override
            public Collection<Long> next() {
                return new AbstractCollection<>() {
                    @Override
                    public int size() {
                        return 3;
                    }

                    @Override
                    public Iterator<Long> iterator() {
                        return Stream.generate(() -> rows.hasNext() ? rows.next() : null).limit(3).iterator();
                    }
                };
            }
        };
    }

    /** The same of rows that another thread takes. */
    static Iterator<Collection<Long>> pumpedTriples(Iterator<Long> rows) {
        return triples(pumped(rows));
    }

    /** Ends while a thread still takes rows. */
    static List<Long> leaves(Iterator<Long> rows) {
        CompletableFuture.runAsync(() -> rows.forEachRemaining(row -> {}));
        return List.of(1L);
    }

    /** Fails while a thread waits for rows. */
    static List<Long> failsEarly(Iterator<Long> rows) throws InterruptedException {
        leaves(rows);
        Thread.sleep(50);
        throw new IllegalArgumentException("13 is bad");
    }

    /** Asks for rows again whatever happens, and ends when there are no more. */
    static List<Long> stubborn(Iterator<Long> rows) {
        boolean hasRows = true;
        while (hasRows) {
            try {
                hasRows = rows.hasNext();
                if (hasRows) ENDED.set(rows.next());
            } catch (RuntimeException cause) {
                hasRows = true;
            }
        }
        ENDED.set(1000);
        return List.of();
    }

    static CompletionStage<Double> later(Double seconds) {
        if (seconds == null) return null;
        if (seconds == 13) throw new IllegalArgumentException("13 is bad");
        return CompletableFuture.supplyAsync(() -> {
            ENDED.incrementAndGet();
            if (seconds == 0.012) throw new IllegalStateException("it is late");
            return seconds;
        }, CompletableFuture.delayedExecutor((long) (seconds * 1000), TimeUnit.MILLISECONDS));
    }

    static String connections() throws Exception {
        return Connections.check();
    }

    static long callsEnded() {
        return ENDED.getAndSet(0);
    }
}
