"""Tokenizer directories as other programs leave them, and text on which their settings differ."""

from __future__ import annotations

import io
import json
import pathlib
import unicodedata
from collections.abc import Sequence
from typing import Any

import sentencepiece
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bert_jax.input_pipeline.tokenizer.normalizer import Normalizer
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer as Ours

SPECIAL = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
_CHARS = 'abcdehilnoprstuvwxyzHé\u0301\u0308中国한어국,.-!<>ᄒ\u1161\u11ab한국어사전'
_WORDS = (
    'hello Hello new york naïve naive cafe café Café 中国 ##中国 한국어 사전 <e1> covid ##covid zu'
    ' ##rich'
)
_PIECES = [f'{prefix}{c}' for prefix in ('', '##', '@@') for c in _CHARS]
ENTRIES = list(dict.fromkeys([*SPECIAL, *_PIECES, *_WORDS.split()]))
TEXTS = [
    'Hello, new york! NAÏVE café Café',
    unicodedata.normalize('NFD', 'Naïve café, Café! 한국어 사전을'),
    '中国hello中国 한국어中',
    'new-york covid covidnew COVID <e1>hello</e1> zurich',
    'a  tab\there \u200bnothing\u00a0else ' + 'h' * 30,
    '',
]
NFC_THEN_BERT = normalizers.Sequence(
    [normalizers.NFC(), normalizers.BertNormalizer(lowercase=False, strip_accents=False)]
)


def write(
    folder: pathlib.Path,
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    added: Sequence[AddedToken] = (),
    config: dict[str, Any] | None = None,
    post_processor: Any = None,
    decoder: Any = None,
    **model: Any,
) -> pathlib.Path:
    """Writes a directory with a tokenizer.json; what is not given is as in BERT, cased.

    transformers is told to read that file.
    """
    ids = {token: i for i, token in enumerate(ENTRIES)}
    engine = Tokenizer(models.WordPiece(ids, **({'unk_token': '[UNK]'} | model)))
    engine.normalizer = normalizer or normalizers.BertNormalizer(lowercase=False)
    engine.pre_tokenizer = pre_tokenizer or pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoder or decoders.WordPiece()
    engine.add_special_tokens(SPECIAL)
    engine.add_tokens(list(added))
    engine.post_processor = post_processor or processors.BertProcessing(('[SEP]', 3), ('[CLS]', 2))
    return _saved(folder, engine, dict(zip(_NAMES, SPECIAL, strict=True)) | (config or {}))


def _saved(folder: pathlib.Path, engine: Tokenizer, config: dict[str, Any]) -> pathlib.Path:
    """Writes an engine's directory, which opens in transformers without a class of its own."""
    folder.mkdir()
    engine.save(str(folder / 'tokenizer.json'))
    stated = {'tokenizer_class': 'PreTrainedTokenizerFast', **config}
    (folder / 'tokenizer_config.json').write_text(json.dumps(stated))
    return folder


_NAMES = ('pad_token', 'unk_token', 'cls_token', 'sep_token', 'mask_token')
# What is read: name -> arguments of `write`.
FOREIGN: dict[str, dict[str, Any]] = {
    'cased': {},
    'lower-cased with accents': {
        'normalizer': normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    },
    'ideographs joined': {
        'normalizer': normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False)
    },
    'composed': {'normalizer': NFC_THEN_BERT},
    'not cleaned': {'normalizer': normalizers.BertNormalizer(lowercase=False, clean_text=False)},
    'another normalizer': {
        'normalizer': normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    },
    'another pre-tokenizer': {'pre_tokenizer': pre_tokenizers.WhitespaceSplit()},
    'another prefix': {'continuing_subword_prefix': '@@'},
    'another unknown': {'unk_token': '[PAD]'},
    'shorter words': {'max_input_chars_per_word': 20},
    'added tokens': {
        'added': [
            AddedToken('new york', normalized=False),
            AddedToken('covid', single_word=True),
            AddedToken('<e1>'),
        ]
    },
}


def wordpiece(entries: Sequence[str]) -> Ours:
    """A lower-cased WordPiece tokenizer of these entries behind the special ones."""
    content = '\n'.join([*SPECIAL, *entries]).encode()
    return Ours.of_kind('wordpiece', content, Normalizer(True, True))


