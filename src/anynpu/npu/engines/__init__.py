"""What executes the layers of a program, one module an engine.

:mod:`.reference` executes every integer operator with numpy, exactly. It is slow and it is the truth: all other kernels must
give the same bytes. :mod:`.native` executes them with C kernels and is what a device uses; :mod:`.choice` states how to get which.
"""
