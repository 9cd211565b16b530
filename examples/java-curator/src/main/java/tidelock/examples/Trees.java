package tidelock.examples;

import static tidelock.examples.Trial.eventually;
import static tidelock.examples.Trial.require;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.cache.CuratorCacheListener;
import org.apache.curator.framework.recipes.cache.PathChildrenCache;
import org.apache.curator.framework.recipes.nodes.PersistentTtlNode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.data.Stat;

/** Copies of a part of the tree that follow it, and znodes that live on conditions. */
final class Trees {
    private static final int CHANGES = 200;

    private Trees() {}

    /** Both caches of Curator: the one by a watch of everything below, the other by a watch of each child. */
    @SuppressWarnings("deprecation")
    static void caches(Trial trial, Callable<?> meanwhile) throws Exception {
        String path = trial.root + "/tree";
        CuratorFramework writer = trial.client();
        CuratorFramework reader = trial.client();
        writer.create().creatingParentsIfNeeded().forPath(path);
        Set<String> told = ConcurrentHashMap.newKeySet();
        try (CuratorCache tree = CuratorCache.build(reader, path);
                PathChildrenCache children = new PathChildrenCache(reader, path, true)) {
            tree.listenable().addListener(CuratorCacheListener.builder().forCreates(node -> told.add(node.getPath())).build());
            tree.start();
            children.start(PathChildrenCache.StartMode.BUILD_INITIAL_CACHE);
            for (int change = 0; change < CHANGES; change++) {
                if (change == CHANGES / 2) {
                    meanwhile.call();
                }
                changeSomething(writer, path + "/" + ThreadLocalRandom.current().nextInt(10), change);
            }
            writer.create().forPath(path + "/last", bytes("last"));
            Map<String, String> expected = new TreeMap<>();
            for (String child : writer.getChildren().forPath(path)) {
                expected.put(path + "/" + child, text(writer.getData().forPath(path + "/" + child)));
            }
            eventually("the tree's cache is like the tree", () -> {
                Map<String, String> found = new TreeMap<>();
                tree.stream().filter(node -> !node.getPath().equals(path)).forEach(node -> found.put(node.getPath(), text(node.getData())));
                return found.equals(expected);
            });
            eventually("the children's cache is like the tree", () -> {
                Map<String, String> found = new TreeMap<>();
                children.getCurrentData().forEach(node -> found.put(node.getPath(), text(node.getData())));
                return found.equals(expected);
            });
            require(told.contains(path + "/last"), "its listener was not told of the last znode");
        }
    }

    private static void changeSomething(CuratorFramework writer, String path, int change) throws Exception {
        Stat there = writer.checkExists().forPath(path);
        try {
            if (there == null) {
                writer.create().forPath(path, bytes("made " + change));
            } else if (change % 3 == 0) {
                writer.delete().forPath(path);
            } else {
                writer.setData().forPath(path, bytes("set " + change));
            }
        } catch (KeeperException.NodeExistsException | KeeperException.NoNodeException repeated) {
            // Done by a request whose answer was lost with the connection; Curator asked again.
        }
    }

    /** A znode with a time to live is kept alive by its owner; containers are made on the way. */
    static void livingNodes(Trial trial) throws Exception {
        CuratorFramework client = trial.client();
        String path = trial.root + "/container/child";
        client.create().creatingParentContainersIfNeeded().forPath(path, bytes("x"));
        require(client.checkExists().forPath(trial.root + "/container").getEphemeralOwner() == 0, "a container has no owner");
        require(client.getZookeeperClient().getZooKeeper().getAllChildrenNumber(trial.root + "/container") == 1, "children");

        String alive = trial.root + "/alive";
        try (PersistentTtlNode node = new PersistentTtlNode(client, alive, 1_000, bytes("here"))) {
            node.start();
            require(node.waitForInitialCreate(10, TimeUnit.SECONDS), "the znode is not made");
            Stat first = client.checkExists().forPath(alive);
            eventually("it is touched while its owner lives", () -> client.checkExists().forPath(alive).getPzxid() > first.getCzxid());
            require(text(client.getData().forPath(alive)).equals("here"), "its data");
        }
        // Sequential ones, in one step with others or not at all.
        var operations = client.transactionOp();
        var results = client.transaction().forOperations(
                operations.create().withMode(CreateMode.PERSISTENT_SEQUENTIAL).forPath(trial.root + "/n-"),
                operations.setData().forPath(path, bytes("y")),
                operations.check().withVersion(1).forPath(path));
        require(results.size() == 3 && results.get(0).getResultPath().startsWith(trial.root + "/n-0"), "results of a transaction");
        try {
            client.transaction().forOperations(
                    operations.delete().forPath(path), operations.check().withVersion(77).forPath(trial.root));
            throw new AssertionError("a transaction with a false check succeeds");
        } catch (KeeperException.BadVersionException refused) {
            require(client.checkExists().forPath(path) != null, "half of a transaction was done");
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
