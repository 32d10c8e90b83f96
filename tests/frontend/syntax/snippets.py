"""Small functions, one construct each, with the arguments to try: `CASES`."""
# ruff: noqa

import contextlib
import dataclasses
import functools
import sys
import types

CASES = []
COUNT = 0


def case(*inputs):
    """Registers a function with tuples of arguments (a bare value is one argument)."""

    def register(fun):
        CASES.append((fun, [i if isinstance(i, tuple) else (i,) for i in inputs]))
        return fun

    return register


@case(-1, 0, 1)
def if_elif_else(x):
    if x > 0:
        y = "positive"
    elif x == 0:
        y = "zero"
    else:
        y = "negative"
    return y


@case(-1, 0, 5)
def early_returns(x):
    if x < 0:
        return "neg"
    if x == 0:
        return
    z = x + 1
    if z > 3:
        return z
    z += 10
    return -z


@case(0, 1)
def falls_off_the_end(x):
    if x:
        return x


@case(0, 1)
def born_in_one_branch(x):
    if x:
        y = 2
    return y


@case(0, 1)
def deleted_in_one_branch(x):
    y = 1
    if x:
        del y
    return y


@case(0, 1)
def deleted_in_both(x):
    y = 1
    if x:
        del y
    else:
        del y
    y


@case(1, 0)
def unread_local(x):
    if x:
        tmp = [x]
        tmp.append(2)
        x = len(tmp)
    return x


@case((1, 2), (0, 2), (1, 0))
def boolean_operands(a, b):
    return a and b, a or b, not a, (a and b) or "none", a or (b and "x")


@case((1, 2, 3), (1, 0, 3), (3, 2, 1))
def chained_comparison(a, b, c):
    seen = []

    def look(x):
        seen.append(x)
        return x

    r = look(a) < look(b) <= look(c) < look(10)
    return r, a < b < c, a < b > 0 != c, seen


@case((1, [1]), (2, [1]), (None, [1]))
def membership(a, xs):
    return a in xs, a not in xs, a is None, a is not None, 0 < 1 in [1, True]


@case(0, 1)
def ternary(x):
    return "a" if x else "b" if x is None else [1 / x]


@case(0, 3)
def ternary_with_walrus(x):
    y = 0
    z = (y := x + 1) if x else (y := -1)
    return y, z, (x and (w := 5)), "w" in locals()


@case(0, 1, 10)
def while_plain(n):
    s = 0
    while n > 0:
        s += n
        n -= 1
    return s, n


@case(0, 1, 10)
def while_else_break(n):
    out = []
    while n:
        n -= 1
        if n == 3:
            out.append("break")
            break
        if n % 2:
            continue
        out.append(n)
    else:
        out.append("else")
    return out


@case([1, 2, 3], [], [5, 0, 2])
def while_walrus(xs):
    it = iter(xs)
    total = 0
    while (x := next(it, None)) is not None:
        if x == 0:
            break
        total += x
    else:
        total = -total
    return total, x


@case([1, 2, -1, 7], [], [3])
def for_else_return(xs):
    for i, x in enumerate(xs):
        if x < 0:
            return i
        if x == 3:
            continue
    else:
        return "none"
    return "never"


@case([], [1, 2])
def target_after_loop(xs):
    for x in xs:
        pass
    return x


@case([[1, 2], [3, 0, 4], [9]], [[1]], [])
def nested_jumps(rows):
    out = []
    for row in rows:
        for x in row:
            if x == 0:
                break
            if x == 2:
                continue
            if x == 9:
                return out, "nine"
            out.append(x)
        else:
            out.append("full")
            continue
        out.append("broken")
    return out


@case(5, 0)
def while_true(n):
    while True:
        n += 1
        if n % 7 == 0:
            return n
        while True:
            if n % 2:
                break
            n += 3
            if n > 50:
                return "far"


@case([1, 2, 3, 4])
def several_breaks(xs):
    seen = []
    for x in xs:
        if x == 1:
            seen.append("one")
            continue
        if x > 2:
            seen.append("big")
            break
        if x > 5:
            break
        seen.append(x)
    return seen, x


@case([3, 1], [1])
def break_then_if(xs):
    d = 0
    for x in xs:
        if x == 3:
            break
        if x == 1:
            d += 1
    if d:
        return "seen"
    return d


@case(3)
def alters_the_iterate(n):
    out = []
    for i in range(n):
        i *= 10
        out.append(i)
    return out, i


@case([(1, (2, 3)), (4, (5, 6))], [(1, 2)], [7])
def unpacking_target(pairs):
    s = 0
    for a, (b, *c) in pairs:
        s += a * b + sum(c)
    return s, a, c


@case({"a": 1}, {})
def item_target(d):
    for d["k"] in (1, 2):
        pass
    return d


