"""A ledger that several writers share under a lock, in a database that refuses writes of writers whose time is over.

The usual statement for this only compares the token with the last one and does not store it: then token 33 is taken
after 34, and nothing is fenced. The token must be set together with the balance.

Tokens are create revisions of the lock's key. They never go back, also when the lock was free for a long time and all
its keys are gone.
"""

import os
import sqlite3
import tempfile
import threading

from fenced_lock import FencedLock
from trial import connect, run, same

WRITERS = 4
DEPOSITS = 5
TTL = 10


class Ledger:
    """An account in a database file; each thread opens it for itself."""

    def __init__(self, path):
        self.path = path
        with self._open() as database:
            database.execute("CREATE TABLE ledger (id TEXT PRIMARY KEY, balance INTEGER, last_token INTEGER)")
            database.execute("INSERT INTO ledger VALUES ('account', 0, 0)")

    def _open(self):
        return sqlite3.connect(self.path, timeout=10)

    def balance(self):
        with self._open() as database:
            return database.execute("SELECT balance FROM ledger").fetchone()[0]

    def write(self, balance, token):
        """Whether the write was taken."""
        with self._open() as database:
            statement = "UPDATE ledger SET balance = ?, last_token = ? WHERE id = 'account' AND last_token <= ?"
            return database.execute(statement, (balance, token, token)).rowcount == 1


def deposit(ledger, key, failures):
    etcd = connect()
    for _ in range(DEPOSITS):
        lock = FencedLock(etcd, key, TTL).acquire()
        # Read, think, write: without the lock deposits would be lost here.
        if not ledger.write(ledger.balance() + 1, lock.token):
            failures.append("the holder's write was refused")
        if not lock.release():
            failures.append("the lock was lost")


def together(ledger, key):
    failures = []
    writers = [threading.Thread(target=deposit, args=(ledger, key, failures), daemon=True) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    same("failures", failures, [])
    same("the balance", ledger.balance(), WRITERS * DEPOSITS)


def late_write(etcd, ledger, key):
    """A writer is paused for longer than its lease lives, and then goes on as if nothing had happened."""
    paused = FencedLock(etcd, key, TTL).acquire()
    about_to_write = ledger.balance() + 100
    paused.lease.revoke()
    other = FencedLock(connect(), key, TTL).acquire()
    assert other.token > paused.token, "tokens do not grow"
    assert ledger.write(ledger.balance() + 1, other.token), "the holder's write was refused"
    same("the late write was taken", ledger.write(about_to_write, paused.token), False)
    # The holder itself may write again with the same token.
    assert ledger.write(ledger.balance() + 1, other.token), "the holder's second write was refused"
    same("the balance", ledger.balance(), WRITERS * DEPOSITS + 2)
    assert other.release(), "the lock was lost"


def body(etcd, prefix):
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(os.path.join(directory, "ledger.db"))
        together(ledger, f"{prefix}/account")
        late_write(etcd, ledger, f"{prefix}/account")


run(body)
