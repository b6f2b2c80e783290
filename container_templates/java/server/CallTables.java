package transship.server;

import java.util.HashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import transship.SharedTable;

/**
 * The shared tables of a call (docs/protocol.md §4.13), which its handler opens by name on the thread that answers the call. When the call ends,
 * the tables that it opened are closed, and the rows that were found in them are freed.
 */
public final class CallTables implements AutoCloseable {
    /** The field of a request with the name of its offer. */
    static final String FIELD = "transship-tables";
    private static final ThreadLocal<CallTables> RUNNING = new ThreadLocal<>();

    private static final String UNKNOWN_OFFER = "the server does not have the offer of tables that the call names";

    /** The call names an offer that this server does not have. This is no error of the handler's. */
    static final class UnknownOffer extends IllegalStateException {
        private static final long serialVersionUID = 1;

        UnknownOffer() {
            super(UNKNOWN_OFFER);
        }
    }

    private final String offer;
    private final Map<String, CoreTable> opened = new HashMap<>();
    /** Tables and rows. */
    private final Set<Lent> lent = ConcurrentHashMap.newKeySet();

    private CallTables(String offer) {
        this.offer = offer;
    }

    /** The tables of a call that names an offer, which this thread answers until they are closed; null, for null. */
    static CallTables of(String offer) {
        if (offer == null) return null;
        CallTables tables = new CallTables(offer);
        RUNNING.set(tables);
        return tables;
    }

    /** Refuses a call whose offer the server does not have. */
    void check() throws CallError {
        if (!Offers.isThere(offer)) throw CallError.violation(UNKNOWN_OFFER);
    }

    /** See SharedTable. */
    public static SharedTable open(String name) {
        Objects.requireNonNull(name, "name");
        CallTables running = RUNNING.get();
        if (running == null) throw new IllegalStateException("no shared table \"" + name + "\": no call that has shared tables runs on this thread");
        return running.opened.computeIfAbsent(name, unopened -> new CoreTable(unopened, Offers.open(running.offer, unopened), running.lent));
    }

    @Override
    public void close() {
        RUNNING.remove();
        // Once the tables are closed, nobody finds further rows.
        opened.values().forEach(CoreTable::close);
        lent.forEach(Lent::close);
    }
}
