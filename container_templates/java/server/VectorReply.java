package transship.server;

import java.util.ArrayList;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.util.TransferPair;
import org.apache.arrow.vector.util.VectorAppender;
import transship.Encoded;

/** The reply to one batch after the other, as vectors in the protocol's own layout. */
final class VectorReply implements UserFunction.Results, AutoCloseable {
    /** Takes a part of a reply, which it may empty; only a table function's reply has several. */
    interface Sender {
        void send(boolean isLast) throws CallError, UserFunction.Cancelled;
    }

    private static final long BYTES_PER_PART = 1 << 20;
    /** Bytes of texts that a handler encoded, in a reply that spells them out. */
    private static final long MOST_DECODED_BYTES = 1L << 30;

    /** The results. Its rows are those of the part that is being sent. */
    final VectorSchemaRoot root;
    private final UserFunction function;
    private final BufferAllocator allocator;
    private final int rowsPerPart;
    private final Sender sender;
    private final boolean isTable;
    private final boolean mayEncode;
    private final List<FieldVector> pieces = new ArrayList<>();
    private Encoded encoded;
    private int count;
    private int batchRows;
    private long decodedBytes;
    private RowTexts texts;

    /**
     * A reply to the function's calls.
     *
     * @param rowsPerPart results that go out together
     * @param mayEncode whether the client takes dictionaries
     */
    VectorReply(UserFunction function, CallBatch.RowErrors rowErrors, BufferAllocator allocator, int rowsPerPart, boolean mayEncode, Sender sender) {
        this.mayEncode = mayEncode;
        this.function = function;
        this.allocator = allocator;
        this.rowsPerPart = rowsPerPart;
        this.sender = sender;
        isTable = function.kind.equals("table");
        root = VectorSchemaRoot.create(function.replySchema(rowErrors), allocator);
    }

    /** Answers a batch, and sends all parts of the reply. An aggregate function's batch is a step of its groups. */
    void answer(CallBatch batch, Groups groups, BooleanSupplier isCancelled) throws CallError, UserFunction.Cancelled {
        function.check(batch);
        clear();
        count = 0;
        batchRows = batch.rows();
        decodedBytes = 0;
        texts = batch.rowErrors() == null ? null : new RowTexts();
        root.allocateNew();
        if (groups != null) {
            groups.answer(batch, isCancelled, (row, result, state) -> {
                function.write(result, root.getVector(0), row, row);
                Values.write(SqlType.BYTEA, root.getVector(1), row, state);
                count = row + 1;
            });
        } else {
            function.answer(batch, allocator, isCancelled, this);
        }
        if (encoded == null) {
            join();
            root.setRowCount(count);
        }
        sender.send(true);
    }

    /** The result as the handler encoded it, if the client takes dictionaries; root has no results then. */
    Encoded encoded() {
        return encoded;
    }

    @Override
    public void add(int row, Object value) throws CallError, UserFunction.Cancelled {
        if (isTable && (count == rowsPerPart || rowsPerPart < Integer.MAX_VALUE && Values.heldBytes(root.getVector(1), count) >= BYTES_PER_PART)) {
            root.setRowCount(count);
            sender.send(false);
            root.allocateNew();
            count = 0;
        }
        if (isTable) Values.write(SqlType.INT4, root.getVector(0), count, row);
        function.write(value, root.getVector(isTable ? 1 : 0), count, row);
        if (texts != null) root.getVector(1).setNull(count);
        count++;
    }

    @Override
    public void fail(int row, String text) throws CallError {
        if (function.batch.equals("arrow")) {
            FieldVector missing = root.getVector(0).getField().createVector(allocator);
            missing.setInitialCapacity(1);
            missing.allocateNew();
            missing.setNull(0);
            missing.setValueCount(1);
            pieces.add(missing);
        } else {
            Values.write(function.returns, root.getVector(0), count, null);
        }
        Values.write(SqlType.TEXT, root.getVector(1), count++, texts.cut(text));
    }

    @Override
    public void addVector(FieldVector vector) {
        // The vector may be one of the calls', which are closed before the reply is sent.
        TransferPair pair = Layout.plain(vector).getTransferPair(allocator);
        pair.transfer();
        pieces.add((FieldVector) pair.getTo());
        int end = count + pieces.get(pieces.size() - 1).getValueCount();
        for (; texts != null && count < end; count++) root.getVector(1).setNull(count);
        count = end;
    }

    @Override
    public void addEncoded(int rows, Encoded found) throws CallError {
        boolean isKept = false;
        try {
            check(rows, found);
            boolean isWhole = mayEncode && texts == null && rows == batchRows;
            isKept = isWhole && BitVectorHelper.getNullCount(found.values().getValidityBuffer(), found.values().getValueCount()) == 0;
            if (isKept) {
                encoded = found;
                count = rows;
            } else {
                addDecoded(rows, found);
            }
        } finally {
            if (!isKept) {
                found.indexes().close();
                found.values().close();
            }
        }
    }

    private void check(int rows, Encoded found) throws CallError {
        VarCharVector values = found.values();
        if (!function.returns.isText() || found.indexes().getValueCount() != rows) {
            throw new CallError("bad_result", "It returned " + found.indexes().getValueCount() + " encoded texts for " + rows + " rows of type " + function.returns.text() + ".", null, null);
        }
        for (int row = 0; row < rows; row++) {
            if (found.indexes().isNull(row)) continue;
            int index = found.indexes().get(row);
            if (index < 0 || index >= values.getValueCount()) {
                throw new CallError("bad_result", "It returned index " + index + " into a dictionary of " + values.getValueCount() + " values.", row, null);
            }
        }
    }

    private void addDecoded(int rows, Encoded found) throws CallError {
        // A few bytes may stand for any number of them.
        for (int row = 0; row < rows; row++) {
            if (!found.indexes().isNull(row) && !found.values().isNull(found.indexes().get(row))) decodedBytes += found.values().getValueLength(found.indexes().get(row));
        }
        if (decodedBytes > MOST_DECODED_BYTES) throw new CallError("bad_result", "Its texts are larger than 1 GiB.", null, null);
        try (VarCharVector decoded = new VarCharVector(function.name, allocator)) {
            decoded.allocateNew();
            for (int row = 0; row < rows; row++) {
                if (found.indexes().isNull(row)) decoded.setNull(row);
                else decoded.copyFromSafe(found.indexes().get(row), row, found.values());
            }
            decoded.setValueCount(rows);
            addVector(decoded);
        }
    }

    /** Makes one column of the vectors that a function returned for the pieces of a batch. */
    private void join() {
        if (pieces.isEmpty()) return;
        FieldVector results = root.getVector(0);
        if (pieces.size() == 1) {
            pieces.get(0).makeTransferPair(results).transfer();
        } else {
            results.setValueCount(0);
            VectorAppender appender = new VectorAppender(results);
            for (FieldVector piece : pieces) piece.accept(appender, null);
        }
        clear();
    }

    private void clear() {
        pieces.forEach(FieldVector::close);
        pieces.clear();
        if (encoded != null) {
            encoded.indexes().close();
            encoded.values().close();
            encoded = null;
        }
    }

    @Override
    public void close() {
        clear();
        root.close();
    }
}
