"""Runs every recipe of kazoo on three servers while these are killed with kill -9 and started again, and checks what each
recipe promises. Prints a line for each, in the words that ../lib/tally.sh counts.

usage: KIND=tidelock BINARY=target/debug/tidelock play.py [RECIPE...]
       KIND=zookeeper JARS=target/peers/zookeeper-3.9.4 play.py [RECIPE...]

Python must have kazoo 2.11.0: ../run makes such an environment (target/conformance-venv/kazoo) and plays this. All recipes run at once, each with clients and znodes of its own.
"""

import logging
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))

import holders
import meetings
import stores
from checks import Tally
from servers import Servers
from trial import Trial

RECIPES = [
    holders.lock,
    holders.lock_of_a_killed_client,
    holders.read_and_write_locks,
    holders.semaphore,
    holders.election,
    holders.non_blocking_lease,
    holders.multi_non_blocking_lease,
    meetings.barrier,
    meetings.double_barrier,
    meetings.party_members,
    meetings.shallow_party_members,
    meetings.set_partitioner,
    stores.queue,
    stores.locking_queue,
    stores.counter,
    stores.tree_cache,
    stores.data_watch,
    stores.children_watch,
]
# Who is killed, one after the other.
STRIKES = ("leader", "follower", "leader", "majority", "follower", "leader")
ABSENT_SECONDS = 1.5
CALM_SECONDS = 2
# Less than this much done and a recipe has proved nothing. Those with few wait for the end of a session, or count only
# rounds in which no connection was lost.
ROUNDS_MIN = 3
ROUNDS_MIN_OF = {holders.lock_of_a_killed_client: 1, meetings.double_barrier: 1, meetings.set_partitioner: 1}


def try_out(recipe, trial, outcomes):
    try:
        recipe(trial)
        assert trial.rounds >= ROUNDS_MIN_OF.get(recipe, ROUNDS_MIN), f"only {trial.rounds} rounds"
        outcomes[recipe] = None
    except Exception as fault:
        traceback.print_exc()
        outcomes[recipe] = fault


def main():
    # What clients say when they lose a connection is no news here.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    chosen = [recipe for recipe in RECIPES if len(sys.argv) == 1 or recipe.__name__ in sys.argv[1:]]
    # Whoever ends this ends the servers with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tally, over, outcomes = Tally(), threading.Event(), {}
    with tempfile.TemporaryDirectory() as directory:
        servers = Servers(directory)
        try:
            servers.start()
            trials = [Trial(recipe.__name__, servers.hosts, over) for recipe in chosen]
            threads = [
                threading.Thread(target=try_out, args=(recipe, trial, outcomes), daemon=True)
                for recipe, trial in zip(chosen, trials)
            ]
            for thread in threads:
                thread.start()
            time.sleep(CALM_SECONDS)
            for what in STRIKES:
                servers.strike(what, ABSENT_SECONDS)
                time.sleep(CALM_SECONDS)
            over.set()
            for thread, recipe in zip(threads, chosen):
                thread.join(100)
        finally:
            servers.stop()
    for recipe, trial in zip(chosen, trials):
        fault = outcomes.get(recipe, TimeoutError("it does not come to an end"))
        if fault is None:
            print(f"{recipe.__name__}: {trial.rounds} rounds, {sum(c.lost_connections for c in trial.clients)} connections "
                  f"and {sum(c.lost_sessions for c in trial.clients)} sessions lost")
            tally.passed(recipe.__name__)
        else:
            tally.broke(recipe.__name__, fault)
    lost = sum(client.lost_sessions for trial in trials for client in trial.clients)
    if lost == 0:
        tally.passed("no_session_is_lost_with_a_server")
    else:
        tally.broke("no_session_is_lost_with_a_server", AssertionError(f"{lost} were"))
    sys.stdout.flush()
    # Threads of a failed recipe may wait for ever.
    os._exit(1 if tally.failed else 0)


main()
