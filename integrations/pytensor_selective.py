"""A pytest plugin: what `pytensor_own` does, with every JAXLinker replaced by ours.

The tests make their linkers themselves, so the name is replaced where they find it, and the linker
of the mode "JAX".
"""

import pytensor.compile.mode
import pytensor.link.jax
import pytensor.link.jax.linker

from integrations.pytensor_own import pytest_runtest_logreport, pytest_sessionfinish  # noqa: F401
from malleable.integrations.pytensor import SelectiveLinker

for module in (pytensor.link.jax, pytensor.link.jax.linker, pytensor.compile.mode):
    module.JAXLinker = SelectiveLinker
pytensor.compile.mode.JAX.linker = SelectiveLinker()
