"""What names of transformers, sentence-transformers and peft are called here.

Owns the tables of docs/coming_from_huggingface.md, which are made of these, and what the refusal of
an unknown flag proposes. It is imported where such a flag is met, and at no other time. It must not
know which flags a command has: those are given to it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Iterator, Sequence

# {heading on the page: rows}. A row is names there, and indented below them what is here:
# `bert-x`: ...; `bert-y`, `bert-z`: ...; others: ... The first row of a table heads
# its columns, and names the commands that the table is about.
TABLES = {
    'Models and files': """
there
    here
`model_name_or_path`
    `bert-preprocess`: `--tokenizer`; `bert-train-vocab`: `--extend`, to add words; `bert-pretrain`,
    `bert-finetune`, `bert-evaluate`, `bert-export`, `bert-predict`, `bert-fill-mask`,
    `bert-nearest`, `bert-extract-features`: `--init_from`
`config_name`, `config_overrides`, `model_type`
    `bert-pretrain`: `--config`: a preset, a Python file or JSON; others: none: the shape is that of
    the source
`tokenizer_name`
    `--tokenizer` of `bert-preprocess`; a run takes it from its records or from its source
`output_dir`, `save_directory`
    `bert-pretrain`, `bert-finetune`, `bert-study`, `bert-quickstart`: `--workdir`; `bert-plan`:
    `--json`, a file; `bert-fill-mask`, `bert-nearest`: none: answers are printed; others:
    `--output` of `bert-preprocess`, `bert-export`, `bert-predict` and others
`train_file`, `dataset_name`, `dataset_config_name`
    `bert-pretrain`: `--data`, the records of `bert-preprocess`; `bert-finetune`:
    `--task=train.csv`, or `--task=hf:NAME:CONFIG:SPLIT`; `bert-preprocess`, `bert-train-vocab`:
    `--input=FILE`, `--input=hf:NAME:CONFIG:SPLIT` or `--input=tfds:NAME/SPLIT`
`validation_file`
    `bert-finetune`: `--dev`; others: `--eval_input` of `bert-preprocess`
`validation_split_percentage`
    `bert-finetune`: `dev_share` in the task file; others: `--eval_fraction` of `bert-preprocess`,
    of documents by their text: copies stay together
`test_file`, `predict_file`
    `--input` of `bert-predict`, or `test` in the task file and `bert-evaluate --split=test`
`text_column_name`, `text_column_names`
    `bert-preprocess`, `bert-train-vocab`: `--text_column`; `bert-finetune`, `bert-evaluate`,
    `bert-predict`, `bert-nearest`, `bert-extract-features`: `--columns=text=NAME`
`label_column_name`, `question_column_name`, `context_column_name`, `answer_column_name`
    `--columns=label=NAME` of `bert-finetune`, or `columns` in the task file
`max_seq_length`, `max_length`, `block_size`
    `bert-preprocess`: `--seq_len`; `bert-pretrain`: `--set phases.0.seq_len=`, as in the records;
    `bert-finetune`: `--set max_seq_length=`; others: `--max_seq_length` of `bert-predict`
`max_train_samples`
    `bert-finetune`: `--set train_examples=`; others: none: there are `--steps` of `bert-pretrain`
`max_eval_samples`, `max_predict_samples`
    `bert-pretrain`: `--set runtime.eval_batches=`; others: none: files are scored and answered
    whole
`cache_dir`, `token`, `use_fast_tokenizer`, `ignore_mismatched_sizes`
    none: `HF_HOME`, `hf auth login`; a new task gets a new head
`model_revision`, `revision`
    `bert-pretrain`, `bert-finetune`, `bert-export`, `bert-predict`: `--init_from=NAME@REVISION`
`trust_remote_code`
    none: code from a checkpoint is never run
""",
    'Text and masks: run_mlm.py': """
there
    here (`bert-preprocess`)
`mlm_probability`
    `--masked_lm_prob`, and `--max_predictions`
