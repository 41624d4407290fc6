# make run     set up, then serve the embedded demo model (PORT=9000 picks the port)
# make test    set up, then run the tests (under 10 minutes on two cores)
# make check   what CI runs: format, lint, types, tests

PORT ?= 8080
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null \
	&& command -v $$p && break; done)
# On Linux exactly one MLX backend is installed: CUDA where a driver answers, else CPU.
BACKEND ?= $(shell if [ "$$(uname -s)" = Darwin ]; then echo metal; \
	elif nvidia-smi -L >/dev/null 2>&1; then echo cuda13; else echo cpu; fi)
EXTRA_metal := metal
EXTRA_cuda13 := cuda13
EXTRA_cpu := cpu
comma := ,
SOURCES := pyproject.toml setup.py $(wildcard gguf_hybrid/cpu/CMakeLists.txt gguf_hybrid/cpu/csrc/*)

.PHONY: run install install-test test test-full format lint type check wheel-check loc clean

run: install
	exec $(BIN)/gguf-hybrid serve --port $(PORT)

install: $(VENV)/.run-$(BACKEND)
install-test: $(VENV)/.test-$(BACKEND)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.14 is needed and none was found" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-$(BACKEND): $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA_$(BACKEND))]'
	@touch $@

$(VENV)/.test-$(BACKEND): $(SOURCES) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable \
		'.[$(EXTRA_$(BACKEND))$(comma)test]'
	@touch $@ $(VENV)/.run-$(BACKEND)

test: install-test
	$(BIN)/pytest -q -m "not full and not gpu"

test-full: install-test
	$(BIN)/pytest -q -m "not gpu"

format: install-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# mypy cannot follow the package-dir map, so it gets the package as it will be installed.
type: install-test
	@rm -rf $(VENV)/typed && mkdir -p $(VENV)/typed/gguf_hybrid
	@ln -s $(CURDIR)/gguf_hybrid/* $(CURDIR)/server $(CURDIR)/tools $(CURDIR)/metal \
		$(VENV)/typed/gguf_hybrid/
	cd $(VENV)/typed && ../bin/mypy --config-file ../../pyproject.toml -p gguf_hybrid

check: lint type test

wheel-check:
	.ci/wheel_check $(PYTHON)

loc:
	@git ls-files '*.py' '*.cpp' '*.h' '*.metal' | xargs wc -l | sort -n | tail -n 60

clean:
	rm -rf $(VENV) build dist *.egg-info
