"""break, continue and return as flags, so that a block can become a function.

    for x in xs:                            _ag_break1 = False
        if x > 3:                           for x in xs:          # exits: _ag_break1
            break                 becomes       if x > 3:
        s += x                                      _ag_break1 = True
                                                else:
                                                    s += x

Where an `if` ends in a jump, the rest of its block moves into the other branch; else the rest is
guarded by the flags. Statements that must stay as they are (they hold a yield, an await, a look
at `locals()`, or a jump out of a `finally`) are pinned: their jumps and blocks stay native.
"""

import ast

from malleable.frontend.syntax.patterns import as_ifs
from malleable.python_source import nodes
from malleable.python_source.nodes import assign, constant, load, placed

RETURNED, RESULT, ENDED = "_ag_ret", "_ag_rv", "_ag_ended"
MARKERS = {ast.If: "inline_cond", ast.For: "inline_scan", ast.While: "inline_while"}
LOOPS = (ast.While, ast.For, ast.AsyncFor)
RAISES = "raise"  # in the context of a block inside a `try`: a raise ends it, as a jump does
DEEP = 24  # levels of nesting at which the rest of a block is guarded by flags instead
PINS = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
SCOPE_CALLS = frozenset(["locals", "vars", "dir", "eval", "exec"])


def holds(node, kinds, *, scope_calls=False):
    """Whether a node of these kinds is in this node, nested functions and classes left out."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, kinds) or (scope_calls and looks_at_scope(node)):
            return True
        if isinstance(node, (*nodes.FUNCTIONS, ast.ClassDef)):
            continue
        todo.extend(ast.iter_child_nodes(node))
    return False


def walruses(node):
    """The assignment expressions in an expression, nested functions left out."""
    found, todo = [], [node]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.NamedExpr):
            found.append(node)
        if not isinstance(node, nodes.FUNCTIONS):
            todo.extend(ast.iter_child_nodes(node))
    return found


def looks_at_scope(node):
    """`locals()`, `vars()`, `dir()`, `eval(text)`, `exec(text)`: calls that see all variables."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    name = node.func.id
    if name in ("eval", "exec"):
        return len(node.args) + len(node.keywords) < 2
    return name in SCOPE_CALLS and not node.args and not node.keywords


