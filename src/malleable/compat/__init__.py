"""The one door to JAX internals.

Every name from `jax.core`, `jax.extend`, `jax.interpreters` or `jax._src` enters in this folder
and nowhere else. Two dialects are spoken: up to JAX 0.10 and from 0.11 on. When a release breaks
us, a file here changes, and `tests/test_compat.py` says which line. What the core stands on comes
first: programs, building, views, markers, sizes, tracers, linear.
"""

from malleable.compat.building import *
from malleable.compat.constructs import *
from malleable.compat.files import *
from malleable.compat.lanes import *
from malleable.compat.linear import *
from malleable.compat.looking import *
from malleable.compat.markers import *
from malleable.compat.programs import *
from malleable.compat.running import *
from malleable.compat.sizes import *
from malleable.compat.tracebacks import *
from malleable.compat.tracers import *
from malleable.compat.views import *
