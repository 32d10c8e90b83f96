"""The sections of the record: a file of records/ each, and what says what stands there now."""

from tests.golden import errors, frontend, rewriting, selective, shown

# {name: function that gives (title, lines) of one program after the other}
ALL = {
    "rewriting": rewriting.benchmarks,
    "rewriting_laws": rewriting.laws,
    "selective": selective.benchmarks,
    "selective_laws": selective.laws,
    "frontend": frontend.benchmarks,
    "frontend_small": frontend.small,
    "frontend_laws": frontend.laws,
    "show": shown.texts,
    "errors": errors.texts,
}
