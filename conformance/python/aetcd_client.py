"""Talks to a server as the package aetcd (asyncio) does and checks the answers."""

import asyncio

import aetcd

from checks import Tally, endpoints, same

SERVERS = endpoints()
CHECK_SECONDS_MAX = 30


def client(number=0):
    """A client of one endpoint, counted around the cluster."""
    host, port = SERVERS[number % len(SERVERS)]
    return aetcd.Client(host=host, port=port, timeout=10)


async def put_and_get():
    async with client() as etcd, client(1) as elsewhere:
        await etcd.put(b"ap/k", b"one")
        found = await etcd.get(b"ap/k")
        same("value and version", (found.value, found.version), (b"one", 1))
        same("previous", (await etcd.put(b"ap/k", b"two", prev_kv=True)).prev_kv.value, b"one")
        same("read elsewhere", (await elsewhere.get(b"ap/k")).value, b"two")
        same("absent", await etcd.get(b"ap/absent"), None)
        same("counted", (await etcd.get_prefix(b"ap/")).count, 1)
        same("deleted", (await etcd.delete_prefix(b"ap/")).deleted, 1)


async def at_once():
    async with client() as etcd:
        await asyncio.gather(*(etcd.put(b"am/%03d" % i, b"v" * i) for i in range(200)))
        found = await etcd.get_prefix(b"am/")
        same("all there, in order", [len(kv.value) for kv in found], list(range(200)))
        await etcd.delete_prefix(b"am/")


async def transactions():
    async with client() as etcd:
        await etcd.put(b"at/a", b"1")
        done, _ = await etcd.transaction(
            compare=[etcd.transactions.value(b"at/a") == b"1"],
            success=[etcd.transactions.put(b"at/b", b"then")],
            failure=[etcd.transactions.put(b"at/b", b"else")],
        )
        same("then", (done, (await etcd.get(b"at/b")).value), (True, b"then"))
        same("replaced", await etcd.replace(b"at/b", b"then", b"new"), True)
        same("not replaced", await etcd.replace(b"at/b", b"then", b"new"), False)
        await etcd.delete_prefix(b"at/")


async def watches():
    async with client() as etcd, client(1) as watching:
        watch = await watching.watch_prefix(b"aw/")
        for i in range(20):
            await etcd.put(b"aw/k", b"%d" % i)
        seen = []
        async for event in watch:
            seen.append(event.kv.value)
            if len(seen) == 20:
                await watch.cancel()
        same("in order", seen, [b"%d" % i for i in range(20)])
        same("once", (await etcd.delete_prefix(b"aw/")).deleted, 1)


async def leases():
    async with client() as etcd, client(1) as elsewhere:
        lease = await etcd.lease(60)
        await etcd.put(b"al/k", b"v", lease=lease)
        same("renewed elsewhere", (await elsewhere.refresh_lease(lease.id)).TTL, 60)
        same("granted", await lease.granted_ttl(), 60)
        same("its keys", list(await lease.keys()), [b"al/k"])
        await lease.revoke()
        same("gone with it", await etcd.get(b"al/k"), None)


async def locks():
    async with client() as etcd, client(1) as other:
        first, second = etcd.lock(b"amutex", ttl=20), other.lock(b"amutex", ttl=20)
        same("taken", await first.acquire(timeout=5), True)
        same("held", (await first.is_acquired(), await second.acquire(timeout=0.5)), (True, False))
        same("released", await first.release(), True)
        same("passed on", await second.acquire(timeout=5), True)
        await second.release()


async def cluster():
    async with client() as etcd:
        members = [member async for member in etcd.members()]
        same("members", len(members), len(SERVERS))
        assert (await etcd.status()).raft_term > 0


async def main():
    tally = Tally()
    for check in (put_and_get, at_once, transactions, watches, leases, locks, cluster):
        try:
            await asyncio.wait_for(check(), CHECK_SECONDS_MAX)
            tally.passed(check.__name__)
        except Exception as why:
            tally.broke(check.__name__, why)
    tally.exit()


asyncio.run(main())