class Plan:
    """Which statements of a function become operator calls, and whether its returns are lowered."""

    def __init__(self, body, mode):
        self.outs, self.pinned, self.converted, self.full = {}, set(), set(), mode == "full"
        self.kept = []  # alive, so that their ids stay theirs
        self._pins = any(holds(stmt, PINS, scope_calls=True) for stmt in body)
        for stmt in body:
            self._survey(stmt)
        self._returns_native = bool(self.pinned)
        for stmt in body:
            self._settle(stmt, False)
        if mode == "full":
            self._choose(body)
        else:
            while self._mark(body, []):
                pass
        self.returns = any(self._has_lowered_return(stmt) for stmt in body)
        if mode == "explicit" and self.returns:
            self._mark_returns(body, [])
            while self._mark(body, []):
                pass

    def _survey(self, stmt):
        """Note the jumps that leave stmt; returns those that leave it out of a finally."""
        self.kept.append(stmt)
        outs, forced, inner = set(), set(), nodes.blocks(stmt)
        if isinstance(stmt, ast.Return):
            outs.add("return")
        elif isinstance(stmt, (ast.Break, ast.Continue)):
            outs.add(type(stmt).__name__.lower())
        for number, block in enumerate(inner):
            leaving = set()
            for child in block:
                forced |= self._survey(child)
                leaving |= self.outs[id(child)]
            if isinstance(stmt, LOOPS) and number == 0:
                if forced:
                    self.pinned.add(id(stmt))
                leaving -= {"break", "continue"}
                forced -= {"break", "continue"}
            outs |= leaving
        if isinstance(stmt, (ast.Try, ast.TryStar)) and not self.jumps_late(stmt):
            for child in stmt.finalbody:
                forced |= self.outs[id(child)]
        pinned = forced or any(id(child) in self.pinned for block in inner for child in block)
        if self._pins and not pinned:
            pinned = isinstance(stmt, (ast.AsyncFor, ast.AsyncWith)) or any(
                holds(head, PINS, scope_calls=True) for head in nodes.heads(stmt)
            )
        if isinstance(stmt, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            pinned = False
        if isinstance(stmt, ast.While) and stmt.orelse and holds(stmt.test, ast.NamedExpr):
            pinned = pinned or any(
                self.outs[id(child)] & {"break", "continue"} for child in stmt.orelse
            )
        if pinned:
            self.pinned.add(id(stmt))
        self.outs[id(stmt)] = outs
        return forced

    def jumps_late(self, stmt):
        """Whether this is a `try` with a jump out of its `finally` that can be lowered."""
        late = isinstance(stmt, ast.Try) and any(self.outs[id(s)] for s in stmt.finalbody)
        return late and self.full and not self._pins

    def _settle(self, stmt, loop_pinned):
        outs = self.outs[id(stmt)]
        if loop_pinned and outs & {"break", "continue"}:
            self.pinned.add(id(stmt))
        if self._returns_native and "return" in outs:
            self.pinned.add(id(stmt))
        here = id(stmt) in self.pinned
        for number, block in enumerate(nodes.blocks(stmt)):
            inside = here if isinstance(stmt, LOOPS) and number == 0 else loop_pinned
            for child in block:
                self._settle(child, inside)

    def _choose(self, stmts):
        for stmt in stmts:
            catches = isinstance(stmt, ast.Try) and (stmt.handlers or self.jumps_late(stmt))
            catches = catches or (isinstance(stmt, ast.With) and "return" in self.outs[id(stmt)])
            if (catches or isinstance(stmt, (ast.If, ast.While, ast.For))) and (
                id(stmt) not in self.pinned
            ):
                self.converted.add(id(stmt))
            for block in nodes.blocks(stmt):
                self._choose(block)

    def _mark(self, stmts, path):
        """Explicit style: marked statements, and what stands between them and a jump's target."""
        before = len(self.converted)
        for stmt in stmts:
            head = getattr(stmt, "iter", None) or getattr(stmt, "test", None)
            marker = MARKERS.get(type(stmt))
            name = getattr(head, "func", None)
            name = getattr(name, "attr", getattr(name, "id", None))
            fits = id(stmt) not in self.pinned and not _binds_in_test(stmt)
            if marker and name == marker and fits:
                self.converted.add(id(stmt))
            if isinstance(stmt, (ast.Break, ast.Continue)):
                loop = max(i for i, one in enumerate(path) if isinstance(one, LOOPS))
                self._close(path[loop:])
            elif isinstance(stmt, ast.Return):
                self._close(path)
            for number, block in enumerate(nodes.blocks(stmt)):
                outer = isinstance(stmt, LOOPS) and number == 1
                self._mark(block, path if outer else [*path, stmt])
        return len(self.converted) != before

    def _close(self, path):
        if any(id(stmt) in self.converted for stmt in path):
            kinds = (ast.If, ast.While, ast.For)
            self.converted.update(id(s) for s in path if isinstance(s, kinds))

    def _mark_returns(self, stmts, path):
        for stmt in stmts:
            if isinstance(stmt, ast.Return):
                kinds = (ast.If, ast.While, ast.For)
                self.converted.update(id(s) for s in path if isinstance(s, kinds))
            for block in nodes.blocks(stmt):
                self._mark_returns(block, [*path, stmt])

    def _has_lowered_return(self, stmt):
        if "return" not in self.outs[id(stmt)]:
            return False
        if id(stmt) in self.converted:
            return True
        return any(self._has_lowered_return(s) for block in nodes.blocks(stmt) for s in block)

    def falls(self, stmts):
        """Whether control can reach the end of this statement list."""
        return all(self._falls(stmt) for stmt in stmts)

    def _falls(self, stmt):
        if isinstance(stmt, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
            return False
        if isinstance(stmt, ast.If):
            return self.falls(stmt.body) or self.falls(stmt.orelse)
        if isinstance(stmt, ast.While):
            endless = isinstance(stmt.test, ast.Constant) and stmt.test.value
            return not endless or any(_breaks(child) for child in stmt.body)
        if isinstance(stmt, (ast.Try, ast.TryStar)):
            through = self.falls(stmt.body) and self.falls(stmt.orelse)
            through = through or any(self.falls(h.body) for h in stmt.handlers)
            return through and self.falls(stmt.finalbody)
        return True


def _binds_in_test(stmt):
    """A walrus in the test of a `while`, which full style makes a statement first."""
    return isinstance(stmt, ast.While) and holds(stmt.test, ast.NamedExpr)


def _breaks(stmt):
    if isinstance(stmt, ast.Break):
        return True
    inner = nodes.blocks(stmt)
    if isinstance(stmt, LOOPS):
        inner = inner[1:]
    return any(_breaks(child) for block in inner for child in block)


class Lowering:
    """One function's jumps, rewritten in place. tested: the flags that something looks at."""

    def __init__(self, plan, numbers):
        self.plan, self.numbers, self.tested, self.depth = plan, numbers, set(), 0

    def function(self, body):
        """The body with its jumps lowered, flags set up in front, `return` at the end."""
        plan = self.plan
        if not plan.returns:
            return self.block(body, {})
        end = body[-1]
        if plan.falls(body):
            body = [*body, placed(ast.Return(value=constant(None)), end)]
            plan.kept.append(body[-1])
            plan.outs[id(body[-1])] = {"return"}
        lowered = self.block(body, {"return": RETURNED})
        unset = ast.Attribute(value=load(nodes.HOOKS), attr="UNSET", ctx=ast.Load())
        first = body[0]
        lowered.insert(0, placed(assign(RESULT, unset), first))
        if RETURNED in self.tested:
            lowered.insert(0, placed(assign(RETURNED, constant(False)), first))
        return [*lowered, placed(ast.Return(value=load(RESULT)), end)]

    def flags(self, stmts, context):
        """Flags that these statements may set."""
        outs = set().union(*(self.plan.outs.get(id(stmt), ()) for stmt in stmts))
        return sorted(context[out] for out in outs if out in context)

    def guard(self, flags, stmts):
        """`if not flag: stmts`."""
        if not stmts:
            return []
        self.tested.update(flags)
        tests = [load(flag) for flag in flags]
        test = tests[0] if len(tests) == 1 else ast.BoolOp(op=ast.Or(), values=tests)
        unless = ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test), body=stmts, orelse=[])
        return [self.known(placed(unless, getattr(stmts[0], "test", None) or stmts[0]))]

    def block(self, stmts, context):
        """A statement list without jumps; what follows a jump is nested, or guarded when deep."""
        self.depth += 1
        lowered = (self.nested if self.depth < DEEP else self.guarded)(stmts, context)
        self.depth -= 1
        return lowered

    def guarded(self, stmts, context):
        done, flags = [], []
        for stmt in stmts:
            mine, falls = self.flags([stmt], context), self.plan.falls([stmt])
            jump = type(stmt).__name__.lower()
            jumps = isinstance(stmt, (ast.Return, ast.Break, ast.Continue)) and jump in context
            new = self.jump(stmt, context) if jumps else self.statement(stmt, context)
            done += self.guard(flags, new) if flags else new
            if not falls:
                break
            flags = sorted({*flags, *mine})
        return done

    def jump(self, stmt, context):
        """Flags in place of a jump; the result is evaluated before its flag is set."""
        jump, done = type(stmt).__name__.lower(), []
        if jump == "return":
            value = stmt.value if stmt.value is not None else constant(None)
            done.append(placed(assign(RESULT, value), stmt))
        return [*done, placed(assign(context[jump], constant(True)), stmt)]

    def nested(self, stmts, context):
        done = []
        for number, stmt in enumerate(stmts):
            rest = stmts[number + 1 :]
            jump = type(stmt).__name__.lower()
            if isinstance(stmt, (ast.Return, ast.Break, ast.Continue)) and jump in context:
                return done + self.jump(stmt, context)
            flags = self.flags([stmt], context)
            leaves = flags or (RAISES in context and holds(stmt, ast.Raise))
            if isinstance(stmt, ast.If) and leaves and id(stmt) in self.plan.converted:
                if not self.plan.falls(stmt.body):
                    stmt.body = self.block(stmt.body, context)
                    stmt.orelse = self.block([*stmt.orelse, *rest], context)
                    return [*done, stmt]
                if not self.plan.falls(stmt.orelse):
                    stmt.orelse = self.block(stmt.orelse, context)
                    stmt.body = self.block([*stmt.body, *rest], context)
                    return [*done, stmt]
            falls = self.plan.falls([stmt])  # before its jumps are gone
            done += self.statement(stmt, context)
            if flags:
                if falls:
                    done += self.guard(flags, self.block(rest, context))
                return done
        return done

    def statement(self, stmt, context):
        """The statements that one statement with blocks becomes."""
        if isinstance(stmt, LOOPS):
            return self.loop(stmt, context)
        if id(stmt) in self.plan.converted and self.plan.jumps_late(stmt):
            return self.jumping_finally(stmt, context)
        if isinstance(stmt, (ast.Try, ast.TryStar)):
            flags = self.flags(stmt.body, context)
            late = flags and any(holds(child, (ast.With, ast.Try)) for child in stmt.body)
            caught = {RAISES: ""} if id(stmt) in self.plan.converted else {}
            stmt.body = self.block(stmt.body, context | caught)
            for handler in stmt.handlers:
                reset = [placed(assign(flag, constant(False)), handler.body[0]) for flag in flags]
                handler.body = [*(reset if late else []), *self.block(handler.body, context)]
            orelse = self.block(stmt.orelse, context)
            stmt.orelse = self.guard(flags, orelse) if flags else orelse
            stmt.finalbody = self.block(stmt.finalbody, context)
            return [stmt]
        if isinstance(stmt, ast.Match):
            for case in stmt.cases:
                case.body = self.block(case.body, context)
            return [stmt]
        for name in ("body", "orelse"):
            if nodes.blocks(stmt) and getattr(stmt, name, None):
                setattr(stmt, name, self.block(getattr(stmt, name), context))
        return [stmt]

    def jumping_finally(self, stmt, context):
        """`try: a finally: b`, where b may jump: what was under way in a is dropped then.

        As `try: a except BaseException as e: held = e`, b with flags of its own for its jumps, and
        `raise held`, unless b jumped.
        """
        like, last, number = stmt.body[0], stmt.finalbody, next(self.numbers)
        held, error = f"_ag_held{number}", f"_ag_error{number}"
        own = {out: f"_ag_{out}{number}" for s in last for out in self.plan.outs[id(s)]}
        stmt.finalbody = []
        body = [stmt] if stmt.handlers else stmt.body
        keep = placed(assign(held, load(error)), like)
        handler = ast.ExceptHandler(type=load("BaseException"), name=error, body=[keep])
        whole = placed(ast.Try(body=body, handlers=[handler], orelse=[], finalbody=[]), stmt)
        jumped = self.flags(body, context)
        flags = [*own.values()]
        begin = [placed(assign(name, constant(False)), like) for name in flags]
        done = [placed(assign(held, constant(None)), like), *begin]
        self.known(whole)
        done += self.statement(whole, context)
        done += self.block(last, {**context, **own})
        for out, flag in own.items():
            dropped = [assign(name, constant(False)) for name in jumped if name != context[out]]
            to = placed(
                ast.If(load(flag), [*dropped, assign(context[out], constant(True))], []), like
            )
            done.append(self.known(to))
        some = ast.Compare(load(held), [ast.IsNot()], [constant(None)])
        again = placed(ast.If(some, [ast.Raise(load(held))], []), like)
        return [*done, *self.guard(flags, [self.known(again)])]

    def known(self, stmt):
        """A statement that was made, as one to be converted."""
        self.plan.kept.append(stmt)
        self.plan.converted.add(id(stmt))
        return stmt

    def loop(self, stmt, context):
        if id(stmt) not in self.plan.converted:
            kept = {jump: context[jump] for jump in ("return", RAISES) if jump in context}
            stmt.body = self.block(stmt.body, kept)
            stmt.orelse = self.block(stmt.orelse, context)
            return [stmt]
        number = next(self.numbers)
        inside = {"break": f"_ag_break{number}", "continue": f"_ag_continue{number}"}
        inside |= {jump: context[jump] for jump in ("return", RAISES) if jump in context}
        flags = self.flags(stmt.body, inside)
        stmt.exits = [flag for flag in flags if flag != inside["continue"]]
        self.tested.update(stmt.exits)
        like = getattr(stmt, "test", None) or stmt.iter
        orelse, before = stmt.orelse, []
        stmt.body, stmt.orelse = self.block(stmt.body, inside), []
        if inside["continue"] in self.tested:
            stmt.body.insert(0, placed(assign(inside["continue"], constant(False)), like))
        if inside["break"] in stmt.exits:
            before = [placed(assign(inside["break"], constant(False)), like)]
        after = self.block(orelse, context)
        return [*before, stmt, *(self.guard(stmt.exits, after) if stmt.exits else after)]


