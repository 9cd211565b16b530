"""A place in a queue: an ephemeral sequential znode, at the head once nothing is before it. Elections and locks are this.

As it is often printed it fails in one of these ways:

- It creates below a parent that nobody made.
- It returns False from a DataWatch "because watches are one-time". That cancels the watch at its first call, which comes
  at once and says that the predecessor is there: when it is gone, nobody hears.
- It lists, then watches: whoever was deleted in between is waited for without end. Here the watch is set by asking
  whether the predecessor exists, and a no is an answer, too.
- It compares whole names, so that the order of names decides. Only the number behind them does.
- It asks for a znode, loses the connection, and asks again: now it stands behind itself. Here a name of its own tells
  which one is already there.
- It believes in its place for ever. A session that ended takes the znode along; the owner is told by the connection.
"""

import threading
import uuid

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import KazooState


class Place:
    """Stands in the queue below a path."""

    def __init__(self, client, path, who=""):
        self.client = client
        self.path = path
        self.own_name = uuid.uuid4().hex + "-"
        client.retry(client.ensure_path, path)
        self.name = client.retry(self._stand, who.encode())
        # The number of the znode starts again when the parent is made anew. The zxid of its creation never goes back:
        # this is what storage should compare.
        self.token = client.retry(client.get, f"{path}/{self.name}")[1].czxid
        self.is_doubtful = threading.Event()
        client.add_listener(self._connection_changed)

    def _stand(self, who):
        for child in self.client.get_children(self.path):
            if child.startswith(self.own_name):
                return child
        made = self.client.create(f"{self.path}/{self.own_name}", who, ephemeral=True, sequence=True)
        return made.rpartition("/")[2]

    def _connection_changed(self, state):
        # Without a connection nobody knows how long the session lives on. Lost, it is over.
        if state == KazooState.CONNECTED and self.client.connected:
            return None
        self.is_doubtful.set()
        return True

    def predecessor(self):
        """The one to wait for; None at the head."""
        children = self.client.retry(self.client.get_children, self.path)
        queue = sorted(children, key=lambda name: int(name[-10:]))
        before = queue.index(self.name)
        return queue[before - 1] if before > 0 else None

    def wait(self):
        """Returns at the head. Only the predecessor is watched: when it goes, one is woken and not everybody."""
        while (before := self.predecessor()) is not None:
            changed = threading.Event()
            watched = f"{self.path}/{before}"
            if self.client.retry(self.client.exists, watched, watch=lambda _event: changed.set()):
                changed.wait()
            # Look again: that one may have given up without ever having been at the head.

    def leave(self):
        try:
            self.client.retry(self.client.delete, f"{self.path}/{self.name}")
        except NoNodeError:
            pass
