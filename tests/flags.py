"""How the tests run: XLA's flags for programs that run once, which cases on which Python.

FAST compiles fast, not well. USUAL are the compiler options that undo it, for one program of a
process that has it. KEPT is where a run of the tests keeps what it compiled.
"""

import importlib.metadata
import pathlib
import sys

FAST = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
USUAL = {"xla_backend_optimization_level": 3}
OTHER = sys.version_info >= (3, 12)  # CI runs two Pythons: other programs and cases on each
KEPT = pathlib.Path(__file__).parent.parent / ".pytest_cache" / "d" / "xla"
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Half as long to compile; newer ones know no other way than theirs.
    FAST += " --xla_cpu_use_fusion_emitters=false"
    USUAL["xla_cpu_use_fusion_emitters"] = True
