package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BooleanSupplier;
import java.util.stream.BaseStream;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/** A function of the handler: what transship.toml declares, bound to a method or a class. */
final class UserFunction {
    /** Bytes of repeated constants that a function of whole columns is given at a time. */
    private static final long MOST_REPEATED_BYTES = 64L << 20;
    /** Time between two looks at whether the client of a function that waits has gone. */
    private static final long WATCH_MS = 20;

    /** The client has gone; nobody waits for the rest. */
    static final class Cancelled extends Exception {
        private static final long serialVersionUID = 1;
    }

    /** A batch of calls: the value of an argument in a row. */
    interface Calls {
        Object value(int column, int row);
    }

    /** Takes the results of a batch, in the order of its rows. */
    interface Results {
        /** Takes a result of a row of the calls. */
        void add(int row, Object value) throws CallError, Cancelled;

        /** Takes the error of a row on which the handler raised an exception. */
        void fail(int row, String text) throws CallError, Cancelled;

        /** Takes the results of the next rows, and closes the vector. */
        void addVector(FieldVector vector) throws CallError;

        /** Takes the results of the next rows, and closes their vectors. */
        void addEncoded(int rows, transship.Encoded encoded) throws CallError;
    }

    final String name;
    final String kind;
    final String batch;
    final List<SqlType.Column> arguments;
    final SqlType returns;
    boolean merges;
    private boolean takesStream;
    /** Whether its method returns a CompletionStage, and how many of these may be under way at a time. */
    private boolean isWaiting;
    private int concurrency = 1;
    private final Class<?> handler;
    private Method method;
    private Constructor<?> constructor;
    private Method step;
    private Method merge;
    private Method finish;
    private Values.Conversion[] conversions = {};
    private Type[] parameters = {};

    private UserFunction(JsonNode entry, Class<?> handler) {
        this.handler = handler;
        name = entry.get("name").asText();
        kind = entry.get("kind").asText();
        batch = entry.get("batch").asText();
        if (entry.get("arguments").isNull() || entry.get("returns").isNull()) throw refuse("transship.toml must give its arguments and result");
        arguments = new ArrayList<>();
        for (JsonNode argument : entry.get("arguments")) {
            arguments.add(new SqlType.Column(argument.get("name").asText(), SqlType.read(argument.get("type"))));
        }
        returns = SqlType.read(entry.get("returns"));
        switch (kind + " " + batch) {
            case "aggregate row" -> bindAggregate();
            case "scalar row", "scalar columns", "table row" -> bindArguments(method = findMethod(handler, name));
            case "map row", "map arrow" -> bindMap(method = findMethod(handler, name));
            case "scalar arrow" -> {
                method = findMethod(handler, name);
                if (!Arrays.equals(method.getParameterTypes(), new Class<?>[] {VectorSchemaRoot.class, BufferAllocator.class})) {
                    throw refuse("it must take a VectorSchemaRoot and a BufferAllocator, and return a FieldVector");
                }
            }
            default -> throw refuse("there are no " + kind + " functions with batch = \"" + batch + "\" in Java");
        }
        if (method != null && !Modifier.isStatic(method.getModifiers())) throw refuse("its method must be static");
    }

    /** The image's functions by name. IllegalArgumentException says what is wrong with them. */
    static Map<String, UserFunction> load(String root) throws IOException, ClassNotFoundException {
        JsonNode manifest = Json.MAPPER.readTree(new File(root, "functions.json"));
        String file = manifest.get("handler").asText();
        Class<?> handler = Class.forName(file.replaceFirst("\\.java$", "").replace('/', '.'));
        Map<String, UserFunction> functions = new LinkedHashMap<>();
        for (JsonNode entry : manifest.get("functions")) functions.put(entry.get("name").asText(), new UserFunction(entry, handler));
        for (JsonNode entry : Json.MAPPER.readTree(new File(root, "manifest.json")).path("functions")) {
            UserFunction function = functions.get(entry.path("name").asText());
            if (function != null) function.setConcurrency(Math.max(entry.path("concurrency").asInt(1), 1));
        }
        return functions;
    }

