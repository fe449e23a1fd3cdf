"""A command that has made its folder says so when it is given again, and refuses other inputs."""

import pytest

from tests.helpers import commands, tiny_models

TEXT = 'the cat sat on the mat\n' * 50


def done(name, *flags):
    """Return what a command prints that ends well."""
    result = commands.run(name, *flags)
    assert result.returncode == 0, result.stderr
    return result.stdout


def mistake(name, *flags):
    """Return the line of a command that refuses."""
    result = commands.run(name, *flags)
    assert result.returncode == 2
    return result.stderr


@pytest.fixture
def source(tmp_path):
    from bert_jax.inference.export import write

    model = tiny_models.model('BertForMaskedLM')
    write(model, tiny_models.tokenizer(), 'huggingface', str(tmp_path / 'model'))
    return tmp_path / 'model'


def test_a_vocabulary_is_made_once(tmp_path):
    text = tmp_path / 'a.txt'
    text.write_text(TEXT)
    flags = [f'--input={text}', f'--output={tmp_path / "v"}', '--vocab_size=60']
    done('train_vocab', *flags)
    made = (tmp_path / 'v' / 'vocab.txt').read_bytes()
    assert done('train_vocab', *flags).endswith('/v: this is done already\n')
    assert (tmp_path / 'v' / 'vocab.txt').read_bytes() == made

    # Another flag, and another text.
    refused = mistake('train_vocab', *flags[:2], '--vocab_size=61')
    assert 'made from other inputs (other vocab_size)' in refused
    text.write_text(TEXT.replace('mat', 'rug'))
    assert 'other input_contents' in mistake('train_vocab', *flags)


def test_a_model_is_exported_once(tmp_path, source):
    flags = [f'--init_from={source}', f'--output={tmp_path / "out"}']
    done('export', *flags)
    assert done('export', *flags).endswith('/out: this is done already\n')
    refused = mistake('export', *flags, '--hidden_act=relu')
    assert 'made from other inputs (other hidden_act)' in refused


def test_a_folder_of_another_program_is_no_result(tmp_path, source):
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out' / 'mine').touch()
    refused = mistake('export', f'--init_from={source}', f'--output={tmp_path / "out"}')
    assert 'nothing says that it was made from these inputs' in refused
