"""What a tokenizer directory states: its vocabulary, and by which rules text becomes entries.

Owns the settings of Hugging Face's directories, which of them our own rules (wordpiece.py) are, and
which need the tokenizers library (fast.py). What neither can do is refused by name: a setting
that is passed over in silence gives a model other ids than it was trained on. Must not know how
text is encoded.

As in transformers, a tokenizer_config.json with the class BertTokenizer rules, and of a
tokenizer.json with it only the added tokens count; under any other class the tokenizer.json is
the tokenizer.
"""

from __future__ import annotations

import contextlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from etils import epath

from bert_jax.configs.errors import UserError
from bert_jax.configs.files.json_object import read_object
from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import (
    MAX_WORD_CHARS,
    Layout,
    iterate_steps,
    make_wordpiece_json,
    read_rows,
)

SPECIAL_TOKENS = {
    'pad_token': '[PAD]',
    'unk_token': '[UNK]',
    'cls_token': '[CLS]',
    'sep_token': '[SEP]',
    'mask_token': '[MASK]',
}
# wordpiece, with or without its own rules (compiled); sentencepiece; byte_bpe, which RoBERTa has;
# words, which RETVec has; fast, a tokenizer.json as it is, which ModernBERT has
Kind = Literal['wordpiece', 'sentencepiece', 'compiled', 'byte_bpe', 'words', 'fast']
# Classes of transformers that are BERT's tokenizer under another name, with or without Fast.
BERT_CLASSES = ('BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer')
JSON_CLASSES = ('PreTrainedTokenizer', 'TokenizersBackend')
# Settings that only Python tokenizers of transformers obey, and what they must be.
_FIXED: dict[str, tuple[Any, ...]] = {
    'do_basic_tokenize': (True,),
    'do_word_tokenize': (True,),
    'do_subword_tokenize': (True,),
    'word_tokenizer_type': ('basic',),
    'subword_tokenizer_type': ('wordpiece',),
}
# Settings of the casing, which are true, false or null (which is: not said).
_CASING = ('do_lower_case', 'strip_accents', 'tokenize_chinese_chars', 'nfc')
# What a tokenizer.json says of an added token.
FLAGS = ('single_word', 'lstrip', 'rstrip', 'normalized', 'special')


class Stated(NamedTuple):
    """The arguments of Tokenizer, in their order; see there."""

    kind: Kind
    vocabulary: bytes
    normalizer: Normalizer
    special_tokens: list[str]
    name: str


