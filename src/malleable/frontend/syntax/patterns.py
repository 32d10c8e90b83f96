"""`match` as `if`: a pattern is a test, and what it binds once the test holds.

Patterns with parts are tests of the parts. A case is left to Python if it binds the rest of a
dict, or an assignment is in its guard; so are the cases behind it.
"""

import ast
from collections.abc import Callable

from malleable.python_source.nodes import assign, constant, hook, load, placed


def as_ifs(stmt: ast.Match, keeps: Callable) -> list:
    """if/elif for the leading simple cases of a match; the rest stays a match.

    keeps: whether a guard is to stay as it is.
    """
    subject = placed(load(f"_ag_subject{stmt.lineno}_{stmt.col_offset}"), stmt.subject)
    known: list = []
    for case in stmt.cases:
        found = parts(case.pattern, lambda: load(subject.id))
        if found is None or (case.guard is not None and keeps(case.guard)):
            break
        known.append((case, *found))
    if not known:
        return [stmt]
    rest: list = []
    if len(known) < len(stmt.cases):
        rest = [ast.Match(subject=subject, cases=stmt.cases[len(known) :])]
        ast.copy_location(rest[0], stmt)
    for case, tests, bindings in reversed(known):
        rest = _as_if(case, tests, bindings, rest)
    return [placed(assign(subject.id, stmt.subject), stmt.subject), *rest]


def _as_if(case, tests, bindings, rest) -> list:
    pattern, guard, body = case.pattern, case.guard, case.body
    bindings = [placed(binding, pattern) for binding in bindings]
    if not tests:
        if guard is None:
            return [*bindings, *body]
        return [*bindings, placed(ast.If(test=guard, body=body, orelse=rest), guard)]
    if guard is not None and bindings:  # the guard reads them, and they stay if it says no
        hit = f"_ag_hit{pattern.lineno}_{pattern.col_offset}"
        before = placed(assign(hit, constant(False)), pattern)
        found = [*bindings, placed(assign(hit, guard), guard)]
        asked = placed(ast.If(test=_all(tests), body=found, orelse=[]), pattern)
        return [before, asked, placed(ast.If(test=load(hit), body=body, orelse=rest), guard)]
    tests = tests if guard is None else [*tests, guard]
    return [placed(ast.If(test=_all(tests), body=[*bindings, *body], orelse=rest), pattern)]


def _all(tests: list):
    return ast.BoolOp(op=ast.And(), values=tests) if len(tests) > 1 else tests[0]


def parts(pattern, get: Callable) -> tuple[list, list] | None:
    """The tests that a pattern makes, and the assignments; None if it has no such form.

    get: makes the expression of what is matched.
    """
    match pattern:
        case ast.MatchValue():
            return [ast.Compare(left=get(), ops=[ast.Eq()], comparators=[pattern.value])], []
        case ast.MatchSingleton():
            value = constant(pattern.value)
            return [ast.Compare(left=get(), ops=[ast.Is()], comparators=[value])], []
        case ast.MatchAs(pattern=None):
            return [], [assign(pattern.name, get())] if pattern.name else []
        case ast.MatchAs():
            found = parts(pattern.pattern, get)
            return found and (found[0], [*found[1], assign(pattern.name, get())])
        case ast.MatchOr():
            options = [parts(one, get) for one in pattern.patterns]
            if not all(found and found[0] and not found[1] for found in options):
                return None
            return [ast.BoolOp(op=ast.Or(), values=[_all(o[0]) for o in options if o])], []
        case ast.MatchSequence():
            return _sequence(pattern.patterns, get)
        case ast.MatchMapping(rest=None):
            tests = [hook("is_mapping", get())]
            for key in pattern.keys:
                tests.append(ast.Compare(left=key, ops=[ast.In()], comparators=[get()]))
            return _together(tests, pattern.patterns, [_item(get, key) for key in pattern.keys])
        case ast.MatchClass():
            n, names = len(pattern.patterns), [constant(name) for name in pattern.kwd_attrs]
            test = hook("is_instance", get(), pattern.cls, constant(n), *names)
            which = [*map(constant, range(n)), *names]
            gets = [lambda at=at: hook("part", get(), pattern.cls, at) for at in which]
            return _together([test], [*pattern.patterns, *pattern.kwd_patterns], gets)
    return None


def _sequence(patterns: list, get: Callable) -> tuple[list, list] | None:
    n = len(patterns)
    star = next((k for k, p in enumerate(patterns) if isinstance(p, ast.MatchStar)), n)
    tests = [hook("is_sequence", get(), constant(min(n, n - (star < n))), constant(star < n))]
    numbers = [k if k < star else k - n for k in range(n)]
    gets = [_item(get, constant(k)) for k in numbers]
    if star < n:
        end = constant(star - n + 1) if star + 1 < n else None
        where = ast.Slice(lower=constant(star), upper=end)
        gets[star] = lambda: ast.List(
            elts=[ast.Starred(value=_item(get, where)(), ctx=ast.Load())], ctx=ast.Load()
        )
        patterns = [
            ast.MatchAs(pattern=None, name=p.name) if k == star else p
            for k, p in enumerate(patterns)
        ]
    return _together(tests, patterns, gets)


def _item(get: Callable, at) -> Callable:
    return lambda: ast.Subscript(value=get(), slice=at, ctx=ast.Load())


def _together(tests: list, patterns: list, gets: list) -> tuple[list, list] | None:
    bindings: list = []
    for pattern, get in zip(patterns, gets, strict=True):
        found = parts(pattern, get)
        if found is None:
            return None
        tests, bindings = [*tests, *found[0]], [*bindings, *found[1]]
    return tests, bindings
