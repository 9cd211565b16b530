"""What every recipe's trial is made of: clients whose losses are counted, threads whose faults are not lost, and claims
("I hold it") that are checked against each other."""

import threading
import time
import traceback

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, OperationTimeoutError, SessionExpiredError
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

# Longer than any strike, so that no session may end because a server was killed.
SESSION_SECONDS = 15
# How long anything may take once the servers are left alone.
PATIENCE_SECONDS = 40
# What a client sees when an operation may or may not have happened.
UNKNOWN = (ConnectionLoss, OperationTimeoutError, SessionExpiredError)


def again():
    return KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5)


class Client(KazooClient):
    """One that knows how often its connection was lost, and its session."""

    def __init__(self, hosts, seconds=SESSION_SECONDS):
        super().__init__(hosts=hosts, timeout=seconds, connection_retry=again(), command_retry=again())
        self.lost_connections = 0
        self.lost_sessions = 0
        self.add_listener(self._count)

    def _count(self, state):
        if state == KazooState.SUSPENDED:
            self.lost_connections += 1
        elif state == KazooState.LOST and not self._stopped.is_set():
            self.lost_sessions += 1


class Trial:
    """One recipe, tried until the weather is over."""

    def __init__(self, name, hosts, weather_is_over):
        self.path = f"/recipes/{name}"
        self.hosts = hosts
        self.weather_is_over = weather_is_over
        self.rounds = 0
        self.clients = []
        self.threads = []
        self.faults = []
        self._lock = threading.Lock()

    def client(self, seconds=SESSION_SECONDS):
        client = Client(self.hosts, seconds)
        self.clients.append(client)
        client.start(timeout=PATIENCE_SECONDS)
        return client

    def going(self):
        return not self.weather_is_over.is_set() and not self.faults

    def round(self):
        with self._lock:
            self.rounds += 1

    def spawn(self, body, *arguments):
        def guarded():
            try:
                body(*arguments)
            except Exception as fault:
                traceback.print_exc()
                self.faults.append(fault)

        thread = threading.Thread(target=guarded, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self):
        """Waits for all threads; a fault of one is ours."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.weather_is_over.is_set() and not self.faults:
            time.sleep(0.1)
            deadline = time.monotonic() + PATIENCE_SECONDS
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        if self.faults:
            raise self.faults[0]
        stuck = [thread for thread in self.threads if thread.is_alive()]
        assert not stuck, f"{len(stuck)} of {len(self.threads)} still wait {PATIENCE_SECONDS} s after the weather"

    def close(self):
        for client in self.clients:
            client.stop()
            client.close()


def eventually(what, condition, seconds=PATIENCE_SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.05)


class Claims:
    """Who claims to hold what at the same time. A claim whose client lost its session before giving it up counts for
    nothing: it could not know. Everybody else is held to it, whether connected or not."""

    def __init__(self, allowed):
        self.allowed = allowed
        self.held = {}
        self.meetings = []
        self._lock = threading.Lock()

    def take(self, client, kind="exclusive"):
        claim = Claim(client, kind)
        with self._lock:
            self.held[claim] = None
            if len(self.held) > 1:
                self.meetings.append(list(self.held))
        return claim

    def give_up(self, claim):
        claim.is_void = claim.client.lost_sessions != claim.sessions
        with self._lock:
            del self.held[claim]

    def check(self):
        for meeting in self.meetings:
            kinds = sorted(claim.kind for claim in meeting if not claim.is_void)
            assert self.allowed(kinds), f"held at the same time: {kinds}"


class Claim:
    def __init__(self, client, kind):
        self.client = client
        self.kind = kind
        self.sessions = client.lost_sessions
        self.is_void = False


class Fence:
    """A number in a znode that is raised by reading and writing without any condition. Raised by two at once, a step
    is lost: so it counts right only if whatever protects it does."""

    def __init__(self, client, path):
        self.path = path
        self.done = 0
        self.unknown = 0
        client.retry(client.ensure_path, path)
        client.retry(client.set, path, b"0")
        self._lock = threading.Lock()

    def raise_by_one(self, client):
        sessions = client.lost_sessions
        before = int(client.retry(client.get, self.path)[0])
        while True:
            time.sleep(0.003)
            try:
                client.set(self.path, b"%d" % (before + 1))
                break
            except UNKNOWN:
                now = int(client.retry(client.get, self.path)[0])
                if client.lost_sessions != sessions:
                    with self._lock:
                        self.unknown += 1
                    return
                if now == before + 1:
                    break
        with self._lock:
            self.done += 1

    def check(self, client):
        client.retry(client.sync, self.path)
        value = int(client.retry(client.get, self.path)[0])
        assert self.done <= value <= self.done + self.unknown, f"{value} after {self.done} steps, {self.unknown} unknown"


def children(client, path):
    """The children now, not a moment ago."""
    client.retry(client.sync, path)
    try:
        return sorted(client.retry(client.get_children, path))
    except NoNodeError:
        return []
