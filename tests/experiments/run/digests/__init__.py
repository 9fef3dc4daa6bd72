"""Stored configurations with the digests that name their run folders, and how they were recorded.

``python -m tests.experiments.run.digests`` records the configurations of ``WORDS`` that are not there yet.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
STORED = "tests/experiments/config/stored_0_1/old/decoder-text-given-b2b5298c/s0"
WORDS = {
    "decoder": ("task=text", "trainer.extra_evaluations=['sequence_length=256']"),
    "encoder": ("backbone=encoder", "task=text", "objective.mask_probability=0.15"),
    "encoder_decoder": ("backbone=encoder_decoder", "objective=ul2", "task=text"),
    "s4": ("backbone=s4", "task=recall", "optimizer.schedule=wsd", "optimizer.decay_end_fractions=[0.5,1.0]"),
    "mamba": ("backbone=mamba", "task=selective_copying", "backbone.tie_embeddings=true"),
    "moe": ("backbone=moe", "task=listops", "parallel=fsdp", "scale.axis=active_non_embedding"),
    "masked_diffusion": ("backbone=masked_diffusion", "task=pairs", "optimizer.ema=0.999"),
    "hybrid": ("backbone=hybrid_bidirectional", "objective=sentence_pairs", "task=text", "seed=3"),
    "fine_tuning": (
        f"init_from={STORED}",
        "objective=sequence_classification",
        "task=sentences",
        "trainer.non_finite=skip",
    ),
    "continued": (f"continue_from={STORED}", "task=text", "budget.tokens=4000000", "device.precision=bf16"),
}
"""Overrides on the command line, by the name of the file."""
