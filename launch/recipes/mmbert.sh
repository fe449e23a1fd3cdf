#!/usr/bin/env bash
# mmBERT's pre-training (Marone et al. 2025): three phases, each with more languages, a flatter
# mixture of them and fewer masks, and each a run of its own that goes on with the weights and
# moments of the one before. Started again it goes on where it was stopped.
#
#   cp mmbert.sh run.sh                                    # then edit run.sh down to the line below
#   TEXT=inputs TOKENIZER=vocab OUTPUT=mmbert bash run.sh
#
# TEXT is a folder with a file for each phase, 1.txt, 2.txt and 3.txt: a line for each language, as
# en=text/en/*.txt. OUTPUT gets the records and the runs; the model is in OUTPUT/run3.
#
# From the paper and its configurations: languages (60, 110, 1,833), exponents, masks, lengths,
# rates, the optimizer, tokens of each phase and of the batch's growth, both thetas.
# Assumed, since they are not stated there: that the batch grows from 768, as ModernBERT's; warm-up
# over 3 billion tokens, likewise. Phase 1 masked 30 % by the paper, and its configuration says 25 %.
# Its text and its tokenizer are not here, and the recipe was never run at this size.
set -euo pipefail
: "${TEXT:?} ${TOKENIZER:?} ${OUTPUT:?}"

CONFIG=${CONFIG:-mmbert_base}
# Tokens of a step are 4,608 x 1,024 in every phase: 2.0 T, 600 B and 100 B tokens.
STEPS=(${STEPS:-436569 127157 21193})
LENGTHS=(${LENGTHS:-1024 8192 8192})
BATCHES=(${BATCHES:-4608 576 576})
# Six sizes of the batch in phase 1, each of the smaller five for 5,086 steps: 60 B tokens.
GROWTH=${GROWTH:-'"batch_warmup_from": 768, "batch_warmup_steps": 5086'}
WARMUP=${WARMUP:-3815}
# The base of rotary positions: of global and of local layers.
SHORT=${SHORT-model.rope_theta=10000 model.local_rope_theta=10000}
LONG=${LONG-model.rope_theta=160000 model.local_rope_theta=160000}
# Settings of all runs: micro-batches, the mesh, what is logged.
MORE=${MORE:-runtime.accumulation=6 runtime.compute_dtype=bfloat16}

# ---- From here on nothing needs to be edited.

EXPONENTS=(0.7 0.5 0.3)
MASKS=(0.30 0.15 0.05)
OPTIMIZER='algorithm=stable_adamw peak_lr=8e-4 b1=0.9 b2=0.95 eps=1e-8 clip_norm=none
  decay=fully_decoupled weight_decay=8e-5'
# Down to 0.02 of the peak over all of the last phase; flat before.
SCHEDULES=("schedule=constant warmup_steps=$WARMUP" 'schedule=constant warmup_steps=0'
  'schedule=wsd decay_fraction=1 decay_shape=one_minus_sqrt end_lr=1.6e-5 warmup_steps=0')

for i in 0 1 2; do
  number=$((i + 1)) records=$OUTPUT/records$((i + 1)) inputs=() settings=() from=()
  while IFS= read -r line; do
    [ -z "$line" ] || inputs+=("--input=$line")
  done < "$TEXT/$number.txt"
  [ -e "$records/manifest.json" ] || bert-preprocess "${inputs[@]}" --tokenizer="$TOKENIZER" \
    --output="$records" --seq_len="${LENGTHS[i]}" --language_exponent="${EXPONENTS[i]}" \
    --masked_lm_prob="${MASKS[i]}" --objective=full_sentences --packing --dupe_factor=1

  phase="\"seq_len\": ${LENGTHS[i]}, \"steps\": ${STEPS[i]}, \"batch_size\": ${BATCHES[i]}"
  theta=$LONG
  if [ "$i" = 0 ]; then
    theta=$SHORT phase+=", $GROWTH"
  else
    from=(--init_from="$OUTPUT/run$i" --init_by=weights_and_moments)
  fi
  for setting in $OPTIMIZER ${SCHEDULES[i]}; do settings+=(--set "optimizer.$setting"); done
  for setting in $theta $MORE; do settings+=(--set "$setting"); done
  bert-pretrain --config="$CONFIG" ${from[@]+"${from[@]}"} --data="$records" --workdir="$OUTPUT/run$number" \
    --set "phases=[{$phase}]" "${settings[@]}"
done
