"""A lock made of a transaction and a lease, whose holder always knows whether it still may act.

The key is created if nobody has it; its create revision is the token of the grant. Every later grant has a larger one.

The loop that keeps it alive is often written so that it compares the present with the time of the acquisition, and
gives up after one time to live although every renewal has succeeded. What counts is the last renewal that was
acknowledged, and of that the moment it was SENT: the server counted from some moment after it.
"""

import threading
import time

from etcd3.events import DeleteEvent
from etcd3.exceptions import RevisionCompactedError

# The share of the time to live after which the holder stops by itself; the rest is for its clock and for what it has
# already sent off.
SAFE_SHARE = 0.8


class FencedLock:
    """One attempt to hold the lock; for the next attempt make another one."""

    def __init__(self, etcd, key, ttl):
        self.etcd, self.key, self.ttl = etcd, key, ttl
        self.token = None
        self.lease = None
        self.safe_until = 0.0
        self.released = threading.Event()
        self.renewals = 0

    def acquire(self):
        """Waits for the lock. A release wakes those who wait; nobody asks again and again."""
        sent = time.monotonic()
        self.lease = self.etcd.lease(self.ttl)
        while True:
            create = self.etcd.transactions.create(self.key) == 0
            put = self.etcd.transactions.put(self.key, "", lease=self.lease)
            get = self.etcd.transactions.get(self.key)
            granted, answers = self.etcd.transaction(compare=[create], success=[put, get], failure=[get])
            _, meta = answers[-1][0]
            if granted:
                break
            self._wait_for_end_of(meta.mod_revision)
            sent = time.monotonic()
            self._renew_once()
        self.token = meta.create_revision
        self.safe_until = sent + self.ttl * SAFE_SHARE
        threading.Thread(target=self._keep_alive, daemon=True).start()
        return self

    def _wait_for_end_of(self, revision):
        # From the revision behind the holder's, so that an end between the transaction and the watch is seen too.
        events, cancel = self.etcd.watch(self.key, start_revision=revision + 1)
        # While it waits its own lease must not run out.
        waiting = threading.Event()
        threading.Thread(target=self._renew_until, args=(waiting,), daemon=True).start()
        try:
            for event in events:
                if isinstance(event, DeleteEvent):
                    return
        except RevisionCompactedError:
            return
        finally:
            waiting.set()
            cancel()

    def _renew_until(self, done):
        while not done.wait(self.ttl / 3):
            self._renew_once()

    def _renew_once(self):
        """Whether the lease was there to be renewed."""
        return self.lease.refresh()[0].TTL > 0

    def _keep_alive(self):
        while not self.released.wait(self.ttl / 3):
            sent = time.monotonic()
            try:
                if not self._renew_once():
                    self.safe_until = 0.0
                    return
            except Exception:
                # Unknown whether it arrived: try again, and meanwhile the time that is known to be safe runs out.
                continue
            self.renewals += 1
            self.safe_until = sent + self.ttl * SAFE_SHARE

    def held(self):
        """Whether the holder may still act. Asks its own clock only, so it can be asked before every step."""
        return not self.released.is_set() and time.monotonic() < self.safe_until

    def release(self):
        """Deletes the key if it is still the one of this grant; whether it was."""
        self.released.set()
        mine = self.etcd.transactions.create(self.key) == self.token
        done, _ = self.etcd.transaction(compare=[mine], success=[self.etcd.transactions.delete(self.key)], failure=[])
        if done:
            self.lease.revoke()
        return done
