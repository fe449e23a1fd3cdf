"""Self-attention as a part of a block: a class for each value of `model.attention`.

What computes the scores, plain jax or a fused kernel, is attend.py's.

Dims: as in model/encoder.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.configs.files.own_parts import class_of
from bert_jax.model.blocks.attend import attend
from bert_jax.model.blocks.part import Linear, Part, Rows
from bert_jax.model.blocks.positions import POSITIONS


class SelfAttention(Part):
    """Every token attends to all tokens of its example (paper section 3; modeling.py:694-749)."""

    columns = ('query', 'key', 'value')
    rows = ('attention_output',)
    norm = 'attention_norm'
    causal = False

    @property
    def window(self) -> int | None:
        """The tokens on each side that a token sees; None: all of its example."""
        return self.config.window(self.number)

    @property
    def kind(self) -> tuple[bool, int | None]:
        """Whether its input is normalised, and the window."""
        return self.is_normed, self.window

    @property
    def is_normed(self) -> bool:  # type: ignore[override]
        """Whether its input is normalised: some families leave the first block without."""
        c = self.config
        return self.number > 0 or c.norm == 'post' or c.traits.has_first_norm

    @property
    def dropout(self) -> float:
        """The rate of dropout on its output."""
        rate = self.config.attention_output_dropout
        return super().dropout if rate is None else rate

    def shapes(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of four square matrices."""
        H = self.config.hidden_size
        return dict.fromkeys(self.columns + self.rows, (H, H))

    def split_sizes(self) -> dict[str, int]:
        """Return the number of heads: each device has whole ones."""
        return {'num_heads': self.config.num_heads}

    def flops(self, seq_len: int) -> int:
        """Return the FLOPs of queries by keys and of probabilities by values, 2 S^2 H each.

        Causal attention counts in full, because the masked half is multiplied too. With a window
        of w tokens on each side a query has 2w + 1 keys.
        """
        return 4 * self.config.hidden_size * seq_len * self._keys(seq_len)

    def _keys(self, seq_len: int) -> int:
        """Return how many keys a token sees, where the row does not end."""
        return seq_len if self.window is None else min(seq_len, 2 * self.window + 1)

    def kept(self) -> int:
        """Return the numbers of the matrices' outputs and of the context of the heads."""
        return super().kept() + self.config.hidden_size

    def scores(self, seq_len: int) -> int:
        """Return a score for each head and key."""
        return self.config.num_heads * self._keys(seq_len)

    def __call__(
        self, linear: Linear, x_BTH: jax.Array, rows: Rows, site: jax.Array | int, kernel: str
    ) -> jax.Array:
        """Return the heads' contexts, put side by side and multiplied: see Part."""
        c, (B, T, H) = self.config, x_BTH.shape
        # [B, T, H] -> [B, T, N, D]: query, key and value of all heads are one product each.
        q_BTND, k_BTND, v_BTND = (
            linear(name, x_BTH).reshape(B, T, c.num_heads, H // c.num_heads)
            for name in self.columns
        )
        turned = class_of('positions', c.positions, POSITIONS)(c, self.window is not None).turned
        q_BTND = turned(q_BTND, rows.position_ids_BT)
        k_BTND = turned(k_BTND, rows.position_ids_BT)
        if rows.attentions is not None:
            # Of values that name the keys, the output is the probabilities.
            names_BSNS = jnp.broadcast_to(jnp.eye(T)[:, None], (B, T, c.num_heads, T))
            keys = rows.mask, 0.0, None, site, self.causal, 'xla', self.window
            rows.attentions.append(attend(q_BTND, k_BTND, names_BSNS, *keys).swapaxes(1, 2))
        drop = c.attention_dropout, rows.dropout_rng, site
        out_BTND = attend(
            q_BTND, k_BTND, v_BTND, rows.mask, *drop, self.causal, kernel, self.window
        )
        return linear('attention_output', out_BTND.reshape(B, T, H))


class CausalSelfAttention(SelfAttention):
    """No token sees what comes after it (paper section 5.1)."""

    causal = True


ATTENTIONS: dict[str, type[SelfAttention]] = {
    'bidirectional': SelfAttention,
    'left_to_right': CausalSelfAttention,
}
