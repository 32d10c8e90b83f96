"""What `if`, `and`, `or`, `not`, `assert`, `x if c else y` do: Python, unless a test is traced."""

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import Box
from malleable.arrays.journal import ABSENT, Place
from malleable.arrays.numbers import is_python_bool, logical
from malleable.errors import TransformError
from malleable.frontend.common.decisions import assuming, opposite
from malleable.frontend.common.frames import as_local
from malleable.frontend.common.session import session
from malleable.frontend.values import values
from malleable.frontend.values.copies import is_one_thing
from malleable.frontend.values.keys import OtherMembers
from malleable.frontend.values.staging import Block, merge, trace_block
from malleable.frontend.values.trees import Leaf, Static
from malleable.notes import note
from malleable.programs.equations import mentions
from malleable.programs.primitives import kind
from malleable.python_source.kinds import is_ours

TRACES = 2000  # times a recursion is traced from one call: a minute with what XLA makes of it
RECURSIONS = 32  # times a test is met within itself before that counts as without end
CANDIDATES = 24  # objects of which a value may be one; each operation on it is traced for each
TEXTS = 256  # texts or numbers of Python's, likewise: their number is squared where two paths meet


def truth(x) -> Any:
    """bool(x) as Python knows it, or a traced boolean scalar.

    Raises ValueError for an array of several elements, as NumPy does.
    """
    if x is True or x is False:
        return x
    if isinstance(x, values.Choice):
        return truth_of_choice(x)
    if values.bounded(x) is not None:
        return x[0].length > 0
    table = values.table_of(x)
    if table is not None:
        return truth(table.keys)
    if type(x) is dict:
        values.refuse_uncertain(x, False)
    content = x.value if isinstance(x, Box) else x
    if not isinstance(content, compat.Tracer):
        own = own_truth(x)  # it may give a traced answer
        return bool(x) if own is None else truth(session().call(own, x))
    return truth_of_array(content)


def truth_of_array(content):
    if content.size != 1:
        raise ValueError(
            "The truth value of an array with more than one element is ambiguous. "
            "Use a.any() or a.all()"
            if content.size
            else "The truth value of an empty array is ambiguous. Use `array.size > 0`"
        )
    if content.dtype != bool:
        content = content != 0
    return content.reshape(()) if content.ndim else content


def own_truth(x) -> types.FunctionType | None:
    """The method of the user's that says what an object counts as."""
    own = getattr(type(x), "__bool__", None) or getattr(type(x), "__len__", None)
    return own if type(own) is types.FunctionType and not isinstance(x, Box) else None


def truth_of_choice(x: values.Choice):
    if any(map(own_truth, x.options)):
        return truth(by_case(x, lambda option: Box(truth(option), True)))
    options = [truth(option) for option in x.options]
    if all(option is options[0] for option in options):
        return options[0]
    return truth(values.select(x.index, [Box(o) for o in options], x.where))


def line_of(fun: Callable) -> str:
    """`file.py:12 in f`, of a function of the converted program."""
    code = getattr(fun, "__code__", nothing.__code__)
    here = f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"
    return compat.where() or here if is_ours(code.co_filename) else here


def places_of(state: Callable | None) -> list[Place]:
    """The local variables that a block may leave changed."""
    if state is None:
        return []
    names, cells = state.__code__.co_freevars, state.__closure__ or ()
    return [Place("cell", cell, name) for name, cell in zip(names, cells, strict=True)]


def if_(test, body: Callable, orelse: Callable | None, state, live=()) -> None:
    """`if test: body() else: orelse()`."""
    flag = truth(test)
    if not isinstance(flag, compat.Tracer):
        run = body if flag else orelse
        if run is not None:
            step(run)
        return
    places = places_of(state)
    with once_more(body):
        yes, no = both_ways(test, flag, body, orelse or nothing, places)
    if live is not None:
        forget_dead(places, live, yes, no)
    try:
        merge(flag, yes, no, line_of(body))
    except OtherMembers as e:
        if not e.settled():
            raise
        if_(test, body, orelse, state, live)


