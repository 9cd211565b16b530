# What is tried with etcdctl; sourced by ./transcript, which has the words used here. One function is one
# case; expected/CASE.txt is what must come out. The order here is the order of the run. "needs:" in the line above a
# case names what it waits for as long as ../waiting-for has that word. Cases about users and roles are in auth_cases.sh.

# A key is written, read, overwritten and read as it was.
case_put_get() {
    show put color blue
    show get color
    show get color --print-value-only
    show put color green --prev-kv
    show get color -w fields
    show get color --rev=@1 -w fields
    show get color --hex
    show get nothing
    show get nothing -w fields
    show put empty ""
    show get empty -w fields
    show put dash -- -5
    show get dash
}

# Values from standard input arrive byte for byte.
case_put_binary() {
    printf 'line one\nline two\n\001\377end' | show put blob
    show get blob --hex
    show get blob --print-value-only
}

# Options that keep what is there.
case_put_ignore() {
    grant 60
    show put kept one --lease="$LEASE"
    show put kept --ignore-value
    show get kept -w fields
    show put kept two --lease="$LEASE"
    show put kept three --ignore-lease
    show get kept -w fields
    show put kept four
    show get kept -w fields
    show put absent --ignore-value
    show put absent five --ignore-lease
    show put kept --ignore-value --lease=1234567
    show put kept six --lease=1234567
    show lease revoke "$LEASE"
}

# Ranges: prefix, interval, from a key on, all; limits, keys only, counts.
case_ranges() {
    local key
    for key in a a/1 a/2 a/3 b b0 c; do ctl put "$key" "v-$key" >/dev/null; done
    show get a/ --prefix
    show get a b
    show get a/2 c --keys-only
    show get b --from-key
    show get "" --prefix --keys-only
    show get "" --from-key --keys-only
    show get a --prefix --limit 2 -w fields
    show get a --prefix --limit 9 -w fields
    show get a/ --prefix --keys-only -w fields
    show get c a
    show get c a -w fields
    show get a --prefix --rev=@3 --keys-only
    show get a --prefix --limit 1 --rev=@2 -w fields
    show get zzz --from-key -w fields
}

# Sorting by each target, both ways. Equal values are not sorted in any promised order: there are none.
case_sorting() {
    local target order
    ctl put s/a 3 >/dev/null
    ctl put s/b 1 >/dev/null
    ctl put s/c 2 >/dev/null
    ctl put s/a 4 >/dev/null
    ctl put s/a 5 >/dev/null
    ctl put s/b 0 >/dev/null
    for target in KEY VERSION CREATE MODIFY VALUE; do
        for order in ASCEND DESCEND; do
            show get s/ --prefix --sort-by="$target" --order="$order"
        done
    done
    show get s/ --prefix --sort-by=MODIFY --order=DESCEND --limit=1
    show get s/ --prefix --sort-by=VERSION
    show get s/ --prefix --order=DESCEND --keys-only
}

# Deletes: one, a prefix, an interval, from a key on, nothing; versions begin again.
case_delete() {
    local key
    for key in d/1 d/2 d/3 e f g; do ctl put "$key" "v-$key" >/dev/null; done
    show del d/1
    show del d/1 -w fields
    show del d/2 --prev-kv
    show get d/2 --rev=@6
    show put d/2 again
    show get d/2 -w fields
    show del d/ --prefix --prev-kv
    show del e g -w fields
    show del g --from-key
    show get "" --from-key -w fields
    show del "" --prefix -w fields
}

# Transactions as people type them: each compare, both branches, what ops inside see.
case_txn() {
    ctl put t/a 1 >/dev/null
    ctl put t/a 2 >/dev/null
    typed 'value("t/a") = "2"' '' 'put t/b then' 'get t/b' '' 'put t/b else' ''
    typed 'value("t/a") > "2"' '' 'put t/b then' '' 'put t/b else' 'get t/a' ''
    typed 'version("t/a") = "2"' 'create("t/none") = "0"' 'mod("t/a") < "999999999"' '' 'get t/ --prefix' '' ''
    typed 'value("t/none") = ""' '' 'put t/c then' '' 'put t/c else' ''
    typed 'version("t/a") != "2"' '' '' '' 'del t/ --prefix' 'get t/ --prefix --keys-only' 'put t/d 1' ''
    typed '' 'put t/e 1' 'put t/f 2' 'get t/e' '' ''
    show get t/ --prefix -w fields
    typed '' '' ''
    typed '' 'put t/same 1' 'put t/same 2' '' ''
    typed '' 'put t/same 1' 'del t/ --prefix' '' ''
    typed '' 'del t/ --prefix' 'del t/e' 'put u 1' '' ''
    typed '' 'put t/f 1' 'put t/g 1 --lease=77' '' ''
    show get t/g -w fields
    echo '$ txn --interactive'
    printf 'version("t/h") = "0"\n\nput t/h 1\n\nget t/h\n\n' | show_quietly txn --interactive
}