@case([1, 2, 3])
def late_binding(xs):
    funs = []
    for x in xs:
        y = x * 2
        funs.append(lambda: (x, y))
    return [f() for f in funs]


@case([1, 0, 2], [1], ["a", 0])
def try_in_loop(xs):
    out = []
    for x in xs:
        try:
            out.append(1 / x)
        except ZeroDivisionError as e:
            out.append(str(e))
            continue
        else:
            out.append("ok")
        finally:
            out.append("end")
        out.append("after")
    return out


@case(0, 1, 2, 3)
def returns_in_try(x):
    log = []
    try:
        if x == 0:
            return log
        if x == 1:
            return log, 1 / 0
        if x == 2:
            raise KeyError("k")
        log.append("body")
    except ZeroDivisionError:
        log.append("zero")
        if log:
            return log, "handled"
    except KeyError as e:
        return repr(e), log
    else:
        log.append("else")
        return log
    finally:
        log.append("finally")


@case(0, 1)
def return_in_finally_wins(x):
    try:
        if x:
            return 1 / 0
        return "try"
    finally:
        return "finally"


@case([1, 2, 3])
def break_in_finally(xs):
    out = []
    for x in xs:
        try:
            out.append(x)
            if x == 2:
                raise ValueError(x)
        finally:
            if x == 2:
                break
        out.append("after")
    return out


@case(0, 1)
def return_that_raises(x):
    def fail():
        raise ValueError("late")

    for _ in range(2):
        try:
            if x:
                return fail()
        except ValueError:
            x = 0
    return "after", x


@case([1, 2, 3, 4])
def jumps_in_with(xs):
    log = []

    @contextlib.contextmanager
    def note(x):
        log.append(("in", x))
        try:
            yield x
        finally:
            log.append(("out", x))

    for x in xs:
        with note(x) as y, note(-x):
            if y == 2:
                continue
            if y == 3:
                break
            log.append(y)
    with note("r"):
        if xs:
            return log
    return None


@case(0, 1)
def with_suppresses(x):
    y = 1
    with contextlib.suppress(ZeroDivisionError):
        if x == 0:
            y = 2
            z = 1 / x
            y = z
        else:
            y = 5
    return y


@case(0, 1)
def exit_raises_after_return(x):
    @contextlib.contextmanager
    def bad():
        yield
        raise ValueError("exit")

    try:
        with bad():
            if x:
                return "inside"
    except ValueError:
        x += 10
    return x


@case(0, 1)
def live_in_handler(x):
    y = "before"
    try:
        if x:
            y = "inside"
            raise ValueError
        y = "body"
    except ValueError:
        return y
    return y


@case(0, 1, 2, "a", None, 3.0)
def match_simple(x):
    match x:
        case 0 | 1:
            r = "small"
        case None:
            r = "none"
        case "a":
            return "letter"
        case y if y > 2:
            r = y
        case _:
            r = "other"
    return r


@case([1, 2], [1], (1, 2, 3), {"k": 5}, 7, 1 + 2j)
def match_structures(x):
    for _ in range(1):
        match x:
            case [a, b]:
                return a, b
            case [a, *rest] if rest:
                r = rest
            case {"k": v, **others}:
                return v, others
            case complex(real=re):
                r = re
                break
            case [only]:
                r = only
                continue
            case other:
                r = ("other", other)
    else:
        return "else", r
    return r


@case(types.SimpleNamespace(a=1), types.SimpleNamespace(a=2))
def match_value(o):
    ns = types.SimpleNamespace(one=1)
    match o.a:
        case ns.one as k:
            return k
        case (2 | 3) as k:
            o.a = k * 2
    return o.a


@case(1, 0)
def asserts(x):
    assert x, f"no {x}"
    assert x > 0
    return x


@case(1, 0)
def raises_from(x):
    try:
        if not x:
            raise KeyError(x)
    except KeyError as e:
        raise ValueError("outer") from e
    return x


@case(0, 1)
def reraises(x):
    try:
        return 1 / x
    except ZeroDivisionError:
        x = 5
        raise


@case([1, 2, 3])
def items(xs):
    xs[0], xs[1] = xs[1], xs[0]
    xs[-1] += 5
    a = xs[2] = 7
    del xs[0]
    first, *rest = xs
    i = 0
    i, xs[i] = 1, 99
    return a, first, rest, xs, xs[0:1], xs[i:], xs[:i:1], i


@case({"a": {"b": 1}}, {"a": {}})
def nested_items(d):
    d["a"]["b"] += 1
    d["c"] = d.get("a", {}).get("b")
    del d["a"]["b"], d["c"]
    return d


@case(types.SimpleNamespace(a=1, b=[1]), types.SimpleNamespace(b=[]))
def attributes(o):
    o.a += 1
    o.b += [2]
    o.c = o.d = 3
    o.e, (o.f, g) = 1, (2, 3)
    del o.c
    return vars(o), g


