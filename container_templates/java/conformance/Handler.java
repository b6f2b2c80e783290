import java.io.Serializable;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.util.TransferPair;
import transship.Encoded;
import transship.Interval;
import transship.Range;
import transship.SharedTable;

/** The functions of the conformance suite, as docs/conformance.md describes them. */
final class Handler {
    private Handler() {}

    record Pair(Integer a, String b) {}

    record Decimals(String a, List<String> b) {}

    static Boolean echoBool(Boolean x) {
        return x;
    }

    static Short echoInt2(Short x) {
        return x;
    }

    static Integer echoInt4(Integer x) {
        return x;
    }

    static Long echoInt8(Long x) {
        return x;
    }

    static Float echoFloat4(Float x) {
        return x;
    }

    static Double echoFloat8(Double x) {
        return x;
    }

    static String echoText(String x) {
        return x;
    }

    static byte[] echoBytea(byte[] x) {
        return x;
    }

    static OffsetDateTime echoTimestamptz(OffsetDateTime x) {
        return x;
    }

    static String echoNumeric(String x) {
        return x;
    }

    static UUID echoUuid(UUID x) {
        return x;
    }

    static String echoJson(String x) {
        return x;
    }

    static LocalTime echoTime(LocalTime x) {
        return x;
    }

    static String echoTimetz(String x) {
        return x;
    }

    static Interval echoInterval(Interval x) {
        return x;
    }

    static String echoInet(String x) {
        return x;
    }

    static String echoCidr(String x) {
        return x;
    }

    static String echoMacaddr(String x) {
        return x;
    }

    static String echoDatetime2(String x) {
        return x;
    }

    static List<Integer> echoArray(List<Integer> x) {
        return x;
    }

    static Range<Long> echoRange(Range<Long> x) {
        return x;
    }

    static Pair echoComposite(Pair x) {
        return x;
    }

    static Decimals echoDecimals(Decimals x) {
        return x;
    }

    static FieldVector echoDate(VectorSchemaRoot batch, BufferAllocator allocator) {
        return copy(batch.getVector(0), allocator);
    }

    static FieldVector echoTimestamp(VectorSchemaRoot batch, BufferAllocator allocator) {
        return copy(batch.getVector(0), allocator);
    }

    private static FieldVector copy(FieldVector vector, BufferAllocator allocator) {
        TransferPair pair = vector.getTransferPair(allocator);
        pair.splitAndTransfer(0, vector.getValueCount());
        return (FieldVector) pair.getTo();
    }

    static int constant() {
        return 7;
    }

    static Long[] add(Long[] a, Long[] b) {
        Long[] results = new Long[a.length];
        for (int row = 0; row < a.length; row++) if (a[row] != null && b[row] != null) results[row] = a[row] + b[row];
        return results;
    }

    static long failAt(long x) {
        if (x == 13) throw new IllegalArgumentException("13 is bad");
        return x;
    }

    static long[] failInBatch(long[] x) {
        if (LongStream.of(x).anyMatch(value -> value == 13)) throw new IllegalArgumentException("13 is bad");
        return x;
    }

    static String[] tableLookup(Long[] keys) {
        return SharedTable.open("numbers").lookup(keys).column("name", String[].class);
    }

    /** Returns its argument, with each distinct text once. */
    static Encoded label(VectorSchemaRoot batch, BufferAllocator allocator) {
        VarCharVector texts = (VarCharVector) batch.getVector(0);
        IntVector indexes = new IntVector("indexes", allocator);
        VarCharVector values = new VarCharVector("values", allocator);
        Map<String, Integer> found = new HashMap<>();
        for (int row = 0; row < batch.getRowCount(); row++) {
            if (texts.isNull(row)) continue;
            String text = texts.getObject(row).toString();
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

    private static final AtomicLong ROWS_WAITED = new AtomicLong();

    static long rowsWaited() {
        return ROWS_WAITED.get();
    }

    static double wait(double seconds) throws InterruptedException {
        ROWS_WAITED.incrementAndGet();
        Thread.sleep((long) (seconds * 1000));
        return seconds;
    }

    static IntStream repeat(Integer n) {
        return IntStream.rangeClosed(1, n == null ? 0 : n);
    }

    static Stream<Long> runningSum(Stream<Long> rows) {
        long[] sum = {0};
        return rows.map(x -> sum[0] += x);
    }

    static final class Total implements Serializable {
        private static final long serialVersionUID = 1;
        private long sum;

        void step(Long x) {
            if (x != null) sum += x;
        }

        void merge(Total other) {
            sum += other.sum;
        }

        long finish() {
            return sum;
        }
    }
}