# typed LINE...: a transaction, line by line: compares, blank, then, blank, else, blank. Printed with the
# fields of its answer.
typed() {
    printf '$ txn: %s\n' "$(printf '%s | ' "$@")"
    printf '%s\n' "$@" | show_quietly txn -w fields
}

# Live watches: the event comes without being asked for again.
case_watch_live() {
    start seen watch w/ --prefix
    # The command prints nothing when the watch stands, so a key is written until one arrives.
    eventually ready_key_seen
    ctl put w/1 one >/dev/null
    ctl put other two >/dev/null
    ctl put w/1 three >/dev/null
    ctl del w/ --prefix >/dev/null
    eventually grep -q DELETE "$scratch/seen"
    eventually grep -q w/ready "$scratch/seen"
    lines_without_ready seen 9 && kill "$pid_seen" && wait "$pid_seen" 2>/dev/null
    echo "--- seen"
    without_ready seen
}

ready_key_seen() {
    ctl put w/ready yes >/dev/null
    grep -q w/ready "$scratch/seen"
}

# Events of the ready key are three lines (PUT) or, deleted, two lines and an empty one.
without_ready() {
    perl -0pe 's/(PUT\nw\/ready\nyes\n|DELETE\nw\/ready\n\n)//g' "$scratch/$1"
}

lines_without_ready() {
    local deadline=$((SECONDS + WAIT_SECONDS))
    until (($(without_ready "$1" | wc -l) >= $2)); do
        ((SECONDS < deadline)) || return 1
        sleep 0.02
    done
}

# Watches from a revision in the past see everything since, in order; previous values are those before.
case_watch_history() {
    ctl put h/a 1 >/dev/null
    ctl put h/b 1 >/dev/null
    ctl put h/a 2 >/dev/null
    ctl del h/a >/dev/null
    ctl put h/a 3 >/dev/null
    start one watch h/a --rev=@1 --prev-kv
    lines one 16; finish one
    start fields watch h/ --prefix --rev=@2 -w fields
    lines fields 28; finish fields
    start range watch h/b h/c --rev=@1
    lines range 3; finish range
    # What is deleted or written by one transaction is at one revision, and in the order of its operations.
    printf '%s\n' '' 'put h/z 1' 'put h/y 2' 'del h/a' '' '' | ctl txn >/dev/null
    start atomic watch h/ --prefix --rev=@6 -w fields
    lines atomic 21; finish atomic
}

# A watch from a revision still to come delivers nothing older.
case_watch_future() {
    start later watch f/ --prefix --rev=@3
    ctl put f/1 a >/dev/null
    ctl put f/2 b >/dev/null
    ctl put f/3 c >/dev/null
    ctl put f/4 d >/dev/null
    lines later 6; finish later
}

# Interactive: several watches on one stream, and progress on request.
case_watch_interactive() {
    start many watch -i
    tell many "watch i/a"
    tell many "watch i/b --prev-kv"
    tell many "watch i/ --prefix --rev=@0"
    eventually interactive_watches_stand
    kill "$pid_many" && wait "$pid_many" 2>/dev/null
    ctl put i/a 1 >/dev/null
    start progress watch -i
    tell progress "watch i/ --prefix --rev=@1"
    eventually asked_and_told
    kill "$pid_progress" && wait "$pid_progress" 2>/dev/null
    # Nothing was written since the events, so what is told must be the present revision.
    sed -n 's/^progress notify: //p' "$scratch/progress" | sort -u | sed "s/^$(revision)$/progress up to the present/"
}

# The three watches together say it three times.
interactive_watches_stand() {
    ctl put i/a 1 >/dev/null
    ctl put i/b 1 >/dev/null
    grep -qx i/a "$scratch/many" && grep -qx i/b "$scratch/many" && (($(grep -cx i/b "$scratch/many") > 3))
}

