# Every target makes what it needs: a virtual environment in .venv, with python3 and pip alone.
PYTHON  ?= python3
WORKERS ?= 4
MINUTES ?= 30
ARGS    ?=
BIN     := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check bench prove format clean

help:            ## list the targets
	@sed -n 's/^\([a-z-]*\): .*## /  make \1 \t/p' $(MAKEFILE_LIST)

demo: .venv/.run ## print Python's standard library as one book, with workers killed on the way
	@$(BIN)/python examples/book/demo.py $(ARGS)

test: .venv/.dev ## run the tests on SQLite and on every PostgreSQL found (ARGS='-k join' to choose)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

check: .venv/.dev ## formatting, lint, types, floors and the SQL rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/sql_lint.py

bench: .venv/.dev ## measure parts per second beside the raw limit of the database
	@$(BIN)/python -m bench $(ARGS)

bench-full: .venv/.dev ## measure everything, about half an hour (ARGS='speed peers' to choose stages)
	@$(BIN)/python -m bench --full $(ARGS)

bench-peers: .venv/.dev ## measure the same job on other libraries (ARGS='celery huey' to choose)
	@$(BIN)/python -m bench --peers $(ARGS)

bench-report: .venv/.dev ## write docs/benchmarks.md from the figures of the full run
	@$(BIN)/python -m bench --report

prove: .venv/.dev ## run the long form of every suite and write docs/proof.md (MINUTES=60)
	@$(BIN)/python -m tools.prove --minutes $(MINUTES) $(ARGS)

format: .venv/.dev ## rewrite the code in the house style
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

clean:           ## remove the virtual environment and everything that was generated
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache book.pdf
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian keeps ensurepip in a package of its own (python3-venv). Without it the environment is made empty and
# the interpreter's own pip fills it.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fanin needs Python 3.11 or newer, and '$(PYTHON)' is not; choose another with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv .venv; \
	elif $(PYTHON) -c 'import pip' 2>/dev/null; then \
	  $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python .venv/bin/python install --quiet pip; \
	else echo "'$(PYTHON)' has neither ensurepip nor pip; on Debian: apt-get install python3-venv" >&2; exit 1; fi

.venv/.run: .venv/bin/python pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[postgres,process,book]'
	@touch $@

.venv/.dev: .venv/bin/python pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ .venv/.run
