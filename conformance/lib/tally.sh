# Counts results; sourced by ../run. A result is one line: "ok", "FAIL" or "skip", the run it belongs to,
# and what was tried.

PASSED=0
FAILED=0
SKIPPED=0
FAILURES=()
# Processes that run programs whose results are waited for.
PROGRAM_PIDS=()

pass() {
    PASSED=$((PASSED + 1))
    echo "ok   $1"
}

# fail NAME [DETAILS]
fail() {
    FAILED=$((FAILED + 1))
    FAILURES+=("$1")
    echo "FAIL $1"
    [[ -n ${2-} ]] && sed 's/^/     /' <<<"$2"
    return 0
}

# skip NAME WHY
skip() {
    SKIPPED=$((SKIPPED + 1))
    echo "skip $1: $2"
}

# Things a real etcd fails at now and then, which says nothing about us: what it is asked, and why.
# Before 3.4.24 etcd tells a watcher an event twice when many are written while it catches up.
peer_fault() {
    case $1 in
        "etcd/"*" etcd-client many_events_in_order_without_gaps: "*) return 0 ;;
        *) return 1 ;;
    esac
}

# tally_program RUN COMMAND...: runs a client program that prints one line "ok NAME", "FAIL NAME: why" or
# "skip NAME: why" for each thing it tries, and counts them. A program that ends badly without having
# said FAIL has failed too: it broke off.
tally_program() {
    local run=$1 line status excused=0 failed_before=$FAILED
    shift
    exec 4< <(timeout "$PROGRAM_SECONDS" "$@" 2>&1; echo "status $?")
    PROGRAM_PIDS=($!)
    while IFS= read -r line <&4; do
        case $line in
            "ok "*) pass "$run ${line#ok }" ;;
            "FAIL "*)
                if peer_fault "$run ${line#FAIL }"; then
                    excused=1
                    skip "$run ${line#FAIL }" "a known fault of that etcd"
                else
                    fail "$run ${line#FAIL }"
                fi
                ;;
            "skip "*) line=${line#skip } && skip "$run ${line%%: *}" "${line#*: }" ;;
            "status "*) status=${line#status } ;;
            *) echo "     $line" ;;
        esac
    done
    exec 4<&-
    PROGRAM_PIDS=()
    if [[ $status != 0 && $FAILED == "$failed_before" && $excused == 0 ]]; then
        fail "$run (ended with status $status)"
    fi
}

# The last line of a run, and its exit status.
summary() {
    if ((FAILED > 0)); then
        echo
        echo "failed:"
        printf '  %s\n' "${FAILURES[@]}"
    fi
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    ((FAILED == 0))
}
