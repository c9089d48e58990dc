#!/usr/bin/env bash
# bench_train.sh PROGRAM - a training step against PyTorch's, turn by turn; the best of each counts.
#
# PyTorch comes from tools/with-python.sh; where it cannot be had, ours is measured alone.
set -u
cd "$(dirname "$0")/.." || exit 2
program=$1 ours=0 theirs=0 status=0

faster() { awk -v a="$1" -v b="$2" 'BEGIN { print (a > b ? a : b) }'; }
speed() { sed -n 's/.* \([0-9]*\) tokens\/s.*/\1/p' | head -n 1; }

for _ in 1 2 3; do
    line=$("$program") || status=1
    echo "$line"
    ours=$(faster "$(echo "$line" | speed)" "$ours")
    line=$(tools/with-python.sh torch bench/bench_torch.py --threads 2 --turns 5) || line=
    case $line in
    *tokens/s*) theirs=$(faster "$(echo "$line" | speed)" "$theirs") ;;
    *) echo "skipped: PyTorch cannot be had here" ;;
    esac
done
[ "$theirs" = 0 ] && exit $status
ratio=$(awk -v a="$ours" -v b="$theirs" 'BEGIN { printf "%.2f", a / b }')
verdict=$(awk -v r="$ratio" 'BEGIN { print (r >= 1.15 ? "ok" : "MISS") }')
echo "train48M: $ours tokens/s, PyTorch $theirs, ratio $ratio, goal 1.15, $verdict"
[ "$verdict" = ok ] || status=1
exit $status
