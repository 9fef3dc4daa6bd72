"""Filling in masked positions step by step, most confident first.

Used by the objectives whose models predict masked tokens. Mask-Predict
(Ghazvininejad et al. 2019) and the low-confidence remasking of LLaDA (Nie et al.
2025, arXiv 2502.09992): a mode-seeking decoder, not a sampler of the model's
distribution.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from architectures.backbone import Backbone
from experiments.objectives.objective import choose
from experiments.tasks.task import Vocabulary


@torch.no_grad()
def unmask(
    model: Backbone,
    prompt_BT: Tensor,
    length: int,
    vocabulary: Vocabulary,
    generator: torch.Generator,
    *,
    steps: int,
    temperature: float,
) -> Tensor:
    """Continues prompts to ``length`` tokens in ``steps`` forward passes.

    Each pass proposes a token for every masked position and commits those whose
    own probability is highest, an equal number each time.
    """
    blank = torch.full((prompt_BT.shape[0], length - prompt_BT.shape[1]), vocabulary.mask)
    tokens_BT = torch.cat([prompt_BT, blank.to(prompt_BT)], dim=1)
    for remaining in range(min(steps, max(blank.shape[1], 1)), 0, -1):
        masked_BT = tokens_BT == vocabulary.mask
        commit = -(-int(masked_BT[0].sum()) // remaining)
        logits_BTV = model(tokens_BT).logits_BTV[..., : vocabulary.num_symbols].float()
        proposal_BT = choose(logits_BTV, generator, temperature)
        confidence_BT = logits_BTV.softmax(-1).gather(-1, proposal_BT[..., None]).squeeze(-1)
        confidence_BT = confidence_BT.masked_fill(~masked_BT, -1.0)
        chosen = confidence_BT.topk(commit, dim=1).indices
        tokens_BT = tokens_BT.scatter(1, chosen, proposal_BT.gather(1, chosen))
    return tokens_BT
