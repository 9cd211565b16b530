# Python environments for the clients, under $target; sourced by ../run and ../../examples/run. They are made once, and
# again when what they must hold has changed. What went wrong is in $WORK/pip.log.

# venv NAME PACKAGE...: an environment with these packages.
venv() {
    local dir="$target/conformance-venv/$1"
    shift
    [[ -f $dir/complete ]] && [[ $(<"$dir/complete") == "$*" ]] && return
    rm -rf "$dir"
    mkdir -p "$(dirname "$dir")"
    { python3 -m venv "$dir" && "$dir/bin/pip" install "$@"; } >"$WORK/pip.log" 2>&1 || return 1
    echo "$*" >"$dir/complete"
}

# What the packages' own tests need is part of their environments.
venv_etcd3() {
    venv etcd3 etcd3==0.12.0 'protobuf<3.21' grpcio six tenacity==6.3.1 pytest 'hypothesis<5' mock
}

venv_aetcd() {
    venv aetcd aetcd==1.0.0 pytest pytest-asyncio pytest-mock pytest-cov
}

venv_etcd3gw() {
    venv etcd3gw etcd3gw==2.7.0 pytest requests futurist testtools oslotest
}

# Its tests make certificates with what pyOpenSSL 26.2 has no more.
venv_kazoo() {
    venv kazoo 'kazoo[test,eventlet,gevent,sasl]==2.11.0' 'pyOpenSSL<26.2'
}
