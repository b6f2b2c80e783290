package transship.server;

import java.util.List;
import org.apache.arrow.vector.FieldVector;

/**
 * A batch of calls: a vector for each column, of which a constant's has one row (docs/protocol.md §4.10). Whoever makes a batch
 * closes its vectors.
 *
 * @param number the client's number of the batch
 * @param isConstant for each column, whether it is a constant
 * @param rowErrors whether rows may fail alone (§4.9); null if not
 * @param exchange the name of an aggregate function's exchange, over HTTP; empty for others
 * @param step the step of an aggregate function (§4.7); empty for others
 */
record CallBatch(long number, int rows, List<FieldVector> columns, boolean[] isConstant, RowErrors rowErrors, String exchange, String step) {
    /** How a function goes on after rows that fail: ONCE if no row may be run twice. */
    enum RowErrors {
        ONCE, AGAIN;

        /** The mode of a name; null for null. */
        static RowErrors of(String name) throws CallError {
            if (name == null) return null;
            return switch (name) {
                case "once" -> ONCE;
                case "again" -> AGAIN;
                default -> throw CallError.violation("errors of rows are reported \"once\" or \"again\", not \"" + name + "\"");
            };
        }
    }

    boolean hasConstants() {
        for (boolean is : isConstant) if (is) return true;
        return false;
    }

    /** The bytes of a row's constants. */
    long constantBytes() {
        long bytes = 0;
        for (int column = 0; column < isConstant.length; column++) if (isConstant[column]) bytes += columns.get(column).getBufferSize();
        return bytes;
    }

    /** Values of the batch, for a function with these columns. A handler may change a value that it gets, so that only fixed ones are shared by rows. */
    UserFunction.Calls values(List<SqlType.Column> declared) {
        Object[] shared = new Object[isConstant.length];
        return (column, row) -> {
            SqlType type = declared.get(column).type();
            if (!isConstant[column]) return Values.read(type, columns.get(column), row);
            if (!type.isFixed()) return Values.read(type, columns.get(column), 0);
            if (shared[column] == null) shared[column] = Values.read(type, columns.get(column), 0);
            return shared[column];
        };
    }
}
