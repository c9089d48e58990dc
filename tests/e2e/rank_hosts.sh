#!/usr/bin/env bash
# rank_hosts.sh BUILD - a job over two hosts that share files only: two network namespaces, joined by a cable
# (veth), each with a name and, where the kernel can, a clock of its own; mpirun starts ranks through an rsh agent.
set -u
build=$1
skip() {
    echo "skipped: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
if ! command -v mpirun >/dev/null || [ ! -e "$build/libmiles_mpi.so" ]; then
    skip "mpirun or $build/libmiles_mpi.so is missing (tools/check-deps.sh --install ranks, then make)"
fi
command -v ip >/dev/null || skip "ip is missing (Debian: iproute2)"
a=milesa$$ b=milesb$$
ip netns add $a 2>/dev/null || skip "this user may not create network namespaces"
work=$(mktemp -d)
trap 'ip netns del $a; ip netns del $b; rm -rf "$work" /etc/netns/$a /etc/netns/$b' EXIT
passed=0 failed=0 status=0
build=$(realpath "$build")
ip netns add $b
ip link add ${a}0 netns $a type veth peer name ${b}0 netns $b || skip "this kernel has no veth"
address=10.213.77.1
for host in $a $b; do
    ip -n "$host" address add $address/24 dev "${host}0"
    address=10.213.77.2
    ip -n "$host" link set "${host}0" up
    ip -n "$host" link set lo up
    mkdir -p "/etc/netns/$host" # `ip netns exec` mounts these over /etc
    printf '127.0.0.1 localhost\n10.213.77.1 %s\n10.213.77.2 %s\n' $a $b >"/etc/netns/$host/hosts"
done
clock=()
unshare -T --fork --monotonic 100000 true 2>/dev/null && clock=(-T --fork --monotonic 100000)

# The rsh agent: `agent HOST WORD...` runs the words as a command line on a host.
cat >"$work/agent" <<END
#!/bin/sh
host=\$1
shift
clock=
[ \$host = $b ] && clock='${clock[*]}'
exec ip netns exec \$host unshare -u \$clock sh -c "hostname \$host; \$*"
END
chmod +x "$work/agent"
"$build/tools/quickstart_make" "$work" 1 >/dev/null

# mpirun reads interfaces; the session directory is the host's.
on_hosts() { # on_hosts N COMMAND...: N ranks, half of them on each host, mpirun on the first
    local n=$1
    shift
    "$work/agent" $a "cd $PWD; exec timeout --kill-after=5 200 mpirun --allow-run-as-root -n $n --map-by slot --bind-to none \
        --host $a:$((n / 2)),$b:$((n / 2)) --mca plm_rsh_agent $work/agent --mca btl tcp,self $*"
}
flags=(--hf-checkpoint "$work/model" --input-key messages --rollout-seed 1 --lr 5e-4 --lr-decay-style constant
    --use-dynamic-batch-size --max-tokens-per-gpu 256 --threads 2 --prompt-data "$work/prompts.jsonl" --label-key label
    --apply-chat-template --rm-type deterministic_random --rollout-batch-size 4 --n-samples-per-prompt 4
    --rollout-max-response-len 8)
check() { # check NAME TEST...: counts a test; the log of a failed one is in $log
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: $*"
        tail -n 30 "$log"
    fi
}
ended() { [ "$status" -eq 0 ]; }
same_run() { cmp "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" && diff -r "$work/$1/iter_0000002" "$work/$2/iter_0000002"; }

log=$work/doctor.log
on_hosts 2 "$build/miles" doctor >"$log" 2>&1
check "doctor runs on both hosts" [ $? -eq 0 ]
check "it names them" grep -Eq "rank 0 +$a," "$log"
check "it names both" grep -Eq "rank 1 +$b," "$log"

for layout in '' '--tensor-model-parallel-size 4' '--tensor-model-parallel-size 2 --rollout-num-gpus-per-engine 2'; do
    log=$work/one.log
    read -r -a sizes <<<"$layout"
    rm -rf "$work/one" "$work/two"
    OMPI_MCA_btl_vader_single_copy_mechanism=none timeout --kill-after=5 200 mpirun --oversubscribe --allow-run-as-root -n 4 \
        "$build/miles" train "${flags[@]}" "${sizes[@]}" --save "$work/one" --num-rollout 3 >"$log" 2>&1
    status=$?
    check "one host, $layout: trains" ended
    log=$work/two.log
    on_hosts 4 "$build/miles" train "${flags[@]}" "${sizes[@]}" --save "$work/two" --num-rollout 3 --profile \
        --actor-num-nodes 2 --actor-num-gpus-per-node 2 >"$log" 2>&1
    status=$?
    check "two hosts, $layout: train" ended
    check "two hosts, $layout: the bytes of one" same_run one two
    check "two hosts, $layout: one trace in one time" tests/e2e/check_trace.py "$work/two/trace_0.json" 4
done

# The cable is pulled: each side names the other and ends.
named() { # named RANK LOST HOST: waits until the log of a rank names the lost one
    for _ in $(seq 600); do
        grep -q 'did not answer within' "$work/$save/logs/rank_$1.log" && break
        sleep 0.1
    done
    grep -q "rank $2 (on $3) did not answer within 6 s" "$work/$save/logs/rank_$1.log"
}
pull() { # pull WHEN FLAG...: after the second rollout
    local when=$1 job
    shift
    (on_hosts 2 "$build/miles" train "${flags[@]}" "$@" --save "$work/$save" --num-rollout 100000 \
        --distributed-timeout-minutes 0.1 >"$log" 2>&1) &
    job=$!
    for _ in $(seq 900); do
        grep -q '"rollout": 1,' "$work/$save/metrics.jsonl" 2>/dev/null && break
        kill -0 $job 2>/dev/null || break
        sleep 0.1
    done
    ip -n $a link set ${a}0 down
    check "$when: the first host names the rank behind the cable" named 0 1 $b
    check "$when: the second names the first" named 1 0 $a
    ip -n $a link set ${a}0 up
    wait $job
    check "$when: the job ends" [ $? -ne 0 ]
}
log=$work/pulled.log save=long
pull "rank 0 waits for the other's samples" --rollout-max-response-len 400 --n-samples-per-prompt 24
check "its heartbeats end it" grep -q 'this rank ends at once' "$work/long/logs/rank_0.log"
save=pulled
pull "short rollouts" --save-interval 1
saved=$(cat "$work/pulled/latest_checkpointed_iteration.txt")
on_hosts 2 "$build/miles" train "${flags[@]}" --save "$work/pulled" --load "$work/pulled" \
    --num-rollout $((saved + 3)) --save-interval 1 >"$log" 2>&1
status=$?
check "it resumes" ended
log=$work/whole.log
on_hosts 2 "$build/miles" train "${flags[@]}" --save "$work/whole" --num-rollout $((saved + 3)) --save-interval 1 >"$log" 2>&1
status=$?
check "a job whose cable stays ends" ended
check "their metrics are the same" cmp "$work/pulled/metrics.jsonl" "$work/whole/metrics.jsonl"
last=iter_$(printf %07d $((saved + 2)))
check "their snapshots are the same" diff -r "$work/pulled/$last" "$work/whole/$last"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
