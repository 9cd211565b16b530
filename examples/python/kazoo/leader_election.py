"""Three processes of which one leads. The leader is killed with kill -9; when its session is over, the next one leads.

As it is often printed the failover never happens: see queue_of_znodes.py for the reasons. Besides, a leader that lost
its connection goes on leading there. Here it stops at once, before another can lead.
"""

from queue_of_znodes import Place
from trial import Worker, eventually, run, same, say


def candidate(client, path, name):
    place = Place(client, path, name)
    say("stands")
    place.wait()
    say("leads", place.token)
    place.is_doubtful.wait()
    say("stops")


def body(client, path):
    candidates = {}
    for name in ("a", "b", "c"):
        candidates[name] = Worker(f"{path}/election", name)
        eventually(f"{name} stands", lambda: "stands" in candidates[name].said)

    def leading():
        return [name for name, worker in candidates.items() if worker.said[-1].startswith("leads")]

    tokens = []
    for name in ("a", "b", "c"):
        eventually(f"{name} leads", lambda: leading() == [name])
        contenders = [client.get(f"{path}/election/{child}")[0] for child in client.get_children(f"{path}/election")]
        same("who stands", sorted(contenders), sorted(other.encode() for other in candidates))
        tokens.append(int(candidates[name].said[-1].split()[1]))
        candidates.pop(name).kill()
    same("tokens grow with every leader", tokens, sorted(set(tokens)))
    eventually("nobody is left", lambda: not client.get_children(f"{path}/election"))


run(body, worker=candidate)
