#!/usr/bin/env bash
# Makes one row of a table of results from bare weights; docs/log.md tells what the tries so far gave:
#
#     run.sh ROW MODEL DATA OUT        ROW: direct, rag, rag-sft, search, cold, rl
#
# MODEL is a Hugging Face folder. DATA holds NAME.questions.train.jsonl.gz, NAME.questions.test.jsonl.gz and
# NAME.corpus.jsonl.gz of each set. What a row needs and OUT does not hold yet is made first, and a row that was broken off goes on.
# Whatever is chosen (k, examples, epochs, checkpoint) is chosen on validation questions taken from the training part; of the test
# part nothing is used but to leave its questions out of the training part, and to ask it, once a row.
#
# Settings, by environment: K=3 documents a search, MADE=40000 questions made of the corpus, VALIDATION=500 training questions kept
# apart, ROUNDS=4 of two epochs at most, RATE=2e-4 and RATE2=1e-4 of made and of real questions, PACK=32768 tokens a pass, SLOTS=512
# sequences at once, MEMORY=0.15 of the GPU for keys and values, BEGIN=2 epochs of real questions before reinforcement learning,
# TRAIN="--set ..." more of `sleuth train`.
set -euo pipefail
shopt -s inherit_errexit nullglob

stop() { echo "run.sh: $*" >&2; exit 2; }
[ $# = 4 ] || stop "$# words; expected: run.sh ROW MODEL DATA OUT"
row=$1 model=$2 data=$3 out=$4
case $row in direct | rag | rag-sft | search | cold | rl) ;; *) stop "unknown row $row; expected direct, rag, rag-sft, search, cold or rl" ;; esac
[ -f "$model/config.json" ] || stop "$model holds no config.json; give a Hugging Face folder"
command -v sleuth > /dev/null || stop "there is no command sleuth; activate the environment it is installed in"
k=${K:-3} made=${MADE:-40000} validation=${VALIDATION:-500} rounds=${ROUNDS:-4} begin=${BEGIN:-2}
for setting in "K=$k" "MADE=$made" "VALIDATION=$validation" "ROUNDS=$rounds" "BEGIN=$begin" "PACK=${PACK:-32768}" "SLOTS=${SLOTS:-512}"; do
    [[ $setting =~ =[1-9][0-9]*$ ]] || stop "$setting; expected a whole number of 1 or more"
