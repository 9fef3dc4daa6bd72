"""Schedules of unmasking: which masked positions get their token at which step, and which token.

Three methods. ``ancestral`` walks the reverse process of masked diffusion on a grid of times: a token that
is masked at time t stays so until s with probability m(s) / m(t) (Sahoo et al. 2024, MDLM, arXiv
2406.07524, equation 6); its error falls with the number of steps. ``first_hitting`` (Zheng et al. 2024,
arXiv 2409.02908, section 4) draws when the next token opens: one at a time, uniformly, and the samples are
exactly the model's. ``confidence`` commits the positions the model is surest of (LLaDA, arXiv 2502.09992; the
orders of Dream, arXiv 2508.15487; the threshold of Fast-dLLM, arXiv 2505.22618). Its default order looks at
drawn tokens, so it seeks the mode and is no sampler of the model's distribution even with one token at a
step. Orders that do not have an exact likelihood (``path_likelihood.py``).

Shapes: K times of a grid, R rows that are worked on, N masked positions, T length, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from archbench.experiments.objectives.decoding.sampling import SamplingConfig, draw, process
from archbench.experiments.objectives.diffusion.noise_schedules import NoiseConfig, time_grid
from archbench.experiments.objectives.finite_outputs import check_logits
from archbench.experiments.runtime.errors import nearest

METHODS = ("confidence", "ancestral", "first_hitting")
DETERMINISTIC_ORDERS = ("largest_probability", "margin", "entropy", "left_to_right")
"""Orders in which the tokens that are shown determine the next positions, whatever is drawn there."""
ORDERS = ("low_confidence", *DETERMINISTIC_ORDERS, "random")
REMASKINGS = ("capped", "rescaled")


@dataclass(frozen=True, kw_only=True)
class UnmaskingConfig:
    """The schedule of unmasking."""

    method: str = "confidence"
    """``confidence`` (mode-seeking), ``ancestral`` (a sampler, the better the more steps) or
    ``first_hitting`` (an exact sampler; as many steps as masked positions)."""
    order: str = "low_confidence"
    """Positions that ``confidence`` commits first: those with the likeliest drawn token (``low_confidence``:
    all other ones are masked again), the likeliest token, drawn or not (``largest_probability``), the
    largest gap between the two likeliest tokens (``margin``), the least ``entropy``, the first ones
    (``left_to_right``), or any (``random``)."""
    threshold: float | None = None
    """``confidence`` also commits every position if its drawn token (with ``largest_probability`` its
    likeliest token) has at least this probability; null for none."""
    block_length: int | None = None
    """Positions are unmasked block by block from left to right, this many at a time (semi-autoregressive),
    the steps shared out between blocks; a text that has ended gets no more blocks. Null for one block."""
    remasking: str | None = None
    """``ancestral`` also masks tokens again, so that errors can be corrected (ReMDM, arXiv 2503.00307): at
    each step with probability ``remasking_rate``, at most the largest possible one (``capped``), or
    ``remasking_rate`` times the largest possible one (``rescaled``); null for never."""
    remasking_rate: float | None = None
    """Of ``remasking``: eta in (0, 1]."""
    remasking_loop: list[float] | None = None
    """Of ``remasking``, [t_on, t_off, alpha] (ReMDM-loop): from time 1 to t_on the unmasked fraction rises
    from 0 to alpha, until t_off it stays while tokens are masked and unmasked again, then it rises to 1.
    Tokens are masked again only in the loop, and ``noise`` is not used. Null remasks at all times."""
    guidance: float = 0.0
    """Classifier-free guidance s: logits without the prompt plus (1 + s) times what the prompt changes; the
    prompt is masked in a second pass. 0 for none (Nie et al. 2024, arXiv 2410.18514, equation 8)."""

    def __post_init__(self) -> None:
        for name, valid in (("method", METHODS), ("order", ORDERS), ("remasking", REMASKINGS)):
            value = getattr(self, name)
            if value not in valid and not (name == "remasking" and value is None):
                raise ValueError(f"filling.{name}={value!r} is unknown{nearest(value, valid)}")
        for name in ("threshold", "block_length"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"filling.{name}={getattr(self, name)} must be positive, or null")
        if self.threshold is not None and self.method != "confidence":
            raise ValueError(
                f"filling.threshold={self.threshold} belongs to filling.method=confidence, not {self.method}"
            )
        self._check_remasking()
        if self.guidance < 0:
            raise ValueError(f"filling.guidance={self.guidance} must not be negative; 0 takes none")

    def _check_remasking(self) -> None:
        """Raise ValueError where the settings of remasking do not fit together."""
        rate, loop = self.remasking_rate, self.remasking_loop
        if self.remasking is None:
            for name in ("remasking_rate", "remasking_loop"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"filling.{name}={value} needs filling.remasking: {' or '.join(REMASKINGS)}"
                    )
            return
        if self.method != "ancestral":
            raise ValueError(
                f"filling.remasking={self.remasking} belongs to filling.method=ancestral, not {self.method}"
            )
        if rate is None or not 0 < rate <= 1:
            raise ValueError(f"filling.remasking_rate={rate} must be in (0, 1]")
        if loop is not None and not (len(loop) == 3 and 1 > loop[0] > loop[1] > 0 and 0 < loop[2] < 1):
            raise ValueError(
                f"filling.remasking_loop={loop} must be [t_on, t_off, alpha] with 1 > t_on > t_off > 0 and "
                "alpha between 0 and 1, such as [0.55,0.05,0.9]"
            )

    @property
    def description(self) -> str:
        """The method with its order or its remasking."""
        if self.method == "confidence":
            return f"confidence ({self.order})"
        if self.remasking is None:
            return self.method
        loop = f", loop {self.remasking_loop}" if self.remasking_loop is not None else ""
        return f"{self.method} ({self.remasking} remasking {self.remasking_rate:g}{loop})"

    @property
    def chance(self) -> str | None:
        """The setting by which positions depend on what is drawn; None if the shown tokens determine them."""
        if self.method != "confidence":
            return f"filling.method={self.method}"
        if self.order not in DETERMINISTIC_ORDERS:
            return f"filling.order={self.order}"
        if self.threshold is not None and self.order != "largest_probability":
            return f"filling.threshold={self.threshold} with filling.order={self.order}"
        return None


Predictor = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits (R, T, V) of the rows (R,) of all tokens (B, T), given the masked fraction (R,) of each."""


