package transship.server;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BooleanSupplier;

/** The groups of one exchange of an aggregate function: states by number. States travel in Java's serial form. */
final class Groups {
    /** Takes a result, or a state, for each group that was asked for. */
    interface Answers {
        void add(int row, Object result, byte[] state) throws CallError;
    }

    final UserFunction function;
    volatile long used = System.nanoTime();
    private final Map<Long, Object> states = new HashMap<>();

    Groups(UserFunction function) {
        this.function = function;
    }

    /** Does one step (docs/protocol.md §4). */
    synchronized void answer(CallBatch batch, BooleanSupplier isCancelled, Answers answers) throws CallError, UserFunction.Cancelled {
        UserFunction.Calls calls = batch.values(function.callColumns());
        String step = batch.step();
        int stateColumn = function.arguments.size() + 1;
        for (int row = 0; row < batch.rows(); row++) {
            UserFunction.checkCancelled(isCancelled);
            if (!(calls.value(0, row) instanceof Long number)) throw CallError.violation("row " + row + " has no group");
            switch (step) {
                case "accumulate" -> function.step(state(number), calls, row);
                case "merge" -> function.merge(state(number), deserialize((byte[]) calls.value(stateColumn, row), row), row);
                case "finish" -> answers.add(row, function.finish(state(number), row), null);
                case "state" -> answers.add(row, null, serialize(state(number), row));
                case "forget" -> states.remove(number);
                default -> throw CallError.violation("there is no step \"" + step + "\"");
            }
        }
    }

    private Object state(Long number) throws CallError {
        Object state = states.get(number);
        if (state == null) states.put(number, state = function.newState());
        return state;
    }

    private static byte[] serialize(Object state, int row) throws CallError {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream output = new ObjectOutputStream(bytes)) {
            output.writeObject(state);
        } catch (IOException cause) {
            throw CallError.fromHandler(cause, row);
        }
        return bytes.toByteArray();
    }

    private static Object deserialize(byte[] bytes, int row) throws CallError {
        try (ObjectInputStream input = new ObjectInputStream(new ByteArrayInputStream(bytes))) {
            return input.readObject();
        } catch (IOException | ClassNotFoundException | RuntimeException cause) {
            throw CallError.violation("the state of row " + row + " cannot be read: " + cause);
        }
    }
}
