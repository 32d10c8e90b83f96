"""Files of `save`: what comes back, what is refused, and that nothing else happens."""

import collections
import functools
import json
import os
import pathlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable.errors import MalleableError
from malleable.inspection.files import portable
from malleable.inspection.files.format import container
from malleable.inspection.files.load import load
from malleable.inspection.files.save import save
from malleable.rewriting.passes.passes import dce
from tests.inspection.written import CASES, FILES, PLACE, SMOOTH, A, X, dense, primitives, rollout

pytestmark = pytest.mark.caches

VERSIONS = sorted(folder.name for folder in FILES.iterdir())


def assert_close(left, right, rtol=1e-5):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), left, right)


def total(fun):
    return lambda *args: sum(jnp.sum(x) for x in jax.tree.leaves(fun(*args)))


# ---------------------------------------------------------------- two versions of JAX


def test_there_are_files_of_two_versions_of_jax():
    assert len(VERSIONS) >= 2


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_program_written_by_any_version_is_read_by_this_one(version, name):
    fun, args = CASES[name]
    loaded = load(FILES / version / f"{name}.mal")
    assert loaded.metadata["by"]["jax"] == version
    assert_close(loaded(*args), fun(*args))
    if name in SMOOTH:
        many = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), args)
        both = lambda f, xs, xss: (jax.grad(total(f))(*xs), jax.vmap(f)(*xss))
        assert_close(*jax.jit(lambda *xs: [both(f, *xs) for f in (loaded, fun)])(args, many), 1e-4)


OLDER = [v for v in VERSIONS if v != jax.__version__]


@pytest.mark.parametrize(
    "version", [pytest.param(v, marks=[pytest.mark.slow] * (v not in OLDER)) for v in VERSIONS]
)
def test_each_primitive_written_by_any_version_has_its_derivative_in_this_one(version):
    funs = load(FILES / version / "primitives.mal"), primitives
    slopes = jax.jit(lambda x: [jax.value_and_grad(total(f))(x) for f in funs])(PLACE)
    assert_close(*slopes, 1e-3)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_export_is_read_by_the_version_that_wrote_it_and_by_later_ones(version):
    if tuple(map(int, version.split("."))) > jax.version.__version_info__:
        for name in ("portable", "sizes"):  # JAX says 3 weeks: it may be read, or be refused
            try:
                load(FILES / version / f"{name}.mal")
            except MalleableError as err:
                assert version in err.what and "nearer" in err.hint
        return
    loaded = load(FILES / version / "portable.mal")
    assert_close(loaded(X, A), rollout(X, A))
    assert_close(jax.grad(total(loaded))(X, A), jax.grad(total(rollout))(X, A))
    sizes, args = load(FILES / version / "sizes.mal"), CASES["dense"][1]
    assert_close(sizes(args[0], A[:2]), dense(args[0], A[:2]))


# ---------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    save(folder / "a.mal", lambda x: {"y": jnp.sin(x) * x}, X, transformable=True)
    save(folder / "b.mal", lambda x: {"y": jnp.sin(x) * x}, X)
    return {"transformable": folder / "a.mal", "portable": folder / "b.mal"}


def corrupted(data: bytes, rng: random.Random) -> bytes:
    """A file with one thing wrong: a byte, a part cut out, put in, doubled, moved or blanked."""
    i, j = sorted(rng.randrange(len(data)) for _ in range(2))
    flipped = bytes([data[i] ^ (1 << rng.randrange(8))])
    part = data[i : i + 1 + min(j - i, 64)]
    match rng.randrange(8):
        case 0 | 1:
            return data[:i] + flipped + data[i + 1 :]
        case 2:
            return data[:i]
        case 3:
            return data[:i] + data[j + 1 :]
        case 4:
            return data[:i] + rng.randbytes(1 + rng.randrange(9)) + data[i:]
        case 5:
            return data[:i] + part + data[i:]
        case 6:
            return data[j:] + data[i:j] + data[:i]
    return data[:i] + bytes(j - i + 1) + data[j + 1 :]


@pytest.mark.parametrize("kind", ["transformable", "portable"])
def test_no_damage_goes_unseen_and_none_is_a_crash(files, kind, tmp_path):
    data, rng, target = files[kind].read_bytes(), random.Random(0), tmp_path / "c.mal"
    tried = 0
    while tried < 1000:
        wrong = corrupted(data, rng)
        if wrong == data:
            continue
        tried += 1
        target.write_bytes(wrong)
        with pytest.raises(MalleableError) as caught:
            load(target)
        assert caught.value.hint or caught.value.what


