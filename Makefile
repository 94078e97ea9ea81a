# Needs: Python 3.11-3.13 with venv, git and make. Everything else goes into .venv.
# `make` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := pipeline,training,scoring,serving
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
CONSTRAINTS := -c constraints.txt
NEWEST := build/newest
AUDIT := build/audit
# All extras but wandb, whose newest release brings ten more packages, some of them betas, and mlflow, whose client brings nine
# and takes importlib_metadata below 10.
LOCKED := pipeline training eight-bit scoring ocr serving dev
PRESET ?= tiny
POOL ?= gpu
# The first of these that works is used; 3.11 first, because constraints.txt was made and tested with it.
PYTHON ?= python3.11 python3.12 python3.13 python3

# `python` in dvc.yaml is the one of .venv.
export PATH := $(CURDIR)/$(BIN):$(PATH)
# No usage statistics: Prefect's client and Hugging Face's hub, Prefect's server, DVC.
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DVC_NO_ANALYTICS := 1

.DEFAULT_GOAL := help
.PHONY: help run params plan accept score track gc serve worker smoke tools lint types site test test-slow test-newest lock audit docs gpu gpu-report clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1|\2/' | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'

run: $(STAMP) ## run the pipeline of params.yaml and print its answer
	@exec $(BIN)/python -I -S chunk_grpo/guard.py $$PPID become $(BIN)/chunk-grpo run

params: $(STAMP) ## write params.yaml from conf/ (PRESET=tiny, smoke, methods, …; VARIANTS=paper, …; FORCE=1 overwrites edits)
	$(BIN)/chunk-grpo params compose $(PRESET) $(if $(VARIANTS),--variants $(VARIANTS)) $(if $(FORCE),--force)

plan: $(STAMP) ## print what a run will take, of params.yaml or PRESET=flux-dev (GPUS=8; OPTIONS='--price 2.5')
	$(BIN)/chunk-grpo plan $(if $(filter file default,$(origin PRESET)),,--preset $(PRESET)) --gpus $(or $(GPUS),1) $(OPTIONS)

accept: $(STAMP) ## prove on this machine that params.yaml or PRESET=night-24gb works, on a page to send back (OPTIONS='--reference …')
	$(BIN)/chunk-grpo accept $(if $(filter file default,$(origin PRESET)),,--preset $(PRESET)) $(OPTIONS)

score: $(STAMP) ## score a folder of images (IMAGES=FOLDER SCORERS=paper PROMPTS=FILE; OPTIONS='--only pickscore')
	$(BIN)/chunk-grpo score '$(IMAGES)' --scorers '$(SCORERS)' $(if $(PROMPTS),--prompts '$(PROMPTS)') $(OPTIONS)

track: $(STAMP) ## commit params.yaml and dvc.lock of a finished run, and push its results for `dvc pull dvc.yaml`
	$(BIN)/chunk-grpo track

gc: $(STAMP) ## list what the DVC cache no longer needs (DELETE=1 removes it; CHECKPOINTS=30 too, of trainings stopped 30 days ago)
	$(BIN)/chunk-grpo gc $(if $(DELETE),--delete) $(if $(CHECKPOINTS),--checkpoints $(CHECKPOINTS)) $(OPTIONS)

serve: $(STAMP) ## start Prefect server, workers and deployments; stop with Ctrl-C (GPU_WORKERS=1; 0: they are elsewhere)
	$(BIN)/chunk-grpo serve

worker: $(STAMP) ## start a worker for the server of PREFECT_API_URL; stop with Ctrl-C (POOL=gpu)
	$(BIN)/chunk-grpo worker --pool $(POOL)

smoke: $(STAMP) ## run the smallest preset end to end through a temporary Prefect server (PRESET=smoke-sd3)
	$(BIN)/python -m infra.smoke $(if $(filter file default,$(origin PRESET)),,--preset $(PRESET))

tools: $(TOOLS) ## install what the targets below need

lint: $(TOOLS) ## check format, lint and import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(TOOLS) ## run mypy --strict
	$(BIN)/mypy

site: $(TOOLS) ## write the pages and the reference of the Python modules as a site, to build/site/
	rm -rf docs/reference build/site    # no page of a module or a file that is gone
	$(BIN)/sphinx-build -W --keep-going -q -j auto -c docs -d build/doctrees . build/site

test: $(TOOLS) ## run the tests, except slow ones and those that need a GPU or the internet
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(TOOLS) ## run the slow tests
	$(BIN)/python -m pytest -q -m 'slow and not gpu and not network'

test-newest: ## test flows, infra and orchestration with the newest packages that pyproject.toml allows
	$(MAKE) tools VENV=$(NEWEST) CONSTRAINTS=
	PATH="$(CURDIR)/$(NEWEST)/bin:$$PATH" python -m pytest -q -m 'not gpu and not network' tests/flows tests/infra tests/orchestration

lock: $(AUDIT)/.installed ## write requirements.lock: the pins of constraints.txt with the hashes of all their files on PyPI
	$(AUDIT)/bin/uv pip compile pyproject.toml $(addprefix --extra ,$(LOCKED)) -c constraints.txt --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-strip-extras --no-config --default-index https://pypi.org/simple \
	  --custom-compile-command 'make lock' --quiet -o requirements.lock

# CVE-2025-69872 is diskcache's, which DVC needs: no release mends it. docs/security.md says what is done about it.
audit: $(AUDIT)/.installed ## look up known vulnerabilities of the pins (asks pypi.org)
	$(AUDIT)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements.lock --ignore-vuln CVE-2025-69872

$(AUDIT)/.installed: Makefile
	python3 -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9 pip-audit==2.10.1
	@touch $@

docs: $(TOOLS) ## check the documents against the code, and run their code blocks
	$(BIN)/python -m pytest -q -m 'not gpu and not network' tests/architecture tests/docs

gpu: $(TOOLS) ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -q -m gpu tests/gpu

gpu-report: $(TOOLS) ## measure rates at FLUX.1-dev's size on a GPU with random weights (minutes on an H200; MINUTES=60)
	$(BIN)/python -m benchmarks.gpu_report --minutes $(or $(MINUTES),60)

clean: ## remove caches of the tools; keeps artifacts, the DVC cache and .venv
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .grimp_cache build dist docs/reference
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(VENV): $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@set -e; chosen=; \
	check='import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'; \
	for python in $(PYTHON); do \
	  if [ -z "$$chosen" ] && "$$python" -c "$$check" >/dev/null 2>&1; then chosen="$$python"; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo 'Debian, Ubuntu: apt install python3 python3-venv. macOS: brew install python@3.11.' >&2; \
	  echo 'error: Python 3.11-3.13 with the module venv is needed, and none of these is one: $(PYTHON). Install one, or name one: make run PYTHON=/path/to/python3.11' >&2; \
	  exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
	  echo "Creating $(VENV) with $$chosen"; "$$chosen" -m venv $(VENV); \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS)]' $(CONSTRAINTS)
	@$(BIN)/python -m chunk_grpo.orchestration.dvc_state
	@touch $(STAMP)

$(TOOLS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRAS),dev]' $(CONSTRAINTS)
	@touch $(TOOLS)
