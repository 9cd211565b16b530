# Starts and stops the servers under test; sourced by ../run.
#
# What holds: every server listens on loopback only, on ports that were free a moment ago, and keeps its
# data under $WORK; stop_servers ends exactly the processes started here, by pid, and the exit trap of
# ../run calls it on every way out. The same functions start Tidelock and a real etcd, so that everything
# above this file cannot tell which of the two it talks to.

# How long a server may take until it says that it is ready.
READY_SECONDS=30
# How Tidelock and etcd from 3.5 on say it, and how etcd 3.4 does.
READY_LINE='ready to serve client requests|serving client traffic insecurely'

SERVER_PIDS=()
PORTS_TAKEN=" "

# What a caller may set before it starts servers: their names (used from the first on), the port at which the
# first one serves clients (a free one if empty), flags that both Tidelock and etcd know, and whether Tidelock serves
# ZooKeeper's clients, too (1; then start_servers sets ZOOKEEPER_ENDPOINTS).
SERVER_NAMES=(node1 node2 node3 node4 node5)
FIRST_CLIENT_PORT=""
SERVER_FLAGS=()
SERVE_ZOOKEEPER=0

# Sets FREE_PORT: nothing listens on it, and no earlier call in this run returned it. Ports are taken from
# below the range that the system hands out to outgoing connections.
find_free_port() {
    local port
    while true; do
        port=$((20000 + RANDOM % 10000))
        [[ $PORTS_TAKEN == *" $port "* ]] && continue
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            PORTS_TAKEN+="$port "
            FREE_PORT=$port
            return
        fi
    done
}

# start_servers tidelock|etcd COUNT: a fresh cluster. Sets ENDPOINTS to its client addresses (host:port,
# comma separated).
start_servers() {
    local kind=$1 count=$2 i founders="" dir name log
    local -a clients=() peers=() admins=() zookeepers=() flags
    dir=$(mktemp -d "$WORK/$kind.XXXXXX")
    for ((i = 0; i < count; i++)); do
        find_free_port
        ((i == 0)) && FREE_PORT=${FIRST_CLIENT_PORT:-$FREE_PORT}
        clients+=("127.0.0.1:$FREE_PORT")
        find_free_port && peers+=("127.0.0.1:$FREE_PORT")
        find_free_port && admins+=("127.0.0.1:$FREE_PORT")
        find_free_port && zookeepers+=("127.0.0.1:$FREE_PORT")
        local url=${peers[i]}
        [[ $kind == etcd ]] && url="http://$url"
        founders+="${founders:+,}${SERVER_NAMES[i]}=$url"
    done
    for ((i = 0; i < count; i++)); do
        name=${SERVER_NAMES[i]}
        log="$dir/$name.log"
        if [[ $kind == etcd ]]; then
            "$ETCD" --name "$name" --data-dir "$dir/$name" \
                --listen-client-urls "http://${clients[i]}" --advertise-client-urls "http://${clients[i]}" \
                --listen-peer-urls "http://${peers[i]}" --initial-advertise-peer-urls "http://${peers[i]}" \
                --initial-cluster "$founders" --logger zap "${SERVER_FLAGS[@]}" >"$log" 2>&1 &
        else
            flags=("${SERVER_FLAGS[@]}")
            [[ $SERVE_ZOOKEEPER == 1 ]] && flags+=(--zookeeper-listen "${zookeepers[i]}")
            "$BINARY" serve --name "$name" --data-dir "$dir/$name" \
                --client-listen "${clients[i]}" --peer-listen "${peers[i]}" --admin-listen "${admins[i]}" \
                --initial-cluster "$founders" "${flags[@]}" >"$log" 2>&1 &
        fi
        SERVER_PIDS+=($!)
    done
    ENDPOINTS=$(IFS=,; echo "${clients[*]}")
    [[ $kind == tidelock && $SERVE_ZOOKEEPER == 1 ]] && ZOOKEEPER_ENDPOINTS=$(IFS=,; echo "${zookeepers[*]}")
    wait_until_ready "$dir" "$count"
}

# wait_until_ready DIR COUNT: fails, and shows the logs, if a server dies or is not ready in time.
wait_until_ready() {
    local dir=$1 count=$2 pid ready deadline=$((SECONDS + READY_SECONDS))
    while true; do
        ready=$(grep -lE "$READY_LINE" "$dir"/*.log 2>/dev/null | wc -l)
        ((ready == count)) && return 0
        for pid in "${SERVER_PIDS[@]}"; do
            kill -0 "$pid" 2>/dev/null || { show_logs "$dir" "a server ended while starting"; return 1; }
        done
        ((SECONDS < deadline)) || { show_logs "$dir" "not ready within $READY_SECONDS s"; return 1; }
        sleep 0.1
    done
}

show_logs() {
    echo "conformance: $2; the last lines of each log follow" >&2
    tail -n 20 "$1"/*.log >&2
}

# Ends the servers and waits for them. One that does not go when asked is killed.
stop_servers() {
    local pid deadline=$((SECONDS + 10))
    for pid in "${SERVER_PIDS[@]}"; do kill "$pid" 2>/dev/null; done
    for pid in "${SERVER_PIDS[@]}"; do
        while kill -0 "$pid" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.05; done
        kill -9 "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
    done
    SERVER_PIDS=()
    return 0
}