@case(3)
def evaluation_order(n):
    log = []

    def f(x):
        log.append(x)
        return x

    d = {}
    d[f("key")] = f("value")
    xs = [0, 1]
    xs[f(0)] += f(5)
    r = f(1) if f(n) else f(2)
    return r, log, d, xs


@case(1, 2)
def annotations(x):
    y: int = x
    z: "undefined name"
    if x == 1:
        z: int = y + 1
    return z


@case(3)
def closures(n):
    total = 0

    def add(k):
        nonlocal total
        if k:
            total += k
        else:
            total = -1
        return total

    for i in range(n):
        add(i)
    return total, add(0)


@case(3, 0)
def global_counter(n):
    global COUNT
    COUNT = 0
    for _ in range(n):
        if n:
            COUNT += 1
    return COUNT


@case(6)
def recursive_inner(n):
    def fib(k):
        if k < 2:
            return k
        return fib(k - 1) + fib(k - 2)

    return fib(n)


@case((1,), (1, 2), (1, 2, 3, 4))
def signature(a, b=5, *args, **kwargs):
    def inner(x, /, y=a, *, z=b):
        if x:
            return x, y, z
        return args

    return inner(1), inner(0), inner(2, z=9), kwargs


@case([1, -2, 3])
def comprehensions(xs):
    x = "outer"
    a = [x * 2 for x in xs if x > 0]
    b = {k: v for k, v in enumerate(xs) if k}
    c = {y for y in xs}
    d = sum(z for z in xs)
    e = [(i, j) for i in xs if i for j in range(abs(i)) if i < j or j]
    return x, a, b, c, d, e, [last := y for y in xs], last


@case([1, 2, 3])
def lambdas_in_comprehension(xs):
    return [(lambda: x)() if x > 1 else (lambda x: -x)(x) for x in xs]


@case(2, 0)
def class_inside(n):
    k = "outer"

    class Base:
        """Doc."""

        k = n
        values = [1 for _ in range(3)]
        double = k * 2

        def __init__(self, v):
            self.__v = v
            if n:
                self.v = k

        def get(self):
            if self.__v:
                return self.__v
            return None

        @property
        def twice(self):
            return self.__v * 2 if self.__v else 0

        @staticmethod
        def stat(x):
            return x if x else "s"

        @classmethod
        def make(cls):
            for i in range(3):
                if i == 1:
                    return cls(i)

    class Child(Base):
        def get(self):
            if n:
                return [super().get(), super(Child, self).get(), __class__.__name__]
            return [f for f in (super().twice,)]

    c = Child(3)
    return (
        c.get(),
        c.twice,
        c.stat(0),
        Child.make().get(),
        Base.__qualname__,
        Child.get.__qualname__,
    )


@case(3, 0)
def generator(n):
    def gen(m):
        if not m:
            return
        total = 0
        for i in range(m):
            if i % 2:
                total += i
            got = yield i, total
            if got:
                return got
        yield from [1, 2]

    return list(gen(n)), [x for x in gen(n) if x]


@case(1, 0)
def sees_locals(x):
    if x:
        y = 2
        seen = sorted(locals())
    else:
        seen = dir()
    z = eval("x + 1")
    return seen, z


@case(1, 0)
def evaluated_names(x):
    hidden = 5
    if x:
        hidden = 6
    return eval("hidden")


@case(2)
def f_strings(x):
    name = "v"
    return f"{name}={x!r:>5}|{x if x else 0}|{[i for i in range(x)]}|{x + 1:{x}d}"


@case(1, 0)
def imports_in_block(x):
    if x:
        import os.path as p
        from math import sqrt
    else:
        import math

        sqrt, p = math.sqrt, None
    return sqrt(4), p is None


@case([3, 1, 2])
def sorts(xs):
    best = None
    for i in range(len(xs)):
        for j in range(i + 1, len(xs)):
            if xs[j] < xs[i]:
                xs[i], xs[j] = xs[j], xs[i]
                best = (i, j)
    return best


@case(5, 50)
def first_pass_initialises(n):
    for i in range(n):
        if i == 0:
            best, where = 0, None
        x = (i * 7) % 11
        if x > best:
            best, where = x, i
    return best, where


@case(1, 0, None)
def exception_name_is_gone(x):
    try:
        1 / x
    except (ZeroDivisionError, TypeError):
        if x is None:
            e = "rebound"
    return e


@case(4)
def decorated_inner(n):
    def twice(f):
        @functools.wraps(f)
        def wrapper(*args):
            if args:
                return f(*args) * 2
            return None

        return wrapper

    @twice
    @functools.lru_cache
    def g(k):
        return k if k else 1

    return g(n), g(0), g.__name__, g.__qualname__


