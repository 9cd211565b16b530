"""What is tried with the JSON gateway; played by ./transcript. One function is one case, and expected/CASE.txt
is what must come out. A case begins with an empty store and must end its own leases. "@2" in a request is the
revision two after the one the case began at."""

import base64


def b64(text):
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()


A, B, C = b64("a"), b64("b"), b64("c")


def kv(say):
    """Put, range, delete, with every option that changes the answer's shape."""
    say.post("/v3/kv/put", {"key": A, "value": b64("one")}, show_type=True)
    say.post("/v3/kv/put", {"key": A, "value": b64("two"), "prev_kv": True})
    say.post("/v3/kv/put", {"key": A, "ignore_value": True})
    say.post("/v3/kv/put", {"key": B, "value": b64(bytes(range(256)))})
    say.post("/v3/kv/range", {"key": A})
    say.post("/v3/kv/range", {"key": A, "revision": "@1"})
    say.post("/v3/kv/range", {"key": A, "range_end": C, "limit": "1"})
    say.post("/v3/kv/range", {"key": A, "range_end": C, "keys_only": True})
    say.post("/v3/kv/range", {"key": A, "range_end": C, "count_only": True})
    say.post("/v3/kv/range", {"key": A, "range_end": C, "sort_order": "DESCEND", "sort_target": "KEY"})
    say.post("/v3/kv/range", {"key": "AA==", "range_end": "AA==", "serializable": True})
    say.post("/v3/kv/range", {"key": C})
    say.post("/v3/kv/deleterange", {"key": A, "prev_kv": True})
    say.post("/v3/kv/deleterange", {"key": A})
    say.post("/v3/kv/deleterange", {"key": "AA==", "range_end": "AA=="})


def txn(say):
    """Transactions: every kind of compare, of operation and of answer."""
    say.post("/v3/kv/put", {"key": A, "value": b64("one")})
    say.post("/v3/kv/txn", {
        "compare": [
            {"result": "EQUAL", "target": "VALUE", "key": A, "value": b64("one")},
            {"result": "GREATER", "target": "VERSION", "key": A, "version": "0"},
            {"result": "LESS", "target": "CREATE", "key": A, "create_revision": "@2"},
            {"result": "NOT_EQUAL", "target": "MOD", "key": A, "mod_revision": "1"},
            {"target": "LEASE", "key": A, "lease": "0"},
        ],
        "success": [
            {"request_put": {"key": B, "value": b64("two"), "prev_kv": True}},
            {"request_range": {"key": A, "range_end": C}},
            {"request_delete_range": {"key": A, "prev_kv": True}},
        ],
        "failure": [{"request_range": {"key": A}}],
    })
    say.post("/v3/kv/txn", {
        "compare": [{"key": A, "target": "VERSION", "version": "1"}],
        "success": [{"request_put": {"key": A}}],
        "failure": [{"request_range": {"key": A}}, {"request_delete_range": {"key": A}}],
    })
    say.post("/v3/kv/txn", {"success": [{"request_put": {"key": A}}, {"request_put": {"key": A}}]})
    say.post("/v3/kv/txn", {"success": [{}]})
    say.post("/v3/kv/txn", {})


def spellings(say):
    """The same request in the spellings that clients use."""
    say.post("/v3/kv/put", {"key": A, "value": b64("one")})
    say.post("/v3/kv/put", {"key": A, "value": b64("two"), "prevKv": True})
    say.post("/v3/kv/range", {"key": A, "rangeEnd": C, "limit": 1})
    say.post("/v3/kv/range", '{"key":"YQ==","limit":"1","revision":null,"nobody":{"knows":["this"]}}')
    say.post("/v3/kv/range", '  {\n\t"key" : "YQ==", "sort_order" : 1}\n')
    say.post("/v3/kv/range", '{"key":"YQ=="} and what follows')
    say.post("/v3/kv/range", {"key": A}, headers={"Content-Type": "application/json"})
    say.post("/v3/kv/range", {"key": A}, headers={"Content-Type": "text/plain"})
    say.post("/v3beta/kv/range", {"key": A})
    say.post("/v3/kv/range", {"key": A}, headers={"Grpc-Metadata-hasleader": "true"})


def refusals(say):
    """What is refused, with which code and in which words."""
    say.post("/v3/kv/put", {}, show_type=True)
    say.post("/v3/kv/put", "")
    say.post("/v3/kv/put", {"key": A, "ignore_value": True})
    say.post("/v3/kv/put", {"key": A, "value": A, "ignore_value": True})
    say.post("/v3/kv/put", {"key": A, "lease": "12345"})
    say.post("/v3/kv/range", {"key": A, "revision": "@100"})
    say.post("/v3/kv/compaction", {"revision": "@100"})
    say.post("/v3/kv/range", "{")
    say.post("/v3/kv/put", {"key": A, "value": b64("x" * 1_600_000)})
    say.post("/v3/kv/put", {"key": A, "value": b64("x" * 2_500_000)})
    say.post("/v3/lease/grant", {"TTL": "9000000001"})
    say.post("/v3/lease/revoke", {"ID": "12345"})
    say.post("/v3/cluster/member/add", {"peerURLs": ["nonsense"]})
    say.post("/v3/cluster/member/remove", {"ID": "1"})
    say.post("/v3/cluster/member/promote", {"ID": "1"})


