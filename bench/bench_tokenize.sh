#!/usr/bin/env bash
# bench_tokenize.sh PROGRAM - bench_tokenize.py on the tokenizers of the fixtures beside the
# checkout; says what is missing when it cannot run.
set -eu
fixtures=../shared/fixtures/tokenizers
if [ ! -d "$fixtures" ]; then
    echo "skipped: tokenizers to measure ($fixtures) are not here; give folders to bench/bench_tokenize.py"
    exit 0
fi
if ! python3 -c 'import tokenizers' 2>/dev/null; then
    echo "skipped: the peer, Python's tokenizers package, is not installed"
    exit 0
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
for t in "$fixtures"/*/; do
    name=$(basename "$t")
    mkdir "$dir/$name"
    gzip -dc "$t/tokenizer.json.gz" >"$dir/$name/tokenizer.json"
    cp "$t/tokenizer_config.json" "$dir/$name/"
done
bench/bench_tokenize.py --program "$1" "$dir"/*/
