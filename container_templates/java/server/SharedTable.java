package transship;

import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import transship.server.CallTables;

/**
 * A shared table of a call, which never changes. Any thread may read it, and the rows that it gives, until the call has ended; values may be
 * kept. Values are of the classes that a parameter of their type could have (README.md), and null is NULL.
 */
public interface SharedTable {
    /**
     * Opens a table that the key "tables" of the function's body names, on the thread that the handler is called on. IllegalStateException if the
     * call does not have it.
     */
    static SharedTable open(String name) {
        return CallTables.open(name);
    }

    /** The number of rows. */
    long rowCount();

    /** The names of all columns. */
    List<String> columns();

    /** The names of the key's columns. */
    List<String> key();

    /**
     * The row of a key, which has a value for each of its columns; null if there is none. The row may be kept. IllegalStateException if the key has
     * several rows, IllegalArgumentException if it does not fit.
     */
    Row get(Object... key);

    /**
     * One row per key, in their order, of which all columns are null if the table has no such row. IllegalStateException if a key has several rows,
     * IllegalArgumentException if the keys do not fit.
     *
     * @param keys an array, a Collection or a FieldVector; for a key of several columns, a List of one of these for each column
     */
    Rows lookup(Object keys);

    /** All rows of all keys, in the order of the keys, which are as for lookup. */
    Rows matches(Object keys);

    /** All rows, batch by batch. A batch can be read until the next one is taken. */
    Iterable<Rows> batches();

    /** Rows of a table. A column is copied from the table when it is first read. The rows of keys without one are null. */
    interface Rows extends Iterable<Row> {
        /** The number of rows. */
        int rowCount();

        /** Of matches: the position of each row's key among the keys. Empty for others. */
        int[] positions();

        /** The values of a column as an array of this class, such as String[].class or long[].class. */
        <T> T column(String name, Class<T> array);

        /** The values of a column as a vector, which the caller closes, or returns as its result. */
        FieldVector vector(String name, BufferAllocator allocator);
    }

    /** A row of a table. */
    interface Row {
        /** The value of a column, of the first class that README.md lists for its type. */
        Object get(String column);

        /** The value of a column, of a class that a parameter could have. */
        <T> T get(String column, Class<T> kind);

        /** The row as a record, whose components are matched with columns by name, or as a Map of all columns. */
        <T> T as(Class<T> kind);
    }
}
