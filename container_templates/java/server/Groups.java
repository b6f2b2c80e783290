package transship.server;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;

/** The groups of one exchange of an aggregate function: states by number. States travel in Java's serial form. */
final class Groups {
    /** Takes a result, or a state, for each group that was asked for. */
    interface Answers {
        void add(int row, Object result, byte[] state) throws CallError;
    }

    final UserFunction function;
    /** Steps that run or wait, and when the last one ended. */
    private final AtomicInteger steps = new AtomicInteger();
    private volatile long used = System.nanoTime();
    private final Map<Long, Object> states = new HashMap<>();

    Groups(UserFunction function) {
        this.function = function;
    }

    /** Notes that a step begins, which may take any time. */
    void begin() {
        steps.incrementAndGet();
    }

    void end() {
        used = System.nanoTime();
        steps.decrementAndGet();
    }

    /** Whether no step has run for so long. */
    boolean isIdle(long nanos) {
        return steps.get() == 0 && System.nanoTime() - used > nanos;
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
                case "accumulate" -> function.step(state(number, row), calls, row);
                case "merge" -> function.merge(state(number, row), deserialize((byte[]) calls.value(stateColumn, row), row), row);
                case "finish" -> answers.add(row, function.finish(state(number, row), row), null);
                case "state" -> answers.add(row, null, serialize(state(number, row), row));
                case "forget" -> states.remove(number);
                default -> throw CallError.violation("there is no step \"" + step + "\"");
            }
        }
    }

    private Object state(Long number, int row) throws CallError {
        Object state = states.get(number);
        if (state == null) states.put(number, state = function.newState(row));
        return state;
    }

    private static byte[] serialize(Object state, int row) throws CallError {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (ObjectOutputStream output = new ObjectOutputStream(bytes)) {
            output.writeObject(state);
        } catch (IOException | RuntimeException | Error cause) {
            throw CallError.fromCode(cause, row);
        }
        return bytes.toByteArray();
    }

    private static Object deserialize(byte[] bytes, int row) throws CallError {
        try (ObjectInputStream input = new ObjectInputStream(new ByteArrayInputStream(bytes))) {
            return input.readObject();
        } catch (IOException | ClassNotFoundException | RuntimeException cause) {
            throw CallError.violation("the state of row " + row + " cannot be read: " + cause);
        } catch (Error cause) {
            // A class of the handler's cannot be used.
            throw CallError.fromCode(cause, row);
        }
    }
}
