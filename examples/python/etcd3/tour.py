"""A tour of the interface of etcd3: keys, a compare-and-swap, a lease that is kept alive, a watch, a lock.

As it is often printed this tour stops halfway; what is put right here:
- A lease has no keepalive() to loop over, and a loop there would never reach the lines below it. It has refresh(),
  which somebody must call in time; here a thread does.
- An event has no type. It is a PutEvent or a DeleteEvent.
- A watch that is set up after the changes shows none of them. Here it begins at the revision before them.
- "with lock" goes on without the lock if that could not be had in time: acquire() says so only as its result.
"""

import threading
import time

from etcd3.events import DeleteEvent, PutEvent
from trial import connect, eventually, run, same


class KeptAlive:
    """Renews a lease at a third of its time to live, until it is stopped or the lease is gone."""

    def __init__(self, lease):
        self.lease = lease
        self.renewals = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._renew, daemon=True)
        self.thread.start()

    def _renew(self):
        while not self.stopped.wait(self.lease.ttl / 3):
            # A server that does not know the lease any more answers with no time left.
            if self.lease.refresh()[0].TTL == 0:
                return
            self.renewals += 1

    def stop(self):
        self.stopped.set()
        self.thread.join()


def keys(etcd, prefix):
    key = f"{prefix}/database/host"
    etcd.put(key, "db.example.com")
    value, meta = etcd.get(key)
    same("the value", (value, meta.version), (b"db.example.com", 1))
    done, _ = etcd.transaction(
        compare=[etcd.transactions.version(key) > 0],
        success=[etcd.transactions.put(key, "newdb.example.com")],
        failure=[etcd.transactions.put(key, "fallback.example.com")],
    )
    same("changed because it was there", (done, etcd.get(key)[0]), (True, b"newdb.example.com"))


def lease_and_watch(etcd, prefix):
    start = etcd.put(f"{prefix}/services", "").header.revision + 1
    lease = etcd.lease(ttl=2)
    kept = KeptAlive(lease)
    etcd.put(f"{prefix}/services/node1", "192.0.2.1:8080", lease=lease)
    events, cancel = etcd.watch_prefix(f"{prefix}/services/", start_revision=start)
    came = next(events)
    same("the event of the put", (type(came), came.value), (PutEvent, b"192.0.2.1:8080"))
    time.sleep(3)
    assert kept.renewals >= 2, f"renewed {kept.renewals} times in 3 s"
    same("still there after its time", etcd.get(f"{prefix}/services/node1")[0], b"192.0.2.1:8080")
    kept.stop()
    # Nobody renews it now: the server deletes the key, and the watch says so.
    gone = next(events)
    same("the event of the end", (type(gone), gone.key.decode()), (DeleteEvent, f"{prefix}/services/node1"))
    cancel()


def lock(etcd, prefix):
    mine = etcd.lock(f"{prefix}/resource", ttl=30)
    assert mine.acquire(timeout=5), "a free lock could not be had"
    try:
        other = connect().lock(f"{prefix}/resource", ttl=30)
        same("a held lock", other.acquire(timeout=1), False)
    finally:
        assert mine.release(), "the lock was lost"
    eventually("the lock is free", lambda: other.acquire(timeout=1))
    assert other.release(), "the lock was lost"


def tour(etcd, prefix):
    keys(etcd, prefix)
    lease_and_watch(etcd, prefix)
    lock(etcd, prefix)


run(tour)
