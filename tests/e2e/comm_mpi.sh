#!/usr/bin/env bash
# comm_mpi.sh BUILD - the communicator over MPI: the cases of tests/unit/test_comm.c as processes.
#
# Several ranks share a core here: they yield while they wait.
set -u
build=$1
if ! command -v mpirun >/dev/null || [ ! -e "$build/libmiles_mpi.so" ]; then
    echo "skipped: mpirun or $build/libmiles_mpi.so is missing (tools/check-deps.sh --install ranks, then make)"
    exit 0
fi
program=$build/tests/unit/test_comm
export LD_LIBRARY_PATH=$PWD/$build # test programs stand elsewhere than miles
export MILES_DEVICE=cpu
export OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none # needs a permission that containers lack
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

ranks() { # ranks ARGS...: mpirun ARGS..., its output in $work/log
    timeout --kill-after=5 120 mpirun --oversubscribe --allow-run-as-root "$@" >"$work/log" 2>&1
}
verdict() { # verdict STATUS NAME
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $2"
        cat "$work/log"
    fi
}
says() { # says TEXT STATUS: the last command ended with this status and printed the text
    [ "$status" -eq "$2" ] && grep -q "$1" "$work/log"
}

for n in 2 3 4 8; do
    ranks -n $n "$program"
    verdict $? "$n ranks"
done
for failure in 'failed rank' 'failed elsewhere' aborted left silent; do
    ranks -n 3 "$program" "$failure"
    verdict $? "$failure"
done

ranks -n 3 "$program" killed
status=$?
says 'signal 9' 137
verdict $? 'a rank that is killed ends the job'

ends_with() { # ends_with STATUS CASE
    ranks -n 3 "$program" "$2"
    [ $? -eq "$1" ]
    verdict $? "$2: the launcher returns $1"
}
ends_with 1 'failed exit'
ends_with 3 'silent exit'
ends_with 3 'aborted long'

cp "$program" "$work/other"
echo >>"$work/other"
ranks -n 1 "$program" : -n 1 "$work/other"
status=$?
says 'rank 1 on host .* has build .*, but rank 0 on host .* has .*: all ranks of a job need the same build' 1
verdict $? 'ranks of different builds are refused'

LD_LIBRARY_PATH=/nowhere ranks -n 2 "$program"
status=$?
says 'several ranks need libmiles_mpi.so' 1
verdict $? 'a missing libmiles_mpi.so is named'

ranks -n 3 "$build/miles" doctor
status=$?
says '^rank 2  .*, bits [0-9a-f]*, forward .* GFLOP/s, memory .* GB/s, to rank 0 .* us and .* GB/s' 0
verdict $? 'miles doctor measures every rank'

ranks -n 3 "$build/miles" doctor trian
status=$?
says "miles doctor: unknown command 'trian'" 2
verdict $? 'miles doctor fails once, with its exit code'

env SLURM_STEP_NUM_TASKS=4 "$program" as-rank >"$work/log" 2>&1
status=$?
says 'srun started 4 tasks that cannot find each other: add --mpi=pmix' 1
verdict $? 'srun without PMIx is refused'

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
