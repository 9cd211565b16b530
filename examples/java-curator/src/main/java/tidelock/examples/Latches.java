package tidelock.examples;

import static tidelock.examples.Trial.eventually;
import static tidelock.examples.Trial.require;

import java.util.ArrayList;
import java.util.List;
import org.apache.curator.framework.recipes.leader.LeaderLatch;

/** One leader among three, also when a server dies and when the leader leaves. */
final class Latches {
    private Latches() {}

    static void leaderLatch(Trial trial) throws Exception {
        List<LeaderLatch> latches = new ArrayList<>();
        for (String name : List.of("a", "b", "c")) {
            LeaderLatch latch = new LeaderLatch(trial.client(), trial.root + "/leader", name);
            latch.start();
            latches.add(latch);
        }
        eventually("a leader", () -> leaders(latches) == 1);
        eventually("three candidates", () -> latches.get(0).getParticipants().size() == 3);
        if (trial.killLeader()) {
            // Who loses its connection stops leading before anybody else can begin.
            for (int look = 0; look < 100; look++) {
                require(leaders(latches) <= 1, "two lead at once");
                Thread.sleep(20);
            }
            eventually("a leader again", () -> leaders(latches) == 1);
        }
        while (!latches.isEmpty()) {
            eventually("a leader", () -> leaders(latches) == 1);
            LeaderLatch leader = latches.stream().filter(LeaderLatch::hasLeadership).findFirst().orElseThrow();
            // Others are told who it is, as soon as they have heard.
            for (LeaderLatch latch : latches) {
                eventually("everybody knows the leader", () -> latch.getLeader().getId().equals(leader.getId()));
            }
            leader.close();
            latches.remove(leader);
        }
    }

    private static long leaders(List<LeaderLatch> latches) {
        return latches.stream().filter(LeaderLatch::hasLeadership).count();
    }
}
