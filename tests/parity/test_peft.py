"""Adapters against Hugging Face's peft, in float32: theirs read here, ours loaded there."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.configs.model.tuning_config import TuningConfig
from bert_jax.conversion import huggingface, peft, serving
from bert_jax.conversion.trained_model import Model, fold_tuned
from bert_jax.train.task_heads import HEADS
from tests.helpers.numpy_bert import noisy_params
from tests.parity import reference
from tests.parity.reference import torch, transformers

theirs = pytest.importorskip('peft', reason='peft is not installed: bash launch/test.sh --parity')

TINY = reference.sizes(num_hidden_layers=3)
ODD = reference.sizes(
    vocab_size=131, hidden_size=27, num_attention_heads=3, intermediate_size=50, hidden_act='relu'
)
# RoBERTa counts positions from its padding's number, and has one kind of segment.
ROBERTA = ODD | {
    'type_vocab_size': 1,
    'layer_norm_eps': 1e-5,
    'pad_token_id': 1,
    'bos_token_id': 0,
    'eos_token_id': 2,
}
CLASSIFIER, TAGGER = 'BertForSequenceClassification', 'BertForTokenClassification'
LORA = {'peft_type': 'LORA', 'task_type': 'SEQ_CLS'}
IA3 = {'peft_type': 'IA3', 'task_type': 'SEQ_CLS'}
FFN_ALONE = {
    'target_modules': ['key', 'value', 'output.dense'],
    'feedforward_modules': ['output.dense'],
    'exclude_modules': ['attention.output.dense'],
}
ADAPTERS = {
    'every_linear': (CLASSIFIER, ODD, LORA | {'r': 3, 'target_modules': 'all-linear'}),
    'regex': (CLASSIFIER, TINY, LORA | {'target_modules': r'.*layer\.[02]\.output\.dense'}),
    'depth': (CLASSIFIER, TINY, LORA | {'layers_to_transform': [1, 2], 'bias': 'all'}),
    'own_biases': (CLASSIFIER, TINY, LORA | {'bias': 'lora_only', 'lora_dropout': 0.3}),
    'norms': (CLASSIFIER, TINY, LORA | {'modules_to_save': ['LayerNorm']}),
    # word_embeddings ends alike, and is wrapped within embeddings.
    'embeddings': (
        CLASSIFIER,
        ODD,
        IA3 | {'modules_to_save': ['embeddings', 'intermediate.dense', 'pooler']},
    ),
    'transform': (
        'BertForMaskedLM',
        TINY,
        LORA | {'task_type': None, 'modules_to_save': ['transform']},
    ),
    'tagging': (TAGGER, TINY, LORA | {'task_type': 'TOKEN_CLS'}),
    'spans': ('BertForQuestionAnswering', ODD, LORA | {'task_type': 'QUESTION_ANS'}),
    'encoder': ('BertModel', TINY, LORA | {'task_type': 'FEATURE_EXTRACTION'}),
    'choice': (
        'BertForMultipleChoice',
        TINY,
        LORA | {'task_type': None, 'modules_to_save': ['classifier']},
    ),
    'ia3_paper': (CLASSIFIER, ODD, IA3 | FFN_ALONE),
    'roberta_every_linear': (
        'RobertaForSequenceClassification',
        ROBERTA,
        LORA | {'r': 3, 'target_modules': 'all-linear', 'bias': 'all'},
    ),
    'roberta_tagging': (
        'RobertaForTokenClassification',
        ROBERTA,
        LORA | {'task_type': 'TOKEN_CLS', 'layers_to_transform': [1]},
    ),
    'roberta_norms': (
        'RobertaForSequenceClassification',
        ROBERTA,
        LORA | {'modules_to_save': ['LayerNorm', 'word_embeddings', 'position_embeddings']},
    ),
}


def labels_of(architecture: str) -> int:
    return 2 if architecture.endswith('QuestionAnswering') else 3  # a start and an end


def batch_for(shape) -> dict[str, np.ndarray]:
    batch = reference.inputs(shape['vocab_size'], rows=5, length=16)
    if shape is ROBERTA:
        real = batch['input_mask'] > 0
        batch['input_ids'] = np.where(real, batch['input_ids'], ROBERTA['pad_token_id'])
        batch['segment_ids'] = np.zeros_like(batch['segment_ids'])
    return batch


def base_of(architecture: str, settings, folder) -> tuple[torch.nn.Module, Model]:
    """A base model, and what is read of it here. A head that the adapter brings is not in it."""
    made = reference.random_model(architecture, **settings, num_labels=labels_of(architecture))
    kept = made.base_model if architecture.endswith('SequenceClassification') else made
    kept.save_pretrained(folder)
    return made, huggingface.read(folder).model


def answers(model: Model, batch) -> dict[str, np.ndarray]:
    """By transformers' names; a batch of choices is one example."""
    if model.architecture.endswith('MultipleChoice'):
        batch = {name: array[None] for name, array in batch.items()}
    rows, length = batch['input_ids'].shape[-2:]
    places = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    found = jax.jit(serving.make_forward(model))(
        model.params, {**batch, 'masked_lm_positions': places}
    )
    return {name: np.asarray(array) for name, array in found.items()}


def called(model: torch.nn.Module, batch) -> dict[str, np.ndarray]:
    """What a class of transformers, in peft's wrapping or not, gives for the batch."""
    if 'MultipleChoice' in type(model.get_base_model()).__name__:
        batch = {name: array[None] for name, array in batch.items()}
    # Without the outermost wrapping, which for spans drops the token_type_ids (peft 0.21).
    return reference.call(model.base_model, batch)


