"""Runs checks one after another and says how each ended, in the words that ../lib/tally.sh counts."""

import os
import sys
import traceback


def endpoints():
    """The server's addresses as (host, port), from ENDPOINTS (host:port, comma separated)."""
    if "ENDPOINTS" not in os.environ:
        sys.exit("set ENDPOINTS to host:port, or several, comma separated")
    pairs = (address.rsplit(":", 1) for address in os.environ["ENDPOINTS"].split(","))
    return [(host, int(port)) for host, port in pairs]


def same(what, found, expected):
    """Fails a check unless both are equal, and says what they are."""
    assert found == expected, f"{what}: found {found!r}, expected {expected!r}"


class Tally:
    """Prints "ok NAME" or "FAIL NAME: why" for each check."""

    def __init__(self):
        self.failed = False

    def passed(self, name):
        print(f"ok {name}", flush=True)

    def broke(self, name, why):
        self.failed = True
        text = f"{type(why).__name__} {why}".replace("\n", " ")
        for where in traceback.extract_tb(why.__traceback__)[-1:]:
            text += f" ({os.path.basename(where.filename)}:{where.lineno})"
        print(f"FAIL {name}: {text}", flush=True)

    def exit(self):
        sys.exit(1 if self.failed else 0)
