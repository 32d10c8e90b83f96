"""What goes to ONNX: by jax2onnx alone, and by `mal.export.onnx`.

    python -m benchmarks.onnx [NAME ..] [--smoke]

Every program of `programs/onnx.py` is exported in both ways, run in onnxruntime on its arguments
and compared with JAX. "wrong": the model runs and computes something else; "refused": with an
error that names the line. jax2onnx alone runs in a process of its own, for it replaces functions
of JAX while it works. Exit status 0 means that every gate passes: at least 47 of the 52 programs
right with us, no wrong model, and what is refused is what has no counterpart.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import jax
import numpy as np

from benchmarks.programs.onnx import MORE, PROGRAMS
from benchmarks.smoke import SMOKE

LEAST = 47  # of the 52; jax2onnx alone: 35 when they were first counted
TOLERANCE = 1e-4  # of the largest number in an output
COARSE = {"matmul in bfloat16": 2e-2}  # sums of numbers with 8 bits


def compared(program, model):
    """(max abs error, or what is wrong) of a model in onnxruntime, against JAX."""
    runtime = __import__("onnxruntime")
    runtime.set_default_logger_severity(4)
    session = runtime.InferenceSession(model)
    leaves = [np.asarray(x) for x in jax.tree.leaves(program.args)]
    named = [value.name for value in session.get_inputs()]
    if len(named) != len(leaves):
        return f"{len(named)} inputs for {len(leaves)} arrays"
    got = session.run(None, dict(zip(named, leaves, strict=True)))
    args = jax.tree.map(jax.numpy.asarray, program.args)
    want = [np.asarray(x) for x in jax.tree.leaves(jax.jit(program.fun)(*args))]
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
        error = float(np.max(abs(a.astype(float) - b.astype(float)), initial=0.0))
        scale = max(1.0, float(np.max(abs(b.astype(float)), initial=0.0)))
        if not error <= COARSE.get(program.name, TOLERANCE) * scale:
            return f"error {error:.1e}"
        worst = max(worst, error)
    return worst


def by_jax2onnx(program):
    """The model of jax2onnx alone, as bytes."""
    leaves, tree = jax.tree.flatten(program.args)
    flat = lambda *xs: jax.tree.leaves(program.fun(*jax.tree.unflatten(tree, xs)))
    types = [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in leaves]
    return __import__("jax2onnx").to_onnx(flat, types).SerializeToString()


def by_us(program):
    """Our model, as bytes, after its way through a file."""
    export = __import__("malleable").export.onnx
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.onnx"
        export(program.fun, *program.args, path=path, polymorphic=program.polymorphic)
        return path.read_bytes()


def record(program, export):
    """What comes of one program: {kind: right, wrong, refused or broken; said, nodes}."""
    try:
        model = export(program)
    except Exception as error:
        line = bool(re.search(r"programs/onnx\.py:\d+ in \w+", str(error)))
        first = str(error).strip().partition("\n")[0]
        kind = "refused" if line and type(error).__name__ == "MalleableError" else "broken"
        return {"kind": kind, "said": f"{type(error).__name__}: {first}"}
    nodes = count(__import__("onnx").load_from_string(model).graph)
    try:
        found = compared(program, model)
    except Exception as error:
        return {"kind": "broken", "said": str(error).partition("\n")[0], "nodes": nodes}
    if isinstance(found, str):
        return {"kind": "wrong", "said": found, "nodes": nodes}
    return {"kind": "right", "error": found, "nodes": nodes}


def count(graph):
    inside = [count(a.g) for node in graph.node for a in node.attribute if a.HasField("g")]
    return len(graph.node) + sum(inside)


def alone(names):
    """The records of jax2onnx alone, made in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "alone.json"
        command = [sys.executable, "-m", "benchmarks.onnx", "--alone", str(out), *names]
        command += ["--smoke"] if SMOKE else []
        subprocess.run(command, capture_output=True, timeout=1200, check=False)
        lines = out.read_text().splitlines() if out.exists() else []
        return dict(json.loads(line) for line in lines)


def chosen(names):
    every = PROGRAMS[:1] if SMOKE else (*PROGRAMS, *MORE)
    return [p for p in every if not names or p.name in names]


def spell(found):
    if found["kind"] == "right":
        return f"{found['error']:.1e}"
    return found["kind"]


def main(names):
    if names[:1] == ["--alone"]:
        with pathlib.Path(names[1]).open("w") as out:
            for program in chosen(names[2:]):
                print(
                    json.dumps([program.name, record(program, by_jax2onnx)]), file=out, flush=True
                )
        return 0
    before = alone(names)
    print(f"JAX {jax.__version__}; errors: max abs, against JAX\n")
    print("| group | program | jax2onnx alone | ours | nodes alone | nodes ours |")
    print("|---|---|---|---|---|---|")
    after, none = {}, {"kind": "broken", "said": "the process ended"}
    for p in chosen(names):
        one, ours = before.get(p.name, none), record(p, by_us)
        after[p.name] = ours
        sizes = f"{one.get('nodes', '')} | {ours.get('nodes', '')}"
        print(f"| {p.group} | {p.name} | {spell(one)} | {spell(ours)} | {sizes} |", flush=True)
    print()
    for p in chosen(names):
        if after[p.name]["kind"] != "right":
            print(f"{p.name}: {after[p.name]['kind']}: {after[p.name]['said']}")
    right = lambda records: sum(records.get(p.name, none)["kind"] == "right" for p in PROGRAMS)
    wrong = lambda records: [n for n, r in records.items() if r["kind"] == "wrong"]
    expected = all(
        after[p.name]["kind"] == ("refused" if p.impossible else "right") for p in chosen(names)
    )
    print(f"\nof the {len(PROGRAMS)}: jax2onnx alone {right(before)}, ours {right(after)}")
    print(f"wrong models: jax2onnx alone {wrong(before)}, ours {wrong(after)}")
    gates = {
        f"at least {LEAST} of {len(PROGRAMS)} right": SMOKE or bool(names) or right(after) >= LEAST,
        "no wrong model": not wrong(after),
        "refused with the line, exactly what has no counterpart": expected,
    }
    for what, passed in gates.items():
        print(f"{'pass' if passed else 'FAIL'}: {what}")
    return 0 if all(gates.values()) else 1


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main([name for name in sys.argv[1:] if name != "--smoke"]))
