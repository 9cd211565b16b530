"""Three processes that begin a step together and end it together.

As it is often told everybody counts the children and waits while they are too few. Then one that is quick is in, done and
gone before a slow one has counted: that one waits for ever. Here the last to come makes a znode "ready", which stays; who
finds it there goes in, whatever it counts. To leave, everybody waits until nobody is left. One barrier serves one step.
"""

import threading

from kazoo.exceptions import NodeExistsError, NoNodeError
from trial import Worker, eventually, run, same, say

PROCESSES = 3


class Barrier:
    def __init__(self, client, path, name, count):
        self.client, self.path, self.count = client, path, count
        self.own = f"{path}/members/{name}"
        self.ready = f"{path}/ready"
        client.retry(client.ensure_path, f"{path}/members")

    def enter(self):
        try:
            self.client.retry(self.client.create, self.own, ephemeral=True)
        except NodeExistsError:
            # By a request whose answer was lost with the connection. It can be so in leave, too.
            pass
        is_ready = threading.Event()
        # The watch first, then the count: whoever comes last in between is told by the watch.
        if self.client.retry(self.client.exists, self.ready, watch=lambda _event: is_ready.set()):
            return
        if len(self.client.retry(self.client.get_children, f"{self.path}/members")) >= self.count:
            self.client.retry(self.client.ensure_path, self.ready)
        is_ready.wait()

    def leave(self):
        try:
            self.client.retry(self.client.delete, self.own)
        except NoNodeError:
            pass
        while True:
            changed = threading.Event()
            left = self.client.retry(
                self.client.get_children, f"{self.path}/members", watch=lambda _event: changed.set()
            )
            if not left:
                return
            changed.wait()


def process(client, path, name):
    barrier = Barrier(client, path, name, PROCESSES)
    input()
    barrier.enter()
    say("in")
    input()
    barrier.leave()
    say("out")


def body(client, path):
    workers = [Worker(f"{path}/barrier", name) for name in range(PROCESSES)]
    members = f"{path}/barrier/members"
    for present, worker in enumerate(workers, 1):
        same("nobody is in before all came", sum(len(other.said) for other in workers), 0)
        worker.tell("come")
        if present < PROCESSES:
            eventually("it waits", lambda: client.exists(members) and len(client.get_children(members)) == present)
    eventually("all are in", lambda: all(worker.said == ["in"] for worker in workers))
    for left, worker in enumerate(workers, 1):
        same("nobody is out before all are leaving", [other.said[-1] for other in workers], ["in"] * PROCESSES)
        worker.tell("leave")
        if left < PROCESSES:
            eventually("it waits", lambda: len(client.get_children(members)) == PROCESSES - left)
    eventually("all are out", lambda: all(worker.said == ["in", "out"] for worker in workers))


run(body, worker=process)
