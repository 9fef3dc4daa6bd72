"""Help, a refused word and a bad value answer before anything slow is imported but PyTorch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments import commands

SLOW = {"pandas", "pyarrow", "matplotlib", "scipy", "datasets", "transformers", "wandb", "lm_eval"}
COMPILER = {"torch._dynamo", "sympy"}
MANY = {"torch.distributed.fsdp", "torch.distributed.tensor"}
"""For training by several processes."""
RUN = """
import atexit, runpy, sys
atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""``python -m MODULE words`` that says on leaving which modules it imported."""


def imported(module: str, *words: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The process, ended, and the modules that it had imported then."""
    ended = subprocess.run(
        [sys.executable, "-c", RUN, module, *words], cwd=commands.ROOT, capture_output=True, text=True
    )
    return ended, set(ast.literal_eval(ended.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("module", "words", "code"),
    [
        ("archbench.experiments.train", "--help", 0),
        ("archbench.experiments.train", "--cfg job", 0),
        ("archbench.experiments.train", "backbone=mambba", 2),
        ("archbench.experiments.train", "backbone.d_stat=3", 2),
        ("archbench.experiments.train", "task.x=3", 2),
        ("archbench.experiments.train", "optimizer.learning_rate=fast", 2),
        ("archbench.experiments.train", "-m trainer.log_every=0,20 trainer.compile=all", 2),
        ("archbench.experiments.plan", "scale.depht=3", 2),
        ("archbench.experiments.plan", "budget.tokens=0", 2),
        ("archbench.experiments.tasks", "--help", 0),
        ("archbench.experiments.cost", "backbone=lama2_70b", 2),
        ("archbench.experiments.benchmark", "context=[64]", 2),
        ("archbench.experiments.evaluate", "splitt=test", 2),
        ("archbench.experiments.generate", "promt=The", 2),
        ("archbench.experiments.evaluation.sample_quality", "--help", 0),
        ("archbench.experiments.evaluation.downstream", "shot=2", 2),
        ("archbench.experiments.export", "--help", 0),
        ("archbench.slurm.submit", "study=comparee", 2),
    ],
)
def test_nothing_slow_but_pytorch_is_imported_before_the_configuration_is_valid(
    module: str, words: str, code: int
) -> None:
    ended, modules = imported(module, *words.split())
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hydra" in modules
    assert not modules & (SLOW | COMPILER | MANY)


def test_pricing_imports_no_compiler_and_nothing_of_many_processes(tmp_path: Path) -> None:
    words = [
        "task=recall",
        "backbone=decoder,encoder,mamba,s4,moe",
        "scale.axis=non_embedding",
        "scale.targets.non_embedding=20000",
        f"runs={tmp_path}",
    ]
    ended, modules = imported("archbench.experiments.plan", "-m", *words)
    assert ended.returncode == 0, ended.stderr
    assert "torch" in modules
    assert not modules & (SLOW | COMPILER | MANY)


def test_training_imports_no_compiler(tmp_path: Path) -> None:
    ended, modules = imported(
        "archbench.experiments.train",
        *commands.TINY,
        *commands.RECALL,
        "budget.tokens=128",
        f"runs={tmp_path}",
    )
    assert ended.returncode == 0, ended.stderr
    assert "archbench.experiments.training.trainer" in modules
    assert not modules & (SLOW | COMPILER)