@pytest.mark.parametrize("kind", ["transformable", "portable"])
def test_each_single_byte_counts(files, kind, tmp_path):
    data, target = files[kind].read_bytes(), tmp_path / "c.mal"
    for i in range(0, len(data), 7):
        target.write_bytes(data[:i] + bytes([data[i] ^ 0x20]) + data[i + 1 :])
        with pytest.raises(MalleableError):
            load(target)
    for tail in (b"\n", b" ", b"\0", data):
        target.write_bytes(data + tail)
        with pytest.raises(MalleableError):
            load(target)


def test_an_edited_file_is_read_or_refused_but_never_crashes(files, tmp_path):
    """Without the hash, what is left is sense: 300 edits, each a MalleableError or a program."""
    data, rng, target = files["transformable"].read_bytes(), random.Random(1), tmp_path / "c.mal"
    start = data.index(b'{"line"')
    for _ in range(300):
        i = rng.randrange(start, len(data))
        pool = [*b'0123456789[]{}",: abcxyz~-', *rng.randbytes(2)]
        target.write_bytes(data[:i] + bytes([rng.choice(pool)]) + data[i + 1 :])
        try:
            load(target, edited=True)
        except MalleableError:
            continue


def test_an_edited_file_is_refused_without_being_asked_for(files, tmp_path):
    text, target = files["transformable"].read_text(), tmp_path / "c.mal"
    target.write_text(text.replace('"be": "sin"', '"be": "cos"'))
    with pytest.raises(MalleableError, match="not what was written"):
        load(target)
    edited = load(target, edited=True)
    assert_close(edited(X), {"y": jnp.cos(X) * X})


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty"),
        (b"hello", "no file of malleable.save"),
        (b"PK\x03\x04rest", "zip"),
        (b"\x93NUMPY\x01", "NumPy"),
        (b"\x80\x04\x95", "pickle"),
        (b"ML\xefR123", "MLIR"),
        (b"{}", "no file of malleable.save"),
    ],
)
def test_a_foreign_file_is_told_by_name(data, told, tmp_path):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(MalleableError, match=told):
        load(tmp_path / "x")


def test_a_file_of_a_later_format_says_so(files, tmp_path):
    lines = files["transformable"].read_bytes().splitlines(keepends=True)
    text = lines[0].replace(b'"version": 1', b'"version": 2') + b"".join(lines[1:-1])
    (tmp_path / "x").write_bytes(text + container._seal(text))
    with pytest.raises(MalleableError, match="version 2 of the format"):
        load(tmp_path / "x")
    data = files["portable"].read_bytes()
    (tmp_path / "y").write_bytes(data[:8] + b"\2" + data[9:])
    with pytest.raises(MalleableError, match="version 2 of the format"):
        load(tmp_path / "y")


