# Starts real ZooKeepers; sourced by ./with, after ../lib/servers.sh, whose ports and processes it shares.
#
# What holds is what holds there: loopback only, ports that were free a moment ago, data under $WORK, and
# stop_servers ends exactly what was started here, by pid.

# How a server is told that it is small, which makes it start in half the time.
ZOOKEEPER_JAVA_FLAGS=(-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.awt.headless=true)
# What a caller may set before it starts servers: more lines of their zoo.cfg.
ZOOKEEPER_LINES=()

# start_zookeepers DIRECTORY COUNT: a fresh ensemble of what ./install put into DIRECTORY; a single one is not an
# ensemble but standalone, as ZooKeeper calls it. Sets ENDPOINTS to the client addresses (host:port, comma separated).
start_zookeepers() {
    local jars=$1 count=$2 i dir node members=""
    local -a clients=()
    dir=$(mktemp -d "$WORK/zookeeper.XXXXXX")
    for ((i = 1; i <= count; i++)); do
        find_free_port && clients+=("127.0.0.1:$FREE_PORT")
        find_free_port && members+="server.$i=127.0.0.1:$FREE_PORT"
        find_free_port && members+=":$FREE_PORT"$'\n'
    done
    ((count > 1)) || members=""
    for ((i = 1; i <= count; i++)); do
        node="$dir/$i"
        mkdir -p "$node/data" && echo "$i" >"$node/data/myid"
        zookeeper_configuration "$node/data" "${clients[i - 1]##*:}" "$members" >"$node/zoo.cfg"
        java "${ZOOKEEPER_JAVA_FLAGS[@]}" "-Dlogback.configurationFile=$here/zookeeper/logback.xml" -cp "$jars/*" \
            org.apache.zookeeper.server.quorum.QuorumPeerMain "$node/zoo.cfg" >"$dir/$i.log" 2>&1 &
        SERVER_PIDS+=($!)
    done
    ENDPOINTS=$(IFS=,; echo "${clients[*]}")
    wait_until_zookeepers_serve "$dir" "${clients[@]}"
}

# Everything that clients can ask for is switched on. The password of "super" is "test".
zookeeper_configuration() {
    cat <<END
tickTime=2000
initLimit=10
syncLimit=5
dataDir=$1
clientPort=$2
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
reconfigEnabled=true
extendedTypesEnabled=true
DigestAuthenticationProvider.superDigest=super:D/InIHSb7yEEbrWz8b9l71RjZJU=
$3
END
    ((${#ZOOKEEPER_LINES[@]} == 0)) || printf '%s\n' "${ZOOKEEPER_LINES[@]}"
}

# four_letter_word WORD HOST:PORT: what the server says to it, or nothing if it does not answer.
four_letter_word() {
    {
        printf '%s' "$1" >&5
        timeout 5 cat <&5
    } 5<>"/dev/tcp/${2%:*}/${2##*:}" 2>/dev/null
}

# wait_until_zookeepers_serve DIR ADDRESS...: until each has found its place. Fails, and shows the logs, if a server
# dies or is not ready in time.
wait_until_zookeepers_serve() {
    local dir=$1 address pid deadline=$((SECONDS + READY_SECONDS))
    shift
    for address in "$@"; do
        until four_letter_word srvr "$address" 2>/dev/null | grep -q '^Mode: '; do
            for pid in "${SERVER_PIDS[@]}"; do
                kill -0 "$pid" 2>/dev/null || { show_logs "$dir" "a ZooKeeper ended while starting"; return 1; }
            done
            ((SECONDS < deadline)) || { show_logs "$dir" "no ZooKeeper within $READY_SECONDS s"; return 1; }
            sleep 0.1
        done
    done
}