masks drawn anew for each batch (the collator)
    `--masking=dynamic`; the default draws them once
whole-word masking (`DataCollatorForWholeWordMask`), `whole_word_mask`
    `--whole_word`
blocks of text without pairs
    `--objective=full_sentences`; the default has pairs and next-sentence prediction
`line_by_line`
    none: a row has sentences of its document. `--packing` puts short rows together
`preprocessing_num_workers`
    `--workers`
`overwrite_cache`, `overwrite_output_dir`
    `--overwrite`; a finished run is never taken by mistake
`streaming`
    none: records are always streamed
""",
    'Tasks: run_glue.py, run_qa.py, run_ner.py, run_swag.py': """
there
    here (`bert-finetune`)
`task_name`
    `--task`, with `--data_dir` for its files
`do_regression`
    `--kind=regression`
`pad_to_max_length`
    `--set length_buckets=3` is the nearest to padding by batch; records have rows of one length
`version_2_with_negative`
    `--task=squad_v2`, or `unanswerable` in the task file
`doc_stride`, `n_best_size`, `max_answer_length`, `null_score_diff_threshold`
    `doc_stride`, `n_best`, `max_answer_length`, `null_threshold` in the task file
`label_all_tokens`
    none: a word's tag is that of its first piece (the paper)
`return_entity_level_metrics`
    always: entity F1 as conlleval has it
`do_train`, `do_eval`, `do_predict`
    the command: `bert-finetune` trains and scores, `bert-evaluate` scores, `bert-predict` answers
`metric_for_best_model`, `metric_name`, `greater_is_better`
    the first of `metrics` in the task file
""",
    'TrainingArguments': """
there
    here (`bert-pretrain`, `bert-finetune`)
`num_train_epochs`, `num_epochs`, `epochs`
    `bert-finetune`: `--epochs`; `bert-pretrain`: `--set phases.0.steps=`: there are steps alone
`max_steps`, `num_train_steps`
    `--steps`
`per_device_train_batch_size`, `train_batch_size`
    `--batch_size`, of all devices together
`per_device_eval_batch_size`, `eval_batch_size`
    none: as in training
`auto_find_batch_size`
    none: `bert-plan` says before the run what fits
`gradient_accumulation_steps`
    `--set runtime.accumulation=`: cuts the batch, and does not multiply it
`learning_rate`, `lr`
    `bert-plan`, `bert-pretrain retvec`, `bert-finetune transfer`, `bert-finetune feature-based`:
    `--set optimizer.peak_lr=`; others: `--learning_rate`
`warmup_steps`, `warmup_ratio`, `num_warmup_steps`
    `bert-finetune`: `--set warmup_fraction=`, a share of the steps; others: `--set
    optimizer.warmup_steps=`
`lr_scheduler_type`, `scheduler`
    `--set optimizer.schedule=`: `linear`, `cosine`, `constant` (each after warm-up), `polynomial`,
    `wsd`, `bert`
`lr_scheduler_kwargs`
    `--set optimizer.power=`, `--set optimizer.end_lr=`, `--set optimizer.decay_fraction=`
`optim`
    `--set optimizer.algorithm=adamw` for `adamw_torch`; the default has no bias correction
`weight_decay`
    `--set optimizer.weight_decay=`
`adam_beta1`, `adam_beta2`, `adam_epsilon`, `optim_args`
    `--set optimizer.b1=`, `--set optimizer.b2=`, `--set optimizer.eps=`
`max_grad_norm`
    `--set optimizer.clip_norm=`
`label_smoothing_factor`
    `bert-finetune`: `--set label_smoothing=`; others: none: only fine-tuning has it
`neftune_noise_alpha`
    none: write an objective ([extending.md](extending.md))
`bf16`, `bf16_full_eval`, `torch_dtype`, `dtype`
    `bert-export`, `bert-predict`, `bert-extract-features`: `--compute_dtype`; `bert-pretrain`,
    `bert-finetune`: `--set runtime.compute_dtype=bfloat16`
