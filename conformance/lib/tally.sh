# Counts results; sourced by ../run. A result is one line: "ok", "FAIL" or "skip", the run it belongs to,
# and what was tried.

PASSED=0
FAILED=0
SKIPPED=0
FAILURES=()

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

# tally_program RUN COMMAND...: runs a client program that prints one line "ok NAME", "FAIL NAME: why" or
# "skip NAME: why" for each thing it tries, and counts them. A program that ends badly without having
# said FAIL has failed too: it broke off.
tally_program() {
    local run=$1 line status failed_before=$FAILED
    shift
    while IFS= read -r line; do
        case $line in
            "ok "*) pass "$run ${line#ok }" ;;
            "FAIL "*) fail "$run ${line#FAIL }" ;;
            "skip "*) line=${line#skip } && skip "$run ${line%%: *}" "${line#*: }" ;;
            "status "*) status=${line#status } ;;
            *) echo "     $line" ;;
        esac
    done < <(timeout "$PROGRAM_SECONDS" "$@" 2>&1; echo "status $?")
    if [[ $status != 0 && $FAILED == "$failed_before" ]]; then
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
