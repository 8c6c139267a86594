# The commands of docs/; each works on a fresh Debian 12 and on a developer's machine alike.
.PHONY: serve test test-fast bench format lint setup clean

MODEL ?= models/demo
PORT ?= 8000
SETUP_STAMP := build/.setup-done
BINARY := build/release/millrace

# Installs what is missing, builds, serves the demo model with an OpenAI-compatible API.
serve: $(BINARY)
	$(BINARY) serve $(MODEL) --port $(PORT)

$(BINARY): $(SETUP_STAMP) FORCE
	@scripts/build release millrace

# Everything CI runs: both suites, the sanitizers, the fuzz corpora.
test: $(SETUP_STAMP)
	@scripts/test all

# The suite to run after every change: under a minute, no model, no network.
test-fast: $(SETUP_STAMP)
	@scripts/test fast

# Prints tables of ratios to this machine's roofline; docs/performance.md keeps the results.
bench: $(SETUP_STAMP)
	@scripts/bench

format: $(SETUP_STAMP)
	git ls-files 'src/*.cc' 'src/*.h' 'bench/*.cc' 'fuzz/*.cc' 'tests/*.cc' | xargs clang-format-14 -i

lint: $(SETUP_STAMP)
	@scripts/lint

setup: $(SETUP_STAMP)
$(SETUP_STAMP): scripts/setup
	@scripts/setup
	@mkdir -p build && touch $@

clean:
	rm -rf build

FORCE:
