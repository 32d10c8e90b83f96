"""Programs that `jax.jit` rejects, as users write them, beside shared/cases/selective.py.

python -m benchmarks.cases selective benchmarks/selective_programs.py
"""

from benchmarks.selective_fits import FITS
from benchmarks.selective_form import agree as agree
from benchmarks.selective_form import block as block
from benchmarks.selective_form import to_np as to_np
from benchmarks.selective_sets import SETS
from benchmarks.selective_steps import STEPS

PROGRAMS = FITS | SETS | STEPS
