"""XLA's flags for programs that run once: compile them fast, not well."""

import importlib.metadata

FAST = "--xla_backend_optimization_level=0"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Half as long to compile; newer ones know no other way than theirs.
    FAST += " --xla_cpu_use_fusion_emitters=false"
