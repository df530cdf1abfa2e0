#!/usr/bin/env bash
# Computes one row of the table in docs/results.md, starting from a model without task-specific training:
#
#     run.sh ROW MODEL DATA OUT        ROW: direct, rag, rag-sft, search, cold, rl
#
# MODEL is a Hugging Face folder. DATA contains NAME.questions.train.jsonl.gz, NAME.questions.test.jsonl.gz and
# NAME.corpus.jsonl.gz for each set. Intermediate results are kept in OUT and shared by the rows; run the same command
# again to continue an interrupted row.
#
# All choices (documents, examples, epochs, checkpoint) are made on validation questions, which are held out from the
# training part. The test part is used for two things only: its questions are removed from the training data, and each
# row is evaluated on it once.
#
# Environment variables:
#     K=3             documents per search
#     MADE=40000      questions made from the corpus
#     VALIDATION=500  training questions held out for validation
#     ROUNDS=4        maximum number of SFT rounds of two epochs each
#     RATE=2e-4       learning rate of SFT on the made questions
#     RATE2=1e-4      learning rate of SFT on the training questions
#     PACK=32768      tokens per forward pass
#     SLOTS=512       concurrent sequences
#     MEMORY=0.15     fraction of GPU memory for the KV cache
#     BEGIN=2         SFT epochs on the training questions before reinforcement learning
#     TRAIN="--set ..."  more options of `sleuth train`
set -euo pipefail
shopt -s inherit_errexit nullglob

stop() { echo "run.sh: $*" >&2; exit 2; }
[ $# = 4 ] || stop "$# arguments; expected: run.sh ROW MODEL DATA OUT"
row=$1 model=$2 data=$3 out=$4
case $row in direct | rag | rag-sft | search | cold | rl) ;; *) stop "unknown row $row; expected direct, rag, rag-sft, search, cold or rl" ;; esac
[ -f "$model/config.json" ] || stop "$model has no config.json; give a Hugging Face model folder"
command -v sleuth > /dev/null || stop "the command sleuth was not found; activate its virtual environment"
k=${K:-3} made=${MADE:-40000} validation=${VALIDATION:-500} rounds=${ROUNDS:-4} begin=${BEGIN:-2}
for setting in "K=$k" "MADE=$made" "VALIDATION=$validation" "ROUNDS=$rounds" "BEGIN=$begin" "PACK=${PACK:-32768}" "SLOTS=${SLOTS:-512}"; do
    [[ $setting =~ =[1-9][0-9]*$ ]] || stop "$setting is invalid; expected a positive integer"
