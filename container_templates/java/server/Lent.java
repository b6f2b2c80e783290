package transship.server;

import java.util.Set;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;

/** What the library has lent to a call, until it is given back, which waits for threads that use it. */
final class Lent {
    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private final LongConsumer end;
    private final Set<Lent> owner;
    private long pointer;

    /**
     * What a pointer leads to.
     *
     * @param end gives it back
     * @param owner the set in which it is until then
     */
    Lent(long pointer, LongConsumer end, Set<Lent> owner) {
        this.pointer = pointer;
        this.end = end;
        this.owner = owner;
        owner.add(this);
    }

    /** Uses it. IllegalStateException if it was given back. */
    <T> T use(LongFunction<T> use) {
        lock.readLock().lock();
        try {
            if (pointer == 0) throw new IllegalStateException("the shared table can be read until its call has ended, and a batch of it until the next one is taken");
            return use.apply(pointer);
        } finally {
            lock.readLock().unlock();
        }
    }

    void close() {
        lock.writeLock().lock();
        try {
            if (pointer != 0) end.accept(pointer);
            pointer = 0;
        } finally {
            lock.writeLock().unlock();
        }
        owner.remove(this);
    }
}