# Text of several scripts, and what only some rules take apart alike.
SCRIPTS = [
    "The people of the town don't think it's theirs; we've 1990 of them, and they'll say so.",
    'Über Zürich: naïve cafés, 한국어 사전을 학습합니다, 中国語, привет мир, שלום, नमस्ते 😀.',
    unicodedata.normalize('NFD', 'naïve cafés, 한국어 사전을'),
]
NASTY = [
    '',
    ' ',
    '  two   spaces' + ' ' * 30 + 'x  ',
    '\n\n tab\t\x0b\x1c\x85\xa0x\u3000 end  \n',
    '\x00\x1f\ufeff\u200b\u180e\ufffd',
    '😀\U0010ffff e\u0301\u0323 \u0301x ١٢ ' + 'y' * 90,
    'a[unused1]b [unused1] [unused10] |||EMAIL_ADDRESS|||the<|endoftext|>',
    '▁the <0x41> ▁ \u2581\u2581',
]


def modernbert(folder: pathlib.Path, **config: Any) -> pathlib.Path:
    """Writes a directory as ModernBERT's: byte-level BPE, NFC, special tokens behind, by name."""
    engine = Tokenizer(models.BPE())
    engine.normalizer, engine.decoder = normalizers.NFC(), decoders.ByteLevel()
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        SCRIPTS * 3,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=['|||IP_ADDRESS|||', '<|padding|>'],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    # The longest first; then a special token that no row has, and those of rows.
    engine.add_tokens([AddedToken(' ' * n) for n in range(24, 1, -1)])
    engine.add_tokens([AddedToken('|||EMAIL_ADDRESS|||')])
    engine.add_special_tokens(['<|endoftext|>', '[UNK]', '[CLS]', '[SEP]', '[PAD]'])
    engine.add_special_tokens([AddedToken('[MASK]', lstrip=True, special=True)])
    engine.add_tokens([AddedToken(f'[unused{i}]') for i in range(12)])
    return _of_rows(folder, engine, '[CLS]', '[SEP]', dict(zip(_NAMES, SPECIAL)) | config)


def mmbert(folder: pathlib.Path, second_cls: bool = False) -> pathlib.Path:
    """Writes a directory as mmBERT's: BPE with word marks, and bytes for what has no entry."""
    special = ['<pad>', '<eos>', '<bos>', '<unk>', '<mask>']
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='never')
    trained.train_from_iterator(
        SCRIPTS[:1] * 3, trainers.BpeTrainer(vocab_size=120, show_progress=False)
    )
    model = json.loads(trained.to_str())['model']
    entries = [*special, *(f'<0x{i:02X}>' for i in range(256)), *model['vocab']]
    ids = {entry: i for i, entry in enumerate(entries)}
    merges = [tuple(merge) for merge in model['merges']]
    engine = Tokenizer(
        models.BPE(ids, merges, unk_token='<unk>', fuse_unk=True, byte_fallback=True)
    )
    engine.normalizer = normalizers.Replace(' ', '▁')
    engine.pre_tokenizer = pre_tokenizers.Split(' ', 'merged_with_previous')
    engine.decoder = decoders.Sequence(
        [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse()]
    )
    engine.add_special_tokens(special)
    engine.add_tokens([AddedToken('[unused1]', normalized=False)])
    names = {'pad_token': '<pad>', 'unk_token': '<unk>', 'mask_token': '<mask>'}
    return _of_rows(folder, engine, '<bos>', '<eos>', names, second_cls)


def xlm_roberta(folder: pathlib.Path) -> pathlib.Path:
    """Writes a directory as XLM-R's: unigram pieces in rows of RoBERTa's."""
    special = ['<s>', '<pad>', '</s>', '<unk>']
    characters = sorted(set(''.join(SCRIPTS)) - {' '})
    pieces = [(token, 0.0) for token in special] + [('▁', -2.0), ('▁the', -3.0)]
    pieces += [(character, -5.0) for character in characters]
    engine = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    engine.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(' {2,}'), ' ')]
    )
    engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='always')
    engine.decoder = decoders.Metaspace(prepend_scheme='always')
    engine.add_special_tokens([*special, AddedToken('<mask>', lstrip=True, special=True)])
    engine.post_processor = processors.RobertaProcessing(('</s>', 2), ('<s>', 0))
    return _saved(folder, engine, dict(zip(_NAMES, ('<pad>', '<unk>', '<s>', '</s>', '<mask>'))))


