"""Recipes by which several come together: barriers, parties, a set that is divided."""

import threading
import time

from trial import UNKNOWN, Claims, children, eventually

MEMBERS = 3
# How long a round of a barrier may take; and how long one in which somebody lost the connection is waited for.
ROUND_SECONDS = 20
DOUBTFUL_SECONDS = 2


def barrier(trial):
    """Nobody passes while it stands, everybody when it is gone."""
    keeper = trial.client()
    waiters = [trial.client() for _ in range(MEMBERS)]
    number = 0
    while trial.going():
        number += 1
        path = f"{trial.path}/{number}"
        keeper.Barrier(path).create()
        keeper.retry(keeper.sync, path)
        opened, passed = threading.Event(), []

        def wait(client):
            while True:
                try:
                    client.retry(client.sync, path)
                    if client.Barrier(path).wait(timeout=1):
                        break
                except UNKNOWN:
                    # It says so itself: wait does not live through a lost connection.
                    pass
            assert opened.is_set(), "passed a barrier that stands"
            passed.append(client)

        threads = [trial.spawn(wait, client) for client in waiters]
        time.sleep(0.2)
        opened.set()
        keeper.Barrier(path).remove()
        for thread in threads:
            thread.join(ROUND_SECONDS)
        assert len(passed) == MEMBERS or trial.faults, f"{len(passed)} of {MEMBERS} passed"
        trial.threads.clear()
        trial.round()
    trial.join()


def double_barrier(trial):
    """Nobody is in before all came, nobody out before all are leaving. Kazoo's keeps that only for who does not lose
    the connection meanwhile: asked again, it takes its own znode's absence for an error and goes ahead."""
    clients = [trial.client() for _ in range(MEMBERS)]
    number = 0
    while trial.going():
        number += 1
        losses = sum(client.lost_connections for client in clients)
        times = [{} for _ in clients]

        def somebody_lost_the_connection():
            return sum(client.lost_connections for client in clients) != losses

        def take_part(client, mine):
            barrier = client.DoubleBarrier(f"{trial.path}/{number}", MEMBERS)
            mine["coming"] = time.monotonic()
            barrier.enter()
            mine["in"] = time.monotonic()
            time.sleep(0.1)
            mine["leaving"] = time.monotonic()
            barrier.leave()
            mine["out"] = time.monotonic()

        threads = [trial.spawn(take_part, client, mine) for client, mine in zip(clients, times)]
        deadline = time.monotonic() + ROUND_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            if somebody_lost_the_connection():
                deadline = min(deadline, time.monotonic() + DOUBTFUL_SECONDS)
            time.sleep(0.02)
        trial.threads.clear()
        if somebody_lost_the_connection():
            # Whoever hangs in it hangs in vain; the next round is another barrier.
            continue
        assert all("out" in mine for mine in times), f"somebody waits for ever: {times}"
        for before, after in (("coming", "in"), ("leaving", "out")):
            late = max(mine[before] for mine in times)
            early = min(mine[after] for mine in times)
            assert early >= late, f"{early} is {after} before {late} is {before}"
        trial.round()
    trial.join()


def party(trial, kind):
    """Members come and go. Who has joined is listed, who has left is not, at every moment and every server."""
    joined = set()
    lock = threading.Lock()

    def member(number):
        client, visits = trial.client(), 0
        while trial.going():
            visits += 1
            name = f"{number}.{visits}"
            mine = getattr(client, kind)(trial.path, name)
            mine.join()
            with lock:
                joined.add(name)
            time.sleep(0.3 + number / 7)
            with lock:
                joined.discard(name)
            mine.leave()
            trial.round()
            time.sleep(0.1)

    def guest():
        client = trial.client()
        mine = getattr(client, kind)(trial.path)
        client.ensure_path(trial.path)
        while trial.going():
            with lock:
                before = set(joined)
            client.retry(client.sync, trial.path)
            found = list(mine)
            with lock:
                missing = (before & joined) - set(found)
            assert not missing, f"{missing} joined and are not among {found}"
            time.sleep(0.05)

    for number in range(MEMBERS):
        trial.spawn(member, number)
    trial.spawn(guest)
    trial.join()
    assert not children(trial.client(), trial.path), "everybody has left"


def party_members(trial):
    """Members by their data."""
    party(trial, "Party")


def shallow_party_members(trial):
    """Members by their names."""
    party(trial, "ShallowParty")


def set_partitioner(trial):
    """Each part of a set belongs to one member at most, and at rest to exactly one."""
    parts = tuple(f"part-{number}" for number in range(6))
    claims = {part: Claims(lambda kinds: len(kinds) <= 1) for part in parts}
    owned = {}
    at_rest = threading.Event()

    def member(number):
        client = trial.client()

        def enter():
            return client.SetPartitioner(
                path=trial.path, set=parts, identifier=str(number), time_boundary=0.5, max_reaction_time=0.5
            )

        mine = enter()
        while not at_rest.is_set() and not trial.faults:
            if mine.failed:
                mine.finish()
                mine = enter()
            elif mine.acquired:
                taken = [(part, claims[part].take(client)) for part in mine]
                owned[number] = [part for part, _ in taken]
                while mine.acquired and not at_rest.is_set() and not trial.faults:
                    time.sleep(0.02)
                owned.pop(number)
                for part, claim in taken:
                    claims[part].give_up(claim)
                trial.round()
            elif mine.release:
                mine.release_set()
            else:
                mine.wait_for_acquire(0.2)
        mine.finish()

    for number in range(MEMBERS):
        trial.spawn(member, number)
    while trial.going():
        time.sleep(0.1)
    try:
        eventually("every part has its owner", lambda: sorted(sum(owned.copy().values(), [])) == sorted(parts))
    finally:
        at_rest.set()
    trial.join()
    for claim in claims.values():
        claim.check()
