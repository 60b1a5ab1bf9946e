# Every target works from a fresh clone: tools/environment.py makes .venv when needed.
PYTHON ?= python3
RUN = $(PYTHON) tools/environment.py
ONLY = $(if $(CHAPTER),--only $(CHAPTER))

.PHONY: help book site pdf run lab text export test slow bench lint serve clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book:  ## from nothing to _build/html: install, execute every notebook here, build the pages
	$(PYTHON) tools/book.py $(ONLY)

site:  ## the same pages from the committed outputs, in seconds
	$(RUN) tools/pages.py

pdf:  ## the whole book as _build/attention-line-by-line.pdf (needs Chromium)
	$(RUN) tools/pdf.py

run:  ## take in text edits, export, run notebooks, store outputs (one: make run CHAPTER=3)
	$(RUN) tools/run.py $(ONLY)

lab:  ## open the notebooks in JupyterLab (one: make lab CHAPTER=3)
	$(RUN) tools/lab.py $(ONLY)

text:  ## write notebooks as editable text into text/ (one: make text CHAPTER=3)
	$(RUN) tools/text.py $(ONLY)

export:  ## write src/aiayn from the notebooks
	$(RUN) tools/export.py

test:  ## everything that has to hold; says what it skipped and why
	$(RUN) tools/suite.py

slow:  ## what takes many minutes: slow tests, fifty kills of a training run, five seeds
	$(RUN) -m pytest -m slow || [ $$? -eq 5 ]
	$(RUN) tools/copy_seeds.py
	$(RUN) tools/pooled_seeds.py
	$(RUN) tools/ship_copy_model.py
	$(RUN) tools/ablations.py

bench:  ## measure the times that chapters show, minutes on a quiet machine
	$(RUN) benchmarks/run.py

lint:  ## style and spelling
	$(RUN) tools/lint.py

serve:  ## show _build/html at http://localhost:8000
	$(RUN) -m http.server --directory _build/html 8000

clean:  ## remove what was built; text/ and .venv stay
	rm -rf _build dist .pytest_cache .ruff_cache
