"""How every program here starts and ends: it connects to ENDPOINTS, says "ok" or what went wrong, and turns that into
the exit status. A run works under a key prefix of its own and leaves nothing behind when it succeeds."""

import os
import sys
import time
import traceback
import uuid

import etcd3

# How long something that must happen may take.
PATIENCE_SECONDS = 20


def connect():
    """A client of the first endpoint; etcd3 0.12 knows one server at a time."""
    host, port = os.environ.get("ENDPOINTS", "127.0.0.1:2379").split(",")[0].rsplit(":", 1)
    return etcd3.client(host=host, port=int(port), timeout=10)


def run(body):
    """Runs body(client, prefix) and ends the process."""
    prefix = f"/examples/{uuid.uuid4().hex}"
    client = connect()
    try:
        body(client, prefix)
        client.delete_prefix(prefix)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        # Threads of a failed program may wait for ever.
        os._exit(1)
    print("ok", flush=True)
    os._exit(0)


def same(what, found, expected):
    assert found == expected, f"{what}: found {found!r}, expected {expected!r}"


def eventually(what, condition):
    """Waits until the condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what}: did not happen within {PATIENCE_SECONDS} s"
        time.sleep(0.02)
