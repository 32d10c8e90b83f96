"""Commands like those of pdb for a debugging session: `session.interact()`."""

import cmd
import linecache
import pprint
from typing import Any

from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.debugging import variables
from malleable.programs.types import short_type


class Commands(cmd.Cmd):
    """Read commands from `stdin` and carry them out on a session; what they raise is shown."""

    prompt = "(malleable) "

    def __init__(self, session: Any, stdin: Any = None, stdout: Any = None):
        super().__init__(stdin=stdin, stdout=stdout)
        self.session, self.use_rawinput = session, stdin is None
        self.last_shown: int | None = None

    # ------------------------------------------------------------ moving

    def do_step(self, argument):
        """s(tep) [N]: run the next equation, into bodies."""
        self._repeat(self.session.step, argument)

    def do_next(self, argument):
        """n(ext) [N]: run the next equation, bodies as a whole."""
        self._repeat(self.session.next, argument)

    def do_out(self, argument):
        """o(ut), r(eturn): run until this body and its loop are left."""
        self._repeat(self.session.out, argument)

    def do_continue(self, argument):
        """c(ontinue): run to the next breakpoint or watch, or to the end."""
        self._repeat(self.session.cont, argument)

    def do_back(self, argument):
        """back [N]: undo N steps."""
        self.session.back(_count(argument))
        self._show()

    def do_goto(self, argument):
        """goto N: go to the step of that number, backward or forward; 0 is the beginning."""
        self.session.goto(_count(argument))
        self._show()

    def do_lane(self, argument):
        """lane N: the same equation in example N of the vmap around."""
        self.session.lane(_count(argument))
        self._show()

    # ------------------------------------------------------------ looking

    def do_where(self, argument):
        """w(here): the bodies around, and the lines that called this one."""
        self._say(self.session.where())

    def do_up(self, argument):
        """u(p): to the frame that called this one."""
        self.session.up()
        self._say(self.session.where())

    def do_down(self, argument):
        """d(own): to the frame that this one called."""
        self.session.down()
        self._say(self.session.where())

    def do_list(self, argument):
        """l(ist): the source around the line."""
        place = self.session.place
        if place is None:
            raise MalleableError("there is no line of the user's here", hint="step first")
        for line in range(max(1, place.line - 5), place.line + 6):
            text = linecache.getline(place.file, line)
            if text:
                mark = "->" if line == place.line else "  "
                self._say(f"{line:4d} {mark} {text.rstrip()}")

    def do_vars(self, argument):
        """vars: the variables here, their types and values."""
        rows = variables.table(self.session.values())
        width = max((len(name) for name, *_ in rows), default=0)
        kinds = max((len(kind) for _, kind, _ in rows), default=0)
        for name, kind, text in rows:
            self._say(f"{name:<{width}}  {kind:<{kinds}}  {text}")

    def do_p(self, argument):
        """p EXPRESSION: its value, over the variables here, jnp and np."""
        self._say(repr(self.session.evaluate(_text(argument))))

    def do_pp(self, argument):
        """pp EXPRESSION: its value, printed nicely."""
        self._say(pprint.pformat(self.session.evaluate(_text(argument))))

    def do_batch(self, argument):
        """batch NAME: a variable in all examples of the vmap around that ran by now."""
        for index, value in self.session.batch(_text(argument)).items():
            self._say(f"[{index}]  {short_type(value)}  {variables.value_text(value)}")

    # ------------------------------------------------------------ stopping

    def do_break(self, argument):
        """b(reak) [LINE | FILE:LINE | NAME | EXPRESSION]: stop there, or list what stops."""
        if argument:
            self._say(f"{self.session.break_at(argument)}")
            return
        for one in self.session.breakpoints:
            self._say(str(one))

    def do_tbreak(self, argument):
        """tbreak LINE | FILE:LINE | NAME | EXPRESSION: stop there once."""
        self._say(f"{self.session.break_at(_text(argument), temporary=True)}")

    def do_watch(self, argument):
        """watch [nonfinite | nan | NUMBER]: stop where such a value is made, or one larger."""
        if argument[:1].isdigit() or argument[:1] == ".":
            made = self.session.watch(large=_parsed_number(argument))
        else:
            made = self.session.watch(argument or "nonfinite")
        self._say(f"{made}")

    def do_clear(self, argument):
        """cl(ear) [N]: remove a breakpoint or watch, or all of them."""
        self.session.clear(_count(argument) if argument else None)

    # ------------------------------------------------------------ leaving

    def do_quit(self, argument):
        """q(uit): leave the debugger; the program that called it goes on."""
        return True

    def do_EOF(self, argument):
        """End of input: as quit."""
        return True

    do_s, do_n, do_c, do_w, do_l = do_step, do_next, do_continue, do_where, do_list
    do_o = do_r = do_return = do_out
    do_cont, do_b, do_cl, do_u, do_d, do_q = (
        do_continue,
        do_break,
        do_clear,
        do_up,
        do_down,
        do_quit,
    )
    do_h = cmd.Cmd.do_help

    # ------------------------------------------------------------ how it goes

    def preloop(self):
        self._show()

    def cmdloop(self, intro=None):
        while True:
            try:
                return super().cmdloop(intro)
            except KeyboardInterrupt:
                self._say("--KeyboardInterrupt--")

    def default(self, line):
        """What is no command is an expression, as in pdb."""
        self._say(repr(self.session.evaluate(line.removeprefix("!").strip())))

    def onecmd(self, line):
        try:
            return super().onecmd(line)
        except MalleableError as error:
            self._say(f"*** {error}")
        except Exception as error:  # an expression of the user's may raise anything
            self._say(f"*** {type(error).__name__}: {error}")
        return False

    def completenames(self, text, *ignored):
        return [n for n in super().completenames(text, *ignored) if n != "EOF"]

    def completedefault(self, *ignored):
        text = ignored[0] if ignored else ""
        return [name for name in self.session.values() if name.startswith(text)]

    def _repeat(self, move, argument):
        for _ in range(_count(argument)):
            if move() is None:
                break
        self._show()

    def _show(self):
        session = self.session
        for one in session.breakpoints:
            if not one.is_told or (session.done and one.missing):
                one.is_told = True
                self._say(f"*** {one}")
        if session.stopped not in ("step", "before the first equation"):
            self._say(session.stopped)
        if session.at is None:
            self._say("before the first equation")
            return
        step, place = session.at, session.place
        path = f" in {' > '.join(map(str, step.path))}" * bool(step.path)
        spelled = places.spell(place) or "no line of the user's"
        self._say(f"> {spelled}{path}")
        if place:
            self._say(f"-> {places.line_of(place)}")
        called = {v: n for n, v in session.frames[0].names().items()}
        for v, x in zip(step.eqn.outvars, step.outputs, strict=True):
            name = called.get(v) or f"%{step.names.get(v, '_')}"
            self._say(
                f"   {step.eqn.primitive} gives {name}: {short_type(x)} {variables.value_text(x)}"
            )

    def _say(self, text: str) -> None:
        self.stdout.write(text + "\n")


def _text(argument: str) -> str:
    if not argument.strip():
        raise MalleableError("this command needs something to work on", hint="see help")
    return argument


def _count(argument: str) -> int:
    return int(_parsed_number(argument, int)) if argument.strip() else 1


def _parsed_number(argument: str, kind: type = float) -> float:
    try:
        return kind(argument)
    except ValueError:
        how = "a whole number" if kind is int else "a number"
        raise MalleableError(f"{argument!r} is no number", hint=f"give {how}") from None
