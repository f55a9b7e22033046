#!/usr/bin/env bash
# Run the README's commands where the kernel lets nothing out, then a run under a system-call trace, and say
# whether anything tried to leave. Usage:
#
#   scripts/check_air_gap.sh [--backend vllm|transformers]... [--judge MODEL] [--embedder MODEL] [--rows N]
#                            [--quick] [-- OPTIONS OF EVALUATE]
#
# 1. In a network namespace that has only loopback: check, evaluate, evaluate again, show, rescore, metrics,
#    doctor.
# 2. Under strace, with the network as it is: evaluate with an empty store, on a machine whose own name nobody
#    knows. Any connect or send to an address that is not loopback counts, and any question to a name server,
#    also to one on the loopback address.
#
# --quick leaves out all of 1 but evaluate.
#
# $PYTHON is the interpreter (default: .venv/bin/python). Exit status 0: nothing tried to leave. 1: something
# did, or a command failed. 77: this machine can't tell; the reason is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

export PYTHON=${PYTHON:-.venv/bin/python} PYTHONUNBUFFERED=1
backends=() judge=smollm2-135m-instruct embedder=all-minilm-l6-v2 rows=1
# A generation, read-outs and embeddings: all that a run can ask, and little of each.
steps=(check evaluate again show rescore metrics doctor)
options=(--metrics "faithfulness,response_relevancy[strictness=1]" --claims sentences --reasons none)
while [ $# -gt 0 ]; do
    case $1 in
        --backend) backends+=("$2") ;;
        --judge) judge=$2 ;;
        --embedder) embedder=$2 ;;
        --rows) rows=$2 ;;
        --quick) steps=(evaluate); shift; continue ;;
        --) shift; options=("$@"); break ;;
        *) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0"; exit 2 ;;
    esac
    shift 2
done
[ ${#backends[@]} -gt 0 ] || backends=(vllm transformers)

skip() {
    echo "skipped: $1"
    exit 77
}
command -v strace >/dev/null || skip "strace is not installed"
command -v unshare >/dev/null || skip "unshare (util-linux) is not installed"
strace -qq -o /dev/null true 2>/dev/null || skip "this machine forbids tracing (ptrace)"
unshare=(unshare --map-root-user)
"${unshare[@]}" --net --uts true 2>/dev/null || unshare=(unshare)
"${unshare[@]}" --net --uts true 2>/dev/null || skip "this machine forbids network namespaces"
trace=(strace -f -qq -e "trace=connect,sendto,sendmsg,sendmmsg" -e signal=none)
if strace --seccomp-bpf -f -qq -o /dev/null true 2>/dev/null; then trace+=(--seccomp-bpf); fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -n "$rows" offline_judge/examples/rows.jsonl >"$work/rows.jsonl"

# Runs a command where nothing but loopback is. ioctl brings it up, since `ip` is not on every machine.
cat >"$work/alone" <<'ALONE'
set -e
"$PYTHON" - <<'PY'
import fcntl, socket, struct
with socket.socket() as sock:
    fcntl.ioctl(sock, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    sock.settimeout(5)
    if sock.connect_ex(("192.0.2.1", 80)) == 0:
        raise SystemExit("this namespace is not alone")
PY
exec "$@"
ALONE
alone() { "${unshare[@]}" --net bash "$work/alone" "$@"; }
# Runs a command under strace where the machine has a name that no file knows: a look-up of it is a question.
traced() { # file of the trace, command
    "${unshare[@]}" --uts bash -c '
        "$PYTHON" -c "import socket; socket.sethostname(\"nobody.invalid\")" && exec "$@"' - "${trace[@]}" -o "$@"
}

# Addresses in a trace that lead out of this machine, and questions to name servers.
leaving() {
    grep 'sa_family=' "$1" | grep -vE 'sa_family=AF_(UNIX|NETLINK|UNSPEC)' | grep -vE \
        'inet_addr\("(127\.[0-9.]+|0\.0\.0\.0)"\)|inet_pton\(AF_INET6, "(::1?|::ffff:127\.[0-9.]+)"' || true
    grep -E 'htons\(53\)|io\.systemd\.Resolve' "$1" || true
}

# The trace must see a connection and a look-up that are tried, else its silence says nothing.
alone "${trace[@]}" -o "$work/seen" "$PYTHON" -c '
import contextlib, socket
for host in ("192.0.2.1", "name.invalid"):
    with contextlib.suppress(OSError):
        socket.create_connection((host, 80), timeout=1)'
leaving "$work/seen" | grep -q '192\.0\.2\.1' || skip "the trace does not see connections on this machine"

judged() { # backend, folder of the run
    "${@:3}" "$PYTHON" -m offline_judge evaluate "$work/rows.jsonl" --judge "$judge" --embedder "$embedder" \
        --backend "$1" --max-unscored 1 --out "$2" --name run --show-worst "${options[@]}"
}
said() { # file with the output of a step that failed
    tail -n 20 "$1"
    echo "failed: $2"
    exit 1
}

status=0
for backend in "${backends[@]}"; do
    out=$work/$backend
    for step in "${steps[@]}"; do
        case $step in
            check) alone "$PYTHON" -m offline_judge check "$work/rows.jsonl" ;;
            evaluate | again) judged "$backend" "$out" alone ;;
            show) alone "$PYTHON" -m offline_judge show "$out/run" --worst ;;
            rescore) alone "$PYTHON" -m offline_judge rescore "$out/run" --set '*.threshold=0.7' ;;
            metrics) alone "$PYTHON" -m offline_judge metrics ;;
            doctor)
                alone "$PYTHON" -m offline_judge doctor --judge "$judge" --embedder "$embedder" --out "$out"
                ;;
        esac >"$work/said" 2>&1 || said "$work/said" "$step with $backend, in a namespace with loopback only"
        echo "$backend: $step works in a namespace with loopback only"
    done
    refused=$("$PYTHON" - "$out/run/run.json" <<<'
import json, sys
print(sum(one["count"] for one in json.load(open(sys.argv[1]))["connections_refused"]))')
    echo "$backend: the guard refused $refused connections"

    judged "$backend" "$out-traced" traced "$work/trace" >"$work/said" 2>&1 ||
        said "$work/said" "evaluate with $backend, under strace"
    leaving "$work/trace" >"$work/left"
    n_loopback=$(grep -c 'sa_family=AF_INET' "$work/trace" || true)
    n_unix=$(grep -c 'sa_family=AF_UNIX' "$work/trace" || true)
    echo "$backend: traced: $(wc -l <"$work/left") calls lead beyond this machine;" \
        "$n_loopback name an IP address at all, $n_unix a Unix socket"
    if [ -s "$work/left" ]; then
        sort "$work/left" | uniq -c | sort -rn | head -20
        status=1
    fi
    [ "$refused" = 0 ] || status=1
done
if [ $status = 0 ]; then
    echo "verdict: nothing tried to leave this machine"
else
    echo "verdict: something tried to leave this machine"
fi
exit $status
