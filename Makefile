# Two commands: `make book` and `make test`. The rest is for those who write the book.

PYTHON ?= python3
# How many processes run the tests: many wait more than they compute. 0: one after another.
TESTERS ?= 4
VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python

# In a container one is often root, and Jupyter wants to be told that this is meant.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Nothing of ours ends up in the reader's home folder.
export IPYTHONDIR := $(CURDIR)/_build/ipython
export JUPYTER_CONFIG_DIR := $(CURDIR)/_build/jupyter
export JUPYTER_DATA_DIR := $(CURDIR)/_build/jupyter/data
export MPLCONFIGDIR := $(CURDIR)/_build/matplotlib

.PHONY: book test test-all lab write forms bench soak lint clean

book: $(VENV)/.installed  ## execute every chapter, build the site into _build/html
	@$(PY) -m bookmaker.site

# What is marked `everything` is left to `make test-all`, which the code host runs every night.
test: LEFT := -m "not everything"
test test-all: $(VENV)/.installed lint  ## what the book promises; test-all: all there is
	@$(PY) -m pytest $(LEFT) --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder

lab: $(VENV)/.installed  ## JupyterLab on the notebooks, for readers
	@$(BIN)/jupyter lab --config=bookmaker/notebook/jupyter_config.py --notebook-dir=notebooks $(AS_ROOT) $(ARGS)

write: $(VENV)/.installed  ## JupyterLab on the manuscripts, for authors: Open With > Notebook
	@$(BIN)/jupyter lab --config=bookmaker/notebook/jupyter_config.py --LabApp.default_url=/lab/tree/book $(AS_ROOT) $(ARGS)

forms: $(VENV)/.installed  ## book/*.md -> notebooks/, scripts/, ranklab/taught/; ARGS=--stubs drops answers
	@$(PY) -m bookmaker.forms $(ARGS)

bench: $(VENV)/.installed  ## what the lab and the chapters' code cost, beside what one would use instead
	@for each in $(filter-out benchmarks/soak.py,$(wildcard benchmarks/*.py)); do $(PY) $$each || failed=1; done; exit $${failed:-0}

soak: $(VENV)/.installed  ## 200 random faults in one notebook, a chapter 30 times in a row (half an hour)
	@$(PY) benchmarks/soak.py $(ARGS)

lint: $(VENV)/.installed
	@$(BIN)/ruff check ranklab bookmaker tests benchmarks
	@$(BIN)/ruff format --check ranklab bookmaker tests benchmarks
	@$(BIN)/nbqa ruff notebooks

clean:
	rm -rf _build $(VENV) *.egg-info .pytest_cache .ruff_cache

# The stamp is made last, so that an interrupted installation is done again.
$(VENV)/.installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "This book needs Python 3.11 or newer; $(PYTHON) is %s. Try: make PYTHON=python3.12" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --requirement requirements.txt
	@mkdir -p _build  # where IPython is to keep its files
	@touch $@
