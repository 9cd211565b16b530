"""The lock of fenced_lock.py: it outlives its time to live while renewals succeed, its holder stops in time when they
do not, and nobody releases what is no longer theirs."""

import threading
import time

from fenced_lock import FencedLock
from trial import connect, eventually, run, same

TTL = 2


def outlives_its_time(etcd, key):
    lock = FencedLock(etcd, key, TTL).acquire()
    end = time.monotonic() + 1.5 * TTL
    while time.monotonic() < end:
        assert lock.held(), f"gave up after {lock.renewals} good renewals"
        time.sleep(0.05)
    assert lock.renewals >= 3, f"renewed {lock.renewals} times"
    assert lock.release(), "lost although renewed"
    return lock.token


def stops_in_time(etcd, key, earlier):
    """The holder cannot reach the server any more; whoever waits gets the lock, but not before the holder has stopped."""
    cut_off = FencedLock(etcd, key, TTL).acquire()
    cut_off._renew_once = unreachable
    successor = FencedLock(connect(), key, TTL)
    # Noted by the thread itself, at once: whether anyone else still thought to hold the lock.
    overlap = []
    waiting = threading.Thread(target=lambda: (successor.acquire(), overlap.append(cut_off.held())), daemon=True)
    waiting.start()
    assert cut_off.held(), "stopped too early"
    eventually("the successor is granted the lock", lambda: not waiting.is_alive())
    same("held by both", overlap, [False])
    assert earlier < cut_off.token < successor.token, "tokens do not grow"
    same("released what belongs to another", cut_off.release(), False)
    assert successor.held() and successor.release(), "the successor lost its lock"


def unreachable():
    raise ConnectionError("cut off")


def body(etcd, prefix):
    token = outlives_its_time(etcd, f"{prefix}/billing")
    stops_in_time(etcd, f"{prefix}/billing", token)


run(body)