@contextlib.contextmanager
def once_more(body: Callable) -> Iterator[None]:
    """A test is traced whose blocks may lead to it again: a function that calls itself.

    With max_steps=n, it does not do so more than n times: then that path raises.
    """
    code, inside, most = body.__code__, session().inside, session().options.max_steps
    depth, again = inside.get(code, 0), session().again
    again[code] = again.get(code, 0) + 1 if depth else 0
    if again[code] > TRACES and not is_ours(code.co_filename):
        raise TransformError(
            f"a function calls itself in more than {TRACES} ways, as far as is known",
            where=line_of(body),
            hint="keep what is left to do in a list, and take it from there in a `while`",
        )
    deep = depth >= RECURSIONS or (4 * depth >= RECURSIONS and sum(inside.values()) > 40)
    if (deep if most is None else depth >= most) and not is_ours(code.co_filename):
        if most is None:
            raise TransformError(
                "a function calls itself, and how often is known only at run time",
                where=line_of(body),
                hint="write it as a loop, or say how deep it goes at most: autograph(max_steps=n)",
            )
        error = RecursionError("maximum recursion depth exceeded")
        error.__malleable_raised__ = True  # type: ignore[attr-defined]
        error.__malleable_where__ = line_of(body)  # type: ignore[attr-defined]
        raise error
    inside[code] = depth + 1
    try:
        yield
    finally:
        inside[code] = depth


def step(statements: Callable, *item) -> Any:
    """Run them, with the error of CPython for a local variable that is not bound."""
    try:
        return statements(*item)
    except NameError as e:
        if (new := as_local(e)) is e:
            raise
        raise new from None


class Question(Box):
    """A bool, and what its answers tell of choices: {answer: which of the options it may be}."""

    __slots__ = ("tells",)

    def __init__(self, value, tells: list[tuple[values.Choice, dict]]):
        super().__init__(value, True)
        self.tells = tells


def told_by(test) -> list[tuple[values.Choice, dict]]:
    """What the answer to a test tells: that of `x`, of a number or None, that it is a number."""
    if type(test) is values.Choice and test.number is not None:
        return [(test, {True: [x is not None for x in test.options]})]
    return test.tells if type(test) is Question else []


def told(test, answer: bool, run: Callable, places: list) -> Callable:
    """`run`, where variables that hold a choice that was asked about hold what is left of it."""
    tells = [(choice, keeps[answer]) for choice, keeps in told_by(test) if answer in keeps]
    if not tells or not hasattr(run, "__code__"):
        return run
    left = [(choice, narrowed(choice, kept)) for choice, kept in tells if not all(kept)]
    known, read = {place.key for place in places}, places_of(run)

    def running():
        held = [(p, *pair) for p in (*places, *read) for pair in left if p.read() is pair[0]]
        for place, _, new in held:
            place.write(new)
        try:
            return run()
        finally:
            for place, choice, new in held:  # this block does not change what it only reads
                if place.key not in known and place.read() is new:
                    place.write(choice)

    return running


def both_ways(test, flag, body: Callable, orelse: Callable, places: list) -> list[Block]:
    """What follows if a test holds, and if it does not, each with what that tells."""
    tells = told_by(test)
    return [
        assuming(flag, on, trace_block, told(test, on, run, places), places, tells=tells)
        for on, run in ((True, body), (False, orelse))
    ]


def narrowed(choice: values.Choice, keep: list) -> Any:
    """A choice among those options that are kept."""
    options = [o for o, kept in zip(choice.options, keep, strict=True) if kept]
    if len(options) == 1:
        return options[0]
    numbers = [sum(keep[:k]) for k in range(len(keep))]
    new = values.Choice(values.entry(numbers, choice.index), options, choice.where)
    new.name = choice.name
    return new


def only(value) -> Any:
    """What may be there on some paths only, where it is."""
    return (
        narrowed(value, [x is not ABSENT for x in value.options]) if values.lacks(value) else value
    )


def nothing() -> None:
    pass


def forget_dead(places, live, *blocks: Block) -> None:
    """Variables that nobody reads afterwards keep what they had."""
    dead = {p.key for p in places if p.name not in live}
    for block in blocks:
        for key in dead:
            block.after.pop(key, None)
            block.places.pop(key, None)


