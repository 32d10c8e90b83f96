"""Code of README and docs, compiled so that an example of an error fails if none is raised."""

import ast


class _Raising(ast.NodeTransformer):
    """Give every `try` an `else` that fails; those of functions are programs, not examples."""

    def visit_FunctionDef(self, node):
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Try(self, node):
        self.generic_visit(node)
        if node.handlers and not node.orelse:
            (fail,) = ast.parse(f"raise AssertionError('line {node.lineno}: no error')").body
            node.orelse = [ast.copy_location(fail, node)]
        return node


def compiled(text, name):
    tree = _Raising().visit(ast.parse(text, name))
    return compile(ast.fix_missing_locations(tree), name, "exec")
