#!/usr/bin/env bash
# Makes one row of a table of results from bare weights; docs/log.md tells what the tries so far gave:
#
#     run.sh ROW MODEL DATA OUT        ROW: direct, rag, rag-sft, search, cold, rl
#
# MODEL is a Hugging Face folder. DATA holds NAME.questions.train.jsonl.gz, NAME.questions.test.jsonl.gz and
# NAME.corpus.jsonl.gz of each set. What a row needs and OUT does not hold yet is made first. Whatever is chosen (k, examples,
# epochs) is chosen on validation questions taken from the training part; the test part is only asked, once a row.
set -euo pipefail
row=$1 model=$2 data=$3 out=$4
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$model")
k=${K:-3}
agent=(--set agent.observation_tokens=700 --set agent.context_tokens=4096 --set agent.turn_tokens=160 --set retrieval.k="$k")
reader=(--set agent.observation_tokens=2500 --set agent.context_tokens=4096 --set agent.turn_tokens=160)
room=(--set engine.slots="${SLOTS:-512}" --set engine.memory="${MEMORY:-0.15}")
tests=() suites=() without=() held=()
for each in "$data"/*.questions.test.jsonl.gz; do
    tests+=("$each") suites+=(--suite "$each") without+=(--without "$each") held+=(--test "$each")
done
mkdir -p "$out"

index() {
    [ -d "$out/index" ] || sleuth index build "$data/*.corpus.jsonl.gz" --out "$out/index"
}

questions() { # the last 500 training questions are only measured on; what is made from the corpus is for searching and for RAG
    [ -f "$out/train.jsonl" ] && return
    sleuth data prepare "$data"/*.questions.train.jsonl.gz "${held[@]}" --answerable --seed 0 --out "$out/all"
    sleuth data make "$out/index" --questions "${MADE:-40000}" --per-passage 4 --seed 0 "${without[@]}" --out "$out/made.jsonl"
    awk 'NR % 2 == 1' "$out/made.jsonl" > "$out/made-search.jsonl"
    awk 'NR % 2 == 0' "$out/made.jsonl" > "$out/made-rag.jsonl"
    tail -n "${VALIDATION:-500}" "$out/all/questions.jsonl" > "$out/validation.jsonl"
    head -n "-${VALIDATION:-500}" "$out/all/questions.jsonl" > "$out/train.jsonl"
}

traces() { # traces PART OPTIONS...
    local part=$1; shift
    [ -f "$out/$part.traces.jsonl.gz" ] || sleuth traces "$@" --index "$out/index" --out "$out/$part.traces.jsonl.gz"
}

trained() { # trained FROM TO OPTIONS...
    local from=$1 to=$2; shift 2
    [ -d "$to" ] || sleuth sft --model "$from" --out "$to" --row-tokens 4096 --observation-tokens 700 --pack-tokens "${PACK:-32768}" "$@"
}

measured() { # measured WHO OPTIONS...: EM on the validation questions, the mean over the sets
    local who=$1; shift
    local file; file=$(mktemp -u "$out/validation-XXXXXX.json")
    sleuth evaluate "$who" --suite "$out/validation.jsonl" --index "$out/index" "${room[@]}" --out "$file" "$@" > "$file.txt" 2>&1 || { cat "$file.txt" >&2; kill $$; exit 1; } # the whole row: a best of fewer is none
    python3 -c 'import json, sys; print(round(json.load(open(sys.argv[1]))["mean"]["em"]["value"], 4))' "$file"
    echo "$who $* $(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["mean"]["em"])' "$file")" >> "$out/$name-chosen.txt"
    rm -f "$file" "$file.txt"
}

begun() { # a policy that reads, searches and answers: one epoch on made questions of both kinds
    traces made-search gold --questions "$out/made-search.jsonl" --k "$k"
    traces made-rag answers --method rag --questions "$out/made-rag.jsonl" --k "$k"
    trained "$model" "$out/$name-made" --traces "$out/made-search.traces.jsonl.gz" --traces "$out/made-rag.traces.jsonl.gz" \
        --epochs 1 --learning-rate "${RATE:-2e-4}" --batch-rows 64
}

taught() { # taught KIND ROUND: two more epochs on real questions
    local kind=$1 before="$out/$name-made"
    [ "$2" = 1 ] || before="$out/$name-$kind-$(($2 - 1))"
    case $kind in
    search) traces train-search gold --questions "$out/train.jsonl" --k "$k" ;;
    *) traces "train-$kind" answers --method rag --prompt "$kind" --questions "$out/train.jsonl" --k "$k" ;;
    esac
    trained "$before" "$out/$name-$kind-$2" --traces "$out/train-$kind.traces.jsonl.gz" --epochs 2 --keep last --learning-rate "${RATE2:-1e-4}" --batch-rows 32
}

learned() { # learned KIND OPTIONS...: taught while EM on validation rises
    local kind=$1 best=-1 from em; shift
    [ -e "$out/$name-$kind" ] && return
    begun
    for round in $(seq "${ROUNDS:-4}"); do
        taught "$kind" "$round"
        em=$(measured "$out/$name-$kind-$round" "$@")
        echo "round $round of $kind: validation EM $em"
        python3 -c "exit(not $em > $best)" || break
        best=$em from="$name-$kind-$round"
    done
    ln -s "$from" "$out/$name-$kind"
}

best_k() { # best_k WHO PROMPT SHOTS...: the number of documents and of examples that answer most validation questions, as "EM k shots prompt"
    local who=$1 prompt=$2; shift 2
    for documents in 3 5 10; do
        for shots in "$@"; do
            local few=(); [ "$shots" = 0 ] || few=(--shots "$out/train.jsonl:$shots")
            echo "$(measured "$who" --method rag "${reader[@]}" --set agent.prompt=$prompt --set retrieval.k=$documents "${few[@]}") $documents $shots $prompt" &
        done
        wait
    done | sort -rn | head -1
}

ask() { # ask WHO METHOD OPTIONS...
    local who=$1 method=$2; shift 2
    [ "$method" = direct ] || set -- --index "$out/index" "$@"
    sleuth evaluate "$who" "${suites[@]}" --method "$method" "${room[@]}" --out "$out/$name-$row.evaluation" "$@"
}

index
case $row in
direct) ask "$model" direct --set agent.turn_tokens=160 ;;
rag)
    questions
    read -r _ documents shots prompt <<< "$({ best_k "$model" rag 0 3; best_k "$model" rag-cot 0 3; } | sort -rn | head -1)"
    few=(); [ "$shots" = 0 ] || few=(--shots "$out/train.jsonl:$shots")
    ask "$model" rag "${reader[@]}" --set agent.prompt="$prompt" --set retrieval.k="$documents" "${few[@]}" ;;
search) ask "$model" search "${agent[@]}" ;;
rag-sft) # with an answer alone, and with a thought before it
    questions
    for prompt in rag rag-cot; do learned $prompt --method rag "${reader[@]}" --set agent.prompt=$prompt --set retrieval.k="$k"; done
    read -r _ documents _ prompt <<< "$({ for prompt in rag rag-cot; do best_k "$out/$name-$prompt" $prompt 0 & done; wait; } | sort -rn | head -1)"
    ask "$out/$name-$prompt" rag "${reader[@]}" --set agent.prompt="$prompt" --set retrieval.k="$documents" ;;
cold) questions; learned search --method search "${agent[@]}"; ask "$out/$name-search" search "${agent[@]}" ;;
rl) # from two epochs, whatever the cold start of the table had: more, and the training questions are known by heart
    questions; begun; taught search 1
    [ -d "$out/$name-run" ] || sleuth train "$here/train.toml" --out "$out/$name-run" --set model.policy="$out/$name-search-1" \
        --set data.train="$out/train.jsonl" --set data.test="$out/validation.jsonl" --set retrieval.index="$out/index" --set retrieval.k="$k" ${TRAIN:-}
    [ -d "$out/$name-rl" ] || sleuth export "$out/$name-run" "$out/$name-rl" --best
    ask "$out/$name-rl" search "${agent[@]}" ;;
*) echo "unknown row $row: direct, rag, rag-sft, search, cold or rl" >&2; exit 2 ;;
esac