class Directory(NamedTuple):
    """The JSON files of a directory.

    Attributes:
      path: where it is.
      config: tokenizer_config.json; {} where there is none.
      fast: tokenizer.json; {} where there is none.
      special: the special tokens in the order of SPECIAL_TOKENS.
    """

    path: epath.Path
    config: dict[str, Any]
    fast: dict[str, Any]
    special: list[str]

    @classmethod
    def read(cls, path: epath.Path, defaults: Mapping[str, str]) -> Directory:
        """Read the files; `defaults` are the special tokens that are not named there."""
        config, fast = (read_json(path / f'{n}.json') for n in ('tokenizer_config', 'tokenizer'))
        return cls(path, config, fast, []).with_defaults(defaults)

    def part(self, name: str) -> dict[str, Any]:
        """Return a part of tokenizer.json, which may be null or missing: {} then."""
        part = self.fast.get(name) or {}
        if not isinstance(part, dict):
            raise UserError(f'{self.json_file}: {name} is not a JSON object')
        return part

    def with_defaults(self, defaults: Mapping[str, str]) -> Directory:
        """Return the same with other special tokens where none are named."""
        special = []
        for name, default in defaults.items():
            # Hugging Face writes a string, or an object with `content`.
            token = self.config.get(name) or default
            token = token.get('content') if isinstance(token, dict) else token
            if not isinstance(token, str):
                raise UserError(f'{self.config_file}: {name} is not a text')
            special.append(token)
        return self._replace(special=special)

    @property
    def config_file(self) -> epath.Path:
        """Return the path of tokenizer_config.json."""
        return self.path / 'tokenizer_config.json'

    @property
    def json_file(self) -> epath.Path:
        """Return the path of tokenizer.json."""
        return self.path / 'tokenizer.json'

    def check_fixed(self, fixed: Mapping[str, Sequence[Any]]) -> None:
        """Raise UserError for a setting that has none of the values that are built here."""
        for setting, allowed in fixed.items():
            if self.config.get(setting, allowed[0]) not in allowed:
                raise UserError(
                    f'{self.config_file}: {setting}={self.config[setting]!r} is not built here:'
                    f' only {allowed[0]!r} is'
                )

    def require_rows(self, whose: str) -> None:
        """Raise UserError where a post_processor does not make rows of [CLS] A [SEP] B [SEP].

        The layout of rows is ours to make, so another one cannot be obeyed at all.
        """
        processor = self.part('post_processor')
        if not processor:
            return
        with contextlib.suppress(UserError):
            if read_rows(self.fast, self.json_file) == (*self.special[2:4], Layout()):
                return
        raise UserError(
            f'{self.json_file}: its post_processor ({processor.get("type")}) does not make rows'
            f' of [CLS] A [SEP] B [SEP], as {whose} reads them'
        )

    def compiled(
        self,
        rules: dict[str, Any],
        ours: str,
        entries: Sequence[str],
        casing: Normalizer,
        file: epath.Path,
    ) -> Stated:
        """State a tokenizer.json that the library runs.

        Args:
          rules: the tokenizer.json whose rules count.
          ours: one with our own rules: rows are always ours.
          entries: the vocabulary.
          casing: what the directory says of it.
          file: what errors call it.
        """
        # What cuts or fills rows is not wanted. Sorted, so that the same rules have the same
        # fingerprint.
        parts = json.loads(ours)
        added = [*parts['added_tokens'], *self.added_tokens(entries)]
        content = (rules or parts) | {
            'truncation': None,
            'padding': None,
            'post_processor': parts['post_processor'],
            'added_tokens': added,
        }
        vocabulary = json.dumps(content, ensure_ascii=False, sort_keys=True).encode()
        return Stated('compiled', vocabulary, casing, self.special, str(file))

    def added_tokens(self, entries: Sequence[str]) -> list[dict[str, Any]]:
        """Return the added tokens besides the special ones, as a tokenizer.json has them, by id.

        Raises:
          UserError: their ids do not follow those of the `entries`.
        """
        # Flags that a token has where nothing is said.
        plain = dict.fromkeys(FLAGS, False) | {'normalized': True}

        # Four places tell of added tokens, and the first that names one counts: tokenizer.json, the
        # settings, added_tokens.json of older versions, additional special tokens (entries
        # already).
        tokens: dict[str, dict[str, Any]] = {}
        index = {token: i for i, token in enumerate(entries)}
        for token in self.fast.get('added_tokens') or []:
            tokens[token['content']] = plain | token
        for number, token in (self.config.get('added_tokens_decoder') or {}).items():
            tokens.setdefault(token['content'], plain | token | {'id': int(number)})
        for content, number in read_json(self.path / 'added_tokens.json').items():
            tokens.setdefault(content, plain | {'id': int(number), 'content': content})
        for token in self.config.get('additional_special_tokens') or []:
            content = token['content'] if isinstance(token, dict) else token
            if content in index:
                special = {'normalized': False, 'special': True, 'id': index[content]}
                tokens.setdefault(content, plain | special | {'content': content})

        # Those beyond the vocabulary must follow it without a gap, and those inside must be what
        # is there: an id is a row of the model's table.
        added = sorted(
            (token for name, token in tokens.items() if name not in self.special),
            key=lambda token: token['id'],
        )
        names = list(entries)
        for token in added:
            content, number = token['content'], token['id']
            if number > len(names):
                raise UserError(
                    f'{self.path}: its added token {content!r} has the id {number}, and such ids do'
                    f' not follow its {len(entries)} entries'
                )
            if number == len(names):
                names.append(content)
            elif names[number] != content:
                raise UserError(
                    f'{self.path}: its added token {content!r} has the id of another entry'
                )
        return added


def read_bert(path: epath.Path) -> Stated:
    """Read what the directory says.

    Raises:
      UserError: it is no such directory, contradicts itself, or asks for what cannot be done.
    """
    directory = Directory.read(path, SPECIAL_TOKENS)
    special, bert_class = directory.special, _check_settings(directory)

    # 1. All but the casing is inside of a SentencePiece model. Whole words: the file is our own,
    # and so are its settings.
    alone: dict[str, Kind] = {'spm.model': 'sentencepiece', 'words.txt': 'words'}
    for name, kind in alone.items():
        file = path / name
        if file.exists():
            casing = _read_casing(directory._replace(fast={}), [], file, bert_class)
            return Stated(kind, file.read_bytes(), casing, special, str(file))

    # 2. By which rules: our own where they are BERT's, else the library's.
    entries, file = _find_entries(directory)
    casing = _read_casing(directory, entries, file, bert_class)
    added = directory.added_tokens(entries)
    foreign = _find_foreign_rules(directory, casing) if directory.fast else []
    if foreign and bert_class:
        raise UserError(
            f'{directory.json_file}: {", ".join(foreign)} is not as in BERT, but'
            ' tokenizer_config.json beside it says tokenizer_class BertTokenizer, which passes'
            ' over that: name PreTrainedTokenizerFast there to have tokenizer.json obeyed, or'
            ' remove tokenizer.json'
        )

    # The usual case.
    if not foreign and not added:
        return Stated('wordpiece', ('\n'.join(entries) + '\n').encode(), casing, special, str(file))

    # 3. A tokenizer.json to be run: the one that is there, or one made of our rules where only
    # tokens were added.
    require_special(special, entries, str(file))
    ours = make_wordpiece_json(entries, special, casing)
    rules = directory.fast if foreign else {}
    return directory.compiled(rules, ours, entries, casing, directory.json_file)