def ifexp(test, body: Callable, orelse: Callable, where: str = "") -> Any:
    """`body() if test else orelse()`."""
    flag = truth(test)
    if not isinstance(flag, compat.Tracer):
        return step(body if flag else orelse)
    with once_more(body):
        yes, no = both_ways(test, flag, body, orelse, [])
    return merge(flag, yes, no, where or line_of(body))


def by_case(choice: values.Choice, fun: Callable, together: Callable = lambda option: False) -> Any:
    """fun(option) for the option that it is at run time, with the effects of that one only.

    together: of an option, whether `fun` takes a choice among several such options as it is.
    An option for which Python has no `fun` (an attribute of None, say) counts as a `raise`.
    """
    options, where = choice.options, compat.where() or choice.where
    bound = types.MethodType, types.BuiltinMethodType  # others may hold any name
    texts = all(is_plain(o.__self__ if type(o) in bound else o) for o in options)
    if len(options) > (TEXTS if texts else CANDIDATES):
        name = f"`{choice.name}`" if choice.name else "this value"
        raise TransformError(
            f"{name} is one of {len(options)} objects, depending on traced conditions",
            where=where,
            hint="keep what they hold in arrays, and the number of one in its place",
        )
    alike = [k for k, option in enumerate(options) if together(option)]
    cases = [[k] for k in range(len(options)) if k not in alike] + [alike] * bool(alike)
    order = [k for case in cases for k in case]
    first = [order.index(case[0]) for case in cases]
    place = values.entry(np.argsort(order), choice.index) if alike else choice.index

    def run(again: Callable, start: int, stop: int):  # by its own name, it would keep options alive
        if stop - start == 1:
            part = narrowed(choice, [k in cases[start] for k in range(len(options))])
            return fun(part) if len(options) == 1 else _in_case(part, fun)
        middle = (start + stop) // 2
        halves = ((start, middle), (middle, stop))
        one, other = (trace_block(functools.partial(again, again, *half), []) for half in halves)
        return merge(jnp.asarray(place) < first[middle], one, other, where)

    return run(run, 0, len(cases))


def by_plain(choice: values.Choice, fun: Callable, *others) -> Any:
    """The same of a `fun` that has no effect on texts; others: what else it is given."""
    texts = all(type(x) is str for x in (*choice.options, *others))
    return choice.each(fun) if texts and len(choice.options) <= TEXTS else by_case(choice, fun)


def _in_case(option, fun: Callable) -> Any:
    try:
        return fun(option)
    except (AttributeError, TypeError, LookupError) as e:
        if values.is_number(option):
            raise
        e.__malleable_raised__ = True  # type: ignore[attr-defined]
        raise


def and_(first, *rest: Callable) -> Any:
    """`first and rest[0]() and ...`: an operand, not a boolean, as in Python."""
    for i, thunk in enumerate(rest):
        test = truth(first)
        if isinstance(test, compat.Tracer):
            return asked_both(first, test, and_, rest[i:], True)
        if not test:
            return first
        first = thunk()
    return first


def or_(first, *rest: Callable) -> Any:
    """`first or rest[0]() or ...`."""
    for i, thunk in enumerate(rest):
        test = truth(first)
        if isinstance(test, compat.Tracer):
            return asked_both(first, test, or_, rest[i:], False)
        if test:
            return first
        first = thunk()
    return first


def asked_both(first, test, both: Callable, rest: tuple, answer: bool) -> Any:
    """`first and rest[0]() and ...`, whose answer `True` is that of all; of `or`, `False` is."""
    tells, thunks = [*told_by(first)], [told(first, answer, thunk, []) for thunk in rest]

    def asking():
        out = both(thunks[0](), *thunks[1:])
        tells.extend(told_by(out))
        return out

    run = functools.partial(assuming, test, answer, asking, tells=told_by(first))
    out = short_circuit(first, test, run, rest[0], answer)
    if not tells or type(out) is not Box or not is_flag(out):
        return out
    every = [
        (choice, {answer: keeps[answer]})
        for choice, keeps in tells
        if answer in keeps
        and (not isinstance(choice.index, compat.Tracer) or compat.is_live(choice.index))
    ]
    return Question(out.value, every)


