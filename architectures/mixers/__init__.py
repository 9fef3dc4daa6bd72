"""Mixers with a state of fixed size, one module each. The name of the module is the name of the mixer.

A module defines ``Config``, a subclass of ``MixerConfig`` with the settings, and ``make``, which returns the
layer from ``d_model``, the settings and ``norm_eps``. The layer decodes by ``start`` and ``step``, as in
``Mixer``: without them it can be trained, and decoding raises ValueError. A mixer that reads both
directions by itself also has ``make_bidirectional``, with the same arguments. A new module can be used in the
layers of a hybrid, and has a section of settings there, without a further change.
"""
