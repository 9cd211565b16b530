# What is skipped until Tidelock serves it; sourced by ../run and ../suites/play. The words are in ../waiting-for.

# waits_for KIND WORD: whether this server lacks it. A real etcd has everything.
waits_for() {
    [[ $1 == tidelock ]] && grep -qx "$2" "$here/waiting-for"
}
