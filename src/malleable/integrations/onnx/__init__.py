"""Functions as ONNX models: `export_onnx(fun, *args)`. Needs the extra `onnx`."""

from malleable.integrations.onnx.export import Exported as Exported
from malleable.integrations.onnx.export import export_onnx as export_onnx
from malleable.integrations.onnx.export import preflight as preflight
