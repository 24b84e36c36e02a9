#!/bin/sh
# Two machines, each with a supervisor that starts its agent again after a drain or a loss. Here both
# are this machine, by two loopback addresses; on real ones run `machine 0` and `machine 1` on each.
#
#   STORE: a folder that both machines reach      HEAD: where node 0 listens
set -eu
: "${STORE:?}" "${HEAD:=127.0.0.1:7411}"
export DRAINFSM_TOKEN="${DRAINFSM_TOKEN:-the same secret on both}"
here=$(dirname "$0")

machine() { # its number. The state directory is its own disk: here, a folder of its own
    exec drainfsm supervise --job pair --state-dir "${STATE:-/tmp/drainfsm-pair}/$1" --backoff 0.1 -- \
        drainfsm run --job pair --state-dir "${STATE:-/tmp/drainfsm-pair}/$1" --store "$STORE" --create-store \
        --nnodes 2 --node-rank "$1" --coordinator "$HEAD" --grace 30 -- \
        torchrun --nnodes 2 --node-rank "$1" --nproc-per-node 1 --master-addr "${HEAD%:*}" \
        --master-port "${PORT:-29411}" "$here/ddp_dataloader.py"
}

case ${1:-both} in
both)
    trap 'kill -TERM $first $second' TERM INT # a notice to both: they drain, and start nothing again
    (machine 0) & first=$!
    (machine 1) & second=$!
    wait $first || code=$?
    wait $second || code=$?
    exit "${code:-0}"
    ;;
*) machine "$1" ;;
esac
