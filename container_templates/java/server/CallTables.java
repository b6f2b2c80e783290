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

    /** The offer, which has its tables until the call ends, whatever its client does; 0 if this server does not have it. */
    private final long offer;
    private final Map<String, CoreTable> opened = new HashMap<>();
    /** Tables and rows. */
    private final Set<Lent> lent = ConcurrentHashMap.newKeySet();

    private CallTables(String offer) {
        this.offer = Offers.open(offer);
    }

    /** The tables of a call that names an offer, which this thread answers until they are closed; null, for null. */
    static CallTables of(String offer) {
        if (offer == null) return null;
        CallTables tables = new CallTables(offer);
        RUNNING.set(tables);
        return tables;
    }

    /** Refuses a call whose offer the server does not have. Its handler is not called, so it cannot catch this. */
    void check() throws CallError {
        if (offer == 0) throw CallError.violation("the server does not have the offer of tables that the call names");
    }

    /** See SharedTable. */
    public static SharedTable open(String name) {
        Objects.requireNonNull(name, "name");
        CallTables running = RUNNING.get();
        if (running == null) throw new IllegalStateException("no shared table \"" + name + "\": no call that has shared tables runs on this thread");
        return running.opened.computeIfAbsent(name, unopened -> new CoreTable(unopened, Core.open(running.offer, unopened), running.lent));
    }

    @Override
    public void close() {
        RUNNING.remove();
        try {
            // Once the tables are closed, nobody finds further rows.
            opened.values().forEach(CoreTable::close);
            lent.forEach(Lent::close);
        } finally {
            if (offer != 0) Core.closeOffer(offer);
        }
    }
}
