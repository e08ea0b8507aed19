# The two commands of the README; each makes its own environment on a machine that has nothing but Python (>= 3.11).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
KERAS := .venv-keras
TRAINERS := .venv-trainers
DOCS := .venv-docs
TRAINER_TESTS := $(addprefix tests/integrations/,lightning transformers accelerate test_trainers_page.py test_trainers_processes.py)
WORKERS ?= 2
# Two torch threads on small tensors are slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: test test-slow bench board reproduce lint types suite known-answers subproblems metrics verdict classifier loop speed test-keras test-trainers keras-step keras-experiment docs docs-all package clean

test: lint types suite

# The paper's Experiment 1 in about a minute: on real census data where FAIRBOUND_DATA names them, else on synthetic.
bench: $(VENV)/.report
	$(BIN)/fairbound run first --to first

board: $(VENV)/.report
	$(BIN)/fairbound board

# The whole paper.
reproduce: $(VENV)/.report
	$(BIN)/fairbound reproduce

# Every algorithm on a problem whose exact solution is known.
known-answers: $(VENV)/.installed
	$(BIN)/python benchmarks/s3.py

lint: $(VENV)/.test
	$(BIN)/ruff check src tests benchmarks examples tools docs/*.py
	$(BIN)/ruff format --check src tests benchmarks examples tools docs/*.py

types: $(VENV)/.test
	$(BIN)/mypy

# Keras models: TensorFlow and JAX are large, so they have a separate environment.
test-keras: $(KERAS)/.installed
	$(KERAS)/bin/python -m pytest -p no:xdist tests/integrations/keras tests/training/test_one_by_one.py src/fairbound/integrations/keras --durations 10

# Lightning, Transformers, accelerate, peft and TensorBoard, in an environment of their own; nothing is downloaded.
test-trainers: $(TRAINERS)/.installed
	HF_HUB_OFFLINE=1 $(TRAINERS)/bin/python -m pytest -p no:xdist $(TRAINER_TESTS) src/fairbound/integrations/lightning.py src/fairbound/integrations/transformers.py --durations 10

# A step of a Keras model beside the same method hand-written; Experiment 1 through a Keras model.
keras-step: $(KERAS)/.installed
	$(KERAS)/bin/python benchmarks/keras_step.py

keras-experiment: $(KERAS)/.installed
	$(KERAS)/bin/python benchmarks/keras_experiment.py

# The documentation site, docs/_build/html/index.html: warnings are errors, every link and every page is checked.
# Examples that need Keras, Lightning, Transformers or accelerate are shown; `make docs-all` executes them as well.
docs: $(VENV)/.docs
	rm -rf docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python tools/check_site.py docs/_build/html

docs-all: $(DOCS)/.installed
	rm -rf docs/_build
	$(DOCS)/bin/python -m sphinx -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html
	$(DOCS)/bin/python tools/check_site.py docs/_build/html

suite: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 15

# The long statistical tests, which `make test` skips.
test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 15 -m slow

# sdist and wheel in dist/, tried in a clean environment of every Python (3.11 to 3.14) that is there, with the newest
# torch, and with the oldest on the first: some GB of downloads, deleted afterwards.
package: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt build
	$(BIN)/python tools/try_package.py

# Everything against plain loops, the authors' form and the peers (benchmarks/requirements.txt); exits with 1 where a
# target is missed or a part breaks. `make loop` is its first part: a step in a user's loop.
speed: $(VENV)/.peers
	$(BIN)/python benchmarks/speed/all.py

loop: $(VENV)/.peers
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/speed/loop.py

# The subproblem solver beside OSQP + HiGHS, as the authors of the paper call them.
subproblems: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[peers]"
	$(BIN)/python benchmarks/subproblems.py

# The whole metric table beside Fairlearn's MetricFrame, and grouping at scale.
metrics: $(VENV)/.test
	$(BIN)/python benchmarks/metrics.py

# Error rates of the verdict; bounds of FairClassifier on held-out data (real census data)
verdict: $(VENV)/.report
	$(BIN)/python benchmarks/verdict.py

ifneq ($(wildcard ../shared/data),)
classifier keras-experiment: export FAIRBOUND_DATA ?= $(abspath ../shared/data)
endif

classifier: $(VENV)/.report
	$(BIN)/python -m pip install -q -c constraints.txt -r benchmarks/fair_classifier/requirements.txt
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/fair_classifier

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("fairbound needs Python 3.11 or later, this is %d.%d; use make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(KERAS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(KERAS)
	$(KERAS)/bin/python -m pip install -q -c constraints.txt -e ".[test,keras]" jax
	touch $@

$(TRAINERS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRAINERS)
	$(TRAINERS)/bin/python -m pip install -q -c constraints.txt -e ".[data,lightning,transformers]" peft tensorboard pytest
	touch $@

$(VENV)/.report: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[report]"
	touch $@

$(VENV)/.docs: $(VENV)/.test
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	touch $@

$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -q -c constraints.txt -e ".[docs,keras,lightning,transformers]" pytest
	touch $@

# One by one: a peer that does not install is named and skipped.
$(VENV)/.peers: $(VENV)/.report benchmarks/requirements.txt
	grep -v '^#' benchmarks/requirements.txt | while read peer; do \
		$(BIN)/python -m pip install -q -c constraints.txt "$$peer" || echo "$$peer does not install and is skipped"; done
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) $(KERAS) $(TRAINERS) $(DOCS) docs/_build docs/gallery .pytest_cache .mypy_cache .ruff_cache dist
