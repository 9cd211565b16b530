"""Three servers that are killed and started again: Tidelock or real ZooKeepers, from the same zoo.cfg.

Nothing is asked of them but what every client can see: the word "srvr" says who leads. They end with the program.
"""

import os
import pathlib
import random
import signal
import socket
import subprocess
import time

COUNT = 3
# How long a server may take until it has found its place.
READY_SECONDS = 60
JAVA_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOGBACK = pathlib.Path(__file__).parent.parent / "zookeeper" / "logback.xml"

CONFIGURATION = """tickTime=2000
initLimit=10
syncLimit=5
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
{members}
"""


def free_ports(count):
    """Ports that were free a moment ago, from below those that the system gives to connections."""
    found = []
    while len(found) < count:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            if port not in found and probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


class Server:
    def __init__(self, number, directory, port, members):
        self.directory = directory / str(number)
        (self.directory / "data").mkdir(parents=True)
        (self.directory / "data" / "myid").write_text(f"{number}\n")
        self.port = port
        self.configuration = self.directory / "zoo.cfg"
        text = CONFIGURATION.format(data=self.directory / "data", port=port, members=members)
        self.configuration.write_text(text)
        self.process = None

    def command(self):
        if os.environ["KIND"] == "tidelock":
            return [os.environ["BINARY"], "--zoo-cfg", self.configuration]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        log = f"-Dlogback.configurationFile={LOGBACK}"
        return ["java", *JAVA_FLAGS, log, "-cp", f"{os.environ['JARS']}/*", main, self.configuration]

    def start(self):
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self):
        """As a power cut would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def mode(self):
        """What it says to be: leader or follower; None if it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as stream:
                stream.sendall(b"srvr")
                text = b"".join(iter(lambda: stream.recv(4096), b"")).decode()
        except OSError:
            return None
        return next((line.removeprefix("Mode: ") for line in text.splitlines() if line.startswith("Mode: ")), None)

    def wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while self.mode() is None:
            assert self.process.poll() is None, f"a server ended: {self.log()}"
            assert time.monotonic() < deadline, f"a server is not ready: {self.log()}"
            time.sleep(0.1)

    def log(self):
        return (self.directory / "log").read_text(errors="replace")[-2000:]


class Servers:
    def __init__(self, directory):
        ports = free_ports(COUNT * 3)
        rows = [ports[i : i + 3] for i in range(0, len(ports), 3)]
        members = "\n".join(f"server.{n}=127.0.0.1:{row[1]}:{row[2]}" for n, row in enumerate(rows, 1))
        self.all = [Server(n, pathlib.Path(directory), row[0], members) for n, row in enumerate(rows, 1)]
        self.hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.all)

    def start(self):
        for server in self.all:
            server.start()
        for server in self.all:
            server.wait_until_ready()

    def stop(self):
        for server in self.all:
            server.kill()

    def chosen(self, what):
        """The servers to strike: the leader, a follower, or one of each."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            modes = {server: server.mode() for server in self.all}
            leaders = [server for server, mode in modes.items() if mode == "leader"]
            followers = [server for server, mode in modes.items() if mode == "follower"]
            if len(leaders) == 1 and len(followers) == COUNT - 1:
                return {"leader": leaders, "follower": followers[:1], "majority": leaders + followers[:1]}[what]
            assert time.monotonic() < deadline, f"no leader with all its followers: {list(modes.values())}"
            time.sleep(0.1)

    def strike(self, what, absent_seconds):
        """Kills, waits, and brings back; returns when everybody serves again."""
        victims = self.chosen(what)
        for server in victims:
            server.kill()
        time.sleep(absent_seconds)
        for server in victims:
            server.start()
        for server in victims:
            server.wait_until_ready()