def short_circuit(first, test, second: Callable, thunk: Callable, both: bool) -> Any:
    """Cheap booleans are computed at once; anything else only where it is needed."""
    other = trace_block(second, [])
    if is_flag(first) and other.result[0] == Static(not both) and not other.after:
        return not both  # `test and False`, `test or True`
    if other.error is None and not other.places and is_flag(first) and is_cheap(other):
        tree, ids = other.result
        outs = other.outs()
        value = values.rebuild(tree, iter([outs[i] for i in ids]), line_of(thunk))
        if is_flag(value):
            combine = logical(operator.and_ if both else operator.or_)
            return Box(combine(test, value.value if isinstance(value, Box) else value), True)
    if type(first) is values.Choice and not both:
        for _, keeps in told_by(first):
            first = narrowed(first, keeps[True])
    leave = trace_block(lambda: first, [])
    yes, no = (other, leave) if both else (leave, other)
    return merge(test, yes, no, line_of(thunk))


def is_flag(x) -> bool:
    if isinstance(x, values.Choice):
        return False
    return isinstance(x, bool | np.bool_) or (
        isinstance(x, Box) and x.scalar and x.value.dtype == bool
    )


def is_cheap(block: Block) -> bool:
    """A block that may as well run where its result is not needed: a few plain operations."""
    tree, _ = block.result
    if isinstance(tree, Leaf):
        if tree.dtype != bool or tree.shape:
            return False
    elif not (isinstance(tree, Static) and isinstance(tree.value, bool)):
        return False
    if block.closed is None or block.closed.effects:
        return False
    eqns = block.closed.jaxpr.eqns
    small = all(v.aval.size <= 4096 for e in eqns for v in e.outvars)
    return len(eqns) <= 24 and small and not mentions(block.closed, kind("control"))


def not_(x) -> Any:
    test = truth(x)
    if isinstance(test, compat.Tracer) and (tells := told_by(x)):
        return Question(
            ~test, [(c, {not on: kept for on, kept in keeps.items()}) for c, keeps in tells]
        )
    return Box(opposite(test), True) if isinstance(test, compat.Tracer) else not test


def is_(a, b) -> Any:
    """`a is b`; a traced boolean if one of them is a choice."""
    if isinstance(a, values.Choice) and isinstance(b, values.Choice):
        return a is b or a.each(lambda x: is_(x, b))
    for one, other in ((a, b), (b, a)):
        if isinstance(one, values.Choice):
            hits = [is_one_thing(x, other) or (is_plain(x) and x == other) for x in one.options]
            if all(hits) or not any(hits):
                return hits[0]
            keeps = {True: hits, False: [not hit for hit in hits]}
            return Question(values.entry(hits, one.index), [(one, keeps)])
        if type(one) is Box and one.scalar and (other is True or other is False):
            content = one.value
            if is_of_batch(one):
                note("`is` takes a bool of a batch for one of Python's", compat.where())
            elif not isinstance(content, compat.Tracer) or not is_python_bool(content):
                if isinstance(content, compat.Tracer) and content.dtype.kind == "i":
                    note("`is` takes what may be a bool on another path for an int", compat.where())
                continue
            return one if other else not_(one)
    return is_one_thing(a, b)


def is_of_batch(x) -> bool:
    """Whether this is one bool under vmap: Python's or NumPy's, nobody knows."""
    if type(x) is not Box or not (session().lanes and x.scalar and x.dtype == bool):
        return False
    return isinstance(x.value, compat.Tracer) and not is_python_bool(x.value)


class Singleton:
    """True, False or None in a `case` with parts, which Python compares by `==` with this."""

    def __init__(self, value):
        self.value = value

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        return is_(other, self.value)


def is_plain(x) -> bool:
    return isinstance(x, bool | str | bytes | int)


def is_not(a, b) -> Any:
    return not_(is_(a, b))
