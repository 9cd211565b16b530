# What is tried with etcdctl about users, roles and permissions; sourced by ./transcript. How cases are written is said in
# cases.sh. A case ends with authentication switched off and without users: the cases after it know of none.

# Users and roles: made, listed, looked at, changed, deleted; and what is refused. Nobody is asked for a password yet.
# needs: auth
case_users_and_roles() {
    show user list
    show role list
    show user add alice --new-user-password=one
    show user add bob:two
    echo three | show user add carol --interactive=false
    show user add dave --no-password
    show user add alice --new-user-password=again
    show user list
    show user get alice
    show user get nobody
    show role add readers
    show role add writers
    show role add readers
    show role grant-permission readers read app/ --prefix
    show role grant-permission readers read single
    show role grant-permission writers readwrite app/a app/c
    show role grant-permission writers write log/ --from-key
    show role grant-permission writers sideways key
    show role grant-permission nobody read key
    show role list
    show role get readers
    show role get writers
    show role get nobody
    show user grant-role alice readers
    show user grant-role alice readers
    show user grant-role alice writers
    show user grant-role bob readers
    show user grant-role alice nothing
    show user grant-role nobody readers
    show user get alice
    show user get alice --detail
    show role revoke-permission readers single
    show role revoke-permission readers single
    show role revoke-permission readers app/ --prefix
    show role get readers
    show user revoke-role alice writers
    show user revoke-role alice writers
    show user revoke-role nobody writers
    echo new | show user passwd alice --interactive=false
    echo new | show user passwd nobody --interactive=false
    # A role that goes is gone from its users, too.
    show role delete readers
    show user get alice
    show role delete readers
    show role delete writers
    local user
    for user in alice bob carol dave; do show user delete "$user"; done
    show user delete alice
    show user list
    show role list
}

# Authentication switched on: who may do what, with which words others are turned away, and off again.
# needs: auth
case_auth() {
    show auth enable
    ctl user add root --new-user-password=r >/dev/null
    ctl user add alice --new-user-password=a >/dev/null
    ctl role add app >/dev/null
    ctl role grant-permission app readwrite app/ --prefix >/dev/null
    ctl role grant-permission app read shared >/dev/null
    ctl role grant-permission app write inbox >/dev/null
    ctl user grant-role alice app >/dev/null
    ctl put shared 1 >/dev/null
    # The role that the first user needs is granted by the command itself.
    show auth enable
    show get app/x
    show put app/x 1
    show --user root:wrong get app/x
    show --user nobody:a get app/x
    show --user alice:a put app/x 1
    show --user alice --password a get app/x
    show --user alice:a get app/ --prefix
    show --user alice:a get shared
    show --user alice:a put shared 2
    show --user alice:a put inbox 1
    show --user alice:a get inbox
    show --user alice:a put inbox 2 --prev-kv
    show --user alice:a get other
    show --user alice:a get "" --prefix
    show --user alice:a get app
    show --user alice:a del app/ --prefix
    show --user alice:a del other
    echo '$ txn --user alice:a, first within and then beyond what is granted'
    printf '%s\n' 'version("app/x") = "0"' '' 'put app/x 2' 'get shared' '' '' | show_quietly --user alice:a txn
    printf '%s\n' 'version("other") = "0"' '' 'put app/x 3' '' '' | show_quietly --user alice:a txn
    printf '%s\n' '' 'put app/x 3' 'put other 3' '' '' | show_quietly --user alice:a txn
    start seen --user alice:a watch app/ --prefix --rev=@2
    lines seen 9; finish seen
    show --user alice:a watch other
    # Her own account she may look at, others' not; and change nothing.
    show --user alice:a user get alice
    show --user alice:a role get app
    show --user alice:a user get root
    show --user alice:a user list
    show --user alice:a user add eve --new-user-password=e
    show --user alice:a role grant-permission app readwrite other
    show --user alice:a auth disable
    show --user root:r put other 1
    show --user root:r user list
    # What is changed counts at once.
    show --user root:r role revoke-permission app shared
    show --user alice:a get shared
    echo b | show --user root:r user passwd alice --interactive=false
    show --user alice:a get app/x
    show --user alice:b get app/x
    show --user root:r user delete alice
    show --user alice:b get app/x
    show --user root:r user delete root
    show --user root:r role delete root
    show --user root:r auth disable
    show get other
    show user get root
    ctl user delete root >/dev/null
    ctl role delete app >/dev/null
    ctl role delete root >/dev/null 2>&1
}
