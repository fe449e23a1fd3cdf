"""The MLM and NSP measures on held-out records: of a model in training, and of a workdir.

Owns that evaluation alone; what is measured is in bert_jax/train/losses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from bert_jax.configs.errors import UserError
from bert_jax.configs.schema import DistillationConfig, PretrainConfig, hash_config
from bert_jax.input_pipeline.records.shards import Manifest
from bert_jax.input_pipeline.records.stream import RecordStream
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.mesh import construction, processes, sharding
from bert_jax.model import partition
from bert_jax.runs.pretraining import baselines
from bert_jax.runs.pretraining.phase_data import PhaseData
from bert_jax.runs.pretraining.records import check_model_reads
from bert_jax.runs.workdir import notes, word_vectors
from bert_jax.runs.workdir.run_context import RunContext
from bert_jax.runs.workdir.workdir import Workdir
from bert_jax.train.loop import EvalResult, Evaluation, iterate_ahead
from bert_jax.train.losses.objective import Batch, MetricSums
from bert_jax.train.metrics_accumulator import add_sums, compute_means
from bert_jax.train.pretraining_program import PretrainingSetup
from bert_jax.train.state import TrainState, join_frozen
from bert_jax.train.step import make_eval_step


def measure(
    eval_step: Callable[[Any, Batch], MetricSums], params: Any, batches: Iterable[Batch]
) -> dict[str, float]:
    """Return means over all batches; `masked` and `examples` are counts."""
    return measure_languages(eval_step, params, (('', batch) for batch in batches))


def measure_languages(
    eval_step: Callable[[Any, Batch], MetricSums],
    params: Any,
    batches: Iterable[tuple[str, Batch]],
) -> dict[str, float]:
    """Measure batches that each come with their language ('': not named), as `measure` does.

    mlm_loss_LANGUAGE and mlm_accuracy_LANGUAGE are those of one language.
    """
    # Sums and weights are added, and divided once at the end: a mean of the batches' means would
    # count a short last batch too much.
    total: dict[str, list[float]] = {}
    by_language: dict[str, dict[str, list[float]]] = {}
    dispatched = ((language, eval_step(params, batch)) for language, batch in batches)
    for language, on_devices in iterate_ahead(dispatched):
        sums = jax.device_get(on_devices)
        add_sums(total, sums)
        add_sums(by_language.setdefault(language, {}), sums)
    measures = compute_means(total)
    for language, of_language in by_language.items():
        if language:
            its_means = compute_means(of_language)
            names = [name for name in ('mlm_loss', 'mlm_accuracy') if name in its_means]
            measures |= {f'{name}_{language}': its_means[name] for name in names}

    # exp(700) is about the largest float there is; a diverged model should not end in an error.
    if 'mlm_loss' in measures:
        measures['mlm_perplexity'] = math.exp(min(measures['mlm_loss'], 700.0))
        measures['masked'] = total['mlm_loss'][1]
    if 'nsp_loss' in measures:
        measures['examples'] = total['nsp_loss'][1]
    if 'rtd_loss' in measures:
        guess = baselines.measure_entropy(measures['rtd_share'])
        measures['rtd_nats_gained'] = guess - measures['rtd_loss']
    return measures


def iterate_languages(
    stream: RecordStream, max_batches: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield held-out batches with their languages: at most `max_batches` of each (0: all)."""
    for language in stream.languages:
        for batch in stream.evaluation(max_batches, language):
            yield language, batch


class HeldOutEvaluation:
    """The measures of a model in training on held-out records, compared with guessing.

    Attributes:
      guess: what guessing scores on the same records.
    """

    def __init__(
        self,
        data: PhaseData,
        eval_step: Callable[[Any, Batch], MetricSums],
        max_batches: int,
        nsp: bool,
        heartbeat: Callable[[], None],
    ):
        """Measure and log what guessing scores, with which every evaluation is compared.

        Args:
          data: of the phase, which has held-out records.
          eval_step: (params, batch) -> metric sums.
          max_batches: how many batches of each language are measured; 0: all.
          nsp: whether pairs are learnt.
          heartbeat: called with each batch: an evaluation may take longer than
            runtime.stall_minutes.
        """
        self._data, self._eval_step, self._max_batches = data, eval_step, max_batches
        self._heartbeat, self._stream = heartbeat, data.stream('eval')
        records, examples = data.records, data.phase.batch_size * max_batches
        self.guess = baselines.log_baselines(records.directory, examples, records.tokenizer, nsp)

    def __call__(self, step: int, state: TrainState) -> EvalResult:
        """Return the line of an evaluation, and its rank: best is the lowest loss."""
        del step
        params = join_frozen(state.params, state.frozen)
        measures = measure_languages(self._eval_step, params, self._batches())
        line = {'split': 'eval', **measures}
        if 'mlm_loss' in measures:
            line['nats_gained'] = self.guess.unigram_nll - measures['mlm_loss']
        # A student may learn a teacher's relations alone; of two models the detector is wanted.
        names = ('rtd_loss', 'mlm_loss', 'relation_loss')
        loss = next((measures[name] for name in names if name in measures), math.nan)
        # A loss that is not finite can be no best. Losses of different lengths do not compare: a
        # later phase's are always better.
        score = None
        if math.isfinite(loss):
            score = (float(self._data.number), -loss)
        return EvalResult(line, score)

    def _batches(self) -> Iterator[tuple[str, Batch]]:
        for language, batch in iterate_languages(self._stream, self._max_batches):
            self._heartbeat()
            yield language, self._data.place(batch)


