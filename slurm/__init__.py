"""From one machine to a SLURM cluster: submit a study, watch it, and upload what it logged."""

import experiments  # noqa: F401  # first, as it decides where modules are looked for