done
here=$(cd "$(dirname "$0")" && pwd)
name=$(basename "$model")
agent=(--set agent.observation_tokens=700 --set agent.context_tokens=4096 --set agent.turn_tokens=160 --set retrieval.k="$k")
reader=(--set agent.observation_tokens=2500 --set agent.context_tokens=4096 --set agent.turn_tokens=160)
room=(--set engine.slots="${SLOTS:-512}" --set engine.memory="${MEMORY:-0.15}")
suites=() without=() held=()
for each in "$data"/*.{questions.{train,test},corpus}.jsonl.gz; do
    set=$(basename "$each"); set=${set%%.*}
    for part in questions.train questions.test corpus; do [ -f "$data/$set.$part.jsonl.gz" ] || stop "$data holds no $set.$part.jsonl.gz; expected all three files of each set"; done
done
for each in "$data"/*.questions.test.jsonl.gz; do suites+=(--suite "$each") without+=(--without "$each") held+=(--test "$each"); done
[ ${#suites[@]} -gt 0 ] || stop "$data holds no NAME.questions.test.jsonl.gz"

same() { # same NAME: OUT is only used with the settings it was made with, which stand in its file NAME.settings
    mkdir -p "$out"
    local now; now=$(cat)
    [ -f "$out/$1.settings" ] || echo "$now" > "$out/$1.settings"
    diff "$out/$1.settings" - <<< "$now" >&2 || stop "$out was made with other settings (<) than these (>); give another OUT"
}

index() {
    [ -f "$out/index/manifest.json" ] || sleuth index build "$data/*.corpus.jsonl.gz" --out "$out/index"
}

questions() { # the last training questions are only measured on; what is made from the corpus is for searching and for RAG
    [ -f "$out/train.jsonl" ] && return
    [ -d "$out/all" ] || sleuth data prepare "$data"/*.questions.train.jsonl.gz "${held[@]}" --answerable --seed 0 --out "$out/all"
    local count; count=$(wc -l < "$out/all/questions.jsonl")
    [ "$validation" -lt "$count" ] || { rm "$out/questions.settings"; stop "VALIDATION=$validation leaves none of $count training questions; give fewer"; }
    tail -n "$validation" "$out/all/questions.jsonl" > "$out/validation.jsonl"
    [ -f "$out/made.jsonl" ] || sleuth data make "$out/index" --questions "$made" --per-passage 4 --seed 0 "${without[@]}" --without "$out/validation.jsonl" --out "$out/made.jsonl"
    awk 'NR % 2 == 1' "$out/made.jsonl" > "$out/made-search.jsonl"
    awk 'NR % 2 == 0' "$out/made.jsonl" > "$out/made-rag.jsonl"
    head -n "-$validation" "$out/all/questions.jsonl" > "$out/train.tmp"
    mv "$out/train.tmp" "$out/train.jsonl"
}

traces() { # traces PART OPTIONS...
    local part=$1; shift
    [ -f "$out/$part.traces.jsonl.gz" ] || sleuth traces "$@" --index "$out/index" --out "$out/$part.traces.jsonl.gz"
}

trained() { # trained FROM TO OPTIONS...
    local from=$1 to=$2; shift 2
    [ -f "$to/config.json" ] || sleuth sft --model "$from" --out "$to" --row-tokens 4096 --observation-tokens 700 --pack-tokens "${PACK:-32768}" "$@"
}

measured() { # measured WHO OPTIONS...: EM on the validation questions, the mean over the sets
    local who=$1 found="$out/$name-$row.validation.json"; shift
    rm -f "$found"
    sleuth evaluate "$who" --suite "$out/validation.jsonl" --index "$out/index" "${room[@]}" --out "$found" "$@" > "$found.txt" 2>&1 || { cat "$found.txt" >&2; rm -f "$found.txt"; return 1; }
    python3 -c 'import json, sys; print(round(json.load(open(sys.argv[1]))["mean"]["em"]["value"], 4))' "$found"
    echo "$who $* $(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["mean"]["em"])' "$found")" >> "$out/$name-chosen.txt"
    rm -f "$found" "$found.txt"
}

begun() { # a policy that reads, searches and answers: one epoch on made questions of both kinds
    traces made-search gold --questions "$out/made-search.jsonl" --k "$k"
    traces made-rag answers --method rag --questions "$out/made-rag.jsonl" --k "$k"
    trained "$model" "$out/$name-made" --traces "$out/made-search.traces.jsonl.gz" --traces "$out/made-rag.traces.jsonl.gz" \
        --epochs 1 --learning-rate "${RATE:-2e-4}" --batch-rows 64
}

real() { # real KIND FROM TO EPOCHS: what real questions teach
    local kind=$1 from=$2 to=$3 epochs=$4
    case $kind in
    search) traces train-search gold --questions "$out/train.jsonl" --k "$k" ;;
    *) traces "train-$kind" answers --method rag --prompt "$kind" --questions "$out/train.jsonl" --k "$k" ;;
    esac
    trained "$from" "$to" --traces "$out/train-$kind.traces.jsonl.gz" --epochs "$epochs" --keep last --learning-rate "${RATE2:-1e-4}" --batch-rows 32
}

taught() { # taught KIND ROUND: two more epochs
    local before="$out/$name-made"
    [ "$2" = 1 ] || before="$out/$name-$1-$(($2 - 1))"
    real "$1" "$before" "$out/$name-$1-$2" 2
}

learned() { # learned KIND OPTIONS...: taught while EM on validation rises
    local kind=$1 best=-1 from em; shift
    [ -f "$out/$name-$kind/config.json" ] && return
    begun
    for round in $(seq "$rounds"); do
        taught "$kind" "$round"
        em=$(measured "$out/$name-$kind-$round" "$@")
        echo "round $round of $kind: validation EM $em"
        python3 -c "exit(not $em > $best)" || break
        best=$em from="$name-$kind-$round"
    done
    ln -sfn "$from" "$out/$name-$kind"
}

ways() { # ways WHO PROMPT SHOTS...: EM on validation with 3, 5 and 10 documents and with each number of examples, a line each
    local who=$1 prompt=$2 few em; shift 2
    for documents in 3 5 10; do
        for shots in "$@"; do
            few=(); [ "$shots" = 0 ] || few=(--shots "$out/train.jsonl:$shots")
            em=$(measured "$who" --method rag "${reader[@]}" --set agent.prompt="$prompt" --set retrieval.k="$documents" "${few[@]}")
            echo "RAG by $who with $documents documents, $shots examples, prompt $prompt: validation EM $em" >&2
            echo "$em $documents $shots $prompt $who"
        done
    done
}

read_by_the_best_of() { # of ways; of equal ones the one with fewer documents, then fewer examples
    local documents shots prompt who few=()
    read -r _ documents shots prompt who <<< "$(sort -s -k1,1rn -k2,2n -k3,3n <<< "$1" | head -1)"
    [ "$shots" = 0 ] || few=(--shots "$out/train.jsonl:$shots")
    echo "chosen: $documents documents, $shots examples, prompt $prompt"
    ask "$who" rag "${reader[@]}" --set agent.prompt="$prompt" --set retrieval.k="$documents" "${few[@]}"
}

reinforced() { # from BEGIN epochs, whatever the cold start of the table had: after more than two the training questions are known by heart
    local run="$out/$name-run" from="$out/$name-search-1"
    same "$name-run" <<< "TRAIN=${TRAIN:-} BEGIN=$begin"
    begun
    if [ "$begin" = 2 ]; then taught search 1; else from="$out/$name-begin"; real search "$out/$name-made" "$from" "$begin"; fi
    if [ -f "$run/manifest.json" ]; then
        [ -f "$run/summary.json" ] || sleuth train --resume "$run"
    else
        sleuth train "$here/train.toml" --out "$run" --set model.policy="$from" --set data.train="$out/train.jsonl" \
            --set data.test="$out/validation.jsonl" --set retrieval.index="$out/index" --set retrieval.k="$k" ${TRAIN:-}
    fi
    [ -f "$out/$name-rl/config.json" ] || sleuth export "$run" "$out/$name-rl" --best
}

ask() { # ask WHO METHOD OPTIONS...
    local who=$1 method=$2; shift 2
    [ "$method" = direct ] || set -- --index "$out/index" "$@"
    sleuth evaluate "$who" "${suites[@]}" --method "$method" "${room[@]}" --out "$out/$name-$row.evaluation" "$@"
}

same questions < <(echo "K=$k MADE=$made VALIDATION=$validation"; cd "$data" && cksum ./*.jsonl.gz)
same "$name" < <(cat "$model"/*.safetensors "$model"/tokenizer.json | cksum)
case $row in rag-sft | cold | rl) same "$name-taught" <<< "RATE=${RATE:-2e-4} RATE2=${RATE2:-1e-4}" ;; esac
[ "$row" = direct ] || index
case $row in direct | search) ;; *) questions ;; esac
case $row in
direct) ask "$model" direct --set agent.turn_tokens=160 ;;
rag) tries=$(ways "$model" rag 0 3; ways "$model" rag-cot 0 3); read_by_the_best_of "$tries" ;;
search) ask "$model" search "${agent[@]}" ;;
rag-sft) # with an answer alone, and with a thought before it
    for prompt in rag rag-cot; do learned $prompt --method rag "${reader[@]}" --set agent.prompt=$prompt --set retrieval.k="$k"; done
    tries=$(for prompt in rag rag-cot; do ways "$out/$name-$prompt" $prompt 0; done)
    read_by_the_best_of "$tries" ;;
cold) learned search --method search "${agent[@]}"; ask "$out/$name-search" search "${agent[@]}" ;;
rl) reinforced; ask "$out/$name-rl" search "${agent[@]}" ;;
esac