`fp16`, `fp16_full_eval`, `fp16_opt_level`
    none: `--set runtime.compute_dtype=bfloat16` needs no scaling of the loss
`tf32`
    `--set runtime.matmul_dtype=`
`gradient_checkpointing`, `activation_checkpointing`, `gradient_checkpointing_kwargs`
    `--set runtime.remat=full`, or `--set runtime.remat=dots`
`seed`, `data_seed`
    `--set seed=`, one for both; `--sweep="seed=0,1,2"` of `bert-finetune` for several
`full_determinism`
    `--deterministic` on a GPU; a CPU always is
`use_cpu`, `no_cuda`
    none: `JAX_PLATFORMS=cpu` before the command
`logging_steps`, `logging_strategy`, `logging_first_step`
    `--set runtime.log_every=`
`logging_dir`, `include_num_input_tokens_seen`
    none: the workdir has logs and TensorBoard's files
`log_level`, `disable_tqdm`
    none: `2>/dev/null` hides the log
`report_to`
    `--track=wandb` or `--track=mlflow`; TensorBoard's files are always there
`run_name`, `project`
    none: the workdir's ([extending.md](extending.md) has others)
`eval_steps`, `eval_strategy`, `evaluation_strategy`
    `bert-finetune`: `--set score_every=`; others: `--set runtime.eval_every=`
`eval_delay`, `eval_on_start`, `eval_accumulation_steps`
    none: evaluations are at steps
`save_steps`, `save_strategy`
    `--set runtime.checkpoint_every=`
`save_total_limit`
    `--set runtime.keep_checkpoints=`
`save_only_model`
    none: `bert-export` writes the model alone
`load_best_model_at_end`
    `bert-finetune`: `--set select=best`; others: always: the best checkpoint is kept beside the
    last
`EarlyStoppingCallback`, `early_stopping_patience`
    `bert-finetune`: `--set patience=`; others: none: only fine-tuning has it
`resume_from_checkpoint`, `ignore_data_skip`
    the same command again goes on
`fsdp`, `fsdp_config`, `parallelism_config`
    `--set runtime.fsdp=`, `--set runtime.model_parallel=`, `--set runtime.shard_optimizer=`
`torch_compile`, `jit_mode_eval`, `use_liger_kernel`
    always compiled, by XLA
`deepspeed`, `local_rank`, `ddp_backend`, `ddp_find_unused_parameters`, `ddp_timeout`
    `bert-pretrain`: `--distributed`; others: none: one program for all local devices
`dataloader_num_workers`, `dataloader_pin_memory`, `dataloader_prefetch_factor`
    none: batches are made ahead; `input_wait` in the log tells if that suffices
`dataloader_drop_last`, `remove_unused_columns`, `label_names`
    none: each batch is full, and columns are named
`group_by_length`, `train_sampling_strategy`, `length_column_name`
    `bert-finetune`: `--set length_buckets=`; others: none: rows are full, or packed by
    `bert-preprocess`
`push_to_hub`, `hub_model_id`, `hub_token`, `hub_strategy`
    none: `bert-export` writes the folder, `hf upload` sends it
`hyperparameter_search`
    `--sweep` of `bert-finetune`, a grid in one process
""",
    'config.json of a model': """
there
    here (`bert-pretrain`, `bert-plan`)
`num_hidden_layers`, `num_attention_heads`
    `--set model.num_layers=`, `--set model.num_heads=`
`max_position_embeddings`
    `--set model.max_position=`
`hidden_dropout_prob`, `attention_probs_dropout_prob`
    `--set model.hidden_dropout=`, `--set model.attention_dropout=`
`attn_implementation`
    `--set runtime.attention=`
""",
    'sentence-transformers': """
there
    here (`bert-finetune`)
`SentenceTransformer(NAME)`, `CrossEncoder(NAME)`
    `--init_from=NAME`; in Python `Bert.load` and `Predictor`
