"""The same with kazoo's own Election, which is what a program should use.

As it is often printed it calls election.run_async, which does not exist: run blocks, so it runs in a thread, and cancel
ends the waiting. What a leader does must also end when its connection is in doubt; the recipe does not see to that.
"""

import threading

from kazoo.protocol.states import KazooState
from trial import connect, eventually, run, same


class Candidate:
    def __init__(self, path, name, terms):
        self.client = connect()
        self.election = self.client.Election(path, name)
        self.name = name
        self.terms = terms
        self.stop = threading.Event()
        self.client.add_listener(self._connection_changed)
        self.thread = threading.Thread(target=self.election.run, args=(self.lead,), daemon=True)
        self.thread.start()

    def _connection_changed(self, state):
        if state != KazooState.CONNECTED:
            self.stop.set()

    def lead(self):
        """The work of a leader: it goes on until it is told to stop. To return is to give up the office."""
        self.terms.append(self.name)
        self.stop.wait()

    def withdraw(self):
        self.stop.set()
        self.election.cancel()


def body(client, path):
    terms = []
    candidates = []
    for name in ("a", "b", "c"):
        candidates.append(Candidate(f"{path}/election", name, terms))
        eventually(f"{name} stands", lambda: len(candidates[0].election.contenders()) == len(candidates))
    same("who stands, in their order", candidates[0].election.contenders(), ["a", "b", "c"])
    eventually("the first one leads", lambda: terms == ["a"])
    # Not its turn yet: it is out of the queue without having led.
    candidates[1].withdraw()
    candidates[1].thread.join(20)
    same("who stands now", candidates[0].election.contenders(), ["a", "c"])
    candidates[0].withdraw()
    eventually("the third one leads", lambda: terms == ["a", "c"])
    candidates[2].withdraw()
    for candidate in candidates:
        candidate.thread.join(20)
        assert not candidate.thread.is_alive(), f"{candidate.name} does not end"
        candidate.client.stop()
    same("who has led", terms, ["a", "c"])


run(body)
