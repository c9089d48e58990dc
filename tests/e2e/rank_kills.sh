#!/usr/bin/env bash
# rank_kills.sh BUILD [N [FLAGS...]] - kills or stops a random rank of a job at N (6) random moments: each time the
# job ends with a named cause, and in the end it has the bytes of a job that was left alone.  FLAGS: of miles train.
# SEED: of the moments.
set -u
build=$1 kills=${2:-6}
if ! command -v mpirun >/dev/null || [ ! -e "$build/libmiles_mpi.so" ]; then
    echo "skipped: mpirun or $build/libmiles_mpi.so is missing (tools/check-deps.sh --install ranks, then make)"
    exit 0
fi
export OMPI_MCA_btl_vader_single_copy_mechanism=none # needs a permission that containers lack
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
RANDOM=${SEED:-$$}
echo "seed ${SEED:-$$}"
ranks=3 layout=(--tensor-model-parallel-size 3 "${@:3}") limit_s=3
passed=0 failed=0 status=0
"$build/tools/quickstart_make" "$work" 1 >/dev/null

train() { # train RUN ROLLOUTS: the job, from its newest snapshot on
    timeout --kill-after=5 150 mpirun --oversubscribe --allow-run-as-root -n "$ranks" "$build/miles" train \
        --hf-checkpoint "$work/model" --save "$work/$1" --load "$work/$1" --num-rollout "$2" --save-interval 1 \
        --prompt-data "$work/prompts.jsonl" --input-key messages --label-key label \
        --apply-chat-template --rm-type deterministic_random --rollout-batch-size 4 --n-samples-per-prompt 4 \
        --rollout-max-response-len 8 --rollout-seed 1 --lr 5e-4 --lr-decay-style constant \
        --use-dynamic-batch-size --max-tokens-per-gpu 256 --threads 1 \
        --distributed-timeout-minutes 0.05 "${layout[@]}" >"$work/$1.log" 2>&1
}
saved() { cat "$work/killed/latest_checkpointed_iteration.txt" 2>/dev/null || echo -1; }
check() { # check NAME TEST...
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name: $*"
        tail -n 20 "$work/killed.log"
    fi
}
ranks_of_job() { pgrep -f "^$build/miles train .*$work/killed " || true; }

for i in $(seq "$kills"); do
    rm -f "$work"/killed/logs/rank_*.log
    train killed 100000 &
    job=$!
    for _ in $(seq 900); do # until the ranks know each other; before that, the launcher is in charge
        [ -e "$work/killed/logs/rank_$((ranks - 1)).log" ] && break
        kill -0 $job 2>/dev/null || break
        sleep 0.1
    done
    sleep "$((RANDOM % 4)).$((RANDOM % 10))$((RANDOM % 10))"
    victim=$(ranks_of_job | sed -n "$((RANDOM % ranks + 1))p")
    how=$([ $((RANDOM % 2)) = 0 ] && echo KILL || echo STOP)
    kill -"$how" "$victim"
    began=$(date +%s)
    wait $job
    status=$?
    took=$(($(date +%s) - began))
    check "$i: $how ends the job" [ "$status" -ne 0 ]
    check "$i: $how ends it in time ($took s)" [ "$took" -le $((10 * limit_s)) ]
    if [ "$how" = KILL ]; then
        check "$i: the killed rank is named" grep -Eq 'rank [0-9]+ .*signal 9|rank [0-9]+ .*(left|has ended)' "$work/killed.log"
    else
        check "$i: the silent rank is named" grep -Eq "ranks? [0-9]+ .*did not answer within $limit_s s" "$work/killed.log"
        check "$i: a rank says what it was waiting for" grep -Eqr '(was waiting in|: ).* over .*ranks? [0-9]' "$work/killed/logs"
        check "$i: a scheduler may restart it" [ "$status" -eq 3 ]
    fi
    check "$i: no rank is left" [ -z "$(ranks_of_job)" ]
done
last=$(($(saved) + 2))
train killed $((last + 1))
check "the job resumes" [ $? -eq 0 ]
train alone $((last + 1))
check "a job that is left alone ends" [ $? -eq 0 ]
check "its metrics" cmp "$work/killed/metrics.jsonl" "$work/alone/metrics.jsonl"
check "its snapshot" diff -r "$work/killed/iter_$(printf %07d "$last")" "$work/alone/iter_$(printf %07d "$last")"
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
