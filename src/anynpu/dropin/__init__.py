"""Drop-in libraries: unmodified programs for a board run on the software NPU.

``librknnrt.so`` and ``librknnmrt.so`` are a thin layer in C (``native/``, with files that ``generate/`` writes) over the library object of
:mod:`anynpu.rknn`. :mod:`~anynpu.dropin.table` is where the two meet; :mod:`~anynpu.dropin.environment` starts programs with them.
"""