def preconditions(say):
    """A refusal that is a "failed precondition", which etcd 3.4 sends as HTTP 412 and later ones as 400."""
    say.post("/v3/lease/grant", {"TTL": "60", "ID": "77"})
    say.post("/v3/lease/grant", {"TTL": "60", "ID": "77"})
    say.post("/v3/lease/revoke", {"ID": "77"})


def routing(say):
    """Paths and methods that are not there, as etcd from 3.6 on says it."""
    say.get("/v3/kv/range")
    say.say("PUT", "/v3/kv/put", {"key": A})
    say.get("/v3/kv/nothing")
    say.say("OPTIONS", "/v3/kv/put", None)
    say.post("/v3alpha/kv/range", {"key": A})
    say.get("/v2/keys")
    say.get("/")


def lease(say):
    """Leases, at both their addresses."""
    say.post("/v3/lease/grant", {"TTL": "60", "ID": "77"})
    say.post("/v3/kv/put", {"key": A, "lease": "77"})
    say.post("/v3/lease/timetolive", {"ID": "77", "keys": True})
    say.post("/v3/kv/lease/timetolive", {"ID": "77"})
    say.post("/v3/lease/timetolive", {"ID": "78"})
    say.post("/v3/lease/leases", {})
    say.post("/v3/kv/lease/leases", "")
    say.post("/v3/lease/keepalive", {"ID": "77"}, show_type=True)
    say.post("/v3/lease/keepalive", '{"ID":"77"}{"ID":78}\n{"ID":77}')
    say.post("/v3/lease/keepalive", "")
    say.post("/v3/lease/keepalive", '{"ID":"77"}junk')
    say.post("/v3/kv/range", {"key": A})
    say.post("/v3/lease/revoke", {"ID": "77"})
    say.post("/v3/kv/lease/revoke", {"ID": "77"})
    say.post("/v3/kv/range", {"key": A})


def watch(say):
    """Watches: live, from the past, filtered, with previous values, compacted, refused."""
    live = say.watch("/v3/watch", {"create_request": {"key": A, "prev_kv": True}})
    live.next()
    say.post("/v3/kv/put", {"key": A, "value": b64("one")})
    live.next()
    say.post("/v3/kv/put", {"key": A, "value": b64("two")})
    live.next()
    say.post("/v3/kv/deleterange", {"key": A})
    live.next()
    live.close()
    say.post("/v3/watch", {"create_request": {"key": A, "start_revision": "@1", "watch_id": "5"}}, lines=2, show_type=True)
    say.post("/v3/watch", {"createRequest": {"key": A, "startRevision": "@1", "filters": ["NOPUT"]}}, lines=2)
    say.post("/v3/watch", {"create_request": {"key": B, "range_end": A}}, lines=1)
    say.post("/v3/watch", {"create_request": {"key": A}, "unknown": 1}, lines=1)
    two = '{"create_request":{"key":"YQ==","watch_id":7}}{"create_request":{"key":"YQ==","watch_id":7}}'
    say.post("/v3/watch", two, lines=2)
    say.post("/v3/watch", '{"create_request":{"key":"YQ=="}}{"cancel_request":{"watch_id":0}}', lines=2)
    say.post("/v3/kv/compaction", {"revision": "@2", "physical": True})
    say.post("/v3/watch", {"create_request": {"key": A, "start_revision": "@1"}}, lines=2)
    say.post("/v3/kv/range", {"key": A, "revision": "@1"})


def websocket(say):
    """A watch over a websocket, with and without a token, and one for keepalives."""
    socket = say.websocket("/v3/watch")
    socket.tell({"create_request": {"key": A}})
    socket.next()
    say.post("/v3/kv/put", {"key": A, "value": b64("one")})
    socket.next()
    socket.tell({"progress_request": {}})
    socket.next()
    socket.tell({"create_request": {"key": B, "watch_id": "9"}})
    socket.next()
    socket.tell({"cancel_request": {"watch_id": "9"}})
    socket.next()
    socket.close()
    socket = say.websocket("/v3/lease/keepalive", "Bearer, token")
    socket.close()
    say.post("/v3/lease/grant", {"TTL": "60", "ID": "77"})
    socket = say.websocket("/v3/lease/keepalive")
    socket.tell({"ID": "77"})
    socket.next()
    socket.tell({"ID": "78"})
    socket.next()
    socket.close()
    say.post("/v3/lease/revoke", {"ID": "77"})


def cluster(say):
    """Members and the state of one, which says more with every version."""
    say.post("/v3/cluster/member/list", {})
    say.post("/v3/cluster/member/list", {"linearizable": True})
    say.post("/v3/maintenance/status", {})
    say.post("/v3/maintenance/defragment", {})


