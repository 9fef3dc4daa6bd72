"""A cell of a sweep is composed once for all seeds, and run with what Hydra would compose for it."""

import sys
from pathlib import Path

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from archbench.experiments.config.hydra_app import start


@pytest.mark.parametrize("batches", [(), ("hydra.sweeper.max_batch_size=1",)])
def test_each_cell_is_composed_once_for_all_seeds_and_as_hydra_does(
    batches: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: list[tuple[str, ...]] = []
    run: list[tuple[str, ...]] = []
    own = ConfigLoaderImpl.load_sweep_config

    def counted(
        loader: ConfigLoaderImpl, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        composed.append(tuple(sweep_overrides))
        return own(loader, master_config, sweep_overrides)

    def job(cfg: DictConfig) -> None:
        words = HydraConfig.get().overrides
        run.append(tuple(words.task))
        loader = GlobalHydra.instance().config_loader()
        anew = loader.load_configuration("config", [*words.hydra, *words.task], RunMode.RUN)
        hydra = HydraConfig.get()
        assert (hydra.runtime.choices, hydra.sweep) == (anew.hydra.runtime.choices, anew.hydra.sweep)
        assert hydra.overrides.task == anew.hydra.overrides.task
        assert hydra.job.override_dirname == anew.hydra.job.override_dirname
        with open_dict(anew):
            del anew["hydra"]
        assert OmegaConf.to_yaml(cfg, resolve=True) == OmegaConf.to_yaml(anew, resolve=True)
        assert OmegaConf.is_struct(cfg)

    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the entry point sets it; this takes it back
    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    swept = ["backbone=decoder,mamba", "seed=3,4", "task=text,infilling"]
    words = ["-m", *swept, "study=compare", f"runs={tmp_path}", *batches]
    monkeypatch.setattr(sys, "argv", ["train", *words, "hydra/launcher=basic"])
    GlobalHydra.instance().clear()
    start(job)
    assert len(run) == len(set(run)) > 3
    cells = {tuple(word for word in words if not word.startswith("seed=")) for words in run}
    assert len(composed) == len(cells)
