# make demo  trains and shows a small translator      make test  runs the tests      make test-slow  the long ones
# make check  format, lint, types      make docs  builds the documentation into site/
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE  # or each process compiles every file again

.PHONY: demo docs pictures notebooks test test-slow test-all check format laws strings faults families wasm wheel venv browser clean

demo: venv
	$(BIN)/chumoku demo

# The documentation in both languages. Open site/index.html.
docs: venv
	$(BIN)/python docs/tools/build_site.py

# The pictures of the README, after a change of the web page or of the figures.
pictures: venv browser
	$(BIN)/python docs/tools/pictures.py

# The chapters of the course as notebooks in examples/course, after a change of a chapter.
notebooks: venv
	$(BIN)/python docs/tools/notebooks.py

test: venv browser
	$(BIN)/pytest -n 3 --dist worksteal -m "not slow"

# Long runs: whole trainings, every experiment, kills and damaged files, many random cases of laws that `test` tries on few.
test-slow: venv browser
	$(BIN)/pytest -n 3 --dist worksteal -m slow

# Both in one run, which imports and collects once.
test-all: venv browser
	$(BIN)/pytest -n 3 --dist worksteal

check: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The laws on every combination of kind, position, norm, placement, feed-forward and heads: three minutes.
laws: venv
	CHUMOKU_CELLS=all $(BIN)/pytest tests/test_laws.py

# Encode and decode 100,000 random texts and 100,000 random byte strings; then the texts again in Chromium, and 300 random
# models there.
strings: venv browser
	CHUMOKU_STRINGS=100000 $(BIN)/pytest tests/test_text.py tests/test_web_tokenizers.py -k random_strings
	CHUMOKU_MODELS=300 $(BIN)/pytest tests/test_web_model.py tests/test_web_wasm.py -k random_models

# Kill and resume runs, flip bytes of files, kill and repeat every command that writes files, open 3,000 damaged files of
# each format: about an hour on two cores.
faults: venv
	$(BIN)/python tests/faults.py --cuts 5 --kills 100 --flips 50
	PYTHONPATH=tests $(BIN)/python tests/kills.py --kills 300
	PYTHONPATH=tests $(BIN)/python tests/mutants.py --each 3000

# Measure the formats of every model family, on tiny models with random weights: five minutes on two busy cores.
families: venv
	PYTHONPATH=tests $(BIN)/python tests/family_table.py

# Compile the native engine for web pages, after changes of its C++; the package ziglang is a download of 100 MB.
wasm: venv
	$(BIN)/python -m pip install -qq ziglang==0.17.0
	$(BIN)/python -m chumoku.web.build_wasm

# A wheel for Linux with the compiled native engine inside, so that no compiler is needed where it is installed:
# dist/chumoku-…-MACHINE.whl. Both machines can be built anywhere: make wheel MACHINES="x86_64 aarch64"
wheel: venv
	$(BIN)/python -m pip install -qq ziglang==0.17.0
	$(BIN)/python scripts/build_wheels.py $(MACHINES)

# Web pages are tested in Debian's Chromium, without a window system if there is such a package: that takes a third of the
# time. If neither can be installed, these tests are skipped with a message.
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get install -y -qq fonts-noto-cjk
browser:
	@command -v chromium-headless-shell >/dev/null || { \
		echo "Installing Chromium for the web page tests (once; a minute) …"; \
		apt-get update -qq >/dev/null 2>&1; \
		$(APT_INSTALL) chromium-headless-shell >/dev/null 2>&1; } || \
		command -v chromium >/dev/null || $(APT_INSTALL) chromium >/dev/null 2>&1 || \
		echo "Chromium could not be installed; the web page tests will be skipped."

venv: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@echo "Setting up .venv (once; a minute or two) …"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --upgrade pip
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable ".[ja,dev,docs]"
	@touch $@

clean:
	rm -rf .venv runs site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