def test_converted_line_ends_are_told(files, tmp_path):
    (tmp_path / "x").write_bytes(files["transformable"].read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(MalleableError, match="line ends"):
        load(tmp_path / "x")


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(MalleableError, match=r"nothing\.mal cannot be read"):
        load(tmp_path / "nothing.mal")


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "f.mal"
    save(path, jnp.sin, X, transformable=True)
    before = path.read_bytes()
    with pytest.raises(MalleableError, match="callback"):
        save(path, lambda x: jax.pure_callback(np.sin, x, x), X, transformable=True)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["f.mal"]
    with pytest.raises(MalleableError, match="cannot be written"):
        save(tmp_path / "no" / "f.mal", jnp.sin, X, transformable=True)


def test_no_file_runs_code(files, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a file was run")

    monkeypatch.setattr("pickle.loads", never)
    monkeypatch.setattr("marshal.loads", never)
    monkeypatch.setattr("importlib.import_module", never)
    for path in files.values():
        load(path)


# ---------------------------------------------------------------- arguments and results

Point = collections.namedtuple("Point", "x y")


@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, a, b, label):
        self.a, self.b, self.label = a, b, label

    def tree_flatten(self):
        return (self.a, self.b), self.label

    @classmethod
    def tree_unflatten(cls, label, children):
        return cls(*children, label)


@pytest.mark.parametrize("transformable", [True, False])
def test_pytrees_come_back_as_they_were(tmp_path, transformable):
    def fun(tree, *rest, scale, mode="fast"):
        out = {"p": Point(tree["a"][0] * scale, [rest[0]]), "m": (None, mode), "n": 2}
        return out

    args = ({"a": (X, None)}, A)
    save(tmp_path / "f", fun, *args, scale=2.0, transformable=transformable)
    loaded = load(tmp_path / "f", nodes=Point)
    out = loaded(*args, scale=3.0)
    assert isinstance(out["p"], Point) and out["m"] == (None, "fast") and int(out["n"]) == 2
    assert_close(out["p"].x, X * 3)
    named = load(tmp_path / "f")(*args, scale=3.0)["p"]
    assert type(named) is not Point and named._fields == Point._fields
    with pytest.raises(MalleableError, match="cannot be called like that"):
        loaded(*args)
    assert [path for path, _ in loaded.metadata["arguments"]] == [
        "tree['a'][0]",
        "rest[0]",
        "scale",
    ]


@pytest.mark.parametrize("transformable", [True, False])
def test_a_node_of_the_users_own_is_shown_to_load(tmp_path, transformable):
    save(tmp_path / "f", lambda p: Pair(p.b, p.a, "new"), Pair(X, A, "old"),
         transformable=transformable)  # fmt: skip
    with pytest.raises(MalleableError, match=r"test_files\.Pair"):
        load(tmp_path / "f")
    with pytest.raises(MalleableError, match="Pair"):
        load(tmp_path / "f", nodes=Pair(0, 0, "another label"))
    loaded = load(tmp_path / "f", nodes=Pair(0, 0, "new"))
    out = loaded(Pair(X, A, "old"))
    assert type(out) is Pair and out.label == "new"
    with pytest.raises(MalleableError, match="another structure"):
        loaded(Pair(X, A, "older"))


@pytest.mark.parametrize("transformable", [True, False])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (({"w": A[:2], "b": X}, A), r"params\['w'\].* is float32\[2,3\], not float32\[3,3\]"),
        (({"w": A, "b": X.astype(int)}, A), r"params\['b'\].* is int32\[3\], not float32\[3\]"),
        (({"w": A}, A), r"params\['b'\]` is missing"),
        (({"w": A, "b": X, "c": X}, A), r"params\['c'\]` is one it does not know"),
        (((A, X), A), r"params"),
    ],
)
def test_a_wrong_argument_is_named_by_its_path(tmp_path, transformable, wrong, told):
    fun, args = CASES["dense"]
    save(tmp_path / "f", fun, *args, transformable=transformable)
    with pytest.raises(MalleableError, match=told):
        load(tmp_path / "f")(*wrong)


@pytest.mark.parametrize("transformable", [True, False])
@pytest.mark.parametrize("static", [{"static_argnums": (1, 2)}, {"static_argnames": ("n", "m")}])
def test_static_numbers_are_part_of_the_program(tmp_path, transformable, static):
    fun = jax.jit(lambda x, n, m, y=0.0: x * n + sum(m) + y, **static)
    for args, kwargs in [((X, 2, (3, 4), X), {}), ((X, 2), {"m": (3, 4), "y": X})]:
        save(tmp_path / "f", fun, *args, transformable=transformable, **kwargs)
        loaded = load(tmp_path / "f")
        assert_close(loaded(X + 1, *args[1:], **kwargs), fun(X + 1, *args[1:], **kwargs))
        assert [path for path, _ in loaded.metadata["arguments"]] == ["x", "y"]
        for n, m in [(3, (3, 4)), (2, (3, 5)), (2, (3, 4, 5))]:
            with pytest.raises(MalleableError, match="another structure"):
                loaded(X, n=n, m=m, y=X)
    if not transformable:
        save(tmp_path / "f", fun, X, 2, (3, 4), X, polymorphic=("b", None, None, "b"))
        x = jnp.ones(5)
        assert_close(load(tmp_path / "f")(x, 2, (3, 4), x), fun(x, 2, (3, 4), x))
    rest = jax.jit(lambda *xs: xs[0] * xs[1] - xs[2], static_argnums=1)
    save(tmp_path / "f", rest, X, 2, X, transformable=transformable)
    assert_close(load(tmp_path / "f")(X + 1, 2, X), rest(X + 1, 2, X))


def test_a_setting_is_part_of_the_program(tmp_path):
    fun = lambda x, how: jnp.sin(x) if how == 1 else jnp.cos(x)
    save(tmp_path / "f", lambda x, how: fun(x, {"sin": 1, "cos": 2}[how]), X, "sin",
         transformable=True)  # fmt: skip
    loaded = load(tmp_path / "f")
    assert_close(loaded(X, "sin"), jnp.sin(X))
    with pytest.raises(MalleableError, match="another structure"):
        loaded(X, "cos")
    with pytest.raises(MalleableError, match="has no name"):
        save(tmp_path / "f", lambda x, g: g(x), X, lambda x: x * X, transformable=True)
    save(tmp_path / "f", lambda x, g: g(x), X, jax.nn.relu, transformable=True)
    assert_close(load(tmp_path / "f")(X, jax.nn.relu), jax.nn.relu(X))
    with pytest.raises(MalleableError, match="another structure"):
        load(tmp_path / "f")(X, jax.nn.gelu)


