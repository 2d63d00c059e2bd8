"""Our session under the peer's name: what a program gets that changes its import and nothing else."""

import sys

import anynpu.session

sys.modules[__name__] = anynpu.session