asked_and_told() {
    echo progress >"$scratch/progress.in"
    sleep 0.1
    grep -q '^progress notify' "$scratch/progress"
}

# A command that is run for every event is told what happened.
case_watch_exec() {
    ctl put e/1 one >/dev/null
    ctl put e/2 two >/dev/null
    ctl del e/1 >/dev/null
    start told watch e/ --prefix --rev=@1 -- sh -c 'echo "told: $ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE"'
    lines told 12; finish told
}

# Leases: granted, looked at, listed, renewed, revoked with the keys on them.
case_lease() {
    show lease list
    grant 60
    echo "granted ${#LEASE} digits"
    show lease timetolive "$LEASE"
    show lease timetolive "$LEASE" --keys
    ctl put l/b 1 --lease="$LEASE" >/dev/null
    ctl put l/a 1 --lease="$LEASE" >/dev/null
    ctl put l/c 1 >/dev/null
    show get l/a -w fields
    show lease timetolive "$LEASE" --keys
    show lease list
    show lease keep-alive --once "$LEASE"
    show lease revoke "$LEASE" -w fields
    show get l/ --prefix
    show get l/ --prefix -w fields
    show lease revoke "$LEASE"
    show lease timetolive "$LEASE"
    show lease timetolive "$LEASE" --keys -w fields
    show lease keep-alive --once "$LEASE"
    show lease list
    show lease grant 9000000001
    # Moved from one lease to another, a key goes with the second.
    grant 60
    local first=$LEASE
    grant 60
    ctl put l/moved 1 --lease="$first" >/dev/null
    ctl put l/moved 2 --lease="$LEASE" >/dev/null
    show lease revoke "$first"
    show get l/moved
    show lease revoke "$LEASE"
    show get l/moved
}

# A lease that nobody renews ends with its keys, all at one revision; renewed it does not.
case_lease_expiry() {
    grant 60 && local renewed=$LEASE
    grant 2
    ctl put x/2 1 --lease="$LEASE" >/dev/null
    ctl put x/1 1 --lease="$LEASE" >/dev/null
    ctl put x/3 1 --lease="$renewed" >/dev/null
    start seen watch x/ --prefix --rev=@4 -w fields
    start kept lease keep-alive "$renewed"
    lines seen 13; finish seen
    show get x/ --prefix --keys-only
    show lease timetolive "$LEASE"
    lines kept 1; finish kept
    show lease revoke "$renewed"
}

# Compaction, its refusals, and what it does to reads and watches of the past.
case_compaction() {
    local i
    for i in 1 2 3 4 5; do ctl put k "$i" >/dev/null; done
    show compaction @3
    show get k --rev=@3
    show get k --rev=@2
    show get k --rev=@99
    show compaction @3
    show compaction @2
    show compaction @99
    show compaction @5 --physical
    show get k
    echo '$ watch k --rev=@1'
    show_quietly watch k --rev=@1
    start since watch k --rev=@5
    lines since 3; finish since
}

# Locks: the holder's command runs; who waits gets it when the holder goes; the order is that of asking.
case_lock() {
    show lock mine echo held
    show lock mine false
    start first lock shared
    lines first 1
    start second -2 lock shared
    eventually waiting_for shared 2
    start third -3 lock shared --ttl 30
    eventually waiting_for shared 3
    finish first
    lines second 1; finish second
    lines third 1; finish third
    eventually waiting_for shared 0
}

# waiting_for NAME COUNT: so many hold or wait for the lock.
waiting_for() {
    (($(ctl get "$1/" --prefix --keys-only | grep -c .) == $2))
}

# Elections: the first proposal leads, an observer sees it, the next one follows when it goes.
case_elect() {
    start first elect chair alice
    lines first 2
    start observer -3 elect --listen chair
    lines observer 2
    start second -2 elect chair bob
    eventually waiting_for chair 2
    finish first
    lines second 2
    lines observer 4
    finish second
    finish observer
    eventually waiting_for chair 0
}

# A prefix copied elsewhere, first what is there, then what comes.
case_make_mirror() {
    ctl put m/1 a >/dev/null
    ctl put m/2 b >/dev/null
    start mirror make-mirror --prefix m/ --dest-prefix copy/ "${endpoint_list[0]}"
    eventually mirrored copy/2 b
    ctl put m/3 c >/dev/null
    ctl del m/1 >/dev/null
    eventually mirrored copy/3 c
    eventually mirrored copy/1 ""
    kill "$pid_mirror" && wait "$pid_mirror" 2>/dev/null
    show get copy/ --prefix
}

