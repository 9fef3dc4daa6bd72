"""Records the digests that are not there yet."""

from omegaconf import OmegaConf

from tests.experiments import commands
from tests.experiments.run.digests import FOLDER, WORDS

for name, words in WORDS.items():
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        found = commands.settings(*words, "device=cpu")
        path.write_text(OmegaConf.to_yaml({"digest": found.digest, "configuration": found.resolved}))
