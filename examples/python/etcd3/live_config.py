"""Configuration that follows the server: loaded at the start, changed in memory when it changes there, with callbacks.

As it is often printed the thread that watches dies of its first event (there is no event.type) and nobody notices; what
else is put right here:
- The watch begins right behind the revision that was loaded. Set up "now", it misses what was written in between.
- The prefix ends with a slash: "/config" would also find "/config2". It is cut off the front, not replaced anywhere.
- A value that is not JSON does not end the watch; the last good one stays.
- History that was compacted before it was read ends a watch: then everything is loaded anew.
"""

import json
import threading

from etcd3.events import DeleteEvent
from etcd3.exceptions import RevisionCompactedError
from trial import connect, eventually, run, same


class LiveConfig:
    def __init__(self, etcd, prefix):
        self.etcd = etcd
        self.prefix = prefix.rstrip("/") + "/"
        self.values = {}
        self.callbacks = {}
        self.rejected = []
        self.cancel = None
        revision = self._load()
        self.thread = threading.Thread(target=self._follow, args=(revision,), daemon=True)
        self.thread.start()

    def _load(self):
        """Takes over what is there, and returns the revision at which it was."""
        answer = self.etcd.get_prefix_response(self.prefix)
        found = {}
        for kv in answer.kvs:
            self._read(found, self._name(kv.key), kv.value)
        self.values = found
        return answer.header.revision

    def _follow(self, revision):
        while True:
            events, self.cancel = self.etcd.watch_prefix(self.prefix, start_revision=revision + 1)
            try:
                for event in events:
                    self._apply(event)
                return
            except RevisionCompactedError:
                revision = self._load()

    def _apply(self, event):
        name = self._name(event.key)
        if isinstance(event, DeleteEvent):
            self.values.pop(name, None)
        elif not self._read(self.values, name, event.value):
            return
        if name in self.callbacks:
            self.callbacks[name](self.values.get(name))

    def _read(self, into, name, text):
        try:
            into[name] = json.loads(text)
            return True
        except ValueError:
            self.rejected.append(name)
            return False

    def _name(self, key):
        return key.decode().removeprefix(self.prefix)

    def get(self, name, default=None):
        return self.values.get(name, default)

    def set(self, name, value):
        self.etcd.put(self.prefix + name, json.dumps(value))

    def on_change(self, name, callback):
        self.callbacks[name] = callback


def body(etcd, prefix):
    etcd.put(f"{prefix}/config/features/new_checkout", json.dumps({"enabled": True, "percentage": 50}))
    etcd.put(f"{prefix}/config2/features/other", json.dumps("belongs to somebody else"))
    config = LiveConfig(etcd, f"{prefix}/config")
    same("loaded", config.values, {"features/new_checkout": {"enabled": True, "percentage": 50}})

    limits = []
    config.on_change("limits/rate_limit_qps", limits.append)
    # Written by somebody else, each before the other one is told.
    operator = connect()
    for limit in (1000, 500, 250):
        operator.put(f"{prefix}/config/limits/rate_limit_qps", json.dumps(limit))
    eventually("all changes arrive", lambda: len(limits) == 3)
    same("in order", limits, [1000, 500, 250])
    same("in memory", config.get("limits/rate_limit_qps"), 250)

    operator.put(f"{prefix}/config/limits/rate_limit_qps", "{not json")
    operator.delete(f"{prefix}/config/features/new_checkout")
    eventually("the deletion arrives", lambda: config.get("features/new_checkout") is None)
    same("the last good value", config.get("limits/rate_limit_qps"), 250)
    same("rejected", config.rejected, ["limits/rate_limit_qps"])
    config.set("limits/max_connections", 500)
    eventually("what it sets itself arrives too", lambda: config.get("limits/max_connections") == 500)
    assert config.thread.is_alive(), "nobody watches any more"
    config.cancel()


run(body)