def same(found, wanted, batch) -> None:
    """Padding aside, which has no position in RoBERTa there."""
    real = batch['input_mask'] > 0
    for name, array in found.items():
        by_token = array.shape[:2] == real.shape
        left = (array[real], wanted[name][real]) if by_token else (array, wanted[name])
        np.testing.assert_allclose(*left, atol=2e-5, rtol=0)


def loaded(architecture: str, base: str, adapter: str, labels: int) -> torch.nn.Module:
    """What peft makes of the files: every array finds its place."""
    made = getattr(transformers, architecture).from_pretrained(base, num_labels=labels)
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='Found missing adapter keys')
        return theirs.PeftModel.from_pretrained(made, adapter).eval()


@pytest.mark.parametrize('name', ADAPTERS)
def test_their_adapter_answers_alike_here_folded_and_back_there(tmp_path, name):
    architecture, shape, settings = ADAPTERS[name]
    base_folder, adapter, out = (str(tmp_path / part) for part in ('base', 'in', 'out'))
    made, base = base_of(architecture, shape, base_folder)
    model = theirs.get_peft_model(made, theirs.get_peft_config(dict(settings))).eval()

    # As trained: all that is trained is away from where it begins.
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(adapter)
    batch = batch_for(shape)
    wanted = called(model, batch)

    # In: as it is, and folded into plain weights.
    read = peft.read(adapter, base).model
    assert read.architecture == architecture
    same(answers(read, batch), wanted, batch)
    params, config = fold_tuned(read.params, read.config)
    assert config.tuning == TuningConfig()
    same(answers(read._replace(params=params, config=config), batch), wanted, batch)

    # Out: peft loads what is written onto the same base.
    peft.write(out, read, base, base_folder, peft.list_saved(adapter))
    there = loaded(architecture, base_folder, out, labels_of(architecture))
    same(answers(read, batch), called(there, batch), batch)


def test_a_word_table_apart_from_its_decoder_is_refused(tmp_path):
    made, base = base_of('BertForMaskedLM', TINY, tmp_path / 'base')
    config = LORA | {'task_type': None, 'modules_to_save': ['word_embeddings']}
    model = theirs.get_peft_model(made, theirs.get_peft_config(config))
    model.save_pretrained(tmp_path / 'same')
    peft.read(tmp_path / 'same', base)
    with torch.no_grad():
        model.get_parameter(
            'base_model.model.bert.embeddings.word_embeddings.modules_to_save.default.weight'
        ).add_(1)
    model.save_pretrained(tmp_path / 'other')
    with pytest.raises(peft.UserError, match='apart from the masked-LM head of BertForMaskedLM'):
        peft.read(tmp_path / 'other', base)


OURS = {
    'lora': {'method': 'lora', 'rank': 3, 'alpha': 5.0, 'matrices': 'query,output'},
    'every_matrix': {
        'method': 'lora',
        'matrices': 'query,key,value,attention_output,intermediate,output',
    },
    'ia3': {'method': 'ia3'},
    'ia3_peft': {'method': 'ia3', 'vectors': 'peft'},
}


def without_update_below(layers, blocks: int):
    """The lower blocks as `assemble_tuned` fills them where depth leaves them out."""
    cut = lambda leaf: np.concatenate([np.zeros_like(leaf[:blocks]), leaf[blocks:]])
    return {
        name: {'kernel': cut(module['kernel'])} if '_lora_' in name else module
        for name, module in layers.items()
    }


@pytest.mark.parametrize(
    ('name', 'shape'),
    [
        ('lora', ROBERTA),
        ('every_matrix', ODD),
        ('ia3', TINY),
        ('ia3_peft', ROBERTA),
        ('spafit', TINY),
        ('spafit', ROBERTA),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_our_tuned_model_answers_alike_there(tmp_path, name, shape):
    base_folder, adapter = str(tmp_path / 'base'), str(tmp_path / 'adapter')
    classifier = HEADS['classifier'].class_in('roberta' if shape is ROBERTA else 'bert')
    _, base = base_of(classifier, shape, base_folder)
    if shape is ROBERTA:  # one with a pooler, for which its class of classifiers has no place
        reference.random_model('RobertaModel', **shape).save_pretrained(base_folder)
        base = huggingface.read(base_folder).model
    spafit = name == 'spafit'
    options = {'method': 'spafit', 'rank': 2, 'frozen_layers': 0, 'bias_layers': 0}
    config = base.config.tuned(TuningConfig(**(options if spafit else OURS[name])))

    # Noise in what is trained, on the base's own weights.
    module = HEADS['classifier'].model(config, jnp.dtype('float32'), 4)
    params, own = noisy_params(module), base.params['encoder']
    layers = params['encoder']['layers'] | own['layers']
    if spafit:
        layers = without_update_below(layers, 1)
        noise = np.random.RandomState(5)
        layers = {
            name: {**module, 'bias': module['bias'] + noise.normal(0, 0.1, module['bias'].shape)}
            if 'bias' in module
            else module
            for name, module in layers.items()
        }
    kept = {n: leaf for n, leaf in own.items() if shape is not ROBERTA or n != 'pooler'}
    params['encoder'] |= {**kept, 'layers': layers}
    model = Model(config, params, classifier, tuple('abcd'))

    peft.write(adapter, model, base, base_folder)
    there = loaded(classifier, base_folder, adapter, 4)
    batch = batch_for(shape)
    same(answers(model, batch), called(there, batch), batch)

    # By one name, as other programs take it: the adapter names its base.
    auto = theirs.AutoPeftModelForSequenceClassification.from_pretrained(adapter, num_labels=4)
    same(answers(model, batch), called(auto.eval(), batch), batch)
    again = peft.read(adapter, base).model
    same(answers(again, batch), answers(model, batch), batch)
    assert again.labels == ('a', 'b', 'c', 'd')
