"""Block diffusion: the tokens of a block are masked and predicted together, given the blocks before.

Arriola et al. 2025 (BD3LM, arXiv 2503.09573), section 3: the bound is the sum of the bounds of the blocks,
each given the clean blocks before it. Blocks of one token make it the exact likelihood of a left-to-right
model, one block of everything plain masked diffusion.

Shapes: B batch, K blocks, L tokens of a block, T length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from archbench.architectures.backbone import Backbone, Capabilities
from archbench.experiments.objectives.decoding.prefill import pad_right
from archbench.experiments.objectives.decoding.sampling import SamplingConfig, allowed_tokens
from archbench.experiments.objectives.diffusion.masked_diffusion import MaskedDiffusion, MaskedDiffusionConfig
from archbench.experiments.objectives.diffusion.unmasking_sampler import up_to
from archbench.experiments.objectives.diffusion.unmasking_schedule import Unmasker, UnmaskingConfig
from archbench.experiments.objectives.objective import View
from archbench.experiments.runtime.errors import ConfigError, DataError
from archbench.experiments.tasks.metrics import Likelihood
from archbench.experiments.tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class BlockDiffusionConfig(MaskedDiffusionConfig):
    """Block diffusion."""

    block_length: int = 4
    """Tokens of a block; the backbone must have the same. 1 is left to right, the whole length plain masked
    diffusion."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_length < 1:
            raise ValueError(f"block_length={self.block_length} must be at least 1")
        if self.estimator == "permutation":
            raise ValueError("estimator=permutation is for masked_diffusion and any_order, not for blocks")
        check_unmasking(self.filling)


def check_unmasking(unmasking: UnmaskingConfig) -> None:
    """Raise ValueError for settings that block diffusion does not have."""
    if unmasking.block_length is not None or unmasking.guidance:
        raise ValueError(
            "block diffusion takes filling.block_length=null, as its blocks are block_length, and "
            "filling.guidance=0"
        )


class BlockDiffusion(MaskedDiffusion):
    """Masked diffusion block by block. On tasks with answers only the answers are ever masked."""

    Config = BlockDiffusionConfig
    config: BlockDiffusionConfig
    has_unmasking_path = False  # the path through a block is not scored

    @property
    def likelihood(self) -> Likelihood:  # type: ignore[override]
        parent = super().likelihood
        return replace(parent, estimator=f"{parent.estimator}, blocks of {self.config.block_length}")

    @classmethod
    def missing_capability(cls, capabilities: Capabilities) -> str | None:
        if capabilities.blockwise:
            return None
        return "a blockwise backbone: one that sees all previous blocks and its full block"

    def make_readout(self, backbone: Backbone) -> None:
        """None; refuses a backbone of other blocks, before anything is trained."""
        if backbone.block_length != self.config.block_length:
            raise ConfigError(
                f"objective.block_length={self.config.block_length} and "
                f"backbone.block_length={backbone.block_length} must be the same: set the objective's only"
            )

    def override_unmasking(self, *, steps: int | None = None, **changes: Any) -> None:
        super().override_unmasking(steps=steps, **changes)
        check_unmasking(self.unmasking)

    def blocks(self, length: int) -> Tensor:
        return torch.arange(length) // self.config.block_length

    def block_times(self, rows: int, blocks: int, generator: torch.Generator) -> Tensor:
        """Times (B, K). A block of one token is always masked: the same mean as t with weight 1/t."""
        if self.config.block_length == 1:
            return torch.ones(rows, blocks)
        return super().block_times(rows, blocks, generator)

    def noised_view(
        self, batch: Batch, shown_BT: Tensor, masked_BT: Tensor, weight_BT: Tensor, masked_fraction_B: Tensor
    ) -> View:
        view = super().noised_view(batch, shown_BT, masked_BT, weight_BT, masked_fraction_B)
        return replace(view, clean_BT=batch.context_BT)

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
        """Continue each prompt block by block; finished blocks stay in the model's decoding state."""
        if sampling.repetition_penalty != 1:
            raise ConfigError(f"repetition_penalty={sampling.repetition_penalty}: leave it at 1")
        L = self.config.block_length
        generated: list[list[int]] = [[] for _ in prompts]
        for rest in range(L):  # batch prompts that end at the same position of a block
            rows = [row for row, prompt in enumerate(prompts) if len(prompt) % L == rest]
            if rows and max_tokens > 0:
                group = [prompts[row] for row in rows]
                row_generators = [generators[row] for row in rows]
                continuations = self._generate_together(
                    model, group, max_tokens, row_generators, sampling, stop
                )
                for row, tokens in zip(rows, continuations, strict=True):
                    generated[row] = tokens
        return generated

    @torch.no_grad()
    def _generate_together(
        self,
        model: Backbone,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        generators: Sequence[torch.Generator],
        sampling: SamplingConfig,
        stop: Collection[int],
    ) -> list[list[int]]:
        """Continue prompts with equal lengths modulo the block length."""
        L, v, device = self.config.block_length, self.vocabulary, next(model.parameters()).device
        rest = len(prompts[0]) % L
        complete_blocks = [list(prompt[: len(prompt) - rest]) for prompt in prompts]
        longest = max(map(len, complete_blocks)) + -(-(rest + max_tokens) // L) * L
        state = model.start(len(prompts), longest)
        if any(complete_blocks):
            read_BT, valid_BT = pad_right(complete_blocks, v.pad, device)
            model.step(read_BT, state, valid_BT)
        texts = [list(prompt[len(prompt) - rest :]) for prompt in prompts]  # from the first open block on
        forbidden_V, going = ~allowed_tokens(v, stop, device), list(range(len(prompts)))
        open_blocks = -(-(rest + max_tokens) // L)
        for index in range(open_blocks):
            open_texts = [texts[row][index * L :] for row in going]
            tokens_BL = torch.tensor(
                [[*open_text, *[v.mask] * (L - len(open_text))] for open_text in open_texts], device=device
            )
            place_BN = torch.arange(len(open_texts[0]), L, device=device).expand(len(going), -1)
            unmasker = Unmasker(
                predict=lambda tokens_BT, rows_R, fraction_R: model.denoise(tokens_BT, state)[rows_R],
                tokens_BT=tokens_BL,
                place_BN=place_BN,
                masked_BN=torch.ones_like(place_BN, dtype=torch.bool),
                size_B=torch.full((len(going),), L, device=device),
                unmasking=self.unmasking,
                noise=self.noise,
                sampling=sampling,
                generators=[generators[row] for row in going],
                forbidden_V=forbidden_V,
                mask=v.mask,
            )
            unmasker.run(max(1, (index + 1) * self.steps // open_blocks - index * self.steps // open_blocks))
            for row, block in zip(going, tokens_BL.tolist(), strict=True):
                texts[row][index * L :] = block
            model.step(tokens_BL, state)  # again, clean, to stay
            unfinished = [i for i, row in enumerate(going) if not set(texts[row][rest:]) & set(stop)]
            if not unfinished:
                break
            if len(unfinished) < len(going):
                state.select(unfinished)
                going = [going[i] for i in unfinished]
        return [up_to(text[rest : rest + max_tokens], stop) for text in texts]

    def infill(self, model: Backbone, texts: Sequence[Sequence[int]], **how: object) -> list[list[int]]:
        raise DataError("block diffusion writes from left to right, block by block: it fills in no blanks")
