"""Where each line of StableHLO and of XLA's text comes from: frames, innermost first."""

import jax
import jax.numpy as jnp
import pytest

import malleable as mal
from malleable.inspection.show.page.located import located
from tests.inspection.show.pages import body, line_of, model

MLIR = """\
#loc1 = loc("x")
module @jit_f {
  func.func public @main(%arg0: tensor<f32> loc("x")) -> (tensor<f32>) {
    %0 = stablehlo.sine %arg0 : tensor<f32> loc(#loc9)
    %1 = stablehlo.add %0, %0 : tensor<f32> loc(#loc10)
    %2 = stablehlo.cosine %1 : tensor<f32> loc("cos"("m.py":4:8 to 6:9))
    %3 = stablehlo.tanh %2 : tensor<f32> loc(fused[#loc1, #loc9])
    return %3 : tensor<f32> loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc2 = loc("m.py":7:4 to :19)
#loc3 = loc("m (1).py":12:0)
#loc4 = loc("inner"(#loc2))
#loc5 = loc("outer"(#loc3))
#loc6 = loc(callsite(#loc4 at #loc5))
#loc9 = loc("sin"(#loc6))
#loc10 = loc("jit(f)/add \\"quoted\\" (1)"(#loc4))
"""

TABLES = """\
HloModule jit_f, entry_computation_layout={(f32[])->f32[]}

FileNames
1 "m.py"

FunctionNames
1 "outer"
2 "inner"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=0 end_column=9}
2 {file_name_id=1 function_name_id=2 line=7 end_line=8 column=4 end_column=19}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}


ENTRY %main.1 (x.1: f32[]) -> f32[] {
  %x.1 = f32[] parameter(0), metadata={op_name="x"}
  %sin.1 = f32[] sine(%x.1), metadata={op_type="a}" op_name="sin{" stack_frame_id=2}, backend={}
  ROOT %cos.1 = f32[] cosine(%sin.1), metadata={op_name="cos" source_file="o.py" source_line=3}
}
"""


def spelled(text):
    return {line.strip(): [(p.file, p.line, p.function) for p in c] for line, c in located(text)}


def test_aliases_calls_and_names_are_followed():
    found = spelled(MLIR)
    sine = [("m.py", 7, "inner"), ("m (1).py", 12, "outer")]
    assert found["%0 = stablehlo.sine %arg0 : tensor<f32>"] == sine
    assert found["%1 = stablehlo.add %0, %0 : tensor<f32>"] == [("m.py", 7, "inner")]
    assert found["%2 = stablehlo.cosine %1 : tensor<f32>"] == [("m.py", 4, "cos")]
    assert found["%3 = stablehlo.tanh %2 : tensor<f32>"] == sine
    assert found["return %3 : tensor<f32>"] == []


def test_locations_are_left_out_of_the_text_and_nothing_else():
    lines = [line for line, _ in located(MLIR)]
    assert lines[:2] == [
        "module @jit_f {",
        "  func.func public @main(%arg0: tensor<f32>) -> (tensor<f32>) {",
    ]
    assert lines[-1] == "}" and not any("loc" in line for line in lines)


def test_an_expression_over_several_lines_has_its_end():
    (place,) = next(chain for line, chain in located(MLIR) if "cosine" in line)
    assert (place.line, place.column, place.end_line, place.end_column) == (4, 8, 6, 9)


def test_tables_of_frames_are_read_and_left_out():
    found = spelled(TABLES)
    assert found["%sin.1 = f32[] sine(%x.1), backend={}"] == [
        ("m.py", 7, "inner"),
        ("m.py", 12, "outer"),
    ]
    assert found["ROOT %cos.1 = f32[] cosine(%sin.1)"] == [("o.py", 3, "")]
    assert found["%x.1 = f32[] parameter(0)"] == []
    assert not any("id=" in line or line.startswith("FileNames") for line in found)


def test_parents_may_be_counted_from_the_frame_itself_or_one_above():
    plain = TABLES.replace("parent_frame_id=1", "parent_frame_id=0")
    plain = plain.replace("parent_frame_id=2", "parent_frame_id=1")
    assert spelled(plain) == spelled(TABLES)


def test_frames_that_go_round_in_circles_end():
    circle = TABLES.replace("parent_frame_id=1}", "parent_frame_id=3}")
    assert len(spelled(circle)["%sin.1 = f32[] sine(%x.1), backend={}"]) <= 3


@pytest.mark.parametrize("text", ["", "}", "HloModule x", "loc(", 'loc("', "#loc1 = loc(#loc1)"])
def test_any_text_is_read(text):
    assert all(chain == () for _, chain in located(text))


def test_the_operations_of_a_program_name_its_lines():
    shown = mal.show(model, hlo="optimised", quiet=True)(jnp.ones(4))
    for stage in (stage for stage in shown.stages if stage.kind == "hlo"):
        lines = {
            (chain[0].line, chain[0].function)
            for text, chain in located(stage.text)
            if chain and ("sine" in text or "add(%" in text)
        }
        assert (line_of(body, "jnp.sin(c) * t"), "body") in lines, stage.name


def test_a_line_that_refers_to_itself_ends():
    text = "%0 = f %x : t loc(#loc1)\n#loc1 = loc(callsite(#loc2 at #loc2))\n#loc2 = loc(#loc1)"
    assert [chain for _, chain in located(text)] == [()]


def test_large_programs_are_read_quickly():
    def big(x):
        for _ in range(300):
            x = jnp.sin(x) + 1.0
        return x

    text = jax.jit(big).lower(1.0).as_text(debug_info=True)
    assert sum("stablehlo.sine" in line and bool(chain) for line, chain in located(text)) == 300
