"""A check that the outputs of a causal model do not depend on later tokens.

Shapes: B batch, T length, V vocabulary.
"""

from __future__ import annotations

import torch

from architectures.backbone import Backbone

TOLERANCE = 1e-3
"""Largest difference of logits by rounding, relative to the largest logit."""


@torch.no_grad()
def first_leak(model: Backbone, length: int) -> int | None:
    """Return a position whose logits in evaluation change when all later tokens change, or None.

    It examines the first position, the one in the middle and the last but one, on random tokens.
    """
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(model.vocab_size, (2, length), generator=generator)
    training = model.training
    model.eval()
    logits_BTV = model(tokens_BT).logits_BTV
    try:
        for last in sorted({0, length // 2, length - 2} & set(range(length))):
            changed_BT = tokens_BT.clone()
            changed_BT[:, last + 1 :] = (changed_BT[:, last + 1 :] + 1) % model.vocab_size
            difference_BTV = (model(changed_BT).logits_BTV - logits_BTV)[:, : last + 1].abs()
            leaks_T = difference_BTV.amax((0, 2)) > TOLERANCE * logits_BTV.abs().max()
            if leaks_T.any():
                return int(leaks_T.nonzero()[0])
    finally:
        model.train(training)
    return None