    private void setConcurrency(int most) {
        isWaiting = kind.equals("scalar") && batch.equals("row") && CompletionStage.class.isAssignableFrom(method.getReturnType());
        if (most > 1 && !isWaiting) throw refuse("with concurrency, its method must return a CompletionStage, and be called row by row");
        concurrency = most;
    }

    private IllegalArgumentException refuse(String fact) {
        return new IllegalArgumentException("function \"" + name + "\": " + fact);
    }

    private Method findMethod(Class<?> owner, String wanted) {
        for (Method candidate : owner.getDeclaredMethods()) {
            if (candidate.getName().equals(wanted) || Values.isSameName(wanted, candidate.getName())) {
                candidate.setAccessible(true);
                return candidate;
            }
        }
        throw refuse("class " + owner.getSimpleName() + " has no method \"" + wanted + "\"");
    }

    private void bindArguments(Method target) {
        parameters = target.getGenericParameterTypes();
        boolean takesRows = batch.equals("columns") && arguments.isEmpty() && Arrays.equals(target.getParameterTypes(), new Class<?>[] {int.class});
        if (parameters.length != arguments.size() && !takesRows) {
            throw refuse("its method takes " + parameters.length + " arguments, transship.toml says " + arguments.size());
        }
        bindConversions();
    }

    private void bindConversions() {
        if (kind.equals("map") && parameters.length != arguments.size()) throw refuse("its record has " + parameters.length + " components, transship.toml says " + arguments.size());
        conversions = new Values.Conversion[arguments.size()];
        for (int i = 0; i < conversions.length; i++) {
            Type parameter = parameters[i];
            if (batch.equals("columns")) {
                if (!Values.rawClass(parameter).isArray()) throw refuse("its argument " + (i + 1) + " must be an array");
                parameter = Values.elementType(parameter);
            }
            try {
                conversions[i] = Values.conversion(arguments.get(i).type(), parameter);
            } catch (IllegalArgumentException cause) {
                throw refuse("argument " + (i + 1) + ": " + cause.getMessage());
            }
        }
    }

    /** A map function takes a stream: of its only argument, of records that have its arguments in order, or of batches. */
    private void bindMap(Method target) {
        Type[] declared = target.getGenericParameterTypes();
        boolean isArrow = batch.equals("arrow");
        boolean isStream = declared.length == (isArrow ? 2 : 1) && declared[0] instanceof ParameterizedType && (Values.rawClass(declared[0]) == Iterator.class || Values.rawClass(declared[0]) == Stream.class);
        if (!isStream || (isArrow && declared[1] != BufferAllocator.class)) throw refuse("its method must take an Iterator or a Stream" + (isArrow ? ", and a BufferAllocator" : ""));
        takesStream = Values.rawClass(declared[0]) == Stream.class;
        Type taken = ((ParameterizedType) declared[0]).getActualTypeArguments()[0];
        if (isArrow) {
            if (taken != VectorSchemaRoot.class) throw refuse("with batch = \"arrow\", its method must take VectorSchemaRoots");
            return;
        }
        parameters = new Type[] {taken};
        if (arguments.size() != 1) {
            Class<?> raw = Values.rawClass(taken);
            if (raw == null || !raw.isRecord()) throw refuse("its method must take a record of its " + arguments.size() + " arguments");
            parameters = Arrays.stream(raw.getRecordComponents()).map(RecordComponent::getGenericType).toArray(Type[]::new);
            try {
                constructor = raw.getDeclaredConstructor(Arrays.stream(raw.getRecordComponents()).map(RecordComponent::getType).toArray(Class<?>[]::new));
                constructor.setAccessible(true);
            } catch (NoSuchMethodException cause) {
                throw refuse(cause.toString());
            }
        }
        bindConversions();
    }

    /** Starts a map function on the calls of a stream. */
    Iterator<?> map(Iterator<Object> calls, BufferAllocator allocator) throws CallError {
        Object taken = takesStream ? StreamSupport.stream(Spliterators.spliteratorUnknownSize(calls, Spliterator.ORDERED), false) : calls;
        return iterator(invoke(method, null, null, batch.equals("arrow") ? new Object[] {taken, allocator} : new Object[] {taken}), null);
    }

