"""How every program here starts and ends: it connects to ZOOKEEPER_ENDPOINTS, says "ok" or what went wrong, and turns that
into the exit status. A run works below a znode of its own and leaves nothing behind when it succeeds.

Some of these programs start themselves again as other processes, which can be killed as in real life: those are workers.
"""

import os
import subprocess
import sys
import threading
import time
import traceback
import uuid

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

# How long something that must happen may take.
PATIENCE_SECONDS = 30
# How long a worker that was killed counts as alive.
SESSION_SECONDS = 4


def connect():
    """A client of all servers, which asks again when a connection is lost."""
    again = KazooRetry(max_tries=-1, delay=0.05, max_delay=0.5)
    hosts = os.environ.get("ZOOKEEPER_ENDPOINTS", "127.0.0.1:2181")
    client = KazooClient(hosts=hosts, timeout=SESSION_SECONDS, connection_retry=again, command_retry=again)
    client.start(timeout=PATIENCE_SECONDS)
    return client


def run(body, worker=None):
    """Runs body(client, path) and ends the process; in a worker's process, worker(client, arguments...)."""
    try:
        client = connect()
        if len(sys.argv) > 1:
            threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
            worker(client, *sys.argv[1:])
            os._exit(0)
        path = f"/examples-{uuid.uuid4().hex}"
        client.create(path)
        body(client, path)
        client.delete(path, recursive=True)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        # Threads of a failed program may wait for ever.
        os._exit(1)
    print("ok", flush=True)
    os._exit(0)


def end_with(parent):
    """A worker does not outlive the one that started it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class Worker:
    """This program in another process, and what it has said so far."""

    def __init__(self, *arguments):
        program = [sys.executable, "-B", sys.argv[0], *map(str, arguments)]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line.strip())

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self):
        """It is gone without having said anything to anyone."""
        self.process.kill()
        self.process.wait()


def say(*words):
    """What a worker tells."""
    print(*words, flush=True)


def same(what, found, expected):
    assert found == expected, f"{what}: found {found!r}, expected {expected!r}"


def eventually(what, condition):
    """Waits until the condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: did not happen within {PATIENCE_SECONDS} s"
        time.sleep(0.02)
