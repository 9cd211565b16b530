"""Talks to a server as the package etcd3 (python-etcd3) does and checks the answers."""

import threading
import time

import etcd3

from checks import Tally, endpoints, same

SERVERS = endpoints()


def client(number=0):
    """A client of one endpoint, counted around the cluster."""
    host, port = SERVERS[number % len(SERVERS)]
    return etcd3.client(host=host, port=port, timeout=10)


def put_and_get():
    etcd = client()
    etcd.put("p/k", "one")
    value, meta = etcd.get("p/k")
    same("value and version", (value, meta.version), (b"one", 1))
    same("previous", etcd.put("p/k", "two", prev_kv=True).prev_kv.value, b"one")
    same("absent", etcd.get("p/absent"), (None, None))
    same("read elsewhere", client(1).get("p/k")[0], b"two")
    same("deleted", etcd.delete("p/k"), True)
    same("nothing to delete", etcd.delete("p/k"), False)


def ranges():
    etcd = client()
    for i in range(5):
        etcd.put(f"r/{i}", str(9 - i))
    same("prefix", [meta.key for _, meta in etcd.get_prefix("r/")], [b"r/0", b"r/1", b"r/2", b"r/3", b"r/4"])
    found = etcd.get_prefix("r/", sort_order="descend", sort_target="value")
    same("sorted", [value for value, _ in found], [b"9", b"8", b"7", b"6", b"5"])
    same("interval", [value for value, _ in etcd.get_range("r/1", "r/3")], [b"8", b"7"])
    same("keys only", [value for value, _ in etcd.get_prefix("r/", keys_only=True)], [b""] * 5)
    same("all deleted", etcd.delete_prefix("r/").deleted, 5)


def transactions():
    etcd = client()
    etcd.put("t/a", "1")
    done, answers = etcd.transaction(
        compare=[etcd.transactions.value("t/a") == "1", etcd.transactions.version("t/a") > 0],
        success=[etcd.transactions.put("t/b", "then"), etcd.transactions.get("t/b")],
        failure=[etcd.transactions.put("t/b", "else")],
    )
    same("then", (done, answers[1][0][0]), (True, b"then"))
    done, _ = etcd.transaction(
        compare=[etcd.transactions.create("t/b") == 0],
        success=[],
        failure=[etcd.transactions.delete("t/a")],
    )
    same("else", (done, etcd.get("t/a")[0]), (False, None))
    same("replaced", (etcd.replace("t/b", "then", "new"), etcd.replace("t/b", "then", "newer")), (True, False))
    same("put once", (etcd.put_if_not_exists("t/c", "1"), etcd.put_if_not_exists("t/c", "2")), (True, False))
    etcd.delete_prefix("t/")


def watch_prefix():
    etcd = client()
    events, cancel = client(1).watch_prefix("w/")
    writer = threading.Thread(target=lambda: [etcd.put("w/k", str(i)) for i in range(50)] and etcd.delete("w/k"))
    writer.start()
    seen = [next(events) for _ in range(51)]
    cancel()
    writer.join()
    same("in order", [event.value for event in seen[:50]], [str(i).encode() for i in range(50)])
    assert isinstance(seen[50], etcd3.events.DeleteEvent)
    # Once more, from the first of them on.
    events, cancel = client(2).watch_prefix("w/", start_revision=seen[0].mod_revision)
    same("again", [next(events).mod_revision for _ in range(51)], [event.mod_revision for event in seen])
    cancel()


def watch_compacted():
    etcd = client()
    etcd.put("c/k", "1")
    first = etcd.get("c/k")[1].mod_revision
    etcd.put("c/k", "2")
    etcd.compact(first + 1)
    events, cancel = etcd.watch("c/k", start_revision=first)
    try:
        next(events)
        raise AssertionError("events before the compaction were told")
    except etcd3.exceptions.RevisionCompactedError as told:
        same("from where on", told.compacted_revision, first + 1)
    finally:
        cancel()


def leases():
    etcd = client()
    lease = etcd.lease(60)
    etcd.put("l/k", "v", lease=lease)
    same("its keys", lease.keys, [b"l/k"])
    same("granted", (lease.granted_ttl, lease.remaining_ttl > 50), (60, True))
    same("renewed elsewhere", [answer.TTL for answer in client(1).refresh_lease(lease.id)], [60])
    lease.revoke()
    same("gone with it", etcd.get("l/k"), (None, None))
    # Too short ones are lengthened, and end by themselves.
    lease = etcd.lease(1)
    etcd.put("l/short", "v", lease=lease)
    deadline = time.monotonic() + 10
    while etcd.get("l/short")[0] is not None:
        assert time.monotonic() < deadline, "it does not expire"
        time.sleep(0.1)


def locks():
    first = client().lock("mutex", ttl=20)
    second = client(1).lock("mutex", ttl=20)
    same("taken", first.acquire(timeout=5), True)
    same("held", (first.is_acquired(), second.acquire(timeout=0.5)), (True, False))
    waiting = threading.Thread(target=lambda: second.acquire(timeout=10))
    waiting.start()
    same("released", first.release(), True)
    waiting.join()
    same("passed on", second.is_acquired(), True)
    second.release()
    with client(2).lock("mutex", ttl=20) as third:
        same("with", third.is_acquired(), True)


def refusals():
    etcd = client()
    for wrong in (lambda: etcd.put("", "v"), lambda: etcd.compact(10**12)):
        try:
            wrong()
            raise AssertionError("not refused")
        except (ValueError, etcd3.exceptions.Etcd3Exception) as told:
            assert not isinstance(told, etcd3.exceptions.ConnectionFailedError), told
        except Exception as told:  # The package passes on what it has no name for.
            assert "etcdserver:" in str(told), told


def cluster():
    etcd = client()
    members = list(etcd.members)
    same("members", (len(members), all(member.name for member in members)), (len(SERVERS), True))
    status = etcd.status()
    assert status.leader is not None and status.raft_term > 0, status
    same("alarms", list(etcd.list_alarms()), [])
    etcd.defragment()


tally = Tally()
for check in (put_and_get, ranges, transactions, watch_prefix, watch_compacted, leases, locks, refusals, cluster):
    try:
        check()
        tally.passed(check.__name__)
    except Exception as why:
        tally.broke(check.__name__, why)
tally.exit()
