r"""A small language beside large ones, at the same compute: is it better off alone?

Poro's question (arXiv 2404.01856), asked of an encoder: Korean with 2 MB of text alone, with four
passes over it, and among English and German, where it is about 30 and about 10 % of the tokens, or
as much as the exponents 0.3 to 1 give. Judged by the loss on held-out Korean. All rows have one
vocabulary, --tokenizer, or their losses would be of other pieces.

  --corpus=alone=ko=KOREAN \
  --corpus=among=ko=KOREAN --corpus=among=en=ENGLISH --corpus=among=de=GERMAN

KOREAN the same 2 MB in both. The shares of 30 and 10 % were worked out for 54 MB of English and
11 MB of German, at five bytes a word piece or so; what they came to is in each manifest.json. With
so few pieces alone, a row goes through its records many times: that is the price of being small.

Half of the steps of the other studies at this scale: eight rows, and the small text is read more
than ten times in them already.
"""

from __future__ import annotations

from dataclasses import replace

from bert_jax.configs.schema import Phase
from bert_jax.configs.studies import scales
from bert_jax.configs.studies.study import HeldOut, Row, Study

_ALONE, _AMONG = 'alone', 'among'
ROWS = (
    Row('Korean alone', _ALONE, records={'language_repeats': ('ko=1',)}),
    Row('alone x4', _ALONE, records={'language_repeats': ('ko=4',)}),
    Row('30 % of all', _AMONG, records={'language_repeats': ('ko=4', 'en=0.23', 'de=0.23')}),
    Row('10 % of all', _AMONG, records={'language_repeats': ('ko=4', 'en=0.88', 'de=0.88')}),
    *(Row(f'S {s:g}', _AMONG, records={'language_exponent': s}) for s in (0.3, 0.5, 0.7, 1.0)),
)


def get_studies() -> dict[str, Study]:
    """Return the study at the scale of two cores."""
    return {
        'cpu': Study(
            'A small language beside large ones, 4 layers of 128',
            (
                HeldOut('mlm_loss', 'Korean nats', language='ko'),
                HeldOut('mlm_accuracy', 'Korean accuracy', 100.0, language='ko'),
            ),
            ROWS,
            replace(scales.cpu(), phases=(Phase(32, 2500, 64), Phase(64, 3000, 32))),
            records={'segment': True, 'dupe_factor': 1, 'eval_fraction': 0.05},
        ),
    }
