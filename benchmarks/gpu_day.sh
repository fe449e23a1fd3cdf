#!/usr/bin/env bash
# What a GPU has to show, in about ten minutes: each part is a command as a user types it.
#
#   bash benchmarks/gpu_day.sh 'text/*.txt' [OUTPUT] [MRPC]
#
# text: raw text, blank lines between documents. OUTPUT, by default gpu_day, gets records, runs,
# figures and a log of each part. With MRPC, the folder of its files, a pre-training of an hour and
# its fine-tuning beside random weights follow. PRESET, LAYERS, LENGTH and BATCH name another model,
# its layers, the longer rows and the rows of a batch. Four layers, since all of bert_base's take a
# GPU's compiler a minute for each program.
# A part that fails is said, and the others go on.
set -uo pipefail
text=$1 out=${2:-gpu_day} mrpc=${3:-} preset=${PRESET:-bert_base}
length=${LENGTH:-512} layers=model.num_layers=${LAYERS:-4}
mkdir -p "$out"
failed=0

part() {  # NAME COMMAND...
  local begun=$SECONDS
  if "${@:2}" >> "$out/$1.log" 2>&1; then
    echo "$1: done in $((SECONDS - begun)) s: $(tail -n 1 "$out/$1.log")"
  else
    echo "$1: FAILED: $(tail -n 1 "$out/$1.log")"
    failed=1
  fi
}

pretrain() {  # LENGTH STEPS WORKDIR FLAGS...; with run=exec it takes the place of this shell
  local phase="{\"seq_len\": $1, \"steps\": $2, \"batch_size\": ${BATCH:-32}}"
  ${run:-} python -m bert_jax.launch.pretrain --config="$preset" --data="$out/records$1" \
    --workdir="$out/$3" --set "phases=[$phase]" --set "$layers" --set optimizer.warmup_steps=5 \
    --set runtime.log_every=10 "${@:4}"
}

# The same end as a run left alone, after a kill as soon as there is a checkpoint.
resume() {
  local flags=(--deterministic --set runtime.checkpoint_every=20)
  pretrain 128 60 alone "${flags[@]}" || return
  run=exec pretrain 128 60 killed "${flags[@]}" &
  while kill -0 $! 2>/dev/null && [ ! -e "$out/killed/checkpoints/20/meta/metadata" ]; do sleep 0.2; done
  kill -9 $! 2>/dev/null
  wait $! 2>/dev/null
  pretrain 128 60 killed "${flags[@]}" || return
  python - "$out" <<'PYTHON'
import json, pathlib, sys
ends = [
    json.loads(pathlib.Path(sys.argv[1], run, 'checkpoints/60/meta/metadata').read_text())
    for run in ('alone', 'killed')
]
same = ends[0]['fingerprints'] == ends[1]['fingerprints']
print('equal bits after a kill:', same, len(ends[0]['fingerprints']), 'arrays')
sys.exit(not same)
PYTHON
}

# Dropout of probabilities is off, since the fused kernel has none: the losses are to be close.
attention() {
  for kernel in xla cudnn; do
    pretrain "$length" 20 "attention_$kernel" --set model.attention_dropout=0 \
      --set model.hidden_dropout=0 --set "runtime.attention=$kernel" || return
  done
  tail -qn 1 "$out"/attention_*/metrics.jsonl
}

part vocabulary python -m bert_jax.launch.train_vocab --input="$text" --output="$out/vocabulary"
for rows in 128 "$length"; do
  part "records$rows" python -m bert_jax.launch.preprocess --input="$text" --segment \
    --tokenizer="$out/vocabulary" --output="$out/records$rows" --seq_len="$rows" --dupe_factor=2 \
    --eval_fraction=0.05
done
part resume resume
part attention attention
for rows in 128 "$length"; do
  part "speed$rows" python -m benchmarks.train_step --cases="$preset:$rows" --rounds=3 --seconds=1 \
    --set "$layers" --json="$out/speed$rows.json" --beside='runtime.dropout_rng=rbg' \
    --beside='runtime.scan_layers=true' \
    --beside='runtime.attention=xla model.attention_dropout=0' \
    --beside='runtime.attention=cudnn model.attention_dropout=0'
done
if [ "$preset" = bert_base ]; then
  for rows in 1024 8192; do
    part "modern$rows" python -m benchmarks.train_step --cases="modernbert_base:$rows" --rounds=3 \
      --seconds=1 --set "$layers" --packed=$((rows / 256)) --masked_share=0.3 \
      --json="$out/modern$rows.json"
  done
fi
if [ -n "$mrpc" ]; then
  part pretrain timeout --signal=TERM 3600 python -m bert_jax.launch.pretrain --config="$preset" \
    --data="$out/records128" --workdir="$out/pretrain"
  part mrpc python -m bert_jax.launch.finetune --task=mrpc --data_dir="$mrpc" \
    --init_from="$out/pretrain" --workdir="$out/mrpc" --sweep='init=source,random;seed=0,1,2'
fi
exit $failed
