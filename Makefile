# make demo  runs the main job      make test   passes the tests      make check  format, lint, types
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format venv clean

demo: venv
	$(BIN)/chumoku demo

test: venv
	$(BIN)/pytest -n 2

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

venv: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[ja,dev]"
	touch $@

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
