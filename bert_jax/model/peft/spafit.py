"""SPAFIT (Arora and Wang 2024): by depth nothing, biases, and biases with LoRA."""

from __future__ import annotations

from bert_jax.model.peft.lora import LoRA


class SPAFIT(LoRA):
    """LoRA in the upper blocks alone, and biases from the frozen ones on."""

    trained = r'/bias$'

    def added_from(self) -> int:
        """Return the first block above those of which biases alone are trained."""
        return super().added_from() + self.tuning.option('bias_layers')
