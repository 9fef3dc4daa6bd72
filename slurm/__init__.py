"""From one machine to a SLURM cluster: submit a study, watch it, and upload what it logged."""