mirrored() {
    [[ $(ctl get "$1" --print-value-only) == "$2" ]]
}

# What one endpoint has acknowledged, every other one tells at once; watches and leases cross too.
case_across_endpoints() {
    local i
    start seen -3 watch across --rev=@1
    for i in 1 2 3 4 5 6; do
        ctl "-$(((i % 3) + 1))" put across "$i" >/dev/null
        show "-$(((i + 1) % 3 + 1))" get across --print-value-only
    done
    lines seen 18; finish seen
    grant 60
    show -2 put across/leased 1 --lease="$LEASE"
    show -3 lease keep-alive --once "$LEASE"
    show -2 lease timetolive "$LEASE" --keys
    show -3 lease revoke "$LEASE"
    show -1 get across/leased -w fields
    eventually gone_at 2 across/leased
    eventually gone_at 3 across/leased
}

gone_at() {
    [[ -z $(value_at "$1" "$2") ]]
}

# Large values: accepted below the limit, refused in the known words above it.
case_sizes() {
    head -c 1048576 /dev/zero | tr '\0' x >"$scratch/mib"
    head -c 1600000 /dev/zero | tr '\0' x >"$scratch/large"
    show put big <"$scratch/mib"
    echo "read back $(ctl get big --print-value-only | wc -c) bytes"
    show put big <"$scratch/large"
    show get big --keys-only
    # An answer larger than what a request may be is sent all the same.
    ctl put big/2 <"$scratch/mib" >/dev/null
    ctl put big/3 <"$scratch/mib" >/dev/null
    echo "read back $(ctl get big --prefix --print-value-only | wc -c) bytes"
}

# Things that are refused, in the words clients look for.
case_refusals() {
    show put "" value
    show del ""
    show get a --rev=@100
    show lease revoke 1234567
    show lease keep-alive --once 1234567
    echo '$ txn with 129 operations, then with 128'
    many_puts 129 | show_quietly txn
    many_puts 128 | show_quietly txn | sort | uniq -c
    show member remove 1234567
    show member promote 1234567
    show -a move-leader 1234567
}

many_puts() {
    local i
    echo
    for ((i = 0; i < $1; i++)); do echo "put many/$i x"; done
    printf '\n\n'
}

# Who is in the cluster and how it is.
case_cluster() {
    echo '$ member list'
    show_quietly member list | sort
    echo '$ endpoint health'
    show_quietly -a endpoint health | sort
    echo '$ endpoint health --cluster'
    show_quietly endpoint health --cluster | sed 's,http://,,' | sort
    echo '$ endpoint status'
    show_quietly -a endpoint status | status_line | sort
    # With the members' URLs as they are listed: this version of etcdctl takes them for host names.
    echo '$ endpoint status --cluster'
    show_quietly endpoint status --cluster | sed 's,http://,,' | status_line | sort
    show alarm list
    show defrag
    echo '$ defrag --cluster'
    show_quietly defrag --cluster | sed 's,http://,,' | sort
}

# The fields of a status line that must agree: whether it leads, whether it learns, errors.
status_line() {
    sed -E 's/^(<address>), <id>, [^,]*, [^,]*, (true|false), (true|false), [0-9]+, [0-9]+, [0-9]+, (.*)$/\1 leads:\2 learns:\3 errors:\4/'
}

# Every member has the same data, and says so; and an answer as programs read it.
case_hashkv_and_json() {
    ctl put j/1 one >/dev/null
    ctl put j/2 two >/dev/null
    echo '$ endpoint hashkv'
    eventually members_agree && echo 'all members agree'
    echo '$ endpoint hashkv --cluster'
    ctl endpoint hashkv --cluster | sed 's,http://,,' | sed -E 's/^127\.0\.0\.1:[0-9]+, [1-9][0-9]*$/<address>, <hash>/' | sort -u
    show get j/ --prefix -w json
    show put j/1 three --prev-kv -w json
    show del j/ --prefix -w json
    show get j/ --prefix --consistency=s -w json
}

members_agree() {
    ctl -a endpoint hashkv >"$scratch/hashes" && (($(sed 's/.*, //' "$scratch/hashes" | sort -u | wc -l) == 1))
}

