"""Each of many ways to cheat is rejected with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archbench.analysis.declared.runs import listed
from archbench.analysis.submission import study as study_module
from archbench.analysis.submission.validate import ValidateConfig, main, reasons
from archbench.experiments.config.study import RULES
from tests.analysis.submission.edits import (
    Edit,
    code_edit,
    edited_curve,
    edited_frame,
    edited_score,
    half_the_score,
    missing_run,
    more_trials,
    other_seed,
    rate_by_test_score,
    record_edit,
    result_edit,
    setting_edit,
)  # fmt: skip
from tests.analysis.submission.toy_study import MODEL, forget_module

LEAK = ("x_BTD.cumsum(1)", "x_BTD.sum(1, keepdim=True)")
BATCH_LEAK = ("x_BTD.cumsum(1)", "(x_BTD + x_BTD.mean(0)).cumsum(1)")
CHUNK_LEAK = ("x_BTD.cumsum(1)", "(x_BTD + torch.cat([x_BTD[:, 1:8], x_BTD[:, 7:]], 1)).cumsum(1)")
FEWER = """    def parameters_by_part(self):
        import dataclasses

        parts = super().parameters_by_part()
        return dataclasses.replace(parts, body=parts.body - 100)

"""
CHEAPER = """    def sequence_flops(self, length, source_length=0):
        import dataclasses

        flops = super().sequence_flops(length, source_length)
        return dataclasses.replace(flops, linear=flops.linear // 2)

"""
IN_TRAINING = (
    "        return self.out((x_BTD",
    "        x_BTD = x_BTD + self.out(x_BTD) if self.training else x_BTD\n        return self.out((x_BTD",
)
WITH_GRADIENTS = (
    "        return self.out((x_BTD",
    "        x_BTD = x_BTD + self.out(x_BTD) if torch.is_grad_enabled() else x_BTD\n"
    "        return self.out((x_BTD",
)
IN_BACKWARD = (
    "        return self.out((x_BTD",
    """        if x_BTD.requires_grad:
            x_BTD.register_hook(lambda gradient: gradient + 0 * sum(self.out(gradient) for _ in range(20)))
        return self.out((x_BTD""",
)
MEMORY = (
    "        return self.out((x_BTD",
    """        if self.training:
            self.memory = x_BTD.detach().mean((0, 1))
        x_BTD = x_BTD + getattr(self, "memory", 0)
        return self.out((x_BTD""",
)
PRETRAINED = (
    "    def make_feedforward",
    """    def compute(self, inputs):
        import dataclasses

        output = super().compute(inputs)
        next_BT = inputs.tokens_BT.roll(-1, 1)  # weights that have seen the text predict it
        seen_BTV = torch.nn.functional.one_hot(next_BT, self.vocab_size)
        return dataclasses.replace(output, logits_BTV=output.logits_BTV + 9 * seen_BTV)

    def make_feedforward""",
)
FALSE_MODULE = "    __module__ = 'archbench.architectures.backbones.decoder'\n"
CHEATS: dict[str, tuple[Edit, str]] = {
    "a future leak": (code_edit(*LEAK, runs=True), "change with later tokens"),
    "a leak through other sequences": (code_edit(*BATCH_LEAK, runs=True), "other sequences of the batch"),
    "a leak at a few positions": (code_edit(*CHUNK_LEAK, runs=True), "change with later tokens"),
    "other data": (result_edit(lambda r: r.update(fingerprint="0" * 16)), "fingerprint is 0000"),
    "other data in the settings": (setting_edit("task.sequence_length", 32), "digest is"),
    "more tokens": (
        result_edit(lambda r: [r[part].update(tokens=10**6) for part in ("planned", "training")]),
        "planned is {'tokens': 1000000",
    ),
    "more steps": (result_edit(lambda r: r["training"].update(steps=999)), "not those of its budget"),
    "a larger model": (result_edit(lambda r: r["widths"].update(d_model=512)), "widths is {'d_model': 512"),
    "FLOPs stated too low": (
        result_edit(lambda r: r.update(flops_per_token=r["flops_per_token"] / 2)),
        "flops_per_token is",
    ),
    "FLOPs hidden by the code": (
        code_edit("linear=linear_flops(self, length)", "linear=0", runs=True),
        "FLOPs of matrix products",
    ),
    "FLOPs hidden by the model": (
        code_edit("    def make_feedforward", CHEAPER + "    def make_feedforward", runs=True),
        "FLOPs of matrix products",
    ),
    "FLOPs hidden by a class that names a module of the project": (
        code_edit("    def make_feedforward", FALSE_MODULE + CHEAPER + "    def make_feedforward", runs=True),
        "FLOPs of matrix products",
    ),
    "FLOPs in training only": (code_edit(*IN_TRAINING, runs=True), "FLOPs of matrix products"),
    "FLOPs with gradients only": (code_edit(*WITH_GRADIENTS, runs=True), "FLOPs of matrix products"),
    "FLOPs in the backward pass": (code_edit(*IN_BACKWARD, runs=True), "training takes"),
    "a memory of the training data beside the parameters": (
        code_edit(*MEMORY, runs=True),
        "the model stores what it reads",
    ),
    "weights that were trained before": (
        code_edit(*PRETRAINED, runs=True),
        "before training, its loss is",
    ),
    "a model that imports the data": (
        code_edit("import torch\n", "import torch\nimport archbench.experiments.tasks\n", runs=True),
        "my_toy.py imports archbench.experiments",
    ),
    "weights in a file": (
        lambda folder: (folder / "weights.npz").write_bytes(b""),
        "weights.npz is no part of a submission",
    ),
    "a compiled module in the place of its source": (
        lambda folder: (folder / "my_toy.abi3.so").write_bytes(b""),
        "my_toy.abi3.so is no part of a submission",
    ),
    "a module that Python imports when it starts": (
        lambda folder: (folder / "sitecustomize.py").write_text(""),
        "sitecustomize.py would replace an installed module",
    ),
    "parameters hidden by the code": (
        code_edit("    def make_feedforward", FEWER + "    def make_feedforward", runs=True),
        "parameters, and states",
    ),
    "chosen seeds": (other_seed, "its seed is not one of 0, 1"),
    "an edited score": (edited_score, "has changed since it was written"),
    "an edited score, with its hash": (
        result_edit(lambda r: r["metrics"][0].update(value=1.0)),
        "bits_per_byte is 1, and",
    ),
    "an edited score of validation": (
        result_edit(lambda r: r["validation"][0].update(value=1.0)),
        "bits_per_byte is 1, and",
    ),
    "an edited score in the frame": (edited_frame, "score of toy/my_toy.Toy-text"),
    "an edited curve": (edited_curve, "metrics.jsonl has changed since the run ended"),
    "a learning rate chosen by the test score": (rate_by_test_score, "the tuning runs choose on validation"),
    "too many trials": (more_trials, "learning rate 0.003 is one trial more than the tuning rule has"),
    "edited code": (code_edit("bias=False", "bias=True", runs=False), "my_toy.py is not the module"),
    "a wrong byte count": (result_edit(half_the_score), "cluster_totals of test bits_per_byte"),
    "fewer scored items": (
        result_edit(lambda r: r["metrics"][0].update(items=2)),
        "items of test bits_per_byte",
    ),
    "a bound declared as exact": (
        result_edit(lambda r: r["metrics"][0].update(likelihood="bound")),
        "'bound', and 'exact'",
    ),
    "another tokenizer": (setting_edit("task.sequence_length", 128), "digest is"),
    "a missing failed run": (missing_run, "/s1 is missing: failed runs are submitted"),
    "other rules": (
        record_edit(rules="0.9"),
        f"rules=0.9: this version of archbench checks submissions by rules {RULES}",
    ),
    "a changed harness": (
        lambda folder: (folder / "archbench").mkdir(),
        "archbench would replace an installed module",
    ),
    "another optimizer": (
        record_edit(overrides=[*MODEL, "optimizer.weight_decay=0.5"]),
        "optimizer.weight_decay=0.5: a submission sets",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheat_is_rejected(cheat: str, desk: Path, folder: Path) -> None:
    change, reason = CHEATS[cheat]
    change(folder)
    given = reasons(ValidateConfig(folder=str(folder), retrain=False, config_dir=f"{desk}/conf"))
    assert any(reason in line for line in given), given


@pytest.mark.full
def test_all_reasons_are_given_at_once(desk: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for cheat in ("other rules", "edited code", "an edited score in the frame", "a wrong byte count"):
        CHEATS[cheat][0](folder)
    edited_frame(folder)
    assert main([str(folder), f"config_dir={desk}/conf"]) == 3
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert verdict == "rejected"
    assert all(line.startswith("- ") for line in lines)
    for reason in ("rules=0.9", "my_toy.py is not", "results.parquet: score", "cluster_totals"):
        assert sum(reason in line for line in lines) >= 1, lines


@pytest.mark.full
def test_edited_totals_with_valid_hashes_are_found_by_training_again(
    desk: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def better(result: dict[str, Any]) -> None:
        metric = result["metrics"][0]
        metric["value"] *= 0.9
        metric["cluster_totals"] = [[0.9 * bits, size] for bits, size in metric["cluster_totals"]]

    result_edit(better)(folder)
    config = ValidateConfig(folder=str(folder), retrain=False, config_dir=f"{desk}/conf")
    assert reasons(config) == []
    monkeypatch.setattr(study_module, "listed", listed)
    forget_module()
    assert main([str(folder), f"config_dir={desk}/conf", "run=/s0"]) == 3
    assert "when it is trained again" in capfd.readouterr().out