done
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$model")
agent=(--set agent.observation_tokens=700 --set agent.context_tokens=4096 --set agent.turn_tokens=160 --set retrieval.k="$k")
reader=(--set agent.observation_tokens=2500 --set agent.context_tokens=4096 --set agent.turn_tokens=160)
room=(--set engine.slots="${SLOTS:-512}" --set engine.memory="${MEMORY:-0.15}")
suites=() without=() held=()
for each in "$data"/*.{questions.{train,test},corpus}.jsonl.gz; do
    set=$(basename "$each"); set=${set%%.*}
    for part in questions.train questions.test corpus; do [ -f "$data/$set.$part.jsonl.gz" ] || stop "$data has no $set.$part.jsonl.gz; each set needs all three files"; done
done
for each in "$data"/*.questions.test.jsonl.gz; do suites+=(--suite "$each") without+=(--without "$each") held+=(--test "$each"); done
[ ${#suites[@]} -gt 0 ] || stop "$data has no NAME.questions.test.jsonl.gz"

require_same_settings() { # require_same_settings NAME: compare standard input with OUT/NAME.settings, or create it
    mkdir -p "$out"
    local now; now=$(cat)
    [ -f "$out/$1.settings" ] || echo "$now" > "$out/$1.settings"
    diff "$out/$1.settings" - <<< "$now" >&2 || stop "$out was made with other settings (<) than the current ones (>); use another OUT"
}

build_index() {
    [ -f "$out/index/manifest.json" ] || sleuth index build "$data/*.corpus.jsonl.gz" --out "$out/index"
}

prepare_questions() { # hold out the last training questions; split the made questions between search and RAG
    [ -f "$out/train.jsonl" ] && return
    [ -d "$out/all" ] || sleuth data prepare "$data"/*.questions.train.jsonl.gz "${held[@]}" --answerable --seed 0 --out "$out/all"
    local count; count=$(wc -l < "$out/all/questions.jsonl")
    [ "$validation" -lt "$count" ] || { rm "$out/questions.settings"; stop "VALIDATION=$validation leaves no training questions, of which there are $count; lower it"; }
    tail -n "$validation" "$out/all/questions.jsonl" > "$out/validation.jsonl"
    [ -f "$out/made.jsonl" ] || sleuth data make "$out/index" --questions "$made" --per-passage 4 --seed 0 "${without[@]}" --without "$out/validation.jsonl" --out "$out/made.jsonl"
    awk 'NR % 2 == 1' "$out/made.jsonl" > "$out/made-search.jsonl"
    awk 'NR % 2 == 0' "$out/made.jsonl" > "$out/made-rag.jsonl"
    head -n "-$validation" "$out/all/questions.jsonl" > "$out/train.tmp"
    mv "$out/train.tmp" "$out/train.jsonl"
}

make_traces() { # make_traces PART OPTIONS...
    local part=$1; shift
    [ -f "$out/$part.traces.jsonl.gz" ] || sleuth traces "$@" --index "$out/index" --out "$out/$part.traces.jsonl.gz"
}

run_sft() { # run_sft FROM TO OPTIONS...
    local from=$1 to=$2; shift 2
    [ -f "$to/config.json" ] || sleuth sft --model "$from" --out "$to" --row-tokens 4096 --observation-tokens 700 --pack-tokens "${PACK:-32768}" "$@"
}

validate() { # validate MODEL OPTIONS...: print the validation EM, the mean over the sets
    local policy=$1 found="$out/$name-$row.validation.json"; shift
    rm -f "$found"
    sleuth evaluate "$policy" --suite "$out/validation.jsonl" --index "$out/index" "${room[@]}" --out "$found" "$@" > "$found.txt" 2>&1 || { cat "$found.txt" >&2; rm -f "$found.txt"; return 1; }
    python3 -c 'import json, sys; print(round(json.load(open(sys.argv[1]))["mean"]["em"]["value"], 4))' "$found"
    echo "$policy $* $(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["mean"]["em"])' "$found")" >> "$out/$name-chosen.txt"
    rm -f "$found" "$found.txt"
}

sft_on_made() { # one epoch on the made questions of both kinds: search, and RAG
    make_traces made-search gold --questions "$out/made-search.jsonl" --k "$k"
    make_traces made-rag answers --method rag --questions "$out/made-rag.jsonl" --k "$k"
    run_sft "$model" "$out/$name-made" --traces "$out/made-search.traces.jsonl.gz" --traces "$out/made-rag.traces.jsonl.gz" \
        --epochs 1 --learning-rate "${RATE:-2e-4}" --batch-rows 64
}

sft_on_training() { # sft_on_training KIND FROM TO EPOCHS: SFT on the training questions
    local kind=$1 from=$2 to=$3 epochs=$4
    case $kind in
    search) make_traces train-search gold --questions "$out/train.jsonl" --k "$k" ;;
    *) make_traces "train-$kind" answers --method rag --prompt "$kind" --questions "$out/train.jsonl" --k "$k" ;;
    esac
    run_sft "$from" "$to" --traces "$out/train-$kind.traces.jsonl.gz" --epochs "$epochs" --keep last --learning-rate "${RATE2:-1e-4}" --batch-rows 32
}

sft_round() { # sft_round KIND ROUND: two more epochs on the training questions
    local before="$out/$name-made"
    [ "$2" = 1 ] || before="$out/$name-$1-$(($2 - 1))"
    sft_on_training "$1" "$before" "$out/$name-$1-$2" 2
}

sft_until_best() { # sft_until_best KIND OPTIONS...: repeat sft_round while the validation EM improves
    local kind=$1 best=-1 from em; shift
    [ -f "$out/$name-$kind/config.json" ] && return
    sft_on_made
    for round in $(seq "$rounds"); do
        sft_round "$kind" "$round"
        em=$(validate "$out/$name-$kind-$round" "$@")
        echo "round $round of $kind: validation EM $em"
        python3 -c "exit(not $em > $best)" || break
        best=$em from="$name-$kind-$round"
    done
    ln -sfn "$from" "$out/$name-$kind"
}

try_rag() { # try_rag MODEL PROMPT SHOTS...: print a line with the validation EM per number of documents and examples
    local policy=$1 prompt=$2 few em; shift 2
    for documents in 3 5 10; do
        for shots in "$@"; do
            few=(); [ "$shots" = 0 ] || few=(--shots "$out/train.jsonl:$shots")
            em=$(validate "$policy" --method rag "${reader[@]}" --set agent.prompt="$prompt" --set retrieval.k="$documents" "${few[@]}")
            echo "RAG with $policy, $documents documents, $shots examples, prompt $prompt: validation EM $em" >&2
            echo "$em $documents $shots $prompt $policy"
        done
    done
}

evaluate_best_rag() { # evaluate_best_rag LINES: the best line of try_rag; ties: fewer documents, then fewer examples
    local documents shots prompt policy few=()
    read -r _ documents shots prompt policy <<< "$(sort -s -k1,1rn -k2,2n -k3,3n <<< "$1" | head -1)"
    [ "$shots" = 0 ] || few=(--shots "$out/train.jsonl:$shots")
    echo "chosen: $documents documents, $shots examples, prompt $prompt"
    evaluate_test "$policy" rag "${reader[@]}" --set agent.prompt="$prompt" --set retrieval.k="$documents" "${few[@]}"
}

run_rl() { # starts after BEGIN epochs, not from the best round: after more than two, the policy has memorised the questions
    local run="$out/$name-run" from="$out/$name-search-1"
    require_same_settings "$name-run" <<< "TRAIN=${TRAIN:-} BEGIN=$begin"
    sft_on_made
    if [ "$begin" = 2 ]; then sft_round search 1; else from="$out/$name-begin"; sft_on_training search "$out/$name-made" "$from" "$begin"; fi
    if [ -f "$run/manifest.json" ]; then
        [ -f "$run/summary.json" ] || sleuth train --resume "$run"
    else
        sleuth train "$here/train.toml" --out "$run" --set model.policy="$from" --set data.train="$out/train.jsonl" \
            --set data.test="$out/validation.jsonl" --set retrieval.index="$out/index" --set retrieval.k="$k" ${TRAIN:-}
    fi
    [ -f "$out/$name-rl/config.json" ] || sleuth export "$run" "$out/$name-rl" --best
}

evaluate_test() { # evaluate_test MODEL METHOD OPTIONS...
    local policy=$1 method=$2; shift 2
    [ "$method" = direct ] || set -- --index "$out/index" "$@"
    sleuth evaluate "$policy" "${suites[@]}" --method "$method" "${room[@]}" --out "$out/$name-$row.evaluation" "$@"
}

require_same_settings questions < <(echo "K=$k MADE=$made VALIDATION=$validation"; cd "$data" && cksum ./*.jsonl.gz)
require_same_settings "$name" < <(cat "$model"/*.safetensors "$model"/tokenizer.json | cksum)
case $row in rag-sft | cold | rl) require_same_settings "$name-taught" <<< "RATE=${RATE:-2e-4} RATE2=${RATE2:-1e-4}" ;; esac
[ "$row" = direct ] || build_index
case $row in direct | search) ;; *) prepare_questions ;; esac
case $row in
direct) evaluate_test "$model" direct --set agent.turn_tokens=160 ;;
rag) tries=$(try_rag "$model" rag 0 3; try_rag "$model" rag-cot 0 3); evaluate_best_rag "$tries" ;;
search) evaluate_test "$model" search "${agent[@]}" ;;
rag-sft) # prompts for the answer only (rag), and for a thought first (rag-cot)
    for prompt in rag rag-cot; do sft_until_best $prompt --method rag "${reader[@]}" --set agent.prompt=$prompt --set retrieval.k="$k"; done
    tries=$(for prompt in rag rag-cot; do try_rag "$out/$name-$prompt" $prompt 0; done)
    evaluate_best_rag "$tries" ;;
cold) sft_until_best search --method search "${agent[@]}"; evaluate_test "$out/$name-search" search "${agent[@]}" ;;
rl) run_rl; evaluate_test "$out/$name-rl" search "${agent[@]}" ;;
esac