# Alarms: etcdctl lists and disarms them; they are raised through the gateway here. What a full and what a corrupt
# member refuses, and in which words.
case_alarms() {
    local kind
    ctl put a/before 1 >/dev/null
    show alarm list
    show alarm disarm
    for kind in NOSPACE CORRUPT; do
        echo "raised: $kind"
        gateway /v3/maintenance/alarm "{\"action\":\"ACTIVATE\",\"memberID\":\"$(member_id)\",\"alarm\":\"$kind\"}"
        eventually alarm_seen_everywhere "$kind"
        show alarm list
        show put a/now 1
        show get a/before
        show del a/nothing
        show lease grant 60
        show alarm disarm
        show alarm list
        eventually no_alarm_anywhere
        show put a/now 2
        show get a/now
    done
}

# The id of the first endpoint's member, as the gateway wants it.
member_id() {
    ctl get any -w json | sed -n 's/.*"member_id":\([0-9]*\).*/\1/p'
}

alarm_seen_everywhere() {
    local i
    for i in 1 2 3; do ctl "-$i" alarm list | grep -q "$1" || return 1; done
}

no_alarm_anywhere() {
    local i
    for i in 1 2 3; do [[ -z $(ctl "-$i" alarm list) ]] || return 1; done
}

# gateway PATH JSON: a call at the first endpoint that etcdctl has no command for.
gateway() {
    local host=${endpoint_list[0]%:*} port=${endpoint_list[0]##*:}
    exec 5<>"/dev/tcp/$host/$port"
    printf 'POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
        "$1" "$host" "${#2}" "$2" >&5
    head -n 1 <&5 | tr -d '\r'
    exec 5<&-
}

# Ten thousand keys are written, and what that costs in memory is read from the server's metrics.
# needs: process_metrics
case_check_datascale() {
    echo '$ check datascale'
    ctl check datascale 2>&1 | tr '\r' '\n' | grep -E '^(PASS|FAIL)' | sed -E 's/[0-9.]+ MB/<size>/'
    # It leaves nothing behind.
    show get /etcdctl-check-datascale/ --prefix --keys-only --limit 1
}

# A snapshot is saved to a file that etcdctl can look into and restore from.
# needs: snapshot
case_snapshot() {
    ctl put s/1 one >/dev/null
    ctl put s/2 two >/dev/null
    cd "$scratch" || return
    show snapshot save saved.db
    show snapshot status saved.db -w fields | sed -E 's/"(Hash|Keys|Size)" : [1-9][0-9]*/"\1" : <number>/'
    show snapshot restore saved.db --data-dir restored
    [[ -s restored/member/snap/db ]] && echo "there is a database"
    # One that was cut off is not taken for a whole one.
    head -c "$(($(stat -c %s saved.db) - 100))" saved.db >cut.db
    show snapshot restore cut.db --data-dir restored-cut | sed -E 's/(got|expected) \[[0-9 ]*\]/\1 <hash>/g'
}

# Leadership is moved to another member, and reads and writes go on. Only with several members.
case_move_leader() {
    local status leader target moved
    status=$(ctl -a endpoint status)
    leader=$(awk -F', ' '$5 == "true" {print $2}' <<<"$status")
    target=$(awk -F', ' '$5 == "false" {print $2; exit}' <<<"$status")
    ctl put moving before >/dev/null
    show -a move-leader "$target"
    eventually leads "$target"
    show put moving after
    show -2 get moving
    show -a move-leader "$leader"
    eventually leads "$leader"
    show -3 get moving
}

leads() {
    ctl -a endpoint status | awk -F', ' -v id="$1" '$2 == id && $5 == "true" {found = 1} END {exit !found}'
}

# A learner that never starts is added and removed, and everything works meanwhile. Last, because a real
# etcd takes no members in its first seconds.
case_member_change() {
    local id
    eventually added_learner
    grep -v '^ETCD_INITIAL_CLUSTER=' "$scratch/added" | mask
    id=$(sed -n 's/^Member *\([0-9a-f]*\) added.*/\1/p' "$scratch/added")
    echo '$ member list'
    show_quietly member list | sort
    show put meanwhile works
    show member update "$id" --peer-urls=http://127.0.0.1:2
    show member promote "$id"
    show member remove "$id"
    echo '$ member list'
    show_quietly member list | sort
    show member add bad --peer-urls=nonsense
}

added_learner() {
    ctl member add extra --learner --peer-urls=http://127.0.0.1:1 >"$scratch/added" 2>&1
}
