package tidelock.examples;

import static tidelock.examples.Trial.require;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;

/** Mutual exclusion, with and without a server that dies. */
final class Locks {
    private static final int HOLDERS = 4;
    private static final int ROUNDS = 40;

    private Locks() {}

    /** A number that is read and written without a condition counts right only if one at a time does it. */
    static void mutex(Trial trial, Callable<Void> meanwhile) throws Exception {
        CuratorFramework main = trial.client();
        String counter = trial.root + "/counter";
        main.create().creatingParentsIfNeeded().forPath(counter, number(0));
        List<Callable<Void>> bodies = new ArrayList<>(List.of(meanwhile));
        for (int holder = 0; holder < HOLDERS; holder++) {
            CuratorFramework client = trial.client();
            bodies.add(() -> {
                InterProcessMutex mutex = new InterProcessMutex(client, trial.root + "/mutex");
                for (int round = 0; round < ROUNDS; round++) {
                    require(mutex.acquire(60, TimeUnit.SECONDS), "the mutex is not to be had");
                    try {
                        // Whoever holds it may take it again.
                        require(mutex.acquire(1, TimeUnit.SECONDS), "the holder's own mutex is not to be had");
                        mutex.release();
                        int now = Integer.parseInt(new String(client.getData().forPath(counter), StandardCharsets.US_ASCII));
                        Thread.sleep(2);
                        client.setData().forPath(counter, number(now + 1));
                    } finally {
                        mutex.release();
                    }
                }
                return null;
            });
        }
        Trial.together(bodies);
        main.sync().forPath(counter);
        String counted = new String(main.getData().forPath(counter), StandardCharsets.US_ASCII);
        require(counted.equals(String.valueOf(HOLDERS * ROUNDS)), "counted " + counted + " of " + HOLDERS * ROUNDS);
    }

    /** Readers together, writers alone; a writer may become a reader without letting go. */
    static void readWriteLock(Trial trial) throws Exception {
        String path = trial.root + "/read-write";
        InterProcessReadWriteLock one = new InterProcessReadWriteLock(trial.client(), path);
        InterProcessReadWriteLock two = new InterProcessReadWriteLock(trial.client(), path);
        InterProcessReadWriteLock three = new InterProcessReadWriteLock(trial.client(), path);
        require(one.readLock().acquire(10, TimeUnit.SECONDS), "the first reader");
        require(two.readLock().acquire(10, TimeUnit.SECONDS), "a second reader");
        require(!three.writeLock().acquire(300, TimeUnit.MILLISECONDS), "a writer beside readers");
        one.readLock().release();
        two.readLock().release();
        require(three.writeLock().acquire(10, TimeUnit.SECONDS), "a writer alone");
        require(!one.readLock().acquire(300, TimeUnit.MILLISECONDS), "a reader beside a writer");
        require(!two.writeLock().acquire(300, TimeUnit.MILLISECONDS), "a second writer");
        require(three.readLock().acquire(10, TimeUnit.SECONDS), "a writer that reads, too");
        three.writeLock().release();
        require(one.readLock().acquire(10, TimeUnit.SECONDS), "a reader beside the one who wrote");
        one.readLock().release();
        three.readLock().release();
    }

    private static byte[] number(int value) {
        return String.valueOf(value).getBytes(StandardCharsets.US_ASCII);
    }
}
