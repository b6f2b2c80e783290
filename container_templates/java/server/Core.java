package transship.server;

import com.sun.jna.Memory;
import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import java.nio.charset.StandardCharsets;
import java.util.List;

/**
 * The library of the server core, as far as this server uses it: its contract is container_templates/core/include/transship_core.h. It is
 * loaded with this class. Pointers and sizes are longs, which JNA passes as they are.
 */
final class Core {
    private Core() {}

    private static final NativeLibrary LIBRARY = NativeLibrary.getInstance(Offers.LIBRARY.toString());
    /** Where the library puts results on each thread: none is longer than a column. */
    private static final ThreadLocal<Memory> RESULT = ThreadLocal.withInitial(() -> new Memory(PlainColumn.STRUCT_BYTES));

    static {
        Native.register(Core.class, LIBRARY);
    }

    private static native long transship_message();

    private static native int transship_tables_serve(int listener);

    private static native int transship_offer_open(byte[] name, long offer);

    private static native int transship_offer_table(long offer, byte[] name, long table);

    private static native void transship_offer_close(long offer);

    private static native long transship_table_rows(long table);

    private static native long transship_table_batches(long table);

    private static native long transship_table_fields(long table);

    private static native int transship_table_field(long table, long number, long field);

    private static native int transship_table_lookup_columns(long table, long rows, long keys, long count, int all, long found);

    private static native int transship_table_batch_columns(long table, long number, long rows);

    private static native void transship_table_close(long table);

    private static native int transship_rows_info_of(long rows, long info);

    private static native int transship_rows_column(long rows, long number, long column);

    private static native void transship_rows_free(long rows);

    /** Why the last function that this thread called failed. */
    static String message() {
        return new Pointer(transship_message()).getString(0, "UTF-8");
    }

    private static void check(int status) {
        if (status < 0) throw new IllegalStateException(message());
    }

    private static byte[] text(String text) {
        // A zero would end it. No name has one.
        return (text.replace('\0', '\uFFFD') + '\0').getBytes(StandardCharsets.UTF_8);
    }

    /** Takes offers of tables on a socket that listens, until the process ends. */
    static void serve(int listener) {
        check(transship_tables_serve(listener));
    }

    // Offers

    /** Opens an offer, which the caller closes; 0 if there is none. */
    static long openOffer(String name) {
        Memory result = RESULT.get();
        return transship_offer_open(text(name), Pointer.nativeValue(result)) < 0 ? 0 : result.getLong(0);
    }

    static void closeOffer(long offer) {
        transship_offer_close(offer);
    }

    // Tables

    /** Opens a table of an open offer, which the caller closes. IllegalStateException if there is none. */
    static long open(long offer, String name) {
        Memory result = RESULT.get();
        check(transship_offer_table(offer, text(name), Pointer.nativeValue(result)));
        return result.getLong(0);
    }

    static void close(long table) {
        transship_table_close(table);
    }

    static long rows(long table) {
        return transship_table_rows(table);
    }

    static int batches(long table) {
        return Math.toIntExact(transship_table_batches(table));
    }

    /** A column of a table; key is its position among the key's columns, or below zero. */
    record TableColumn(String name, SqlType type, char format, int key) {}

    static TableColumn[] columns(long table) {
        TableColumn[] columns = new TableColumn[Math.toIntExact(transship_table_fields(table))];
        Memory field = RESULT.get();
        for (int number = 0; number < columns.length; number++) {
            check(transship_table_field(table, number, Pointer.nativeValue(field)));
            String name = field.getPointer(0).getString(0, "UTF-8");
            SqlType type = SqlType.ofColumn(field.getPointer(8).getString(0, "UTF-8"));
            columns[number] = new TableColumn(name, type, (char) field.getByte(16), field.getInt(20));
        }
        return columns;
    }

    /** Finds the rows of keys, which the caller frees: one for each, or all. */
    static long find(long table, int count, List<PlainColumn> keys, boolean all) {
        long size = 0;
        for (PlainColumn key : keys) size += PlainColumn.STRUCT_BYTES + key.size();
        try (Memory memory = new Memory(size)) {
            long end = (long) keys.size() * PlainColumn.STRUCT_BYTES;
            for (int number = 0; number < keys.size(); number++) end = keys.get(number).write(memory, number * PlainColumn.STRUCT_BYTES, end);
            Memory result = RESULT.get();
            check(transship_table_lookup_columns(table, count, Pointer.nativeValue(memory), keys.size(), all ? 1 : 0, Pointer.nativeValue(result)));
            return result.getLong(0);
        }
    }

    /** The rows of a batch, which the caller frees. */
    static long batch(long table, int number) {
        Memory result = RESULT.get();
        check(transship_table_batch_columns(table, number, Pointer.nativeValue(result)));
        return result.getLong(0);
    }

    // Rows

    static void free(long rows) {
        transship_rows_free(rows);
    }

    /**
     * What is known of rows.
     *
     * @param validity bits, of which 0 is a key without a row; null if each has one
     * @param positions the number of each row's key; empty if each row is of the key of its own number
     */
    record RowsInfo(int rows, byte[] validity, int[] positions) {}

    static RowsInfo info(long rows) {
        Memory info = RESULT.get();
        check(transship_rows_info_of(rows, Pointer.nativeValue(info)));
        int count = Math.toIntExact(info.getLong(0));
        Pointer validity = info.getPointer(8);
        Pointer positions = info.getPointer(16);
        return new RowsInfo(count, validity == null || count == 0 ? null : validity.getByteArray(0, PlainColumn.bitBytes(count)),
            positions == null || count == 0 ? new int[0] : positions.getIntArray(0, count));
    }

    /** A copy of a column of so many rows. */
    static PlainColumn column(long rows, int number, int count) {
        Memory column = RESULT.get();
        check(transship_rows_column(rows, number, Pointer.nativeValue(column)));
        return PlainColumn.copy(column, count);
    }
}
