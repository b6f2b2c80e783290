package transship.server;

import java.lang.reflect.Array;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import transship.SharedTable;

/** Rows of a shared table. A column that was read is a copy, which outlives what the library has lent. */
final class CoreRows implements SharedTable.Rows {
    private final CoreTable table;
    private final Lent rows;
    private final Core.RowsInfo info;
    /** The copies; null where a column was not read. */
    private final PlainColumn[] copies;

    CoreRows(CoreTable table, Lent rows) {
        this.table = table;
        this.rows = rows;
        info = rows.use(Core::info);
        copies = new PlainColumn[table.columns.size()];
    }

    boolean isFound(int row) {
        return info.validity() == null || PlainColumn.isSet(info.validity(), row);
    }

    void copyAll() {
        for (int number = 0; number < copies.length; number++) copy(number);
    }

    private PlainColumn copy(int number) {
        synchronized (copies) {
            if (copies[number] == null) copies[number] = rows.use(pointer -> Core.column(pointer, number, info.rows()));
            return copies[number];
        }
    }

    @Override
    public int rowCount() {
        return info.rows();
    }

    @Override
    public int[] positions() {
        return info.positions().clone();
    }

    @Override
    public <T> T column(String name, Class<T> array) {
        if (!array.isArray()) throw new IllegalArgumentException(array + " is no class of arrays");
        Reader reader = reader(name, array.getComponentType());
        Object values = Array.newInstance(array.getComponentType(), info.rows());
        for (int row = 0; row < info.rows(); row++) Array.set(values, row, reader.read(row));
        return array.cast(values);
    }

    @Override
    public FieldVector vector(String name, BufferAllocator allocator) {
        int number = number(name);
        SqlType type = table.columns.get(number).type();
        Reader reader = reader(name, Object.class);
        FieldVector vector = type.field(name).createVector(allocator);
        try {
            vector.setInitialCapacity(info.rows());
            vector.allocateNew();
            for (int row = 0; row < info.rows(); row++) Values.write(type, vector, row, reader.read(row));
            vector.setValueCount(info.rows());
            return vector;
        } catch (RuntimeException | Error cause) {
            vector.close();
            throw cause;
        }
    }

    @Override
    public Iterator<SharedTable.Row> iterator() {
        return new Iterator<>() {
            private int next;

            @Override
            public boolean hasNext() {
                return next < info.rows();
            }

            @Override
            public SharedTable.Row next() {
                if (!hasNext()) throw new NoSuchElementException();
                int row = next++;
                return isFound(row) ? row(row) : null;
            }
        };
    }

    SharedTable.Row row(int row) {
        return new SharedTable.Row() {
            @Override
            public Object get(String column) {
                return reader(column, Object.class).read(row);
            }

            @Override
            @SuppressWarnings("unchecked")
            public <T> T get(String column, Class<T> kind) {
                return (T) reader(column, kind).read(row);
            }

            @Override
            public <T> T as(Class<T> kind) {
                return kind.cast(whole(row, kind));
            }
        };
    }

    // Values

    /** Gives the values of a column. */
    private interface Reader {
        Object read(int row);
    }

    private int number(String name) {
        for (int number = 0; number < copies.length; number++) if (table.columns.get(number).name().equals(name)) return number;
        throw new IllegalArgumentException("shared table \"" + table.name + "\" has no column \"" + name + "\"");
    }

    /** A row as a record of some columns, or as a Map of all. */
    private Object whole(int row, Class<?> kind) {
        List<SqlType.Column> parts = new ArrayList<>();
        Map<String, Object> values = new LinkedHashMap<>();
        for (Core.TableColumn column : table.columns) {
            boolean isPart = !kind.isRecord() || Arrays.stream(kind.getRecordComponents()).anyMatch(component -> Values.isSameName(column.name(), component.getName()));
            if (!isPart) continue;
            parts.add(new SqlType.Column(column.name(), column.type()));
            values.put(column.name(), reader(column.name(), Object.class).read(row));
        }
        try {
            return Values.conversion(new SqlType("composite", "shared table \"" + table.name + "\"", null, parts), kind).convert(values);
        } catch (Values.Misfit cause) {
            throw new IllegalArgumentException("Java class " + kind.getSimpleName() + " cannot hold a row of shared table \"" + table.name + "\": " + cause.getMessage());
        }
    }

    private Reader reader(String name, Class<?> kind) {
        int number = number(name);
        SqlType type = table.columns.get(number).type();
        Values.Conversion conversion;
        try {
            conversion = Values.conversion(type, kind);
        } catch (IllegalArgumentException cause) {
            throw new IllegalArgumentException("column \"" + name + "\": " + cause.getMessage());
        }
        PlainColumn column = copy(number);
        return row -> {
            try {
                return conversion.convert(column.value(type, row));
            } catch (Values.Misfit cause) {
                throw new IllegalArgumentException("Java cannot hold column \"" + name + "\", of type " + type.text() + ": " + cause.getMessage());
            }
        };
    }
}