def prepared(stmts):
    """Statement lists with simple `match` and walrus loop tests made plain, in place."""
    for number, stmt in enumerate(stmts):
        if isinstance(stmt, ast.While) and holds(stmt.test, ast.NamedExpr):
            last, test = stmt.orelse, stmt.test
            if any(map(_leaves, last)):  # its jumps are those of the loop around
                ended = f"{ENDED}{stmt.lineno}_{stmt.col_offset}"
                begin, end = (placed(assign(ended, constant(x)), test) for x in (False, True))
                after = placed(ast.If(test=load(ended), body=last, orelse=[]), test)
                stmts[number : number + 1] = [begin, stmt, after]
                last = [end]
            stops = placed(ast.UnaryOp(op=ast.Not(), operand=test), test)
            stop = placed(ast.If(test=stops, body=[*last, ast.Break()], orelse=[]), test)
            stmt.body, stmt.orelse = [stop, *stmt.body], []
            stmt.test = placed(constant(True), test)
        for block in nodes.blocks(stmt):
            prepared(block)
        if isinstance(stmt, ast.Match):
            stmts[number : number + 1] = as_ifs(stmt, _waits)
        elif isinstance(stmt, ast.With) and _suppresses(stmt):
            stmts[number] = _as_try(stmt)
    return stmts


def _waits(guard):
    return holds(guard, (ast.NamedExpr, *PINS))


def _suppresses(stmt):
    """`with contextlib.suppress(...)`, alone."""
    one = stmt.items[0]
    call = one.context_expr
    alone = len(stmt.items) == 1 and one.optional_vars is None
    if not (alone and isinstance(call, ast.Call) and not call.keywords):
        return False
    return getattr(call.func, "attr", getattr(call.func, "id", "")) == "suppress"


def _as_try(stmt):
    """`try: ... except the_types: pass`."""
    call = stmt.items[0].context_expr
    kinds = nodes.hook("suppressed", call.func, *call.args)
    handler = ast.ExceptHandler(type=kinds, name=None, body=[ast.Pass()])
    made = ast.Try(body=stmt.body, handlers=[handler], orelse=[], finalbody=[])
    return placed(made, call)


def _leaves(stmt):
    if isinstance(stmt, (ast.Break, ast.Continue)):
        return True
    inner = nodes.blocks(stmt)[1:] if isinstance(stmt, LOOPS) else nodes.blocks(stmt)
    return any(_leaves(child) for block in inner for child in block)