# transformers' classes of a SentencePiece model: its file, and how its trainer numbers the pieces.
UNIGRAM: dict[str, tuple[str, dict[str, Any]]] = {
    'XLMRobertaTokenizer': ('sentencepiece.bpe.model', {}),
    'CamembertTokenizer': ('sentencepiece.bpe.model', {}),
    'DebertaV2Tokenizer': (
        'spm.model',
        {'pad_id': 0, 'bos_id': 1, 'eos_id': 2, 'unk_id': 3}
        | {'pad_piece': '[PAD]', 'bos_piece': '[CLS]', 'eos_piece': '[SEP]', 'unk_piece': '[UNK]'},
    ),
}


def unigram(
    folder: pathlib.Path, name: str, lines: Sequence[str] = (), **config: Any
) -> pathlib.Path:
    """Writes a directory that has a SentencePiece model alone, of the class `name`."""
    folder.mkdir()
    file, options = UNIGRAM[name]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SCRIPTS, *lines] * 3),
        model_writer=model,
        vocab_size=160,
        character_coverage=1.0,
        user_defined_symbols=['<ent>'],
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    (folder / file).write_bytes(model.getvalue())
    stated = {'tokenizer_class': name, **config}
    (folder / 'tokenizer_config.json').write_text(json.dumps(stated))
    return folder


def llama(folder: pathlib.Path) -> pathlib.Path:
    """Writes a directory as EuroBERT's: Llama 3's byte-level BPE, whose end of text is padding."""
    split = pre_tokenizers.Split(
        Regex(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+|."), 'isolated'
    )
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine = Tokenizer(models.BPE(ignore_merges=True))
    engine.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    engine.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    engine.train_from_iterator(
        SCRIPTS * 3,
        trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, show_progress=False),
    )
    bos, eos, mask = '<|begin_of_text|>', '<|end_of_text|>', '<|mask|>'
    engine.add_special_tokens([bos, eos, AddedToken(mask, lstrip=True, special=True)])
    config = {'bos_token': bos, 'eos_token': eos, 'pad_token': eos, 'mask_token': mask}
    return _of_rows(folder, engine, bos, eos, config)


def mpnet(folder: pathlib.Path) -> pathlib.Path:
    """Writes a directory as MPNet's: lower-cased WordPiece in rows of RoBERTa's."""
    first = ['<s>', '<pad>', '</s>', '<unk>', '[UNK]']
    entries = [entry for entry in ENTRIES if entry == entry.lower()]
    ids = {entry: i for i, entry in enumerate([*first, *entries, '<mask>'])}
    engine = Tokenizer(models.WordPiece(ids, unk_token='[UNK]'))
    engine.normalizer = normalizers.BertNormalizer(lowercase=True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    engine.add_special_tokens([*first[:3], AddedToken('<mask>', lstrip=True, special=True)])
    engine.post_processor = processors.RobertaProcessing(('</s>', 2), ('<s>', 0))
    names = dict(zip(_NAMES, ('<pad>', '[UNK]', '<s>', '</s>', '<mask>')))
    return _saved(folder, engine, names | {'tokenizer_class': 'MPNetTokenizer'})


def mt5(folder: pathlib.Path) -> pathlib.Path:
    """Writes a directory with mT5's pieces and characters, in rows of RoBERTa's."""
    xlm_roberta(folder)
    engine = Tokenizer.from_file(str(folder / 'tokenizer.json'))
    engine.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Strip(left=False),
            normalizers.Replace(Regex(' {2,}'), '▁'),
        ]
    )
    engine.save(str(folder / 'tokenizer.json'))
    return folder


def _of_rows(
    folder: pathlib.Path,
    engine: Tokenizer,
    cls: str,
    sep: str,
    config: dict[str, Any],
    second_cls: bool = False,
) -> pathlib.Path:
    """Writes the directory of an engine, with rows of one segment."""
    pair = f'{cls} $A {sep} {cls} $B:0 {sep}' if second_cls else f'{cls} $A {sep} $B:0 {sep}'
    special = [(token, engine.token_to_id(token)) for token in (cls, sep)]
    engine.post_processor = processors.TemplateProcessing(f'{cls} $A {sep}', pair, special)
    return _saved(folder, engine, config)