@dataclass(kw_only=True)
class Unmasker:
    """Texts that are being unmasked. The result of a row depends only on its generator."""

    predict: Predictor
    tokens_BT: Tensor
    """Changed in place."""
    place_BN: Tensor
    """Masked positions of each row, from left to right; every row has equally many."""
    masked_BN: Tensor
    """True where a position is still masked."""
    size_B: Tensor
    """Number of tokens of each row that the masked fraction refers to."""
    unmasking: UnmaskingConfig
    noise: NoiseConfig
    sampling: SamplingConfig
    generators: Sequence[torch.Generator]
    forbidden_V: Tensor
    """True at the tokens that are never generated."""
    mask: int
    """The mask token."""

    def run(self, steps: int, stop: Collection[int] = ()) -> None:
        """Unmask every position, except in the blocks after one that holds a stop token."""
        count = self.place_BN.shape[1]
        length = min(self.unmasking.block_length or count, count)
        going = list(range(len(self.tokens_BT)))
        for start in range(0, count, length):
            block = slice(start, min(start + length, count))
            self.unmask_block(block, going, max(1, block.stop * steps // count - start * steps // count))
            written = self.tokens_BT.gather(1, self.place_BN[:, block]).tolist()
            going = [row for row in going if not set(written[row]) & set(stop)]
            if not going:
                return

    def unmask_block(self, block: slice, rows: Sequence[int], steps: int) -> None:
        """Unmask a block of positions of some rows."""
        if self.unmasking.method == "confidence":
            for remaining in range(steps, 0, -1):
                # One wait for the device in each step, not one for each row.
                has_masked_B = self.masked_BN[:, block].any(1).tolist()
                rows = [row for row in rows if has_masked_B[row]]
                self._open_surest(block, rows, remaining)
            return
        events = self._ancestral(block, rows, steps)
        if self.unmasking.method == "first_hitting":
            events = self._first_hitting(block, rows)
        for opened_RN, closed_RN in events:
            hit_R = opened_RN.any(1)  # the model runs only on rows with newly unmasked positions
            hit = [row for row, is_hit in zip(rows, hit_R.tolist(), strict=True) if is_hit]
            if hit:
                self._commit(block, hit, opened_RN[hit_R], self._propose(block, hit)[1])
            if self.unmasking.remasking is not None:
                self._mask_again(block, rows, closed_RN)

    def _ancestral(self, block: slice, rows: Sequence[int], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the positions (R, N) that are unmasked, and masked again, at each step of the time grid."""
        fraction_K = time_grid(steps, self.noise)
        if self.unmasking.remasking_loop is not None:
            fraction_K = loop_grid(steps, self.unmasking.remasking_loop)
        remask_K = remasking_probabilities(fraction_K, self.unmasking)
        for (previous, after), remask in zip(
            itertools.pairwise(fraction_K.tolist()), remask_K.tolist(), strict=True
        ):
            uniform_RN, masked_RN = self._uniform(block, rows), self.masked_BN[list(rows), block]
            stay = (after - remask * (1 - previous)) / previous  # of ReMDM; m(s) / m(t) without remasking
            yield (uniform_RN >= stay) & masked_RN, (uniform_RN < remask) & ~masked_RN

    def _first_hitting(self, block: slice, rows: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one masked position of each row at a time, each equally likely; none is masked again."""
        for _ in range(block.stop - block.start):
            noise_RN = self._uniform(block, rows).masked_fill(~self.masked_BN[list(rows), block], -1.0)
            first_RN = torch.zeros_like(noise_RN, dtype=torch.bool)
            first_RN.scatter_(1, noise_RN.argmax(1, keepdim=True), True)
            yield first_RN & self.masked_BN[list(rows), block], torch.zeros_like(first_RN)

    def _open_surest(self, block: slice, rows: Sequence[int], remaining: int) -> None:
        """Commit an equal part of the positions, the surest ones, and all above the threshold."""
        if not rows:
            return
        logits_RNV, token_RN = self._propose(block, rows)
        p_RNV = logits_RNV.softmax(-1)
        likely_RN = p_RNV.gather(-1, token_RN[..., None]).squeeze(-1)
        masked_RN = self.masked_BN[list(rows), block]
        if self.unmasking.order == "random":
            sure_RN = self._uniform(block, rows)
        else:
            sure_RN = sureness(p_RNV, likely_RN, self.unmasking.order)
        if self.unmasking.order == "largest_probability":
            likely_RN = sure_RN
        count_R1 = -(-masked_RN.sum(1, keepdim=True) // remaining)
        best_RJ = sure_RN.masked_fill(~masked_RN, -torch.inf).topk(int(count_R1.max()), dim=1).indices
        counted_RJ = torch.arange(best_RJ.shape[1], device=best_RJ.device) < count_R1
        opened_RN = torch.zeros_like(masked_RN).scatter_(1, best_RJ, counted_RJ)
        if self.unmasking.threshold is not None:
            opened_RN = opened_RN | (likely_RN >= self.unmasking.threshold)
        self._commit(block, rows, opened_RN & masked_RN, token_RN)

    def _propose(self, block: slice, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the logits (R, N, V) of a block, before temperature, and tokens (R, N) drawn from them."""
        rows_R = torch.tensor(rows, device=self.tokens_BT.device)
        fraction_R = self.masked_BN[rows_R].sum(1) / self.size_B[rows_R]
        logits_RTV = self.predict(self.tokens_BT, rows_R, fraction_R)
        index_R1 = torch.arange(len(rows), device=rows_R.device)[:, None]
        logits_RNV = check_logits(logits_RTV[index_R1, self.place_BN[rows_R, block]]).float()
        logits_RNV = logits_RNV.masked_fill(self.forbidden_V, -torch.inf)
        return logits_RNV, self._choose(logits_RNV, block, rows)

    def _choose(self, logits_RNV: Tensor, block: slice, rows: Sequence[int]) -> Tensor:
        """Return the tokens (R, N) that the positions get if they are committed."""
        row_generators = [self.generators[row] for row in rows]
        return draw(process(logits_RNV, self.sampling), self.sampling, row_generators)

    def _commit(self, block: slice, rows: Sequence[int], opened_RN: Tensor, token_RN: Tensor) -> None:
        """Write the tokens of the positions that are unmasked now."""
        row_R = torch.tensor(rows, device=self.tokens_BT.device)
        at, blank = opened_RN.nonzero(as_tuple=True)
        blank_N = blank + block.start
        self.tokens_BT[row_R[at], self.place_BN[row_R[at], blank_N]] = token_RN[at, blank]
        self.masked_BN[row_R[at], blank_N] = False

    def _mask_again(self, block: slice, rows: Sequence[int], closed_RN: Tensor) -> None:
        """Mask positions whose token is to be drawn again."""
        row_R = torch.tensor(rows, device=self.tokens_BT.device)
        at, blank = closed_RN.nonzero(as_tuple=True)
        blank_N = blank + block.start
        self.tokens_BT[row_R[at], self.place_BN[row_R[at], blank_N]] = self.mask
        self.masked_BN[row_R[at], blank_N] = True

    def _uniform(self, block: slice, rows: Sequence[int]) -> Tensor:
        """Uniform values (R, N), float64, each row from the generator of its text."""
        length = block.stop - block.start
        draws = [torch.rand(length, generator=self.generators[row], dtype=torch.float64) for row in rows]
        return torch.stack(draws).to(self.tokens_BT.device)


def loop_grid(steps: int, loop: Sequence[float]) -> Tensor:
    """Return masked fractions (steps + 1,) of ReMDM-loop; see ``UnmaskingConfig.remasking_loop``."""
    t_on, t_off, alpha = loop
    time_K = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    before_K = 1 - alpha * (1 - time_K) / (1 - t_on)
    after_K = (1 - alpha) * time_K / t_off
    return torch.where(time_K > t_on, before_K, after_K.clamp_max(1 - alpha))


def remasking_probabilities(fraction_K: Tensor, config: UnmaskingConfig) -> Tensor:
    """Return the probability that a token is masked again, (K - 1,), at each step of a grid.

    Wang et al. 2025 (ReMDM, arXiv 2503.00307). It is at most (1 - alpha(s)) / alpha(t), with which no masked
    token stays masked.
    """
    before_K, after_K = fraction_K[:-1], fraction_K[1:]
    if config.remasking is None:
        return torch.zeros_like(after_K)
    assert config.remasking_rate is not None
    largest_K = (after_K / (1 - before_K).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1)
    capped = config.remasking == "capped"
    remask_K = largest_K.clamp_max(config.remasking_rate) if capped else config.remasking_rate * largest_K
    if config.remasking_loop is not None:
        t_on, t_off, _ = config.remasking_loop
        time_K = torch.linspace(1, 0, len(fraction_K), dtype=torch.float64)[:-1]
        remask_K = torch.where((time_K <= t_on) & (time_K > t_off), remask_K, 0.0)
    return remask_K


def sureness(p_RNV: Tensor, likely_RN: Tensor, order: str) -> Tensor:
    """Return a confidence for each position (R, N), the larger the surer; see ``UnmaskingConfig.order``."""
    if order == "low_confidence":
        return likely_RN
    if order == "largest_probability":
        return p_RNV.max(-1).values
    if order == "left_to_right":
        return -torch.arange(p_RNV.shape[1], device=p_RNV.device).expand_as(likely_RN).to(likely_RN)
    if order == "margin":
        best_RN2 = p_RNV.topk(2, dim=-1).values
        return best_RN2[..., 0] - best_RN2[..., 1]
    return (p_RNV * p_RNV.clamp_min(torch.finfo(p_RNV.dtype).tiny).log()).sum(-1)