`encode`
    `Bert.load(DIR).embed(TEXTS)`, or `bert-extract-features`
`MultiVectorEncoder(NAME)`, `encode_query`
    `Bert.load(NAME).embed(TEXTS, prompt='query')`
`MultipleNegativesRankingLoss`, `loss`
    `--set embedding.loss=multiple_negatives`
`CachedMultipleNegativesRankingLoss`, `mini_batch_size`
    that with `--set embedding.chunk_size=`
`CoSENTLoss`, `CosineSimilarityLoss`, `MSELoss`
    `--set embedding.loss=cosent`, `--set embedding.loss=cosine`, `--set embedding.loss=mse`
`MarginMSELoss`, `DistillKLDivLoss`
    `--set embedding.loss=margin_mse`, `--set embedding.loss=distill_kl`
`MatryoshkaLoss`, `matryoshka_dims`
    `--set embedding.matryoshka=384,192`
`DenoisingAutoEncoderLoss`, `TripletLoss`, `ContrastiveLoss`, `GISTEmbedLoss`
    none: triplets train with `--set embedding.loss=multiple_negatives`
`Pooling`, `pooling_mode`, `Normalize`
    `--set embedding.pooling=`, `--set embedding.normalize=`
`truncate_dim`
    `--set embedding.truncate_dim=`
`prompts`
    `prompts` in the task file
`batch_sampler`
    always without duplicates in a batch
`multi_dataset_batch_sampler`, `router_mapping`, `learning_rate_mapping`
    none: one data set, one encoder; `--set optimizer.layer_decay=` for rates of blocks
`InformationRetrievalEvaluator`, `NanoBEIREvaluator`
    `bert-evaluate --retrieval=DIR`
`EmbeddingSimilarityEvaluator`, `BinaryClassificationEvaluator`
    `bert-evaluate --sts=FILE`, `bert-evaluate --pairs=FILE`
`mine_hard_negatives`, `semantic_search`
    `bert-nearest`, with `--mine` for the first
`BinaryCrossEntropyLoss`, `ListNetLoss`, `LambdaLoss`, `RankNetLoss`
    `--set ranking.loss=` ([search.md](search.md))
`rank`, `CrossEncoderRerankingEvaluator`
    `Bert.load(DIR).rank(QUERY, DOCUMENTS)`, `bert-evaluate --retrieval=DIR --rerank=MODEL`
""",
    'pipeline and AutoModel': """
there
    here
`pipeline('fill-mask')`
    `bert-fill-mask`
`pipeline('text-classification')`, `'token-classification'`, `'question-answering'`
    `bert-predict`, or `Predictor` in Python ([serving.md](serving.md))
`pipeline('feature-extraction')`
    `bert-extract-features`
`top_k`
    `--top` of `bert-predict`
`stride`
    `--doc_stride` of `bert-predict`
`aggregation_strategy`
    none: a word has one tag, that of its first piece
`AutoModel`, `AutoTokenizer`
    `Bert.load(DIR)` in Python
`AutoModelForMaskedLM`, `AutoModelForPreTraining`
    `bert-pretrain`
`AutoModelForSequenceClassification`
    `--kind=classification` of `bert-finetune`
`AutoModelForTokenClassification`
    `--kind=tagging` of `bert-finetune`
`AutoModelForQuestionAnswering`, `AutoModelForMultipleChoice`
    kinds `span` and `choice` in the task file
""",
    'peft': """
there
    here (`bert-finetune`)
`LoraConfig`, `use_peft`
    `--set tuning.method=lora`
`r`, `lora_r`, `lora_alpha`, `lora_dropout`
    `--set tuning.rank=`, `--set tuning.alpha=`, `--set tuning.lora_dropout=`
`target_modules`, `layers_to_transform`
    `--set tuning.matrices=`, `--set tuning.frozen_layers=`
`IA3Config`
    `--set tuning.method=ia3` with `--set tuning.vectors=peft`; the paper's without it
`modules_to_save`
    `--set tuning.pooler=trained`; the head is always trained