    /** A row as a map function takes it. */
    Object element(CallBatch calls, int row) throws CallError {
        Object[] values = arguments(calls.values(arguments), 0, row);
        return constructor == null ? values[0] : construct(row, values);
    }

    /** Makes a record or a state. Its class may turn out not to work only now, which is an Error. */
    private Object construct(int row, Object... values) throws CallError {
        try {
            return constructor.newInstance(values);
        } catch (InvocationTargetException cause) {
            throw CallError.fromHandler(cause.getCause(), row);
        } catch (ReflectiveOperationException | RuntimeException | Error cause) {
            throw CallError.fromCode(cause, row);
        }
    }

    private void bindAggregate() {
        Class<?> found = null;
        for (Class<?> candidate : handler.getDeclaredClasses()) if (Values.isSameName(name, candidate.getSimpleName())) found = candidate;
        if (found == null) throw refuse("class " + handler.getSimpleName() + " has no nested class of that name");
        try {
            constructor = found.getDeclaredConstructor();
            constructor.setAccessible(true);
        } catch (NoSuchMethodException cause) {
            throw refuse("its class needs a constructor without arguments");
        }
        step = findMethod(found, "step");
        finish = findMethod(found, "finish");
        for (Method candidate : found.getDeclaredMethods()) if (candidate.getName().equals("merge")) merge = candidate;
        merges = merge != null;
        if (merges) {
            merge.setAccessible(true);
            if (!java.io.Serializable.class.isAssignableFrom(found)) throw refuse("a class with a method merge must be Serializable");
        }
        bindArguments(step);
    }

    /** The columns of a batch of calls (docs/protocol.md §4). */
    List<SqlType.Column> callColumns() {
        if (!kind.equals("aggregate")) return arguments;
        List<SqlType.Column> columns = new ArrayList<>(List.of(new SqlType.Column("group", SqlType.INT8)));
        columns.addAll(arguments);
        columns.add(new SqlType.Column("state", SqlType.BYTEA));
        return columns;
    }

    /** The columns of a reply. */
    List<SqlType.Column> replyColumns() {
        SqlType.Column result = new SqlType.Column(name, returns);
        return switch (kind) {
            case "table" -> List.of(new SqlType.Column("row", SqlType.INT4), result);
            case "aggregate" -> List.of(result, new SqlType.Column("state", SqlType.BYTEA));
            default -> List.of(result);
        };
    }

    /** The columns of a reply to calls that may ask for errors of rows (§4.9). */
    List<SqlType.Column> replyColumns(CallBatch.RowErrors rowErrors) {
        if (rowErrors == null) return replyColumns();
        return List.of(new SqlType.Column(name, returns), new SqlType.Column("error", SqlType.TEXT));
    }

    Schema replySchema(CallBatch.RowErrors rowErrors) {
        return new Schema(replyColumns(rowErrors).stream().map(SqlType.Column::field).toList());
    }

    /** Refuses a batch whose columns are not the arguments, or that asks for what the function does not have. */
    void check(CallBatch batch) throws CallError {
        List<SqlType.Column> columns = callColumns();
        List<FieldVector> vectors = batch.columns();
        if (vectors.size() != columns.size()) {
            throw CallError.violation(name + " takes " + columns.size() + " columns, not " + vectors.size());
        }
        if (batch.rowErrors() != null && !kind.equals("scalar")) throw CallError.violation(name + " is not a scalar function, and its rows have no errors");
        if (batch.hasConstants() && !kind.equals("scalar") && !kind.equals("table")) throw CallError.violation(name + " takes no constants");
        for (int i = 0; i < columns.size(); i++) {
            if (!columns.get(i).type().accepts(vectors.get(i).getField())) {
                throw CallError.violation("column " + (i + 1) + " of " + name + " is " + columns.get(i).type().text() + ", not " + vectors.get(i).getField());
            }
            int rows = batch.isConstant()[i] ? 1 : batch.rows();
            if (vectors.get(i).getValueCount() != rows) throw CallError.violation("column " + (i + 1) + " of " + name + " does not have " + rows + " rows");
        }
    }