@case(1, 2)
def dataclass_inside(x):
    @dataclasses.dataclass
    class Point:
        a: int
        b: int = 2

        def norm(self):
            return self.a if self.a > self.b else self.b

    return Point(x).norm(), repr(Point(x))


@case(0, 1)
def error_in_thunk(x):
    y = (
        x
        and
        1 / 0
    )  # fmt: skip
    return y


@case(0, 1)
def error_in_body(x):
    for i in range(3):
        if x and i == 1:
            y = i / 0
    return i + (y if x else 0)


@case(3, 40)
def many_returns(n):
    for i in range(100):
        if i * i > n:
            if i % 2:
                return "odd", i
            elif i > 5:
                break
            else:
                continue
        try:
            if i == n:
                return "same"
        finally:
            n += 1
    else:
        return "end"
    return "broke", i, n


@case((1, 2), (2, 1))
def swap_in_branch(a, b):
    if a > b:
        a, b = b, a
    return a, b


@case(0, 1)
def dead_code(x):
    return x
    if x:
        return 1
    print("never")


@case("text", "")
def only_a_docstring_and_if(s):
    """Doc."""
    if not s:
        raise ValueError("empty")
    return s.upper()


@case(0, 1)
def with_item_target(x):
    d = {}
    with contextlib.nullcontext(5) as d["k"]:
        if x:
            return d
    return list(d)


@case([1, [2, [3]]])
def mutual_recursion(tree):
    def leaves(t):
        if isinstance(t, list):
            return both(t)
        return [t]

    def both(ts):
        out = []
        for t in ts:
            out += leaves(t)
        return out

    return leaves(tree)


LAMBDAS = [(lambda x: x if x > 0 else -x), (lambda x: x and 1), (lambda x: not x and (lambda: x)())]
LONG = lambda x: (
    x
    if x
    else 1 / x
)  # fmt: skip
for _fun in (*LAMBDAS, LONG):
    case(1, 0, -1)(_fun)


@case(0, 1, 2, 3, 4)
def handlers_see_the_exception_being_handled(x):
    log = []
    try:
        log.append("begin")
        try:
            if x == 0:
                raise KeyError("a")
            if x == 1:
                raise ValueError("b") from KeyError("c")
            if x == 2:
                [][x]
            log.append("body")
        except (KeyError, TypeError) as e:
            log.append((sys.exc_info()[1] is e, str(e)))
            raise
        except ValueError as e:
            log.append(repr(e.__cause__))
            raise RuntimeError("d")
        else:
            log.append("else")
            if x == 3:
                raise KeyError("from else")
        finally:
            log.append("finally")
        log.append("after")
    except Exception as e:
        return log, repr(e), repr(e.__context__), repr(e.__cause__)
    return log, sys.exc_info()[0]


@case(0, 1, 2)
def the_name_of_an_exception_is_gone_after_its_handler(x):
    e = "before"
    try:
        y = 1 / x
        if x == 2:
            raise KeyError("two")
    except ZeroDivisionError as e:
        y = str(e)
    except:
        y = sys.exc_info()[0].__name__
    return e, y


@case(0, 1)
def types_of_handlers_are_evaluated_when_needed(x):
    log = []

    def kind(name, value):
        log.append(name)
        return value

    try:
        try:
            if x:
                raise ValueError
        except kind("first", KeyError):
            log.append("key")
        except kind("second", (IndexError, ValueError)):
            log.append("value")
        except kind("third", Exception):
            log.append("any")
    finally:
        log.append("end")
    return log


@case(0, 1, 2, 5)
def jumps_out_of_a_try(n):
    out = []
    for i in range(n):
        try:
            try:
                if i == 0:
                    continue
                if i == 1:
                    raise LookupError
                if i == 3:
                    break
                out.append(i)
            except KeyError:
                out.append("no")
        except LookupError:
            out.append("caught")
            continue
        finally:
            out.append("finally")
        out.append("end")
    else:
        return "all", out
    return out


@case(0, 1, 2)
def variables_of_a_try(x):
    try:
        import math as m

        a: int = m.floor(x + 0.5)
        if (b := a) == 1:
            c = a / 0
        (d, *f), g = [a, b, 3], x
        del g
    except ZeroDivisionError:
        return sorted(k for k in [a, b]), (lambda: b)()
    h = [a + d for a in f]
    return a, b, d, f, h


class Context:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        if self.swallow:
            return self
        return self.log

    def __exit__(self, kind, error, trace):
        self.log.append(kind and kind.__name__)
        return self.swallow


@case(0, 1, 2)
def contexts_of_the_users(x):
    log = []
    with Context(log, True) as outer, Context(log) as outer.inner:
        if x == 0:
            raise ValueError
        if x == 1:
            return outer.inner, "early"
        log.append("body")
    return log, outer.inner is log
