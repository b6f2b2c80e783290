package transship.server;

import java.lang.ref.Cleaner;
import java.lang.reflect.Array;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.function.IntFunction;
import org.apache.arrow.vector.BaseIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.types.pojo.ArrowType;
import transship.SharedTable;

/** A shared table that a call has opened in the library. */
final class CoreTable implements SharedTable {
    /** Frees rows that nobody can reach any more, in calls that go on. */
    private static final Cleaner CLEANER = Cleaner.create();

    final String name;
    final List<Core.TableColumn> columns;
    private final List<Core.TableColumn> key;
    private final long rowCount;
    private final int batchCount;
    private final Lent table;
    private final Set<Lent> lent;

    /** Takes an open table, and the set of what its call gives back when it ends. */
    CoreTable(String name, long pointer, Set<Lent> lent) {
        this.name = name;
        this.lent = lent;
        table = new Lent(pointer, Core::close, lent);
        columns = List.of(Core.columns(pointer));
        key = columns.stream().filter(column -> column.key() >= 0).sorted(Comparator.comparingInt(Core.TableColumn::key)).toList();
        rowCount = Core.rows(pointer);
        batchCount = Core.batches(pointer);
    }

    void close() {
        table.close();
    }

    @Override
    public long rowCount() {
        return rowCount;
    }

    @Override
    public List<String> columns() {
        return columns.stream().map(Core.TableColumn::name).toList();
    }

    @Override
    public List<String> key() {
        return key.stream().map(Core.TableColumn::name).toList();
    }

    @Override
    public Row get(Object... values) {
        Object[] parts = values == null ? new Object[1] : values;
        checkKey(parts.length);
        List<PlainColumn> keys = new ArrayList<>();
        for (int i = 0; i < parts.length; i++) {
            Object part = parts[i];
            keys.add(plain(key.get(i), new Given(1, row -> part)));
        }
        Lent found = find(keys, 1, false);
        try {
            CoreRows rows = new CoreRows(this, found);
            if (!rows.isFound(0)) return null;
            // Thousands of rows would wait for the end of the call.
            rows.copyAll();
            return rows.row(0);
        } finally {
            found.close();
        }
    }

    @Override
    public Rows lookup(Object keys) {
        return find(keys, false);
    }

    @Override
    public Rows matches(Object keys) {
        return find(keys, true);
    }

    private Rows find(Object given, boolean all) {
        boolean hasParts = key.size() != 1;
        if (hasParts && !(given instanceof List<?>)) checkKey(1);
        checkKey(hasParts ? ((List<?>) given).size() : 1);
        List<PlainColumn> keys = new ArrayList<>();
        int count = 0;
        for (int i = 0; i < key.size(); i++) {
            Given values = Given.of(key.get(i), hasParts ? ((List<?>) given).get(i) : given);
            if (i > 0 && values.count() != count) throw new IllegalArgumentException("the columns of the keys differ in length: " + count + " and " + values.count());
            count = values.count();
            keys.add(plain(key.get(i), values));
        }
        return rows(find(keys, count, all));
    }

    private void checkKey(int parts) {
        if (key.isEmpty()) throw new IllegalArgumentException("shared table \"" + name + "\" has no key");
        if (parts != key.size()) throw new IllegalArgumentException("the key of shared table \"" + name + "\" has " + key.size() + " columns: " + String.join(", ", key()));
    }

    private Lent find(List<PlainColumn> keys, int count, boolean all) {
        return table.use(pointer -> new Lent(Core.find(pointer, count, keys, all), Core::free, lent));
    }

    private CoreRows rows(Lent found) {
        CoreRows rows = new CoreRows(this, found);
        CLEANER.register(rows, found::close);
        return rows;
    }

    @Override
    public Iterable<Rows> batches() {
        return () -> new Iterator<>() {
            private int next;
            private Lent batch;

            @Override
            public boolean hasNext() {
                return next < batchCount;
            }

            @Override
            public Rows next() {
                if (!hasNext()) throw new NoSuchElementException();
                if (batch != null) batch.close();
                int number = next++;
                batch = table.use(pointer -> new Lent(Core.batch(pointer, number), Core::free, lent));
                return rows(batch);
            }
        };
    }

    // Keys

    /** Values of a key's column, as a handler gives them. */
    private record Given(int count, IntFunction<Object> value) {
        static Given of(Core.TableColumn column, Object values) {
            if (values instanceof Collection<?> collection) values = collection.toArray();
            if (values instanceof FieldVector vector) return of(column, Layout.plain(vector));
            if (values == null || !values.getClass().isArray()) throw misfit(column, values + " is no array, Collection or vector");
            Object array = values;
            return new Given(Array.getLength(array), row -> Array.get(array, row));
        }

        private static Given of(Core.TableColumn column, FieldVector vector) {
            // An integer may have any width.
            boolean isInteger = vector.getField().getType() instanceof ArrowType.Int kind && kind.getIsSigned();
            if (!isInteger && !column.type().accepts(vector.getField())) throw misfit(column, "a vector of " + vector.getField());
            return new Given(vector.getValueCount(), row -> {
                if (vector.isNull(row)) return null;
                return isInteger ? (Object) ((BaseIntVector) vector).getValueAsLong(row) : Values.read(column.type(), vector, row);
            });
        }
    }

    private static PlainColumn plain(Core.TableColumn column, Given given) {
        try {
            return PlainColumn.of(column.type(), column.format(), given.count(), given.value());
        } catch (Values.Misfit cause) {
            throw misfit(column, cause.getMessage());
        }
    }

    private static IllegalArgumentException misfit(Core.TableColumn column, String fact) {
        return new IllegalArgumentException("the keys do not fit column \"" + column.name() + "\" of type " + column.type().text() + ": " + fact);
    }
}
