"""Schedulers of which one leads: whoever creates the key does, as long as its lease lives; the others wait for its end.

As it is often printed the winner stops at a lease.keepalive() that does not exist, the others watch from "now" and can
miss the end that came just before, and a leader that cannot reach the server works on. Here each is a FencedLock.
"""

import threading

from fenced_lock import FencedLock
from trial import connect, eventually, run, same

TTL = 2


class Scheduler:
    """Registers itself, then stands for election and notes what it sees."""

    def __init__(self, name, prefix, terms):
        self.etcd = connect()
        self.name = name
        self.terms = terms
        self.instance = self.etcd.lease(60)
        self.etcd.put(f"{prefix}/instances/{name}", name, lease=self.instance)
        self.office = FencedLock(self.etcd, f"{prefix}/leader", TTL)
        self.thread = threading.Thread(target=self._lead, daemon=True)
        self.thread.start()

    def _lead(self):
        self.office.acquire()
        self.terms.append((self.office.token, self.name))

    def crash(self):
        """It stops renewing and says nothing to anyone."""
        self.office.released.set()

    def leads(self):
        return self.office.held()


def body(etcd, prefix):
    terms = []
    schedulers = []
    for name in ("a", "b", "c"):
        schedulers.append(Scheduler(name, prefix, terms))
        eventually("somebody leads", lambda: len(terms) == 1)
    same("instances", len(list(etcd.get_prefix(f"{prefix}/instances/"))), 3)
    same("the first one leads", [s.name for s in schedulers if s.leads()], ["a"])

    schedulers[0].crash()
    eventually("a successor", lambda: len(terms) == 2)
    leading = [s for s in schedulers if s.leads()]
    same("leaders", len(leading), 1)

    # This one leaves in order: the last does not have to wait for a lease to run out.
    assert leading[0].office.release(), "the office was lost"
    eventually("the last one leads", lambda: len(terms) == 3)
    same("each has led once", sorted(name for _, name in terms), ["a", "b", "c"])
    assert terms == sorted(terms), f"tokens do not grow: {terms}"
    same("leaders", len([s for s in schedulers if s.leads()]), 1)
    for scheduler in schedulers:
        scheduler.instance.revoke()


run(body)
