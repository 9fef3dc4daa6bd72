"""Unmasking of texts step by step, with a model that sees both sides of a masked position.

Used by the objectives with models that predict masked tokens. ``unmasking_schedule.py`` selects the positions
of each step.

Shapes: B batch, R rows that are worked on, N masked positions, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone
from archbench.experiments.data.tokenizers.vocabulary import Vocabulary
from archbench.experiments.objectives.decoding.prefill import pad_right
from archbench.experiments.objectives.decoding.sampling import SamplingConfig, allowed_tokens
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig
from archbench.experiments.objectives.diffusion.unmasking_schedule import Predictor, Unmasker, UnmaskingConfig
from archbench.experiments.objectives.objective import Objective
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.task import Task


class UnmaskingObjective(Objective):
    """An objective with models that predict masked tokens. Its settings have ``sampling_steps``."""

    config: Any
    unmasking = UnmaskingConfig()
    noise = NoiseConfig()

    def __init__(self, config: Any, task: Task) -> None:
        super().__init__(config, task)
        self.steps: int = config.sampling_steps

    def override_unmasking(self, *, steps: int | None = None, **changes: Any) -> None:
        """Change unmasking from now on: the number of steps, and fields of UnmaskingConfig.

        Settings that the new method has no use for are dropped, unless they are among the changes.
        """
        method = changes.get("method", self.unmasking.method)
        if method != "confidence":
            changes = {"threshold": None, **changes}
        if method != "ancestral":
            changes = {"remasking": None, "remasking_rate": None, "remasking_loop": None, **changes}
        self.steps = self.steps if steps is None else steps
        self.unmasking = replace(self.unmasking, **changes)

    def sample(
        self,
        model: Backbone,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int] = (),
        on_token: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]:
        """Generate by unmasking; ``on_token`` is not called, as tokens are not generated in their order."""
        return self.generate(
            model, prompts, max_tokens=max_tokens, generators=generators, sampling=sampling, stop=stop
        )

    def generate(
        self,
        model: Backbone,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int] = (),
    ) -> list[list[int]]:
        """Continue each prompt by ``max_tokens`` tokens, up to a stop token."""
        if not prompts or max_tokens < 1:
            return [[] for _ in prompts]
        texts = [[*prompt, *[self.vocabulary.mask] * max_tokens] for prompt in prompts]
        rows = self.unmask(model, texts, new=max_tokens, generators=generators, sampling=sampling, stop=stop)
        return [up_to(row, stop) for row in rows]

    def infill(
        self,
        model: Backbone,
        texts: Sequence[Sequence[int]],
        *,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int] = (),
    ) -> list[list[int]]:
        """Return the texts with every mask token replaced. Raises DataError for a text without one."""
        blanks = [sum(token == self.vocabulary.mask for token in text) for text in texts]
        if not all(blanks):
            raise DataError("a text has no blank to fill in: give the mask token where one should be")
        filled: list[list[int]] = [[] for _ in texts]
        for count in sorted(set(blanks)):  # batch texts with equally many masked positions
            rows = [row for row, blanks_of_row in enumerate(blanks) if blanks_of_row == count]
            replaced = self.unmask(
                model,
                [texts[row] for row in rows],
                generators=[generators[row] for row in rows],
                sampling=sampling,
                stop=stop,
            )
            for row, tokens_N in zip(rows, replaced, strict=True):
                replacements = iter(tokens_N)
                filled[row] = [next(replacements) if t == self.vocabulary.mask else t for t in texts[row]]
        return filled

    @torch.no_grad()
    def unmask(
        self,
        model: Backbone,
        texts: Sequence[Sequence[int]],
        *,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int] = (),
        new: int | None = None,
    ) -> list[list[int]]:
        """Return the tokens that replace the mask tokens of each text, all texts having equally many.

        It takes ``self.steps`` forward passes at most (``first_hitting``: one for each masked position).

        Args:
            texts: tokens; of these, mask tokens are to be replaced.
            new: number of tokens at the end to unmask, regardless of earlier ones; None for all mask tokens.

        Raises:
            ConfigError: a repetition penalty.
        """
        check_penalty(sampling)
        device, vocabulary = next(model.parameters()).device, self.vocabulary
        tokens_BT, valid_BT, open_BT = padded_texts(texts, vocabulary, new, device)
        place_BN = open_BT.nonzero()[:, 1].view(len(texts), -1)
        real_B = torch.tensor([len(text) for text in texts], device=device)
        unmasker = Unmasker(
            predict=guided_predictor(model, valid_BT, open_BT, self.unmasking.guidance, vocabulary.mask),
            tokens_BT=tokens_BT,
            place_BN=place_BN,
            masked_BN=torch.ones_like(place_BN, dtype=torch.bool),
            # The full text was noised in training, or only the target.
            size_B=real_B if self.continues else torch.full_like(real_B, place_BN.shape[1]),
            unmasking=self.unmasking,
            noise=self.noise,
            sampling=sampling,
            generators=generators,
            forbidden_V=~allowed_tokens(vocabulary, stop, device),
            mask=vocabulary.mask,
        )
        unmasker.run(self.steps, stop)
        return tokens_BT.gather(1, place_BN).tolist()


def check_penalty(sampling: SamplingConfig) -> None:
    """Raise ConfigError for a repetition penalty: tokens around a masked position are not decided yet."""
    if sampling.repetition_penalty != 1:
        raise ConfigError(
            f"repetition_penalty={sampling.repetition_penalty}: tokens are filled in out of their order, so "
            "nothing is a repetition of what came before; leave it at 1"
        )


def padded_texts(
    texts: Sequence[Sequence[int]], vocabulary: Vocabulary, new: int | None, device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return texts as a tensor (B, T), where it is no padding (None: everywhere), and what to fill in.

    These are the last ``new`` positions of each text; if None, its mask tokens.
    """
    tokens_BT, valid_BT = pad_right(texts, vocabulary.pad, device)
    if new is None:
        return tokens_BT, valid_BT, tokens_BT == vocabulary.mask
    length_B1 = torch.tensor([[len(text)] for text in texts], device=device)
    index_T = torch.arange(tokens_BT.shape[1], device=device)
    return tokens_BT, valid_BT, (index_T >= length_B1 - new) & (index_T < length_B1)


def guided_predictor(
    model: Backbone, valid_BT: Tensor | None, open_BT: Tensor, guidance: float, mask: int
) -> Predictor:
    """Return a function that runs the model on some rows, with classifier-free guidance where that is set."""

    def ask(tokens_RT: Tensor, valid_RT: Tensor | None, fraction_R: Tensor) -> Tensor:
        time = {"time_B": fraction_R} if model.takes_time else {}
        return model(tokens_RT, valid_BT=valid_RT, **time).logits_BTV

    def predict(tokens_BT: Tensor, rows_R: Tensor, fraction_R: Tensor) -> Tensor:
        tokens_RT = tokens_BT[rows_R]
        valid_RT = None if valid_BT is None else valid_BT[rows_R]
        with_RTV = ask(tokens_RT, valid_RT, fraction_R)
        if guidance == 0:
            return with_RTV
        # The prompt is what was never masked; padding is hidden anyway.
        without_RTV = ask(torch.where(open_BT[rows_R], tokens_RT, mask), valid_RT, fraction_R)
        return without_RTV + (1 + guidance) * (with_RTV - without_RTV)

    return predict


def up_to(tokens: list[int], stop: Collection[int]) -> list[int]:
    """The tokens up to and including the first stop token."""
    ends = [index for index, token in enumerate(tokens) if token in stop]
    return tokens[: ends[0] + 1] if ends else tokens