def read_json(path: epath.Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty where there is no such file."""
    return read_object(path) if path.exists() else {}


def require_special(
    special: Sequence[str], entries: Sequence[str], name: str, whose: str = 'a BERT'
) -> None:
    """Raise UserError where a vocabulary lacks a special token."""
    there = set(entries)
    missing = [token for token in special if token not in there]
    if missing:
        raise UserError(
            f'{name}: no {" ".join(missing)} among its {len(entries)} entries: not the vocabulary'
            f' of {whose}'
        )


def _check_settings(directory: Directory) -> bool:
    """Tell whether the class is BERT's own, so that tokenizer_config.json rules.

    Raises:
      UserError: a setting cannot be obeyed.
    """
    # A class that is not BERT's is fine where a tokenizer.json says what it does.
    config, file = directory.config, directory.config_file
    name = config.get('tokenizer_class')
    plain = str(name).removesuffix('Fast')
    if name is not None and plain not in (*BERT_CLASSES, *JSON_CLASSES) and not directory.fast:
        raise UserError(
            f'{file}: tokenizer_class={name} is not built here: only {", ".join(BERT_CLASSES)} are'
        )
    directory.check_fixed(_FIXED)

    # never_split: special tokens in it change nothing, for they are never searched for.
    never = [t for t in config.get('never_split') or () if t not in directory.special]
    if never:
        raise UserError(
            f'{file}: never_split={never!r} is not built here: make added tokens of them'
            ' (tokenizer.add_tokens in transformers), or remove the setting'
        )

    # "false" as a text would count as true.
    for setting in _CASING:
        if not isinstance(config.get(setting), bool | None):
            raise UserError(f'{file}: {setting}={config[setting]!r}: must be true, false or null')
    return plain in BERT_CLASSES


def _find_entries(directory: Directory) -> tuple[list[str], epath.Path]:
    """Return WordPiece's entries and the file they are of: vocab.txt, or else tokenizer.json."""
    file, vocab = directory.json_file, directory.path / 'vocab.txt'
    model, listed = directory.part('model'), vocab.exists()
    if directory.fast and model.get('type') != 'WordPiece' and listed:
        raise UserError(
            f'{file}: its model is {model.get("type")}, but vocab.txt beside it is of WordPiece:'
            ' remove one'
        )
    # the only file that newer Hugging Face versions write
    entries = read_entries(model.get('vocab'), file) if model.get('type') == 'WordPiece' else None
    if listed:
        lines = parse_vocab(vocab.read_bytes(), str(vocab))
        if entries is not None and entries != lines[: len(entries)]:
            raise UserError(
                f'{file}: its entries are not those of vocab.txt beside it: remove the wrong file'
            )
        return lines, vocab
    if entries is None:
        raise UserError(
            f'{directory.path}: neither vocab.txt nor spm.model nor words.txt in it, nor'
            ' spiece.model: not a tokenizer directory'
        )
    return entries, file


def parse_vocab(content: bytes, name: str) -> list[str]:
    """Return the entries of a vocab.txt, one a line; line number = id (tokenization.py:121-133)."""
    try:
        # not splitlines(): it also splits at U+2028 and the like
        lines = content.decode('utf-8').split('\n')
    except UnicodeDecodeError as error:
        raise UserError(f'{name}: not UTF-8 at byte {error.start}: not a vocabulary') from error
    if lines[-1] == '':
        lines.pop()
    return [line.strip() for line in lines]


def read_entries(ids: Any, file: epath.Path) -> list[str]:
    """Return the vocabulary of a tokenizer.json, in the order of its ids."""
    # Ids must be 0, 1, 2, ...: the place in the list is the id.
    by_id = {i: entry for entry, i in ids.items()} if isinstance(ids, dict) else {}
    if not ids or by_id.keys() != {*range(len(ids))}:
        gaps = (i for i in range(len(by_id) + 1) if i not in by_id)
        raise UserError(
            f'{file}: model.vocab does not give every entry an id of its own from 0 on: the first'
            f' that none has is {next(gaps)}, of {len(ids or ())} entries'
        )
    return [by_id[i] for i in range(len(ids))]


def _read_rules(directory: Directory) -> tuple[dict[str, Any] | None, bool]:
    """Return the settings of a BertNormalizer, or None, and whether text is composed before."""
    # One normalizer, or a sequence of them; ours is BERT's, alone or after composing.
    each = list(iterate_steps(directory.part('normalizer')))
    kinds = [step.get('type') for step in each]
    if kinds not in (['BertNormalizer'], ['NFC', 'BertNormalizer']):
        return None, False
    return each[-1], len(kinds) == 2


def _find_foreign_rules(directory: Directory, casing: Normalizer) -> list[str]:
    """Return the parts of a tokenizer.json that are not as our own rules have them.

    Raises:
      UserError: it makes rows of another layout.
    """
    rules, nfc = _read_rules(directory)
    parts = ('model', 'normalizer', 'pre_tokenizer', 'decoder')
    model, normalizer, pre, decoder = map(directory.part, parts)
    directory.require_rows('a BERT')

    # Part by part: what differs from our own rules needs the library. 100 characters a word are its
    # default; Google's 200 differ in words that are hardly ever there.
    prefix, unknown = model.get('continuing_subword_prefix', '##'), model.get('unk_token')
    longest = model.get('max_input_chars_per_word', 100)
    decodes = (decoder.get('type'), decoder.get('prefix')) == ('WordPiece', '##')
    foreign: list[str] = []
    if rules is None or nfc != casing.nfc or not rules.get('clean_text'):
        foreign.append(f'normalizer {normalizer.get("type")}')
    if pre.get('type') != 'BertPreTokenizer':
        foreign.append(f'pre_tokenizer {pre.get("type")}')
    if prefix != '##':
        foreign.append(f'continuing_subword_prefix {prefix!r}')
    if 'unk_token' in model and unknown != directory.special[1]:
        foreign.append(f'unk_token {unknown!r}')
    if longest not in (100, MAX_WORD_CHARS):
        foreign.append(f'max_input_chars_per_word {longest}')
    if decoder and not decodes:
        foreign.append(f'decoder {decoder.get("type")}')
    return foreign


def _read_casing(
    directory: Directory, entries: Sequence[str], file: epath.Path, bert_class: bool
) -> Normalizer:
    """Return the casing that a directory states, or that its entries show.

    Args:
      directory: its files of JSON.
      entries: those of WordPiece; [] for other kinds.
      file: what errors call the vocabulary.
      bert_class: whether tokenizer_config.json rules.

    Raises:
      UserError: neither tells, or they disagree.
    """
    lower_case, strip_accents, ideographs, nfc = _read_stated_casing(directory, bert_class)

    # Else what the entries show: capitals, or accents, that only such a vocabulary has.
    entries = [token for token in entries if not token.startswith('[')]
    capitals = sum(token != token.lower() for token in entries)
    if lower_case is None and any(token != token.upper() for token in entries):
        lower_case = not capitals
        decomposed = unicodedata.normalize('NFD', ''.join(entries))
        # else they would not be in a lower-cased vocabulary
        strip_accents = lower_case and not any(unicodedata.category(c) == 'Mn' for c in decomposed)

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
    if strip_accents is None:
        strip_accents = lower_case
    return Normalizer(bool(lower_case), bool(strip_accents), bool(nfc), ideographs is not False)


def _read_stated_casing(directory: Directory, bert_class: bool) -> list[bool | None]:
    """Return what the two files of JSON say of _CASING, None where both are silent."""
    # What tokenizer_config.json says ...
    configured = [directory.config.get(name) for name in _CASING]
    lower_case, strip_accents, ideographs, nfc = configured
    rules, composed = _read_rules(directory)
    if rules is None or (lower_case is not None and bert_class):
        return configured

    # ... then what tokenizer.json says, which rules where the class is not BERT's. Accents follow
    # the case where nothing is said, as in both libraries.
    lower, splits = rules['lowercase'], rules['handle_chinese_chars']
    strips = rules.get('strip_accents')
    if strips is None:
        strips = lower
    stated = (lower, strips, splits)
    given = (lower_case, strip_accents, ideographs)
    if not bert_class and any(a not in (None, b) for a, b in zip(given, stated)):
        raise UserError(
            f'{directory.path}: do_lower_case, strip_accents, tokenize_chinese_chars are {given} in'
            f' tokenizer_config.json, but {stated} in tokenizer.json: make them agree'
        )
    if bert_class and strip_accents is not None:
        strips = strip_accents
    if bert_class and ideographs is not None:
        splits = ideographs
    if bert_class and nfc is not None:
        composed = nfc
    return [lower, strips, splits, composed]
