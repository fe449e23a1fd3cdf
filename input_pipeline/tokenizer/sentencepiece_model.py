"""SentencePiece models as the tokenizer uses them, and their form for Hugging Face.

Owns the one place that imports sentencepiece for encoding. Casing and accents are not the model's
own normalisation but ours (`Normalizer.compose`), applied before it, so that they mean the same for
every kind of vocabulary. Pieces never cross white space, so a word can be encoded by itself.
"""

from __future__ import annotations

import struct
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sentencepiece

from bert_jax.configs.errors import UserError
from bert_jax.input_pipeline.tokenizer.foreign_directories import BPE, read_model_settings
from bert_jax.input_pipeline.tokenizer.normalizer import NOT_SPACE, split_segments
from bert_jax.input_pipeline.tokenizer.tokenizer import Tokenizer
from bert_jax.input_pipeline.tokenizer.tokenizer_json import WORD_MARK, add_marks
from bert_jax.input_pipeline.wire import spans

# A capital sigma at the end of a word. The library lower-cases characters one by one, and would
# make an inner one of it.
_FINAL_SIGMA = r'(?<=\p{Cased}\p{Case_Ignorable}*)Σ(?!\p{Case_Ignorable}*\p{Cased})'
# Within what is one sign to a reader: the library's table takes such by its first character alone.
# What is put there the table deletes.
_WITHIN, _NOTHING = r'\Y', '\x01'


class SentencePiece(Tokenizer):
    """A unigram or BPE model."""

    kind = 'sentencepiece'
    file = 'spm.model'
    refusal = 'a SentencePiece model is trained as a whole'

    def _read(self, vocabulary: bytes, name: str) -> None:
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(vocabulary)
        except RuntimeError as error:
            raise UserError(f'{name}: not a SentencePiece model ({error})') from error

        # Special pieces begin a word, too, though they have no mark.
        model = self._processor
        ids = range(model.get_piece_size())
        self.entries, self.vocab_size = list(map(model.id_to_piece, ids)), len(ids)
        marked = [token.startswith(WORD_MARK) for token in self.entries]
        special = [model.is_control(i) or model.is_unknown(i) for i in ids]
        self.starts_word = np.array(marked) | np.array(special)

    def ids(self, word: str) -> list[int]:
        """Return the ids of a whitespace word's pieces."""
        return self._processor.encode(self.normalizer.compose(word))

    def encode_document(
        self, sentences: Sequence[str], spaces: Sequence[str], lined: bool = False
    ) -> Iterator[list[np.ndarray]]:
        """Yield the ids of sentences in batches, without a word mark where no space parts two."""
        return self._encode_passages(sentences, spaces)

    def covered(self, characters: Iterable[str]) -> set[str]:
        """Return those of some characters that the pieces can spell."""
        # it has other forms of some: a comma for a wide one
        return {char for char in characters if self._processor.unk_id() not in self.ids(char)}

    def trace_word(self, word: str) -> Iterable[tuple[int, int, int]]:
        """Return (id, start, end) of each piece of a whitespace word, made of word[start:end]."""
        # Where each character of the cased word came from; places are characters, not bytes.
        kept = [i for i, char in enumerate(word) if char not in NOT_SPACE]
        if not kept:
            return []
        bare = ''.join(word[i] for i in kept)
        cased = self.normalizer.compose(bare)
        origin: list[tuple[int, int]] = []
        for start, end in split_segments(bare):
            came_from = (kept[start], kept[end - 1] + 1)
            origin += [came_from] * len(self.normalizer.compose(bare[start:end]))
        if len(origin) != len(cased):  # combining marks changed places: the word as a whole
            origin = [(0, len(word))] * len(cased)

        # The word's end, for pieces of nothing that stand there.
        origin.append((len(word), len(word)))

        # the mark of the word is a piece of its own at times: it covers no character
        pieces, traced = self._processor.encode(cased, return_type='offset_mapping'), []
        for piece, (start, end) in zip(pieces['ids'], pieces['offsets']):
            begin = origin[start][0]
            traced.append((piece, begin, origin[end - 1][1] if end > start else begin))
        return traced

    def tokenizer_json(self) -> str:
        """Return a tokenizer.json with which Hugging Face gives the same ids."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        # The model's own table of characters goes along: Hugging Face must normalise exactly as it
        # did in training.
        kind, charsmap = read_model_settings(self._processor.serialized_model_proto())
        unknown, cased = self._processor.unk_id(), self.normalizer
        model: models.Model

        # BPE is ids and merges; unigram is pieces with their scores.
        if kind == BPE:
            ids = {piece: i for i, piece in enumerate(self.entries)}
            model = models.BPE(
                ids, _find_merges(ids), unk_token=self.entries[unknown], fuse_unk=True
            )
        else:
            scores = [(piece, self._processor.get_score(i)) for i, piece in enumerate(self.entries)]
            model = models.Unigram(scores, unk_id=unknown, byte_fallback=False)

        # Our casing, then the model's own normalisation, then blanks as SentencePiece sees them.
        replace = normalizers.Replace
        rules: list[normalizers.Normalizer] = [replace(Regex(f'[{NOT_SPACE}]'), '')]
        if cased.nfc:
            rules.append(normalizers.NFC())
        if cased.lower_case:
            rules += [replace(Regex(_FINAL_SIGMA), 'ς'), normalizers.Lowercase()]
        if cased.strip_accents:
            rules += [normalizers.NFD(), replace(Regex(_match_marks()), ''), normalizers.NFC()]
        rules += [replace(Regex(_WITHIN), _NOTHING), normalizers.Precompiled(charsmap)]
        rules += [normalizers.NFC(), normalizers.Strip(), replace(Regex(' {2,}'), ' ')]
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence(rules)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(WORD_MARK, prepend_scheme='always')
        return add_marks(tokenizer, self.special_tokens)


def round_scores(model: bytes) -> bytes:
    """Return a unigram model with scores rounded to 1/1024, so that 32 bits hold exact sums.

    `00 0` and `0 00` cost the same, and which of them SentencePiece (32 bits) or Hugging Face (64)
    takes would be a matter of rounding, and of what comes before. Where sums are exact both take
    the first.
    """
    # In place: a score is four bytes wherever it is, so no length changes.
    text = bytearray(model)
    for _, start, end in spans(model, 0, len(model), 1):  # pieces
        for _, at, _ in spans(model, start, end, 2):  # score
            struct.pack_into(
                '<f', text, at, round(struct.unpack_from('<f', text, at)[0] * 1024) / 1024
            )
    return bytes(text)


def _match_marks() -> str:
    """Return a class of all marks without a width of their own: the library knows fewer."""
    marks = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) == 'Mn']
    return f'[{"".join(marks)}]'


def _find_merges(ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return every way to make an entry of two others, in the order of SentencePiece's merges.

    Its ids fall with the score.
    """
    # Sorted by the id of what comes out, then by the parts'.
    pairs = []
    for piece, number in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                pairs.append((number, ids[left], ids[right], left, right))
    return [(left, right) for _, _, _, left, right in sorted(pairs)]
