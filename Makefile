PYTHON ?= python

.PHONY: check lint test fast golden soak bench bench-gpu ecosystem docs format

check: lint test                ## everything a change must pass

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m pyright --pythonpath "$$($(PYTHON) -c 'import sys; print(sys.executable)')"

test:
	$(PYTHON) -m pytest

fast:                           ## the tests of what differs from main; BASE=branch for another
	$(PYTHON) -m pytest $$($(PYTHON) -m tests.house.changed $(BASE))

golden:                         ## what is different from tests/golden/records; WRITE=--write accepts it
	$(PYTHON) -m tests.golden $(WRITE)

soak:                           ## slow tests, and the laws on many more random programs: takes hours
	$(PYTHON) -m pytest -m slow
	$(PYTHON) -m tests.soak --programs 20000 --python-programs 50000 --iterator-programs 20000 --rewriting-programs 50000 \
		--selective-programs 20000
	MALLEABLE_LARGE_PROGRAMS=1 $(PYTHON) -m tests.soak --rewriting-programs 25000
	$(PYTHON) -m benchmarks.selective_soak
	MALLEABLE_NEW_PROGRAMS=1 $(PYTHON) -m pytest -m '' tests/laws tests/effects/test_arrays_like_numpy.py \
		tests/test_programs.py tests/inspection/test_stepping.py tests/inspection/test_unstage.py

bench:
	$(PYTHON) -m benchmarks.staging

bench-gpu:                      ## pushing up and streaming on a GPU; DOCS=--docs writes the table
	$(PYTHON) -m benchmarks.gpu $(DOCS)

ecosystem:                      ## 40 functions of other libraries under everything; DOCS=--docs writes the table
	$(PYTHON) -m benchmarks.ecosystem $(DOCS)

docs:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
