#!/usr/bin/env bash
# slurm.sh - one run of miles over the GPUs of several nodes, under Slurm.
#
#   sbatch --nodes=4 share/launch/slurm.sh train --hf-checkpoint DIR ... --save DIR --load DIR
#   MILES=/path/to/miles sbatch --nodes=1 share/launch/slurm.sh doctor
#
# A rank per GPU; the words after the script are the command line of miles.  --save and --load name
# the same directory of a shared file system, so that a restarted job resumes from its newest
# snapshot.  A job that ends with 3 (another process failed: docs/SCALE.md) puts itself back into
# the queue, at most MILES_RESTARTS times; Slurm does so when a node fails.
#
# With a topology plugin, --switches keeps the nodes below one leaf switch, and --spread-job must
# not be used: ranks are numbered node by node, and neighbours exchange most.
#SBATCH --job-name=miles
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --gpus-per-task=1
#SBATCH --gpu-bind=none
#SBATCH --exclusive
#SBATCH --distribution=block:block
#SBATCH --switches=1@01:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=miles-%j.log
set -u

miles=${MILES:-miles}
if [ $# -eq 0 ]; then
    echo "usage: sbatch slurm.sh train ARGS... (the words of a miles command line)" >&2
    exit 2
fi

srun --mpi=pmix --kill-on-bad-exit=1 --label --wait=60 "$miles" "$@"
code=$?

# Of a rank that was killed, srun has the signal's code; only 3 asks for another start.
if [ $code -eq 3 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${MILES_RESTARTS:-20}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $code
