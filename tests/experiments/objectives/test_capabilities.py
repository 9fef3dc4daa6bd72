"""Which objective can train which backbone, over the YAML files themselves."""

import pytest
from omegaconf import OmegaConf

from archbench.architectures.backbone import Backbone
from archbench.experiments.config.structured import load_class
from archbench.experiments.objectives.objective import Objective
from tests import CONF

READOUTS = {"sequence_classification", "token_classification", "similarity"}
TRAINED_BY = {
    "causal": {"causal_lm", "multi_token", "classification", "prefix_lm", "seq2seq", *READOUTS},
    "bidirectional": {"masked_lm", "masked_diffusion", "classification", *READOUTS, "sentence_pairs"},
    "encoder_decoder": {"span_corruption", "denoising", "prefix_lm", "ul2", "seq2seq"},
    "blockwise": {"block_diffusion"},
}
"""Objectives for the backbones of each capability."""
SPECIAL = {"any_order", "uniform_diffusion"}
"""Objectives for some of them."""


def classes(group, base):
    return {
        path.stem: load_class(OmegaConf.load(path)["_target_"], base, group)
        for path in (CONF / group).glob("*.yaml")
    }


BACKBONES, OBJECTIVES = classes("backbone", Backbone), classes("objective", Objective)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_objectives_take_exactly_the_backbones_they_can_train(backbone):
    capabilities = BACKBONES[backbone].capabilities
    expected = set().union(*(names for able, names in TRAINED_BY.items() if getattr(capabilities, able)))
    known = set().union(*TRAINED_BY.values())
    assert known | SPECIAL == set(OBJECTIVES)
    assert {name for name in known if OBJECTIVES[name].missing_capability(capabilities) is None} == expected


@pytest.mark.parametrize("objective", ["prefix_lm", "seq2seq"])
def test_causal_backbones_get_the_form_that_reads_source_and_target_as_one(objective):
    encoder_decoder = BACKBONES["encoder_decoder"].capabilities
    assert OBJECTIVES[objective].for_backbone(encoder_decoder) is OBJECTIVES[objective]
    causal = OBJECTIVES[objective].for_backbone(BACKBONES["mamba"].capabilities)
    assert causal is not OBJECTIVES[objective]
    assert issubclass(causal, OBJECTIVES[objective])


@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_backbone_has_an_objective(backbone):
    capabilities = BACKBONES[backbone].capabilities
    assert any(objective.missing_capability(capabilities) is None for objective in OBJECTIVES.values())


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_has_a_backbone_and_says_what_others_lack(objective):
    answers = [
        OBJECTIVES[objective].missing_capability(backbone.capabilities) for backbone in BACKBONES.values()
    ]
    assert None in answers
    lacking = [answer for answer in answers if answer is not None]
    assert lacking
    assert all(answer.startswith(("a ", "an ")) for answer in lacking)
