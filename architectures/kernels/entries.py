"""Enters all kernels into ``architectures.fast_paths``, which imports this module."""

from archbench.architectures import fast_paths
from archbench.architectures.kernels import attention, fla, mamba_ssm
from archbench.architectures.kernels.cpu import delta_ops, mamba_ops, source, transformer_ops
from archbench.architectures.kernels.cpu.decode import dispatch, ssm, transformer

__all__ = ["attention", "delta_ops", "dispatch", "mamba_ops", "ssm", "transformer", "transformer_ops"]

fast_paths.add_source("cpp", source)
fast_paths.add_source("fla", fla)
fast_paths.add_source("mamba_ssm", mamba_ssm)
