package transship.server;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Type;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import java.util.stream.BaseStream;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.types.pojo.Schema;

/** A function of the handler: what transship.toml declares, bound to a method or a class. */
final class UserFunction {
    private static final int ROWS_BETWEEN_CHECKS = 256;

    /** The client has gone; nobody waits for the rest. */
    static final class Cancelled extends Exception {
        private static final long serialVersionUID = 1;
    }

    /** A batch of calls, from a vector or from JSON: the value of an argument in a row. */
    interface Calls {
        Object value(int column, int row);
    }

    /** Takes the results of a batch; row is the row of calls that each belongs to. */
    interface Results {
        void add(int row, Object value) throws CallError, Cancelled;
    }

    final String name;
    final String kind;
    final String batch;
    final List<SqlType.Column> arguments;
    final SqlType returns;
    boolean merges;
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
        return functions;
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

    Schema replySchema() {
        return new Schema(replyColumns().stream().map(SqlType.Column::field).toList());
    }

    void check(VectorSchemaRoot calls) throws CallError {
        List<SqlType.Column> columns = callColumns();
        List<FieldVector> vectors = calls.getFieldVectors();
        if (vectors.size() != columns.size()) {
            throw CallError.violation(name + " takes " + columns.size() + " columns, not " + vectors.size());
        }
        for (int i = 0; i < columns.size(); i++) {
            if (!columns.get(i).type().accepts(vectors.get(i).getField())) {
                throw CallError.violation("column " + (i + 1) + " of " + name + " is " + columns.get(i).type().text() + ", not " + vectors.get(i).getField());
            }
        }
    }

    /** Answers a batch of a scalar or table function, in order. */
    void answer(Calls calls, int rows, BooleanSupplier isCancelled, Results results) throws CallError, Cancelled {
        if (batch.equals("columns")) {
            answerColumns(calls, rows, results);
            return;
        }
        for (int row = 0; row < rows; row++) {
            checkCancelled(row, isCancelled);
            Object answer = invoke(method, null, row, arguments(calls, 0, row));
            if (kind.equals("scalar")) results.add(row, answer);
            else addAll(row, answer, isCancelled, results);
        }
    }

    static void checkCancelled(int row, BooleanSupplier isCancelled) throws Cancelled {
        if (row % ROWS_BETWEEN_CHECKS == 0 && isCancelled.getAsBoolean()) throw new Cancelled();
    }

    private void addAll(int row, Object answer, BooleanSupplier isCancelled, Results results) throws CallError, Cancelled {
        Iterator<?> values;
        if (answer == null) return;
        if (answer instanceof Iterable<?> iterable) values = iterable.iterator();
        else if (answer instanceof BaseStream<?, ?> stream) values = stream.iterator();
        else if (answer instanceof Iterator<?> iterator) values = iterator;
        else throw new CallError("bad_result", "It returned a " + answer.getClass().getSimpleName() + "; a table function returns a Stream, an Iterable or an Iterator.", row, null);
        for (int count = 0; ; count++) {
            Object value;
            try {
                if (!values.hasNext()) return;
                value = values.next();
            } catch (RuntimeException | Error cause) {
                throw CallError.fromHandler(cause, row);
            }
            checkCancelled(count, isCancelled);
            results.add(row, value);
        }
    }

    private void answerColumns(Calls calls, int rows, Results results) throws CallError, Cancelled {
        Object[] values = new Object[parameters.length];
        for (int column = 0; column < conversions.length; column++) {
            Class<?> component = Values.rawClass(parameters[column]).getComponentType();
            values[column] = java.lang.reflect.Array.newInstance(component, rows);
            for (int row = 0; row < rows; row++) java.lang.reflect.Array.set(values[column], row, argument(calls, column, column, row));
        }
        if (conversions.length == 0 && values.length == 1) values[0] = rows;
        Object answer = invoke(method, null, null, values);
        boolean isArray = answer != null && answer.getClass().isArray();
        int count = isArray ? java.lang.reflect.Array.getLength(answer) : answer instanceof List<?> list ? list.size() : 0;
        if (count != rows) throw new CallError("bad_result", "It returned " + count + " values for " + rows + " rows.", null, null);
        for (int row = 0; row < rows; row++) {
            results.add(row, isArray ? java.lang.reflect.Array.get(answer, row) : ((List<?>) answer).get(row));
        }
    }

    /** Answers a batch of a function that takes and gives vectors. */
    FieldVector answerVector(VectorSchemaRoot calls, BufferAllocator allocator) throws CallError {
        Object answer = invoke(method, null, null, new Object[] {calls, allocator});
        if (!(answer instanceof FieldVector vector) || !returns.accepts(vector.getField())) {
            throw new CallError("bad_result", "It returned " + (answer instanceof FieldVector vector ? vector.getField() : answer) + "; the declared result is " + returns.text() + ".", null, null);
        }
        if (vector.getValueCount() != calls.getRowCount()) {
            throw new CallError("bad_result", "It returned " + vector.getValueCount() + " values for " + calls.getRowCount() + " rows.", null, null);
        }
        return vector;
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

    /** What a result that does not fit is told as. */
    CallError badResult(Values.Misfit cause, int row) {
        return new CallError("bad_result", "It returned " + cause.getMessage() + "; the declared result is " + returns.text() + ".", row, null);
    }

    // Aggregate functions

    Object newState() throws CallError {
        try {
            return constructor.newInstance();
        } catch (InvocationTargetException cause) {
            throw CallError.fromHandler(cause.getCause(), null);
        } catch (ReflectiveOperationException cause) {
            throw CallError.fromHandler(cause, null);
        }
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
