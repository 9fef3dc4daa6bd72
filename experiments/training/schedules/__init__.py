"""Schedules of the learning rate after the warm-up, one module each.

A module defines ``factor(step, warmup, total, config)`` and ``SEVERAL_DECAYS``, as ``Schedule`` in
``experiments.config.optimizer`` describes them. ``optimizer.schedule`` is its name, or the dotted path of a
module elsewhere. ``load_schedule`` imports it, and ``experiments.training.optimizer_step`` calls ``factor``.
"""