def scaled(c):
    return lambda x: c * x


def test_a_function_without_a_name_is_known_by_its_code_and_what_it_holds(tmp_path):
    call = lambda x, g: g(x)
    for one, other in [
        (lambda x: 2 * x, lambda x: 3 * x),
        (scaled(2.0), scaled(3.0)),
        (functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=-1)),
        (lambda x: (lambda y: 2 * y)(x), lambda x: (lambda y: 3 * y)(x)),
    ]:
        save(tmp_path / "f", call, X, one, transformable=True)
        assert_close(load(tmp_path / "f")(X, one), one(X))
        with pytest.raises(MalleableError, match="another structure"):
            load(tmp_path / "f")(X, other)
    save(tmp_path / "f", call, X, scaled(2.0), transformable=True)
    assert_close(load(tmp_path / "f")(X, scaled(2.0)), 2 * X)


def test_models_of_equinox_are_arguments_and_results(tmp_path):
    eqx = pytest.importorskip("equinox")
    key = jax.random.key(0)
    mlp, many = eqx.nn.MLP(3, 2, 4, 1, key=key), eqx.nn.MultiheadAttention(1, 3, key=key)
    slopes = lambda m, x: eqx.filter_grad(lambda m: m(x).sum())(m)
    save(tmp_path / "mlp", lambda m, x: m(x), mlp, X, transformable=True)
    assert_close(load(tmp_path / "mlp")(mlp, X), mlp(X))
    save(tmp_path / "grad", slopes, mlp, X, transformable=True)
    found = load(tmp_path / "grad", nodes=[slopes(mlp, X)])(mlp, X)
    assert_close(jax.tree.leaves(found), jax.tree.leaves(slopes(mlp, X)))
    save(tmp_path / "many", lambda m, x: m(x, x, x), many, X[None], transformable=True)
    assert_close(load(tmp_path / "many")(many, X[None]), many(X[None], X[None], X[None]))


def test_what_is_told_about_a_file(tmp_path):
    save(tmp_path / "f", dense, *CASES["dense"][1], metadata={"loss": 0.5, "tags": ["a"]})
    loaded = load(tmp_path / "f")
    about = loaded.metadata
    assert about["metadata"] == {"loss": 0.5, "tags": ["a"]}
    assert about["by"]["jax"] == jax.__version__ and about["expires"] > about["written"][:10]
    assert any("written.py" in line and "relu" in line for line in loaded.source_lines)
    assert "dense(params['b']: float32[3]" in repr(loaded) and "order 0" in repr(loaded)
    assert loaded.program is None and not loaded.is_transformable
    with pytest.raises(MalleableError, match="JSON"):
        save(tmp_path / "g", jnp.sin, X, metadata={"x": {1, 2}})


def test_passes_run_first(tmp_path):
    save(tmp_path / "f", lambda x: (jnp.sin(x), x * 2)[1], X, passes=[dce], transformable=True)
    assert [e.primitive.name for e in load(tmp_path / "f").program.eqns] == ["mul"]


def test_arguments_may_be_types(tmp_path):
    save(tmp_path / "f", jnp.sin, jax.ShapeDtypeStruct((3,), jnp.float32), transformable=True)
    assert_close(load(tmp_path / "f")(X), jnp.sin(X))


# ---------------------------------------------------------------- exports


def test_an_export_has_open_sizes(tmp_path):
    save(tmp_path / "f", lambda x, y: x.sum(0) + y, A, X, polymorphic=("n, m", "m"))
    loaded = load(tmp_path / "f")
    assert_close(loaded(jnp.ones((5, 2)), jnp.zeros(2)), 5 * jnp.ones(2))
    with pytest.raises(MalleableError, match=r"`y` of .* is int32\[2\], not float32\[m\]"):
        loaded(jnp.ones((5, 2)), jnp.zeros(2, int))
    with pytest.raises(MalleableError, match="cannot be called"):
        loaded(jnp.ones((5, 2)), jnp.zeros(4))


