#!/bin/sh
# Makes a sample backup with the etcd and etcdctl that are on the PATH: make-sample.sh <directory> <name>
# Leaves <name>.db.zst there. What goes in is what tests/samples.rs expects to come out.
set -eu
directory=$1 name=$2
work=$(mktemp -d)
client=http://127.0.0.1:${CLIENT_PORT:-23791} peer=http://127.0.0.1:${PEER_PORT:-23801}
etcd --name sample --data-dir "$work/data" --listen-client-urls "$client" --advertise-client-urls "$client" \
  --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "sample=$peer" \
  --logger zap --log-level error >"$work/log" 2>&1 &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$work"' EXIT
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=$client
for _ in $(seq 100); do etcdctl endpoint health >"$work/health" 2>&1 && break; sleep 0.1; done

call() { curl -sSf -o "$work/answer" -X POST -d "$2" "$client/v3/$1"; }

etcdctl put /app/one first                                        # revision 2
etcdctl put /app/one second                                       # 3
printf '\nput /app/two 2\nput /app/three 3\n\n\n' | etcdctl txn   # 4.0, 4.1
etcdctl del /app/three                                            # 5
etcdctl put /gone soon                                            # 6
etcdctl del /gone                                                 # 7
call lease/grant '{"ID":"4660","TTL":"3600"}'                     # 0x1234
call lease/grant '{"ID":"43981","TTL":"60000"}'                   # 0xabcd
etcdctl put --lease=1234 /leased value                            # 8
head -c 9000 /dev/zero | tr '\0' x | etcdctl put /large           # 9
etcdctl compaction --physical 5
printf '\nput /empty ""\ndel /app/t --prefix\n\n\n' | etcdctl txn # 10.0, 10.1
learner=$(etcdctl member add gone --learner --peer-urls=http://127.0.0.1:1 | sed -n 's/^Member *\([0-9a-f]*\) added.*/\1/p')
etcdctl member remove "$learner"
etcdctl role add root
etcdctl role add reader
etcdctl role grant-permission reader read /app/ /app0
etcdctl role grant-permission reader readwrite --from-key /z
etcdctl user add root:secret
etcdctl user grant-role root root
etcdctl user add alice:wonderland
etcdctl user grant-role alice reader
etcdctl user add robot --no-password
call maintenance/alarm '{"action":"ACTIVATE","memberID":"7","alarm":"NOSPACE"}'
etcdctl auth enable
etcdctl --user root:secret snapshot save "$work/sample.db"
zstd -19 -f -q "$work/sample.db" -o "$directory/$name.db.zst"