    /** Answers a batch of a scalar or table function, in order. */
    void answer(CallBatch calls, BufferAllocator allocator, BooleanSupplier isCancelled, Results results) throws CallError, Cancelled {
        switch (batch) {
            case "columns" -> answerPieces(calls, isCancelled, results, (first, rows) -> answerColumns(calls, first, rows, results));
            case "arrow" -> answerPieces(calls, isCancelled, results, (first, rows) -> answerVectors(calls, first, rows, allocator, results));
            default -> {
                if (isWaiting) answerWaiting(calls, isCancelled, results);
                else answerRows(calls, isCancelled, results);
            }
        }
    }

    private void answerRows(CallBatch batch, BooleanSupplier isCancelled, Results results) throws CallError, Cancelled {
        Calls calls = batch.values(arguments);
        for (int row = 0; row < batch.rows(); row++) {
            checkCancelled(isCancelled);
            Object[] values = arguments(calls, 0, row);
            try {
                Object answer = invoke(method, null, row, values);
                if (kind.equals("scalar")) results.add(row, answer);
                else addAll(row, answer, isCancelled, results);
            } catch (CallError error) {
                failRow(batch, row, error, results);
            }
        }
    }

    /** Goes on after a row on which the handler raised an exception, or ends the batch with another error. */
    private static void failRow(CallBatch batch, int row, CallError error, Results results) throws CallError, Cancelled {
        if (batch.rowErrors() == null || !error.isOfHandler()) throw error;
        results.fail(row, error.getMessage());
    }

    /** Calls a function that returns a CompletionStage for each row, several at a time. Results are in the order of the rows, and so is the first error. */
    private void answerWaiting(CallBatch batch, BooleanSupplier isCancelled, Results results) throws CallError, Cancelled {
        Calls calls = batch.values(arguments);
        Deque<CompletableFuture<?>> underWay = new ArrayDeque<>();
        try {
            int next = 0;
            for (int row = 0; row < batch.rows(); row++) {
                for (; next < batch.rows() && underWay.size() < concurrency; next++) {
                    checkCancelled(isCancelled);
                    underWay.addLast(begin(calls, next));
                }
                try {
                    results.add(row, await(underWay.getFirst(), row, isCancelled));
                } catch (CallError error) {
                    failRow(batch, row, error, results);
                }
                underWay.removeFirst();
            }
        } finally {
            underWay.forEach(stage -> stage.cancel(true));
        }
    }

    private CompletableFuture<?> begin(Calls calls, int row) {
        try {
            Object stage = invoke(method, null, row, arguments(calls, 0, row));
            // What is cancelled is a copy: the handler may have given its future to other calls as well.
            return stage == null ? CompletableFuture.completedFuture(null) : ((CompletionStage<?>) stage).toCompletableFuture().copy();
        } catch (CallError error) {
            return CompletableFuture.failedFuture(error);
        } catch (RuntimeException cause) {
            // A stage of the handler's own class.
            return CompletableFuture.failedFuture(cause);
        }
    }

    private static Object await(CompletableFuture<?> stage, int row, BooleanSupplier isCancelled) throws CallError, Cancelled {
        while (true) {
            try {
                return stage.get(WATCH_MS, TimeUnit.MILLISECONDS);
            } catch (TimeoutException waiting) {
                checkCancelled(isCancelled);
            } catch (ExecutionException cause) {
                throw CallError.fromHandler(cause.getCause(), row);
            } catch (CancellationException | InterruptedException cause) {
                throw CallError.fromHandler(cause, row);
            }
        }
    }

    /** A call of a function of whole columns with some rows of a batch. */
    private interface Piece {
        void answer(int first, int rows) throws CallError, Cancelled;
    }

    /**
     * Calls a function of whole columns: once, or with pieces that have room for the constants. If rows may fail alone, a piece that
     * fails is called again in halves, down to single rows, or each row alone if no row may run twice (docs/protocol.md §4.9).
     */
    private void answerPieces(CallBatch batch, BooleanSupplier isCancelled, Results results, Piece piece) throws CallError, Cancelled {
        long room = Math.max(MOST_REPEATED_BYTES / Math.max(batch.constantBytes(), 1), 1);
        int step = batch.rowErrors() == CallBatch.RowErrors.ONCE ? 1 : (int) Math.min(room, Math.max(batch.rows(), 1));
        for (int first = 0; ; first += step) {
            answerPiece(batch, first, Math.min(step, batch.rows() - first), isCancelled, results, piece);
            if (batch.rows() - first <= step) return;
        }
    }

