#!/usr/bin/env bash
# Repeats one row of docs/results.md from bare weights:
#
#     run.sh ROW MODEL DATA OUT        ROW: direct, rag, rag-sft, search, cold, rl
#
# MODEL is a Hugging Face folder. DATA holds NAME.questions.train.jsonl.gz, NAME.questions.test.jsonl.gz and
# NAME.corpus.jsonl.gz of each set. What a row needs and OUT does not hold yet is made first.
set -euo pipefail
row=$1 model=$2 data=$3 out=$4
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
name=$(basename "$model")
room=(--set engine.slots="${SLOTS:-1024}" --set engine.memory="${MEMORY:-0.5}" --set agent.observation_tokens=500 --set agent.context_tokens="${CONTEXT:-3072}")
tests=()
for each in "$data"/*.questions.test.jsonl.gz; do tests+=("$each"); done

index() {
    [ -d "$out/index" ] || sleuth index build "$data/*.corpus.jsonl.gz" --out "$out/index"
}

questions() { # the last 500 training questions are only measured on
    local without=() held=()
    for each in "${tests[@]}"; do without+=(--without "$each") held+=(--test "$each"); done
    [ -d "$out/all" ] || sleuth data prepare "$data"/*.questions.train.jsonl.gz "${held[@]}" --answerable --seed 0 --out "$out/all"
    tail -n "${VALIDATION:-500}" "$out/all/questions.jsonl" > "$out/validation.jsonl"
    head -n "-${VALIDATION:-500}" "$out/all/questions.jsonl" > "$out/train.jsonl"
    [ -f "$out/made.jsonl.gz" ] || sleuth data make "$out/index" --questions "${MADE:-40000}" --per-passage 2 --seed 0 "${without[@]}" --out "$out/made.jsonl.gz"
}

learned() { # learned KIND TRACES-COMMAND...: first on questions made from the corpus, then on real ones
    local kind=$1; shift
    for part in made.jsonl.gz train.jsonl; do
        [ -f "$out/$kind-$part.traces.jsonl.gz" ] || sleuth traces "$@" --questions "$out/$part" --index "$out/index" --out "$out/$kind-$part.traces.jsonl.gz"
    done
    [ -d "$out/$name-$kind-1" ] || sleuth sft --model "$model" --traces "$out/$kind-made.jsonl.gz.traces.jsonl.gz" --out "$out/$name-$kind-1" \
        --epochs 1 --learning-rate "${RATE:-2e-4}" --batch-rows 64 --row-tokens "${ROW:-3072}" --pack-tokens 65536
    [ -d "$out/$name-$kind" ] || sleuth sft --model "$out/$name-$kind-1" --traces "$out/$kind-train.jsonl.traces.jsonl.gz" --out "$out/$name-$kind" \
        --epochs 4 --learning-rate "${RATE2:-1e-4}" --batch-rows 32 --row-tokens "${ROW:-3072}" --pack-tokens 65536
}

ask() { # ask WHO METHOD OPTIONS...
    local who=$1 method=$2; shift 2
    local suites=()
    for each in "${tests[@]}"; do suites+=(--suite "$each"); done
    [ "$method" = direct ] || suites+=(--index "$out/index")
    sleuth evaluate "$who" "${suites[@]}" --method "$method" "${room[@]}" --out "$out/$name-$row.evaluation" "$@"
}

index
case $row in
direct) ask "$model" direct ;;
rag) questions; ask "$model" rag --shots "$out/train.jsonl:${SHOTS:-3}" --set retrieval.k="${K:-3}" ;;
search) ask "$model" search ;;
rag-sft) questions; learned rag answers --method rag --k "${K:-3}"; ask "$out/$name-rag" rag --set retrieval.k="${K:-3}" ;;
cold) questions; learned search gold; ask "$out/$name-search" search ;;
rl)
    questions; learned search gold
    [ -d "$out/$name-run" ] || sleuth train "$here/train.toml" --out "$out/$name-run" --set model.policy="$out/$name-search" \
        --set data.train="$out/train.jsonl" --set data.test="$out/validation.jsonl" --set retrieval.index="$out/index" ${TRAIN:-}
    ask "$out/$name-run" search ;;
*) echo "unknown row $row: direct, rag, rag-sft, search, cold or rl" >&2; exit 2 ;;
esac
