"""What a head is: all that training, conversion, serving and exports ask of one.

Owns the questions, and the names of the weights that heads are made of. The heads themselves are in
task_heads.py, a class for each; their models are in model/heads.py.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
from jax.typing import DTypeLike

from bert_jax.configs.model.model_config import FAMILIES
from bert_jax.configs.model.sentence import VectorsConfig
from bert_jax.configs.schema import ModelConfig
from bert_jax.model import heads
from bert_jax.train.losses.objective import Batch, Objective
from bert_jax.train.losses.settings import LossSettings

# Lines of model cards that several heads share.
PIPELINE = 'from transformers import pipeline\n\nask = pipeline({tag!r}, {name!r})\n'
ONE = PIPELINE + "print(ask('A text.'))"
AUTO = (
    'from transformers import AutoTokenizer, {auto}\n\n'
    'tokenizer, model = AutoTokenizer.from_pretrained({name!r}), {auto}.from_pretrained({name!r})\n'
)


class Part(NamedTuple):
    """Weights above the encoder's blocks; heads share them.

    Their names in other programs are those of the families (configs/model/families).

    Attributes:
      path: how the paths of its arrays begin in our tree.
      of_task: whether the task says how many outputs they have, by its labels or settings.
      goes_on: whether a task goes on with those of its source.
      of_words: whether they give a number to each entry of the vocabulary at every position: a
        task cannot begin without those of its source.
    """

    path: str
    of_task: bool = False
    goes_on: bool = False
    of_words: bool = False


PARTS = {
    'pooler': Part('encoder/pooler/'),
    'head': Part('head/', goes_on=True),
    'mlm': Part('mlm/', goes_on=True, of_words=True),
    'nsp': Part('nsp/'),
    'detection': Part('detection/'),
    'classifier': Part('classifier/', of_task=True),
    'span': Part('span/'),
    'projection': Part('projection/', of_task=True, goes_on=True),
}


class ExampleScript(NamedTuple):
    """A head's own lines, in Python, of the script that an exported folder has.

    The other lines are those of bert_jax/inference/serving_folder.py.

    Attributes:
      answer: prints what the outputs `out` say.
      usage: the arguments on the command line, `words` in the script.
      texts: what the tokenizer reads of them, a list.
      batch: the program's inputs, from `rows`.
      truncation: which text the tokenizer cuts where both are too long.
      least: how many arguments there must be.
      most: how many there may be.
    """

    answer: str
    usage: str = "'a text' ['its pair']"
    texts: str = '[tuple(words) if len(words) > 1 else words[0]]'
    batch: str = 'batch = {name: np.array(value, np.int32) for name, value in rows.items()}'
    truncation: str = 'longest_first'
    least: int = 1
    most: int = 2

    def with_texts(self, texts: int | None) -> ExampleScript:
        """Return the script for texts alone (1) or for pairs (2); None: for both, as it is."""
        if not texts or self.usage != ExampleScript('').usage:
            return self
        usage = "'a text'"
        if texts == 2:
            usage = "'a text' 'its pair'"
        return self._replace(usage=usage, least=texts, most=texts)


class HubCard(NamedTuple):
    """How a model card shows a head.

    Attributes:
      task: what the Hub calls its task; None where it has no name for it.
      purpose: what the encoder with this head does.
      example: lines of Python that use it; {name!r} is the model's, {tag!r} the task.
    """

    task: str | None
    purpose: str
    example: str


class Head:
    """What stands on the encoder for a purpose.

    Attributes:
      name: as tasks and files of runs call it.
      module: the model.
      parts: names in PARTS of the weights that the model's results depend on.
      architecture: transformers' class for BERT; `class_in` has that of another family.
      output_names: what transformers calls the outputs.
      inputs: what the model reads -> its axes, as in 'b, t', int32: b rows, t positions, p masked
        positions, c choices.
      problem_type: what transformers is told besides the class, or None.
      peft_task: what peft calls the task, or None.
      google: the parts by which a checkpoint of google-research/bert is known to have this head;
        () where the reference has no such head.
      labelled: whether the outputs are called by labels.
      of_words: whether words are given to it one by one, each as behind a space.
      fits_whole_words: whether an encoder whose tokens are whole words may have it.
      pipeline: the class of bert_jax/inference/pipelines.py that asks it and makes its answers;
        None where it gives only arrays.
      script: its lines of an exported folder's example.
      card: how a model card shows it.
      vectors: what is kept of the vectors that it makes of texts; None where it makes none.
    """

    name: ClassVar[str]
    module: ClassVar[type[heads.EncoderModel]]
    parts: tuple[str, ...]
    architecture: ClassVar[str]
    output_names: ClassVar[tuple[str, ...]] = ('logits',)
    inputs: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ('input_ids', 'input_mask', 'segment_ids'), 'b, t'
    )
    problem_type: ClassVar[str | None] = None
    peft_task: ClassVar[str | None] = None
    google: ClassVar[tuple[str, ...]] = ()
    labelled: ClassVar[bool] = False
    of_words: ClassVar[bool] = False
    fits_whole_words: ClassVar[bool] = True
    pipeline: ClassVar[str | None] = None
    script: ClassVar[ExampleScript]
    card: ClassVar[HubCard]
    vectors: ClassVar[type[VectorsConfig] | None] = None

    def read_outputs(self, result: Any, config: ModelConfig) -> tuple[jax.Array, ...]:
        """Return the outputs of a model's result, float32, in the order of their names.

        Logits are before any softmax.
        """
        return (result,)

    def decode(self, result: Any, batch: Batch, n_best: int) -> dict[str, jax.Array]:
        """Return the arrays that a task decodes; n_best: of spans, how many starts and ends."""
        return {'logits': result}

    def answer_with(self, max_seq_length: int) -> dict[str, Any]:
        """Return the options that all its trained models answer with (`chosen` of a model)."""
        return {}

    def describe_vectors(
        self, settings: LossSettings, prompts: Mapping[str, str], max_seq_length: int
    ) -> VectorsConfig | None:
        """Return what is kept of the vectors of a model that was trained so.

        Args:
          settings: what its loss was told.
          prompts: those of its task.
          max_seq_length: word pieces of its rows.
        """
        return None

    def read_host(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs of all rows, which have left the device, as a task decodes them."""
        return outputs

    def is_in(self, family: str) -> bool:
        """Tell whether a family has such a head: not each has those of pre-training."""
        traits = FAMILIES[family]
        if 'detection' in self.parts and 'detection/out' not in traits.transformers.arrays:
            return False
        suffix = self.architecture.removeprefix('Bert')
        return 'nsp' not in self.parts or suffix in traits.pairs

    def of(self, family: str) -> Head:
        """Return the head as a family has it: with its pooler, or with the head that all share."""
        class_head, is_bare = FAMILIES[family].class_head, self.architecture == 'BertModel'
        head = copy.copy(self)
        if class_head.place == 'all' or (is_bare and not class_head.in_bare):
            head.parts = tuple(part for part in self.parts if part != 'pooler')
        if class_head.place == 'all' and not is_bare:
            head.parts = ('head', *head.parts)
        return head

    def class_in(self, family: str) -> str:
        """Return the class of transformers for a family."""
        return FAMILIES[family].class_of(self.architecture)

    def model(
        self,
        config: ModelConfig,
        dtype: DTypeLike,
        outputs: int,
        head_dropout: float = 0.0,
        remat: str = 'none',
        scan: bool = False,
        sentence: VectorsConfig | None = None,
    ) -> Any:
        """Make the encoder of `config` with this head, layers computed in `dtype`.

        `outputs` (labels or numbers), `head_dropout` and `sentence` are used where the head has
        such a choice; `remat` and `scan` are those of RuntimeConfig.
        """
        # Heads differ in these three fields alone; the rest is EncoderModel's.
        fields = {field.name for field in dataclasses.fields(self.module)}
        offered = {'outputs': outputs, 'head_dropout': head_dropout, 'sentence': sentence}
        taken: dict[str, Any] = {}
        for name, value in offered.items():
            if name in fields and value is not None:
                taken[name] = value
        return self.module(config, dtype, remat, scan, **taken)


class TaskHead(Head):
    """A head that fine-tuning trains.

    Attributes:
      objective: makes what is minimised, of this head on its encoder; where it has targets, of
        these too.
      has_targets: whether its objective reads weights of classes and smoothing.
      has_consistency: whether AdaMix's consistency loss compares two passes of a batch.
      sections: the sections of the configuration that it alone reads, or that few heads do.
    """

    objective: ClassVar[Callable[..., Objective]]
    sections: ClassVar[tuple[str, ...]] = ()
    has_targets: ClassVar[bool] = False
    has_consistency: ClassVar[bool] = False

    def make_objective(self, model: Any, settings: LossSettings) -> Objective:
        """Return what is minimised.

        Args:
          model: this head on its encoder.
          settings: what losses are told; each head reads its own.
        """
        if self.has_targets:
            return self.objective(model, settings.targets)
        return self.objective(model)
