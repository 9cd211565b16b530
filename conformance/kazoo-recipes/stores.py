"""Recipes that keep something: queues, counters, caches and watches that follow the tree."""

import random
import threading
import time

from kazoo.exceptions import NodeExistsError, NoNodeError, NotEmptyError
from kazoo.recipe.cache import TreeCache
from trial import UNKNOWN, children, eventually

WORKERS = 3


def feed(trial, queue_of, put, unknown):
    """Puts numbers in until the weather is over; those of which nobody knows whether they arrived are kept apart."""
    lock = threading.Lock()

    def producer(number):
        client = trial.client()
        queue = queue_of(client)
        for item in range(number, 1 << 30, WORKERS):
            if not trial.going():
                return
            try:
                queue.put(b"%d" % item)
                with lock:
                    put.add(item)
            except UNKNOWN:
                unknown.add(item)
            time.sleep(0.01)

    return [trial.spawn(producer, number) for number in range(WORKERS)]


def queue(trial):
    """Nothing comes twice or from nowhere. What is lost, a consumer took and lost its connection before it knew."""
    put, unknown, got = set(), set(), []
    producers = feed(trial, lambda client: client.Queue(trial.path), put, unknown)
    consumers = [trial.client() for _ in range(WORKERS)]

    def consumer(client):
        queue = client.Queue(trial.path)
        while True:
            producing = any(thread.is_alive() for thread in producers)
            item = queue.get()
            if item is not None:
                got.append(int(item))
                trial.round()
            elif not producing:
                return
            else:
                time.sleep(0.01)

    for client in consumers:
        trial.spawn(consumer, client)
    trial.join()
    assert len(got) == len(set(got)), "something came twice"
    assert set(got) <= put | unknown, f"from nowhere: {set(got) - put - unknown}"
    losses = sum(client.lost_connections for client in consumers)
    assert len(put - set(got)) <= losses, f"lost: {len(put - set(got))}, connections lost: {losses}"


def locking_queue(trial):
    """Nothing is lost, whoever loses a connection, and nothing is consumed twice."""
    put, unknown, seen, consumed = set(), set(), set(), []
    producers = feed(trial, lambda client: client.LockingQueue(trial.path), put, unknown)

    def consume(client, is_over):
        queue = client.LockingQueue(trial.path)
        while True:
            over = is_over()
            try:
                item = queue.get(timeout=0.5)
                if item is None and over:
                    return
                if item is not None:
                    seen.add(int(item))
                    if queue.consume():
                        consumed.append(int(item))
                        trial.round()
                    else:
                        queue = client.LockingQueue(trial.path)
            except (*UNKNOWN, NoNodeError):
                # Whether it was consumed nobody knows. The object would go on asking for what is gone.
                queue = client.LockingQueue(trial.path)

    workers = [trial.client() for _ in range(WORKERS)]
    for client in workers:
        trial.spawn(consume, client, lambda: not any(thread.is_alive() for thread in producers))
    trial.join()
    # An item that somebody locked without ever hearing of it is free when that one's session is over.
    for client in workers:
        client.stop()
    consume(trial.client(), lambda: True)
    assert put <= seen, f"lost: {sorted(put - seen)[:10]} of {len(put)}"
    assert seen <= put | unknown, f"from nowhere: {seen - put - unknown}"
    assert len(consumed) == len(set(consumed)), "something was consumed twice"


def counter(trial):
    """Every step counts once. Kazoo asks again after a lost connection, so one step may count twice then."""
    done = []
    clients = [trial.client() for _ in range(WORKERS)]

    def add(client):
        counter = client.Counter(trial.path)
        steps = 0
        while trial.going():
            counter += 1
            steps += 1
            trial.round()
        done.append(steps)

    for client in clients:
        trial.spawn(add, client)
    trial.join()
    reader = trial.client()
    reader.retry(reader.sync, trial.path)
    value, steps = reader.Counter(trial.path).value, sum(done)
    losses = sum(client.lost_connections for client in clients)
    assert steps <= value <= steps + losses, f"{value} after {steps} steps and {losses} lost connections"


def gardener(trial, client):
    """Changes the tree below trial.path at random until the weather is over."""
    chance = random.Random(5)
    client.retry(client.ensure_path, trial.path)

    def tend():
        while trial.going():
            path = trial.path + "".join(f"/{chance.randrange(3)}" for _ in range(chance.randrange(1, 4)))
            try:
                match chance.randrange(4):
                    case 0 | 1:
                        client.create(path, b"%d" % chance.randrange(1000))
                    case 2:
                        client.set(path, b"%d" % chance.randrange(1000))
                    case _:
                        client.delete(path)
                trial.round()
            except (*UNKNOWN, NoNodeError, NodeExistsError, NotEmptyError):
                pass
            time.sleep(0.01)

    return trial.spawn(tend)


def tree_of(client, path):
    found = {path: client.retry(client.get, path)[0]}
    for child in children(client, path):
        found.update(tree_of(client, f"{path}/{child}"))
    return found


def tree_cache(trial):
    """A copy of a tree that is right in the end, whatever was missed on the way."""
    client = trial.client()
    gardener(trial, trial.client())
    cache = TreeCache(client, trial.path)
    cache.start()

    def cached(path):
        data = cache.get_data(path)
        found = {} if data is None else {path: data.data}
        for child in cache.get_children(path, default=()):
            found.update(cached(f"{path}/{child}"))
        return found

    trial.join()
    reader = trial.client()
    tree = tree_of(reader, trial.path)
    eventually("the cache is like the tree", lambda: cached(trial.path) == tree, seconds=20)
    cache.close()


def data_watch(trial):
    """What it is told never goes back, and ends with what is there."""
    writer, watcher = trial.client(), trial.client()
    writer.retry(writer.ensure_path, trial.path)
    told = []

    @watcher.DataWatch(trial.path)
    def note(data, stat):
        told.append((stat.mzxid, data))

    def write():
        number = 0
        while trial.going():
            number += 1
            writer.retry(writer.set, trial.path, b"%d" % number)
            trial.round()
            time.sleep(0.01)

    trial.spawn(write)
    trial.join()
    last = writer.retry(writer.get, trial.path)[0]
    eventually("the last change is told", lambda: told[-1][1] == last, seconds=20)
    assert told == sorted(told, key=lambda pair: pair[0]), "it went back"


def children_watch(trial):
    """It ends with the children that are there."""
    client, watcher = trial.client(), trial.client()
    gardener(trial, client)
    told = []

    @watcher.ChildrenWatch(trial.path)
    def note(names):
        told.append(sorted(names))

    trial.join()
    names = children(client, trial.path)
    eventually("the last children are told", lambda: told[-1] == names, seconds=20)
    assert len(told) > 1, "nothing was told"