    private void answerPiece(CallBatch batch, int first, int rows, BooleanSupplier isCancelled, Results results, Piece piece) throws CallError, Cancelled {
        checkCancelled(isCancelled);
        try {
            piece.answer(first, rows);
        } catch (CallError error) {
            if (batch.rowErrors() == null || !error.isOfHandler() || rows == 0) throw error;
            if (rows == 1) {
                results.fail(first, error.getMessage());
                return;
            }
            answerPiece(batch, first, rows / 2, isCancelled, results, piece);
            answerPiece(batch, first + rows / 2, rows - rows / 2, isCancelled, results, piece);
        }
    }

    static void checkCancelled(BooleanSupplier isCancelled) throws Cancelled {
        if (isCancelled.getAsBoolean()) throw new Cancelled();
    }

    private void addAll(int row, Object answer, BooleanSupplier isCancelled, Results results) throws CallError, Cancelled {
        Iterator<?> values = iterator(answer, row);
        while (true) {
            Object value;
            try {
                if (!values.hasNext()) return;
                value = values.next();
            } catch (RuntimeException | Error cause) {
                throw CallError.fromHandler(cause, row);
            }
            checkCancelled(isCancelled);
            results.add(row, value);
        }
    }

    /** The results that a table or map function returned. */
    private static Iterator<?> iterator(Object answer, Integer row) throws CallError {
        if (answer == null) return List.of().iterator();
        try {
            if (answer instanceof Iterable<?> iterable) return iterable.iterator();
            if (answer instanceof BaseStream<?, ?> stream) return stream.iterator();
        } catch (RuntimeException | Error cause) {
            throw CallError.fromHandler(cause, row);
        }
        if (answer instanceof Iterator<?> iterator) return iterator;
        throw new CallError("bad_result", "It returned a " + answer.getClass().getSimpleName() + " instead of a Stream, an Iterable or an Iterator.", row, null);
    }

    private void answerColumns(CallBatch batch, int first, int rows, Results results) throws CallError, Cancelled {
        Calls calls = batch.values(arguments);
        Object[] values = new Object[parameters.length];
        for (int column = 0; column < conversions.length; column++) {
            Class<?> component = Values.rawClass(parameters[column]).getComponentType();
            values[column] = java.lang.reflect.Array.newInstance(component, rows);
            for (int row = 0; row < rows; row++) java.lang.reflect.Array.set(values[column], row, argument(calls, column, column, first + row));
        }
        if (conversions.length == 0 && values.length == 1) values[0] = rows;
        Object answer = invoke(method, null, null, values);
        boolean isArray = answer != null && answer.getClass().isArray();
        int count = isArray ? java.lang.reflect.Array.getLength(answer) : answer instanceof List<?> list ? size(list) : 0;
        if (count != rows) throw new CallError("bad_result", "It returned " + count + " values for " + rows + " rows.", null, null);
        for (int row = 0; row < rows; row++) {
            try {
                results.add(first + row, isArray ? java.lang.reflect.Array.get(answer, row) : element((List<?>) answer, row, first + row));
            } catch (CallError error) {
                // Results before it are there by now: the piece cannot be called again.
                failRow(batch, first + row, error, results);
            }
        }
    }

    private static int size(List<?> list) throws CallError {
        try {
            return list.size();
        } catch (RuntimeException | Error cause) {
            throw CallError.fromCode(cause, null);
        }
    }

    private static Object element(List<?> list, int index, int row) throws CallError {
        try {
            return list.get(index);
        } catch (RuntimeException | Error cause) {
            throw CallError.fromCode(cause, row);
        }
    }