def test_a_size_that_decides_asks_for_a_constraint(tmp_path):
    def fun(x):
        return x[:3] * 2 if x.shape[0] >= 3 else x

    with pytest.raises(MalleableError, match=r"b >= 3") as caught:
        save(tmp_path / "f", fun, jnp.ones(5), polymorphic="b")
    assert "test_files.py" in caught.value.where and "constraints" in caught.value.hint
    save(tmp_path / "f", fun, jnp.ones(5), polymorphic="b", constraints=("b >= 3",))
    assert load(tmp_path / "f")(jnp.ones(8)).shape == (3,)


@pytest.mark.parametrize("wrong", ["a, b", ("n", "n", "n"), {"x": 1}])
def test_a_spec_that_does_not_fit_is_told(tmp_path, wrong):
    with pytest.raises(MalleableError, match=r"polymorphic|is not the shape of"):
        save(tmp_path / "f", jnp.add, X, X, polymorphic=wrong)


def test_an_export_has_gradients_of_the_order_asked_for(tmp_path):
    cube = lambda x: x**3
    save(tmp_path / "f", cube, 2.0, gradient_order=2)
    loaded = load(tmp_path / "f")
    assert float(jax.grad(jax.grad(loaded))(2.0)) == 12.0
    with pytest.raises(MalleableError, match=r"transformable=True|gradient_order"):
        jax.grad(jax.grad(jax.grad(loaded)))(2.0)
    with pytest.raises(MalleableError, match="cannot be changed like that") as caught:
        jax.vmap(loaded)(jnp.ones(3))
    assert "transformable=True" in caught.value.hint


def test_options_that_exclude_each_other_are_told(tmp_path):
    for options in ({"polymorphic": "b"}, {"gradient_order": 1}, {"platforms": ["cpu"]}):
        with pytest.raises(MalleableError, match="transformable"):
            save(tmp_path / "f", jnp.sin, X, transformable=True, **options)


def test_a_callback_has_no_export(tmp_path):
    def fun(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(MalleableError, match="cannot export") as caught:
        save(tmp_path / "f", fun, X)
    assert "debug.print" in caught.value.hint


def test_an_export_names_the_extra_it_needs(files, tmp_path, monkeypatch):
    monkeypatch.setattr(portable, "flatbuffers", None)  # as if it were not installed
    with pytest.raises(MalleableError, match="is written with flatbuffers") as caught:
        save(tmp_path / "f", jnp.sin, X)
    assert "malleable[save]" in caught.value.hint
    with pytest.raises(MalleableError, match="is read with flatbuffers"):
        load(files["portable"])
    save(tmp_path / "f", jnp.sin, X, transformable=True)
    np.testing.assert_array_equal(load(tmp_path / "f")(X), jnp.sin(X))


def test_a_sealed_file_may_still_make_no_sense(files, tmp_path):
    """Whoever writes the hash as well gets no further than the types."""
    *lines, _ = files["transformable"].read_text().splitlines()
    edits = [
        ('"be": "sin"', '"be": "pure_callback"'),
        ('"be": "sin"', '"be": "ffi_call"'),
        ('"be": "sin"', '"be": "custom_jvp_call"'),
        ('"be": "sin"', '"be": "dot_general"'),
        ('"of": ["x"]', '"of": ["y"]'),
        ('"of": ["x"]', '"of": [{"float32[]": {}}]'),
        ("float32[3]", "float32[4]"),
        ("float32[3]", "float32[99999999999999999999]"),
        ('"main": true', '"main": false'),
        ('"arguments": [["x"', '"arguments": [["x", 1'),
        ('"gives": {"dict"', '"gives": {"object"'),
        ('"span": [', '"span": [-'),
        ('"takes": {"tuple"', '"takes": {"tuples"'),
    ]
    for old, new in edits:
        text = "\n".join(lines).replace(old, new, 1) + "\n"
        assert text != "\n".join(lines) + "\n", old
        (tmp_path / "x").write_bytes(text.encode() + container._seal(text.encode()))
        with pytest.raises(MalleableError):
            load(tmp_path / "x")(X)


def test_a_header_is_json_and_readable(files):
    first, about, *_ = files["transformable"].read_text().splitlines()
    assert json.loads(first) == {"malleable": "transformable program", "version": 1}
    assert json.loads(about)["about"]["arguments"] == [["x", "float32[3]"]]
    assert pathlib.Path(__file__).name in files["transformable"].read_text()


def test_a_scan_of_an_export_runs(tmp_path):
    save(tmp_path / "f", lambda c: c * 2, 1.0)
    loaded = load(tmp_path / "f")
    assert float(lax.fori_loop(0, 3, lambda _, c: loaded(c), 1.0)) == 8.0