def make_evaluation(
    context: RunContext,
    data: PhaseData,
    eval_step: Callable[[Any, Batch], MetricSums],
    setup: PretrainingSetup,
) -> Evaluation | None:
    """Make the evaluation of a phase, and note what guessing scores; None without any records."""
    if not data.records.manifest.records('eval'):
        return None
    objective = setup.objective
    runtime = context.runtime
    nsp = data.kind.nsp and setup.pair_loss and objective.learns_pairs
    evaluate = HeldOutEvaluation(data, eval_step, runtime.eval_batches, nsp, context.heartbeat)
    if processes.is_lead_process():
        scores = evaluate.guess.by_metric(nsp)
        if objective.beside:  # what guessing loses on another model's task is not in their sum
            del scores['loss']
        guess = notes.Guess(data.first, scores, data.records.lasting_path())
        notes.note_guess(context.folder.name, guess)
    return Evaluation(runtime.eval_every, evaluate)


def evaluate(folder: str, data: str, split: str) -> dict[str, Any]:
    """Measure the newest checkpoint on all records of the split; return eval/SPLIT.json."""
    # Not at the top: a run that trains evaluates without them, and starts sooner.
    from bert_jax.conversion.trained_model import check_parts
    from bert_jax.runs.finetuning.data_collator import eval_batch_size
    from bert_jax.runs.finetuning.evaluation import write_result
    from bert_jax.runs.sources.source import read_source

    workdir = Workdir(folder)
    config, manifest, tokenizer = _check_records(workdir, data, split)

    # The newest weights, on the devices that are here, whatever mesh they were trained on.
    source = read_source(workdir.name)
    check_parts(source.bert, workdir.name, 'it was trained by a program of your own')
    mesh = construction.make_mesh(construction.fit_to_devices(config.runtime))
    # plain attention: the kernel that the run was trained with may not be had on these devices
    setup = PretrainingSetup.from_config(
        dataclasses.replace(config, tuning=source.model.tuning, distillation=DistillationConfig()),
        config.find_phase(source.step),
    )
    model = setup.make_model(is_whole=True)
    objective = setup.make_objective(model, manifest.objective in ('nsp', 'sop'))
    eval_step = jax.jit(make_eval_step(objective))

    # No gradients are kept, so batches are larger than in training.
    size = eval_batch_size(mesh, manifest.seq_len, manifest.records(split))
    stream = RecordStream(data, split, size, config.seed, sharding.list_local_rows(mesh, size))
    beside = {name: model.params for name, model in source.bert.beside.items()}
    params = partition.put({**source.params, **beside}, mesh, config.runtime.scan_layers)
    inputs = word_vectors.inputs(config.model, tokenizer)

    # Every record once; the last batch is filled up with rows of weight 0.
    with jax.set_mesh(mesh):
        measures = measure_languages(
            eval_step,
            params,
            (
                (language, sharding.place_batch(inputs(batch), mesh, size))
                for language, batch in iterate_languages(stream)
            ),
        )

    # Which weights, of which run: what a later reader must know to trust the numbers.
    report = {
        'split': split,
        'metrics': measures,
        'records': manifest.records(split),
        'step': source.step,
        'config_hash': hash_config(config),
    }
    return write_result(workdir, split, report)


def _check_records(
    workdir: Workdir, data: str, split: str
) -> tuple[PretrainConfig, Manifest, Tokenizer]:
    """Return the run's settings, the records' manifest, the run's tokenizer.

    Raises:
      UserError: they do not go together.
    """
    from bert_jax.runs.finetuning.evaluation import check_writable

    # Before weights are read: first the kind of workdir ...
    config = workdir.config()
    if not isinstance(config, PretrainConfig):
        raise UserError(
            f'--workdir={workdir} is fine-tuned, and --data is for workdirs of bert-pretrain:'
            ' leave --data out'
        )
    check_writable(workdir)

    # ... then whether these records mean to the model what they meant to their makers.
    manifest, tokenizer = Manifest.load(data), workdir.tokenizer()
    word_vectors.check_vocabulary(workdir, config.model, tokenizer)
    if manifest.tokenizer_fingerprint != tokenizer.fingerprint:
        raise UserError(
            f'--data={data} was made with another tokenizer than --workdir={workdir} was trained'
            f' with: make it with {workdir}/tokenizer'
        )
    if manifest.seq_len > config.model.max_position:
        raise UserError(
            f'--data={data}: seq_len={manifest.seq_len} is beyond the position table'
            f' (model.max_position={config.model.max_position})'
        )
    check_model_reads(config.model, manifest, data)
    if not manifest.records(split):
        raise UserError(
            f'--data={data} has no records of split {split!r}: make them with --eval_fraction or'
            ' --eval_input'
        )
    return config, manifest, tokenizer
