"""What a tokenizer directory states: its vocabulary, and by which rules text becomes entries.

Owns the settings of Hugging Face's directories, which of them our own rules (wordpiece.py) are, and
which need the tokenizers library (compiled.py). What neither can do is refused by name: a setting
that is passed over in silence gives a model other ids than it was trained on. Must not know how
text is encoded.

As in transformers, a tokenizer_config.json with the class BertTokenizer rules, and of a
tokenizer.json beside it only the added tokens count; under any other class the tokenizer.json is
the tokenizer.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.input_pipeline.tokenizer.wordpiece import MAX_WORD_CHARS, Normalizer, WordPiece

SPECIAL_TOKENS = {
    'pad_token': '[PAD]',
    'unk_token': '[UNK]',
    'cls_token': '[CLS]',
    'sep_token': '[SEP]',
    'mask_token': '[MASK]',
}
# wordpiece, with or without its own rules (compiled); sentencepiece; byte_bpe, which RoBERTa has;
# words, which are whole
Kind = Literal['wordpiece', 'sentencepiece', 'compiled', 'byte_bpe', 'words']
# Classes of transformers that are BERT's tokenizer under another name, with or without Fast.
_BERT_CLASSES = ('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer')
JSON_CLASSES = ('PreTrainedTokenizer', 'TokenizersBackend')
# Settings that only Python tokenizers of transformers obey, and what they must be.
_FIXED = {
    'do_basic_tokenize': True,
    'do_word_tokenize': True,
    'do_subword_tokenize': True,
    'word_tokenizer_type': 'basic',
    'subword_tokenizer_type': 'wordpiece',
}
# Settings that are true, false or null (which is: not said).
_FLAGS = ('do_lower_case', 'strip_accents', 'tokenize_chinese_chars', 'nfc')
# Layouts of a row: [CLS] A [SEP] and [CLS] A [SEP] B [SEP], by segment.
_SINGLE = [('cls', 0), ('A', 0), ('sep', 0)]
_PAIR = [*_SINGLE, ('B', 1), ('sep', 1)]


class Stated(NamedTuple):
    """The arguments of Tokenizer, in their order; see there."""

    kind: Kind
    vocabulary: bytes
    normalizer: Normalizer
    special_tokens: list[str]
    where: str


def read(path: epath.Path) -> Stated:
    """What the directory says.

    UserError where it is none, contradicts itself, or asks for what cannot be done.
    """
    # What the directory holds: settings, perhaps a tokenizer.json, special tokens.
    config = read_json(path / 'tokenizer_config.json')
    fast, file = read_json(path / 'tokenizer.json'), path / 'tokenizer.json'
    sections(fast, file)
    model = fast.get('model') or {}
    special = [special_token(config, name, path, SPECIAL_TOKENS) for name in SPECIAL_TOKENS]
    bert_class = _check_settings(config, bool(fast), special, path / 'tokenizer_config.json')

    # 1. SentencePiece: all but the casing is inside of the model.
    if (path / 'spm.model').exists():
        vocabulary = (path / 'spm.model').read_bytes()
        casing = _casing(config, {}, [], path / 'spm.model', bert_class)
        return Stated('sentencepiece', vocabulary, casing, special, str(path / 'spm.model'))

    # Whole words: the file is our own, and so is all that is said beside it.
    if (path / 'words.txt').exists():
        file = path / 'words.txt'
        casing = _casing(config, {}, [], file, bert_class)
        return Stated('words', file.read_bytes(), casing, special, str(file))

    # 2. WordPiece: its entries are in vocab.txt, in tokenizer.json, or in both, which then must
    # agree.
    if fast and model.get('type') != 'WordPiece' and (path / 'vocab.txt').exists():
        raise UserError(
            f'{file}: its model is {model.get("type")}, but vocab.txt beside it is of WordPiece:'
            ' remove one'
        )
    entries: list[str] | None = None
    if model.get('type') == 'WordPiece':  # the only file that newer Hugging Face versions write
        entries = entries_of(model.get('vocab'), file)
    if (path / 'vocab.txt').exists():
        listed = parse_vocab((path / 'vocab.txt').read_bytes(), str(path / 'vocab.txt'))
        if entries is not None and entries != listed[: len(entries)]:
            raise UserError(
                f'{file}: its entries are not those of vocab.txt beside it: remove the wrong file'
            )
        entries, file = listed, path / 'vocab.txt'
    if entries is None:
        raise UserError(
            f'{path}: neither vocab.txt nor spm.model nor words.txt in it, nor spiece.model: not a'
            ' tokenizer directory'
        )

    # 3. By which rules: our own where they are BERT's, else the library's.
    casing = _casing(config, fast, entries, file, bert_class)
    added = added_tokens(
        config, fast, read_json(path / 'added_tokens.json'), entries, special, path
    )
    foreign = _foreign(fast, casing, special, path / 'tokenizer.json') if fast else []
    if foreign and bert_class:
        raise UserError(
            f'{path / "tokenizer.json"}: {", ".join(foreign)} is not as in BERT, but'
            ' tokenizer_config.json beside it says tokenizer_class BertTokenizer, which passes'
            ' over that: name PreTrainedTokenizerFast there to have tokenizer.json obeyed, or'
            ' remove tokenizer.json'
        )

    # The usual case.
    if not foreign and not added:
        return Stated('wordpiece', ('\n'.join(entries) + '\n').encode(), casing, special, str(file))

    # 4. A tokenizer.json to be run: the one that is there, or one made of our rules where only
    # tokens were added. Rows are always ours, and what cuts or fills them is not wanted.
    if missing := [token for token in special if token not in entries]:
        raise UserError(
            f'{file}: no {" ".join(missing)} among its {len(entries)} entries: not the vocabulary'
            ' of a BERT'
        )
    own = json.loads(WordPiece(entries, entries.index(special[1]), casing).tokenizer_json(special))
    parts = (fast if foreign else own) | {
        'truncation': None,
        'padding': None,
        'post_processor': own['post_processor'],
        'added_tokens': [*own['added_tokens'], *added],
    }

    # Sorted, so that the same rules have the same fingerprint.
    content = json.dumps(parts, ensure_ascii=False, sort_keys=True).encode()
    return Stated('compiled', content, casing, special, str(path / 'tokenizer.json'))


def parse_vocab(content: bytes, where: str) -> list[str]:
    """The entries of a vocab.txt, one a line; line number = id (tokenization.py:121-133)."""
    try:
        # not splitlines(): it also splits at U+2028 and the like
        lines = content.decode('utf-8').split('\n')
    except UnicodeDecodeError as error:
        raise UserError(f'{where}: not UTF-8 at byte {error.start}: not a vocabulary') from error
    if lines[-1] == '':
        lines.pop()
    return [line.strip() for line in lines]


def read_json(path: epath.Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    return read_object(path) if path.exists() else {}


def sections(fast: Mapping[str, Any], file: epath.Path) -> None:
    """Raises UserError where a part of a tokenizer.json is no object."""
    for name in ('model', 'normalizer', 'pre_tokenizer', 'post_processor', 'decoder'):
        if not isinstance(fast.get(name), dict | None):
            raise UserError(f'{file}: {name} is not a JSON object')


def special_token(
    config: Mapping[str, Any], name: str, path: epath.Path, defaults: Mapping[str, str]
) -> str:
    """A special token's spelling.

    Hugging Face writes it as a string, or as an object with `content`.
    """
    token = config.get(name) or defaults[name]
    token = token.get('content') if isinstance(token, dict) else token
    if not isinstance(token, str):
        raise UserError(f'{path / "tokenizer_config.json"}: {name} is not a text')
    return token


def _check_settings(
    config: Mapping[str, Any], fast: bool, special: Sequence[str], file: epath.Path
) -> bool:
    """Whether the class is BERT's own, so that tokenizer_config.json rules.

    UserError for what cannot be obeyed.
    """
    # A class that is not BERT's is fine where a tokenizer.json says what it does.
    name = config.get('tokenizer_class')
    plain = str(name).removesuffix('Fast')
    if name is not None and plain not in (*_BERT_CLASSES, *JSON_CLASSES) and not fast:
        raise UserError(
            f'{file}: tokenizer_class={name} is not built here: only {", ".join(_BERT_CLASSES)} are'
        )

    # What Python tokenizers would obey and we do not.
    for setting, wanted in _FIXED.items():
        if config.get(setting, wanted) != wanted:
            raise UserError(
                f'{file}: {setting}={config[setting]!r} is not built here: only {wanted!r} is'
            )

    # never_split: special tokens in it change nothing, for they are never searched for.
    never = config.get('never_split') or []
    if isinstance(never, list):
        never = [token for token in never if token not in special]
    if never:
        raise UserError(
            f'{file}: never_split={never!r} is not built here: make added tokens of them'
            ' (tokenizer.add_tokens in transformers), or remove the setting'
        )

    # "false" as a text would count as true.
    for setting in _FLAGS:
        if not isinstance(config.get(setting), bool | None):
            raise UserError(f'{file}: {setting}={config[setting]!r}: must be true, false or null')
    return plain in _BERT_CLASSES


def entries_of(ids: Any, file: epath.Path) -> list[str]:
    """The vocabulary of a tokenizer.json, in the order of its ids."""
    # Ids must be 0, 1, 2, ...: the place in the list is the id.
    numbered = isinstance(ids, dict) and (
        sorted(map(str, ids.values())) == sorted(map(str, range(len(ids))))
    )
    if not numbered:
        raise UserError(f'{file}: model.vocab does not give every entry an id from 0 on')
    return sorted(ids, key=ids.__getitem__)


def _rules(fast: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """(the settings of a BertNormalizer; None for any other, whether text is composed before)."""
    # One normalizer, or a sequence of them; ours is BERT's, alone or after composing.
    stated = fast.get('normalizer') or {}
    steps = (stated.get('normalizers') if stated.get('type') == 'Sequence' else [stated]) or []
    kinds = [step.get('type') for step in steps]
    if kinds not in (['BertNormalizer'], ['NFC', 'BertNormalizer']):
        return None, False
    return steps[-1], len(kinds) == 2


def _foreign(
    fast: Mapping[str, Any], casing: Normalizer, special: Sequence[str], file: epath.Path
) -> list[str]:
    """The parts of a tokenizer.json that are not as our own rules have them.

    UserError for another layout of rows.
    """
    # Whatever is missing or of another type in such a file, it is none of the library's.
    try:
        rules, nfc = _rules(fast)
        model, pre = fast['model'], fast.get('pre_tokenizer') or {}
        own_rows, decoder = makes_rows(fast.get('post_processor'), special), fast.get('decoder')
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f'{file}: not a tokenizer.json of the tokenizers library ({error!r})'
        ) from error

    # The layout of rows is ours to make, so another one cannot be obeyed at all.
    if not own_rows:
        raise UserError(
            f'{file}: its post_processor ({fast["post_processor"].get("type")}) does not make rows'
            ' of [CLS] A [SEP] B [SEP], as a BERT reads them'
        )

    # Part by part: what differs from our own rules needs the library. 100 characters a word are its
    # default; Google's 200 differ in words that are hardly ever there.
    foreign = []
    if rules is None or nfc != casing.nfc or not rules.get('clean_text'):
        foreign.append(f'normalizer {(fast.get("normalizer") or {}).get("type")}')
    if pre.get('type') != 'BertPreTokenizer':
        foreign.append(f'pre_tokenizer {pre.get("type")}')
    if model.get('continuing_subword_prefix', '##') != '##':
        foreign.append(f'continuing_subword_prefix {model["continuing_subword_prefix"]!r}')
    if model.get('unk_token', special[1]) != special[1]:
        foreign.append(f'unk_token {model["unk_token"]!r}')
    if model.get('max_input_chars_per_word', 100) not in (100, MAX_WORD_CHARS):
        foreign.append(f'max_input_chars_per_word {model["max_input_chars_per_word"]}')
    if decoder is not None and (decoder.get('type'), decoder.get('prefix')) != ('WordPiece', '##'):
        foreign.append(f'decoder {decoder.get("type")}')
    return foreign


def makes_rows(processor: Mapping[str, Any] | None, special: Sequence[str]) -> bool:
    """Whether a post_processor, if there is one, makes rows of [CLS] A [SEP] B [SEP]."""
    return _layout(processor, special) in (None, (_SINGLE, _PAIR))


def _layout(
    processor: Mapping[str, Any] | None, special: Sequence[str]
) -> tuple[list, list] | None:
    """(a row of one text, a row of two) as [(what, segment)]; None where nothing is said."""
    if processor is None:
        return None

    # The name of each part: special tokens by their text, the two texts by letter.
    names = {special[2]: 'cls', special[3]: 'sep', 'A': 'A', 'B': 'B'}

    # The older processor has one fixed layout, which is BERT's.
    if processor['type'] == 'BertProcessing':
        same = [processor['cls'][0], processor['sep'][0]] == [special[2], special[3]]
        return (_SINGLE, _PAIR) if same else ([], [])
    if processor['type'] != 'TemplateProcessing':
        return [], []
    rows = []
    for row in (processor['single'], processor['pair']):
        parts = [next(iter(part.values())) for part in row]
        rows.append([(names.get(part['id'], part['id']), part['type_id']) for part in parts])
    return rows[0], rows[1]


def added_tokens(
    config: Mapping[str, Any],
    fast: Mapping[str, Any],
    older: Mapping[str, Any],
    entries: Sequence[str],
    special: Sequence[str],
    path: epath.Path,
) -> list[dict[str, Any]]:
    """The added tokens besides the special ones, as a tokenizer.json has them, by id.

    `older` is added_tokens.json. UserError where their ids do not follow the vocabulary's.
    """
    # Flags that a token has where nothing is said.
    plain = {
        'single_word': False,
        'lstrip': False,
        'rstrip': False,
        'normalized': True,
        'special': False,
    }

    # Four places tell of added tokens, and the first that names one counts: tokenizer.json, the
    # settings, added_tokens.json of older versions, additional special tokens (entries already).
    tokens: dict[str, dict[str, Any]] = {}
    index = {token: i for i, token in enumerate(entries)}
    try:
        for token in fast.get('added_tokens') or []:
            tokens[token['content']] = plain | token
        for number, token in (config.get('added_tokens_decoder') or {}).items():
            tokens.setdefault(token['content'], plain | token | {'id': int(number)})
        for content, number in older.items():
            tokens.setdefault(content, plain | {'id': int(number), 'content': content})
        for token in config.get('additional_special_tokens') or []:
            content = token['content'] if isinstance(token, dict) else token
            flags = plain | {'normalized': False, 'special': True}
            if content in index:
                tokens.setdefault(content, flags | {'id': index[content], 'content': content})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f'{path}: its added tokens cannot be read ({error!r})') from error

    # Those beyond the vocabulary must follow it without a gap, and those inside must be what stands
    # there: an id is a row of the model's table.
    added = sorted(
        (token for name, token in tokens.items() if name not in special),
        key=lambda token: token['id'],
    )
    beyond = [token['id'] for token in added if token['id'] >= len(entries)]
    if beyond != list(range(len(entries), len(entries) + len(beyond))):
        raise UserError(
            f'{path}: its added tokens have the ids {beyond[:4]}..., which do not follow its'
            f' {len(entries)} entries'
        )
    if wrong := [
        t['content'] for t in added if t['id'] < len(entries) and entries[t['id']] != t['content']
    ]:
        raise UserError(f'{path}: its added token {wrong[0]!r} has the id of another entry')
    return added


def _casing(
    config: Mapping[str, Any],
    fast: Mapping[str, Any],
    entries: Sequence[str],
    file: epath.Path,
    bert_class: bool,
) -> Normalizer:
    """The casing that a directory states, or that its entries show ([] for a SentencePiece model).

    UserError where neither tells, or they disagree.
    """
    # What tokenizer_config.json says, each None where it is silent ...
    lower_case, strip_accents = config.get('do_lower_case'), config.get('strip_accents')
    ideographs, nfc = config.get('tokenize_chinese_chars'), config.get('nfc')
    try:
        rules, composed = _rules(fast)
        stated = {}
        if rules is not None:
            stated = {name: rules[name] for name in ('lowercase', 'handle_chinese_chars')}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f'{file.parent / "tokenizer.json"}: its normalizer cannot be read ({error!r})'
        ) from error

    # ... then what tokenizer.json says, which rules where the class is not BERT's ...
    if rules is not None and (lower_case is None or not bert_class):
        strips = rules.get('strip_accents')
        strips = stated['lowercase'] if strips is None else strips

        # accents follow the case where nothing is said, as in both libraries
        said = (lower_case, strip_accents, ideographs)
        wanted = (stated['lowercase'], strips, stated['handle_chinese_chars'])
        if not bert_class and any(a not in (None, b) for a, b in zip(said, wanted, strict=True)):
            raise UserError(
                f'{file.parent}: do_lower_case, strip_accents, tokenize_chinese_chars are {said} in'
                f' tokenizer_config.json, but {wanted} in tokenizer.json: make them agree'
            )
        lower_case = stated['lowercase']
        strip_accents = strips if strip_accents is None else strip_accents
        if ideographs is None or not bert_class:
            ideographs = stated['handle_chinese_chars']
        nfc = composed if nfc is None or not bert_class else nfc

    # ... and else what the entries show: capitals, or accents, that only such a vocabulary has.
    entries = [token for token in entries if not token.startswith('[')]
    capitals = sum(token != token.lower() for token in entries)
    if lower_case is None and any(token != token.upper() for token in entries):
        lower_case = not capitals
        accents = (
            unicodedata.category(c) == 'Mn'
            for token in entries
            for c in unicodedata.normalize('NFD', token)
        )
        # else they would not be in a lower-cased vocabulary
        strip_accents = lower_case and not any(accents)

    # A cased vocabulary behind a lower-casing setting is a common mistake, and would cost most
    # words.
    if lower_case and capitals > len(entries) // 20:
        raise UserError(
            f'{file}: {capitals} of {len(entries)} entries have capitals, but do_lower_case is true'
            ' beside it: set it to false in tokenizer_config.json'
        )
    if lower_case is None:
        raise UserError(
            f'{file}: nothing says whether it is lower-cased: put {{"do_lower_case": true}} or'
            ' {"do_lower_case": false} into tokenizer_config.json beside it'
        )

    # Ideographs are set apart unless that is said to be off.
    strips = lower_case if strip_accents is None else strip_accents
    return Normalizer(bool(lower_case), bool(strips), bool(nfc), ideographs is not False)
