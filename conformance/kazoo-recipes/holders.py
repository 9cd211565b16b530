"""Recipes by which somebody holds something: locks, semaphores, elections, leases."""

import datetime
import math
import subprocess
import sys
import threading
import time

from kazoo.exceptions import KazooException
from trial import UNKNOWN, Claims, Fence

CONTENDERS = 4


def exclusive(kinds):
    return len(kinds) <= 1


def contend(trial, claims, fence, protect):
    """Contenders that enter by protect(client, number) until the weather is over."""

    def contender(number):
        client = trial.client()
        while trial.going():
            with protect(client, number):
                claim = claims.take(client)
                fence.raise_by_one(client)
                claims.give_up(claim)
                trial.round()

    for number in range(CONTENDERS):
        trial.spawn(contender, number)
    trial.join()
    claims.check()
    fence.check(trial.client())


def lock(trial):
    """One at a time, in the order of asking, whoever is killed."""
    fence = Fence(trial.client(), trial.path + "-fence")
    contend(trial, Claims(exclusive), fence, lambda client, number: client.Lock(trial.path, str(number)))


def lock_of_a_killed_client(trial):
    """A holder that is killed with kill -9 holds no longer than its session lives."""
    client = trial.client()
    while trial.going():
        program = [sys.executable, "-B", __file__, trial.hosts, trial.path]
        holder = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert holder.stdout.readline() == "held\n", "the other one does not get the lock"
            mine = client.Lock(trial.path, "survivor")
            assert not mine.acquire(blocking=False), "it is held"
        finally:
            holder.kill()
            holder.wait()
        assert mine.acquire(timeout=30), "still held"
        mine.release()
        trial.round()


def read_and_write_locks(trial):
    """Readers together, a writer alone."""

    def allowed(kinds):
        return kinds.count("write") == 0 or len(kinds) == 1

    claims = Claims(allowed)
    fence = Fence(trial.client(), trial.path + "-fence")

    def reader():
        client = trial.client()
        while trial.going():
            with client.ReadLock(trial.path):
                claim = claims.take(client, "read")
                time.sleep(0.01)
                claims.give_up(claim)
                trial.round()

    def writer():
        client = trial.client()
        while trial.going():
            with client.WriteLock(trial.path):
                claim = claims.take(client, "write")
                fence.raise_by_one(client)
                claims.give_up(claim)
                trial.round()

    for body in (reader, reader, reader, writer, writer):
        trial.spawn(body)
    trial.join()
    claims.check()
    fence.check(trial.client())


def semaphore(trial):
    """Never more than two of four."""
    claims = Claims(lambda kinds: len(kinds) <= 2)
    # The first one writes the number of leases next to creating the path; the others must not come in between.
    first = trial.client()
    first.Semaphore(trial.path, "first", max_leases=2).acquire()
    first.stop()

    def contender(number):
        client = trial.client()
        while trial.going():
            semaphore = client.Semaphore(trial.path, str(number), max_leases=2)
            try:
                semaphore.acquire()
            except KazooException:
                # The recipe does not expect its own lease to be there already after a lost connection.
                semaphore._best_effort_cleanup()
                continue
            claim = claims.take(client)
            time.sleep(0.01)
            claims.give_up(claim)
            semaphore.release()
            trial.round()

    for number in range(CONTENDERS):
        trial.spawn(contender, number)
    trial.join()
    claims.check()


def election(trial):
    """One leader at a time, and everybody gets to lead."""
    claims = Claims(exclusive)
    fence = Fence(trial.client(), trial.path + "-fence")
    led = set()

    def candidate(number):
        client = trial.client()

        def lead():
            claim = claims.take(client)
            fence.raise_by_one(client)
            claims.give_up(claim)
            led.add(number)
            trial.round()

        while trial.going():
            client.Election(trial.path, str(number)).run(lead)

    for number in range(CONTENDERS):
        trial.spawn(candidate, number)
    trial.join()
    claims.check()
    fence.check(trial.client())
    assert len(led) == CONTENDERS, f"only {sorted(led)} ever led"


def lease(trial, attempt, most):
    """Leases of three seconds that are tried for again and again. What they promise is in whole seconds of the clock;
    a renewal that fails midway may have given the old one up."""
    until = {}
    lock = threading.Lock()

    def contender(number):
        client = trial.client()
        while trial.going():
            asked = time.time()
            try:
                obtained = bool(attempt(client, trial.path, datetime.timedelta(seconds=3), str(number)))
            except (*UNKNOWN, KazooException):
                obtained = None
            now = time.time()
            with lock:
                if obtained is None:
                    until.pop(number, None)
                elif obtained:
                    others = [other for other, end in until.items() if other != number and end > now]
                    assert len(others) < most, f"{number} and {others} hold it at the same time"
                    until[number] = math.floor(asked) + 3
                    trial.round()
            # So that it passes on: nobody renews in time twice in a row.
            time.sleep(0.3 if number % 2 else 3.2)

    for number in range(CONTENDERS):
        trial.spawn(contender, number)
    trial.join()


def non_blocking_lease(trial):
    """One holder at a time."""
    lease(trial, lambda client, path, time, who: client.NonBlockingLease(path, time, who), most=1)


def multi_non_blocking_lease(trial):
    """Two holders at a time, not three."""
    lease(trial, lambda client, path, time, who: client.MultiNonBlockingLease(2, path, time, who), most=2)


def hold(hosts, path):
    """The program that is killed: takes the lock, says so, and never gives it back."""
    from trial import Client

    client = Client(hosts, seconds=4)
    client.start(timeout=30)
    client.Lock(path, "doomed").acquire()
    print("held", flush=True)
    # Nothing is ever said; but if the other one is gone, so are we.
    sys.stdin.read()


if __name__ == "__main__":
    hold(*sys.argv[1:])