`save_pretrained`, `from_pretrained`
    `bert-export --format=peft`; `--init_from` ([peft_files.md](peft_files.md))
`merge_and_unload`
    `bert-export merge`, or `bert-export --init_from=ADAPTER`
""",
}
_COMMANDS = re.compile('(`bert-[a-z -]+`(?:, `bert-[a-z -]+`)*|others): ')
_LINK = re.compile(r'\[([^]]+)\]\([^)]+\)')


def read_rows(table: str) -> Iterator[tuple[str, str]]:
    """Yield (names there, what is here) of each row, that of the head first."""
    for row in re.split(r'\n(?=\S)', table.strip()):
        there, *here = row.split('\n')
        yield there, ' '.join(line.strip() for line in here)


def propose(name: str, command: str, flags: Sequence[str], settings: Iterable[str]) -> str:
    """Return what a user may have meant by an unknown flag; '' where nothing is like it.

    Args:
      name: the flag as it was typed, without its dashes.
      command: what was typed before it, as `bert-finetune transfer`.
      flags: the command's own flags.
      settings: the dotted names that its --set takes.
    """
    wanted = name.lower().replace('-', '_')
    # A setting is known by its whole name, and by the last part, which several may share.
    proposals = {flag: [f'--{flag}'] for flag in flags}
    for setting in settings:
        setting = setting.replace('.N.', '.0.')
        for spelling in {setting, setting.rpartition('.')[2]} - {*flags}:
            proposals.setdefault(spelling, []).append(f'--set {setting}=')

    # A slip in one of our own flags, then another program's name, then what looks a little alike.
    close = difflib.get_close_matches(wanted, flags, n=1, cutoff=0.85)
    if not close and (here := _find_counterpart(wanted, command, proposals)):
        here = _LINK.sub(r'docs/\1', here)
        # What another command has stands as it is typed there.
        if not here.startswith('bert-'):
            here = re.sub('`([^`]+)`', lambda code: _type(code[1], proposals), here)
        return f'its counterpart: {here.replace("`", "")}'
    close = close or difflib.get_close_matches(wanted, proposals, n=1)
    return f'did you mean {" or ".join(proposals[close[0]])}?' if close else ''


def _find_counterpart(name: str, command: str, proposals: Container[str]) -> str:
    """Return what the tables say of a name to users of a command; '' where it is in none."""
    family = command.split()[0].replace('plan', 'pretrain')
    for table in TABLES.values():
        (_, head), *body = read_rows(table)
        owners = re.findall('`([^`]+)`', head)
        for there, here in body:
            if name not in re.findall(r"[`'](\w+)", there.lower().replace('-', '_')):
                continue
            by_command = _split(here)
            near = [each for each in (command, family, 'others') if each in by_command]
            if near and (near[0] != 'others' or not owners or family in owners):
                answer = by_command[near[0]]
                named = re.findall(r'`--(\w+)[^`]*`(?! of `)', answer)
                if all(flag in proposals for flag in named):
                    return answer
            # Of other commands, all that is said, with their names.
            is_named = _COMMANDS.match(here) or not owners
            return here if is_named else f'{" or ".join(owners)}: {here}'
    return ''


def _split(here: str) -> dict[str, str]:
    """Return {command: what is said to its users}; `others` has what is said to all others."""
    first, *parts = _COMMANDS.split(here)
    if first:
        return {'others': here}
    by_command: dict[str, str] = {}
    for named, text in zip(parts[::2], parts[1::2]):
        by_command |= dict.fromkeys(named.replace('`', '').split(', '), text.removesuffix('; '))
    return by_command


def _type(code: str, proposals: dict[str, list[str]]) -> str:
    """Return a flag as it is typed: by --set in a command that has the setting alone."""
    name, _, value = code.removeprefix('--').partition('=')
    if code.startswith('--') and proposals.get(name, [''])[0].startswith('--set '):
        return proposals[name][0] + value
    return code
