"""A lock between processes, and storage that keeps a holder whose time is over from doing harm.

As it is often printed the lock misses the release that comes between listing and watching, and takes the sequence number
for a fencing token. That number starts again at 0 when the lock's parent is deleted and made anew, which cleaners do:
then the storage refuses everybody. The czxid of the holder's znode does not.
"""

from kazoo.exceptions import BadVersionError
from queue_of_znodes import Place
from trial import Worker, eventually, run, same, say

HOLDERS = 4
DEPOSITS = 3


def deposit(client, account, token):
    """Adds one, unless somebody with a later token was here. The token is stored with the balance, in one step."""
    while True:
        data, stat = client.retry(client.get, account)
        balance, last_token = map(int, data.split())
        if token < last_token:
            return False
        try:
            client.retry(client.set, account, b"%d %d" % (balance + 1, token), version=stat.version)
            return True
        except BadVersionError:
            continue


def holder(client, lock, account, rounds):
    for _ in range(int(rounds)):
        place = Place(client, lock)
        place.wait()
        assert deposit(client, account, place.token), "refused although it holds the lock"
        place.leave()
    say("done")


def body(client, path):
    lock, account = f"{path}/lock", f"{path}/account"
    client.create(account, b"0 0")
    holders = [Worker(lock, account, DEPOSITS) for _ in range(HOLDERS)]
    for worker in holders:
        eventually("everybody is done", lambda: worker.said == ["done"])
    balance, last_token = map(int, client.get(account)[0].split())
    same("deposits", balance, HOLDERS * DEPOSITS)

    # A holder is paused for long; meanwhile its znode is gone and another one works.
    paused = Place(client, lock)
    paused.wait()
    paused.leave()
    other = Place(client, lock)
    other.wait()
    assert other.token > paused.token > last_token, "tokens grow from holder to holder"
    assert deposit(client, account, other.token)
    assert not deposit(client, account, paused.token), "the one whose time is over still writes"
    other.leave()

    # The lock's parent is cleaned away. Numbers begin again; tokens do not.
    client.delete(lock, recursive=True)
    fresh = Place(client, lock)
    same("the number of the first holder after that", int(fresh.name[-10:]), 0)
    assert fresh.token > other.token, "the token went back"
    assert deposit(client, account, fresh.token), "a holder is refused"
    fresh.leave()
    same("deposits", int(client.get(account)[0].split()[0]), HOLDERS * DEPOSITS + 2)


run(body, worker=holder)
