"""The one door to JAX internals.

Every name from `jax.core`, `jax.extend`, `jax.interpreters` or `jax._src` enters in this folder
and nowhere else. Two dialects are spoken: up to JAX 0.10 and from 0.11 on. When a release breaks
us, a file here changes, and `tests/test_compat.py` says which line. What the core stands on comes
first: programs, building, contexts, views, markers, tracers, linear. What stands in front of a
function of JAX is in `hooks/`, and only there while it is needed.
"""

from malleable.compat.building import *
from malleable.compat.contexts import *
from malleable.compat.files import *
from malleable.compat.hooks import HOOKS as HOOKS
from malleable.compat.hooks.constructs import *
from malleable.compat.hooks.creation import *
from malleable.compat.hooks.examples import *
from malleable.compat.hooks.markers import *
from malleable.compat.hooks.running import *
from malleable.compat.hooks.sizes import *
from malleable.compat.hooks.tracebacks import *
from malleable.compat.lanes import *
from malleable.compat.linear import *
from malleable.compat.looking import *
from malleable.compat.markers import *
from malleable.compat.programs import *
from malleable.compat.shardings import *
from malleable.compat.tracers import *
from malleable.compat.views import *