def alarm(say):
    """Alarms: nothing is raised. etcd 3.4 answers without a header."""
    say.post("/v3/maintenance/alarm", {})
    say.post("/v3/maintenance/alarm", {"action": "GET", "alarm": "NOSPACE"})


def hashes(say):
    """Hashes, whose values are each server's own. etcd 3.4 has only one of them here."""
    say.post("/v3/kv/put", {"key": A})
    say.post("/v3/kv/compaction", {"revision": "@1", "physical": True})
    say.post("/v3/maintenance/hash", {})
    say.post("/v3/maintenance/hashkv", {})


def lock(say):
    """Locks that the server waits for."""
    say.post("/v3/lock/unlock", {"key": b64("nothing")})
    say.post("/v3/lease/grant", {"TTL": "60", "ID": "1311768467463790320"})
    say.post("/v3/lock/lock", {"name": b64("l"), "lease": "1311768467463790320"})
    say.post("/v3/lock/unlock", {"key": b64("l/123456789abcdef0")})
    say.post("/v3/lease/revoke", {"ID": "1311768467463790320"})


def election(say):
    """An election with one candidate."""
    say.post("/v3/election/leader", {"name": b64("e")})
    say.post("/v3/lease/grant", {"TTL": "60", "ID": "1311768467463790320"})
    leader = {"name": b64("e"), "key": b64("e/123456789abcdef0"), "rev": "@1", "lease": "1311768467463790320"}
    say.post("/v3/election/campaign", {"name": b64("e"), "lease": "1311768467463790320", "value": A})
    say.post("/v3/election/leader", {"name": b64("e")})
    say.post("/v3/election/proclaim", {"leader": leader, "value": B})
    say.post("/v3/election/observe", {"name": b64("e")}, lines=1)
    say.post("/v3/election/resign", {"leader": leader})
    say.post("/v3/lease/revoke", {"ID": "1311768467463790320"})


def auth(say):
    """Users, roles and a token, without and with authentication; off again at the end."""
    say.post("/v3/auth/role/add", {"name": "root"})
    say.post("/v3/auth/user/add", {"name": "root", "password": "secret"})
    say.post("/v3/auth/user/grant", {"user": "root", "role": "root"})
    say.post("/v3/auth/role/add", {"name": "r"})
    say.post("/v3/auth/role/grant", {"name": "r", "perm": {"permType": "READWRITE", "key": A, "range_end": C}})
    say.post("/v3/auth/role/get", {"role": "r"})
    say.post("/v3/auth/role/list", {})
    say.post("/v3/auth/user/add", {"name": "u", "options": {"no_password": True}})
    say.post("/v3/auth/user/list", {})
    say.post("/v3/auth/user/get", {"name": "root"})
    say.post("/v3/auth/user/get", {"name": "nobody"})
    say.post("/v3/auth/enable", {})
    token = say.quietly("/v3/auth/authenticate", {"name": "root", "password": "secret"})["token"]
    say.post("/v3/kv/put", {"key": A})
    for header in ({"Authorization": token}, {"Authorization": "wrong"}):
        connection = say.connect()
        connection.request("POST", "/v3/kv/range", '{"key":"YQ=="}', header)
        answer = connection.getresponse()
        print("with", "a token" if header["Authorization"] == token else "a wrong token", answer.status,
              say.mask(answer.read().decode()))
        connection.close()
    connection = say.connect()
    connection.request("POST", "/v3/auth/disable", "{}", {"Authorization": token})
    print("disabled", connection.getresponse().status)
    connection.close()
    say.post("/v3/auth/role/revoke", {"role": "r", "key": A, "range_end": C})
    say.post("/v3/auth/user/delete", {"name": "u"})
    say.post("/v3/auth/user/delete", {"name": "root"})
    say.post("/v3/auth/role/delete", {"role": "r"})
    say.post("/v3/auth/role/delete", {"role": "root"})


def endpoints(say):
    """The plain endpoints beside the gateway, which say more with every version."""
    say.get("/version")
    say.get("/health")
    say.get("/health?serializable=true")
    say.get("/health?exclude=NOSPACE")
    say.post("/health")
    say.get("/nothing")


def probes(say):
    """Probes, which came with etcd 3.5.11. The order of several checks is each server's own."""
    say.get("/livez")
    say.get("/livez?verbose")
    say.get("/livez/serializable_read")
    say.get("/readyz")
    say.get("/readyz?exclude=non_learner")
    for name in ("data_corruption", "serializable_read", "linearizable_read", "non_learner"):
        say.get(f"/readyz/{name}?verbose")
    say.get("/readyz/nothing")
    say.post("/readyz")


CASES = {case.__name__: case for case in (
    kv, txn, spellings, refusals, preconditions, routing, lease, watch, websocket, cluster, alarm, hashes, lock,
    election, auth, endpoints, probes,
)}