    /**
     * Calls a function that takes and returns vectors, and may write to what it takes. The vectors of a whole batch are the client's own,
     * those of a piece are copies, and so are those of rows that may be given again.
     */
    private void answerVectors(CallBatch batch, int first, int rows, BufferAllocator allocator, Results results) throws CallError, Cancelled {
        List<FieldVector> vectors = new ArrayList<>();
        List<FieldVector> made = new ArrayList<>();
        boolean isPiece = rows < batch.rows() || rows > 1 && batch.rowErrors() == CallBatch.RowErrors.AGAIN;
        try {
            for (int column = 0; column < batch.columns().size(); column++) {
                FieldVector vector = batch.columns().get(column);
                boolean isConstant = batch.isConstant()[column];
                if (isConstant || isPiece) made.add(vector = Values.copy(vector, isConstant ? 0 : first, isConstant, rows, allocator));
                vectors.add(vector);
            }
            Object answer = invoke(method, null, null, new Object[] {new VectorSchemaRoot(vectors.stream().map(FieldVector::getField).toList(), vectors, rows), allocator});
            if (answer instanceof transship.Encoded encoded) {
                results.addEncoded(rows, encoded);
                return;
            }
            if (!(answer instanceof FieldVector vector)) throw new CallError("bad_result", "It returned " + answer + "; the declared result is " + returns.text() + ".", null, null);
            // A result that does not fit takes no memory for longer.
            made.add(vector);
            if (!returns.accepts(vector.getField())) throw new CallError("bad_result", "It returned " + vector.getField() + "; the declared result is " + returns.text() + ".", null, null);
            if (vector.getValueCount() != rows) throw new CallError("bad_result", "It returned " + vector.getValueCount() + " values for " + rows + " rows.", null, null);
            results.addVector(vector);
        } finally {
            // A result that fits was moved.
            made.forEach(FieldVector::close);
        }
    }

    private Object argument(Calls calls, int column, int argument, int row) throws CallError {
        try {
            return conversions[argument].convert(calls.value(column, row));
        } catch (Values.Misfit cause) {
            String type = arguments.get(argument).type().text();
            throw new CallError("out_of_range", "Java cannot hold argument " + (argument + 1) + ", of type " + type + ", of row " + (row + 1) + " of the batch: " + cause.getMessage() + ".", row, null);
        }
    }

    private Object[] arguments(Calls calls, int skipped, int row) throws CallError {
        Object[] values = new Object[conversions.length];
        for (int i = 0; i < values.length; i++) values[i] = argument(calls, i + skipped, i, row);
        return values;
    }

    private Object invoke(Method target, Object on, Integer row, Object[] values) throws CallError {
        try {
            return target.invoke(on, values);
        } catch (InvocationTargetException cause) {
            throw CallError.fromHandler(cause.getCause(), row);
        } catch (IllegalAccessException cause) {
            throw CallError.fromHandler(cause, row);
        }
    }

    /** A result of which all code of the handler's has run, such as an iterator: it can be written where that code must not. */
    Object settled(Object value) throws CallError {
        try {
            return Values.settled(returns, value);
        } catch (Values.Misfit cause) {
            throw badResult(cause, null);
        } catch (RuntimeException | Error cause) {
            throw CallError.fromCode(cause, null);
        }
    }

    /** Sets a row of a vector to a result. Code of the handler's may run, such as an iterator, and what it raises is the handler's error. */
    void write(Object value, FieldVector vector, int at, Integer row) throws CallError {
        try {
            Values.write(returns, vector, at, value);
        } catch (Values.Misfit cause) {
            throw badResult(cause, row);
        } catch (RuntimeException | Error cause) {
            throw CallError.fromCode(cause, row);
        }
    }

    /** What a result that does not fit is told as. */
    CallError badResult(Values.Misfit cause, Integer row) {
        return new CallError("bad_result", "It returned " + cause.getMessage() + "; the declared result is " + returns.text() + ".", row, null);
    }

    // Aggregate functions

    Object newState(int row) throws CallError {
        return construct(row);
    }

    void step(Object state, Calls calls, int row) throws CallError {
        invoke(step, state, row, arguments(calls, 1, row));
    }

    void merge(Object state, Object other, int row) throws CallError {
        if (merge == null) throw new CallError("bad_result", "Class " + name + " has no method merge, which parallel queries need.", row, null);
        invoke(merge, state, row, new Object[] {other});
    }

    Object finish(Object state, int row) throws CallError {
        return invoke(finish, state, row, new Object[0]);
    }
}
