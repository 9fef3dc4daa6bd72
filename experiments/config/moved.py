"""Modules whose classes moved after version 0.1, so that runs and models recorded by it still open.

The table is for one release: version 0.3 drops it.
"""

_NAMES = {
    "architectures": {
        "bidirectional": "backbones.bidirectional_ssm",
        "block_diffusion": "backbones.block_diffusion",
        "decoder": "backbones.decoder",
        "diffusion": "backbones.masked_diffusion",
        "encoder": "backbones.encoder",
        "encoder_decoder": "backbones.encoder_decoder",
        "hybrid": "backbones.hybrid",
        "linear_attention": "backbones.linear_attention",
        "mamba": "backbones.mamba",
        "mamba2": "backbones.mamba2",
        "moe": "backbones.moe",
        "s4": "backbones.s4",
    },
    "experiments.objectives": {
        "block_diffusion": "diffusion.block_diffusion",
        "causal_lm": "language_modelling.causal_lm",
        "classification": "language_modelling.classification",
        "denoising": "language_modelling.denoising",
        "masked_diffusion": "diffusion.masked_diffusion",
        "masked_lm": "language_modelling.masked_lm",
        "prefix_lm": "language_modelling.prefix_lm",
        "sentence_pairs": "language_modelling.sentence_pairs",
        "seq2seq": "language_modelling.seq2seq",
        "sequence_classification": "fine_tuning.sequence_classification",
        "similarity": "fine_tuning.sentence_similarity",
        "span_corruption": "language_modelling.span_corruption",
        "token_classification": "fine_tuning.token_classification",
        "ul2": "language_modelling.ul2",
    },
    "experiments.tasks": {
        "chained_recall": "recall.chained_recall",
        "compositional_recall": "recall.compositional_recall",
        "context_free": "formal.context_free",
        "context_sensitive": "formal.context_sensitive",
        "copying": "probes.copying",
        "forgetting_recall": "recall.forgetting_recall",
        "fuzzy_recall": "recall.fuzzy_recall",
        "images": "long_range.images",
        "in_context_recall": "recall.in_context_recall",
        "induction": "probes.induction",
        "infilling": "probes.infilling",
        "listops": "long_range.listops",
        "memorization": "recall.memorization",
        "needle": "probes.needle",
        "ngram_lookup": "recall.ngram_lookup",
        "pairs": "text.text_pairs",
        "pathfinder": "long_range.pathfinder",
        "phone_book": "recall.phone_book",
        "recall": "recall.mqar",
        "regular": "formal.regular",
        "sentences": "text.sequence_classification",
        "similarity": "text.sentence_similarity",
        "tags": "text.token_classification",
        "text": "text.text",
        "text_source": "long_range.text_source",
        "word_problem": "formal.word_problem",
    },
}

MOVED = {
    f"{package}.{old}": f"{package}.{new}" for package, names in _NAMES.items() for old, new in names.items()
}
"""From the module that a stored ``_target_`` may name to the one that holds the class now."""
