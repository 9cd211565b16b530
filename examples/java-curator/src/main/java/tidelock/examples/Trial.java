package tidelock.examples;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.RetryForever;

/**
 * The servers, clients of them, and what is common to all checks.
 *
 * <p>ZOOKEEPER_ENDPOINTS names the servers (host:port, comma separated). SERVER_PIDS, if it is set, their processes in the same
 * order: then one of them can be killed.
 */
final class Trial implements AutoCloseable {
    static final int PATIENCE_SECONDS = 30;
    /** Longer than it takes to get over the loss of a server. */
    private static final int SESSION_MS = 15_000;

    final List<String> endpoints;
    final String root = "/examples-" + UUID.randomUUID();
    /** Sessions that ended although their client did not want that. */
    final AtomicInteger lostSessions = new AtomicInteger();

    private final String[] pids;
    private final List<CuratorFramework> clients = new ArrayList<>();
    private volatile boolean closing;

    Trial() {
        endpoints = List.of(System.getenv().getOrDefault("ZOOKEEPER_ENDPOINTS", "127.0.0.1:2181").split(","));
        pids = System.getenv().getOrDefault("SERVER_PIDS", "").trim().split(" +");
    }

    /** A client with a session of its own. */
    synchronized CuratorFramework client() throws InterruptedException {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(String.join(",", endpoints))
                .sessionTimeoutMs(SESSION_MS)
                .connectionTimeoutMs(5_000)
                .retryPolicy(new RetryForever(200))
                .build();
        client.getConnectionStateListenable().addListener((who, state) -> {
            if (state == ConnectionState.LOST && !closing) {
                lostSessions.incrementAndGet();
            }
        });
        client.start();
        clients.add(client);
        require(client.blockUntilConnected(PATIENCE_SECONDS, TimeUnit.SECONDS), "no connection");
        return client;
    }

    /** Kills the leader as a power cut would, if there are servers to spare. */
    boolean killLeader() throws IOException {
        if (pids.length < 3) {
            return false;
        }
        for (int i = 0; i < pids.length; i++) {
            if (word("srvr", endpoints.get(i)).contains("Mode: leader")) {
                return ProcessHandle.of(Long.parseLong(pids[i])).map(ProcessHandle::destroyForcibly).orElse(false);
            }
        }
        throw new AssertionError("nobody leads");
    }

    private static String word(String word, String endpoint) throws IOException {
        String[] parts = endpoint.split(":");
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(parts[0], Integer.parseInt(parts[1])), 5_000);
            socket.getOutputStream().write(word.getBytes(StandardCharsets.US_ASCII));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    /** Runs all at the same time and waits for all; what went wrong in one goes wrong here. */
    static void together(List<Callable<Void>> bodies) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(bodies.size());
        try {
            for (Future<Void> ended : threads.invokeAll(bodies, 2 * PATIENCE_SECONDS, TimeUnit.SECONDS)) {
                ended.get();
            }
        } catch (ExecutionException failed) {
            throw new AssertionError(failed.getCause());
        } finally {
            threads.shutdownNow();
        }
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        while (!condition.call()) {
            require(System.nanoTime() < deadline, what + ": not within " + PATIENCE_SECONDS + " s");
            Thread.sleep(20);
        }
    }

    static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    @Override
    public synchronized void close() {
        closing = true;
        clients.forEach(CuratorFramework::close);
    }
}
