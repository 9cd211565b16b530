package tidelock.examples;

import static tidelock.examples.Trial.require;

import java.util.Arrays;
import java.util.HashSet;
import org.apache.curator.framework.CuratorFramework;

/**
 * Curator's recipes against real servers. One argument says which: each is a program of its own, because each may kill a
 * server. Ends with status 0 if all was as it should be.
 */
public final class Recipes {
    private Recipes() {}

    /** Runs one recipe. */
    public static void main(String[] arguments) {
        try (Trial trial = new Trial()) {
            switch (arguments[0]) {
                case "mutex" -> Locks.mutex(trial, () -> {
                    Thread.sleep(500);
                    trial.killLeader();
                    return null;
                });
                case "read_write_lock" -> Locks.readWriteLock(trial);
                case "leader_latch" -> Latches.leaderLatch(trial);
                case "caches" -> Trees.caches(trial, trial::killLeader);
                case "living_nodes" -> Trees.livingNodes(trial);
                default -> throw new IllegalArgumentException(arguments[0]);
            }
            CuratorFramework client = trial.client();
            client.delete().quietly().deletingChildrenIfNeeded().forPath(trial.root);
            require(trial.lostSessions.get() == 0, trial.lostSessions + " sessions were lost");
            // What the tracker of the ensemble reads in /zookeeper/config must not lead a client astray.
            String now = client.getZookeeperClient().getCurrentConnectionString();
            require(new HashSet<>(trial.endpoints).containsAll(Arrays.asList(now.split(","))), "its servers are now " + now);
        } catch (Throwable fault) {
            fault.printStackTrace();
            System.exit(1);
        }
        System.out.println("ok");
        System.exit(0);
    }
}
