"""A local variable that is read before it is bound: Python's exception, wherever that is."""

# ruff: noqa: F821, F841
# pyright: reportUnboundVariable=false
from tests.frontend.values.test_raises import agree


def test_a_local_variable_read_unbound_is_an_error_of_locals_wherever_it_is_read():
    def in_a_case(x):
        try:
            match x:
                case 0.0:
                    y = 1.0
                case _:
                    y = z
        except UnboundLocalError:
            y = 3.0
        if x > 5:
            z = 1.0
        return y

    def in_a_handler(x):
        y = 0.0
        try:
            if x > 0:
                raise ValueError
        except ValueError:
            try:
                y = z
            except UnboundLocalError as e:
                y = 3.0 if e.name is None else 4.0
        z = 1.0
        return y

    def in_a_ternary(x):
        try:
            y = z if x > 0 else 2.0
            z = 1.0
        except UnboundLocalError:
            y = 5.0
        except NameError:
            y = 7.0
        return y

    def in_an_operand(x):
        try:
            y = float(x > 0 and z)
            z = 1.0
        except UnboundLocalError:
            y = 5.0
        return y

    def in_a_loop(x):
        y = 0.0
        try:
            while x > 0:
                x -= 1
                y = z
                z = 1.0
        except UnboundLocalError:
            y = 5.0
        return y

    def in_a_generator(x):
        def items():
            if x > 0:
                yield z
                z = 2.0
            yield 1.0

        y = 0.0
        try:
            for v in items():
                y += v
        except UnboundLocalError:
            y += 5.0
        return y

    def of_a_closure(x):
        def inner():
            return z

        y = 0.0
        try:
            if x > 0:
                y = inner()
        except UnboundLocalError:
            y = 5.0
        except NameError as e:
            y = 6.0 if e.name == "z" else 7.0
        z = 1.0
        return y + 0 * z

    def in_a_comprehension(x):  # a scope of its own in Python 3.11, and in 3.13 none
        try:
            y = sum([z for _ in range(2)]) + x
            z = 1.0
        except UnboundLocalError:
            y = 5.0
        except NameError:
            y = 6.0
        return y

    for f in (in_a_case, in_a_handler, in_a_ternary, in_an_operand):
        agree(f, (-2.0,), (0.5,), (7.0,))
    for f in (in_a_loop, in_a_generator, of_a_closure, in_a_comprehension):
        agree(f, (-2.0,), (0.5,), (7.0,))
