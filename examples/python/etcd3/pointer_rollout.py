"""Feature flags in versions: each is a document of its own, and a pointer says which one counts.

As it is often printed this loops with "async for" over something that is not asynchronous, and so never runs; what else
is put right here:
- A service that starts reads the pointer; it does not wait for the next change of it.
- The new document replaces the old one. Updating a dictionary would keep flags that the new version no longer has.
- A pointer to a document that is not there or is broken changes nothing, and the service goes on with what it has.
- The pointer is moved by a transaction, only from the version that was looked at and only to one that exists.
"""

import json
import threading

from etcd3.events import PutEvent
from trial import connect, eventually, run, same


class Flags:
    """A service's copy of the flags, which follows the pointer."""

    def __init__(self, prefix):
        self.etcd = connect()
        self.prefix = prefix
        self.version, self.flags, self.refused = None, {}, []
        value, meta = self.etcd.get(f"{prefix}/current")
        if value:
            self._take(value.decode())
        start = meta.mod_revision + 1 if meta else 1
        self.events, self.cancel = self.etcd.watch(f"{prefix}/current", start_revision=start)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        for event in self.events:
            if isinstance(event, PutEvent):
                self._take(event.value.decode())

    def _take(self, version):
        text, _ = self.etcd.get(f"{self.prefix}/{version}")
        try:
            flags = json.loads(text or "")
        except ValueError:
            self.refused.append(version)
            return
        self.version, self.flags = version, flags


def switch(etcd, prefix, old, new):
    """Moves the pointer; whether it did."""
    pointer = f"{prefix}/current"
    was = etcd.transactions.value(pointer) == old if old else etcd.transactions.create(pointer) == 0
    exists = etcd.transactions.version(f"{prefix}/{new}") > 0
    done, _ = etcd.transaction(compare=[was, exists], success=[etcd.transactions.put(pointer, new)], failure=[])
    return done


def body(etcd, prefix):
    prefix = f"{prefix}/feature-flags"
    etcd.put(f"{prefix}/v42", json.dumps({"checkout": False, "legacy": True}))
    assert switch(etcd, prefix, None, "v42"), "the first switch"
    services = [Flags(prefix) for _ in range(3)]
    same("at the start", [s.flags for s in services], [{"checkout": False, "legacy": True}] * 3)

    # Prepared, and nobody uses it yet.
    etcd.put(f"{prefix}/v43", json.dumps({"checkout": True}))
    same("before the switch", {s.version for s in services}, {"v42"})
    assert switch(etcd, prefix, "v42", "v43"), "the switch to v43"
    eventually("all services follow", lambda: {s.version for s in services} == {"v43"})
    same("no flag of the old version is left", [s.flags for s in services], [{"checkout": True}] * 3)

    same("a switch by somebody who saw v42", switch(etcd, prefix, "v42", "v42"), False)
    same("a switch to what is not there", switch(etcd, prefix, "v43", "v44"), False)
    # Somebody does it by hand all the same, and mends it.
    etcd.put(f"{prefix}/current", "v44")
    eventually("all services refuse", lambda: all(s.refused == ["v44"] for s in services))
    same("they go on", {s.version for s in services}, {"v43"})
    etcd.put(f"{prefix}/current", "v42")
    eventually("all services go back", lambda: {s.version for s in services} == {"v42"})
    for service in services:
        service.cancel()


run(body)
