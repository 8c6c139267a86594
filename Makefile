# The commands of docs/; each works on a fresh Debian 12 and on a developer's machine alike.
.PHONY: serve test test-all test-fast test-clients bench bench-peers format lint setup clean

MODEL ?= models/demo
PORT ?= 8000
SETUP := build/.setup-build
TEST_SETUP := build/.setup-test
BINARY := build/release/millrace

# Installs what is missing, builds, serves the demo model with an OpenAI-compatible API.
serve: $(BINARY)
	$(BINARY) serve "$(MODEL)" --port $(PORT)

$(BINARY): $(SETUP) FORCE
	@scripts/build release millrace

# The release build and both of its suites.
test: $(TEST_SETUP)
	@scripts/test release

# Everything: also lint of the whole tree, the sanitizers, the fuzz targets. Takes hours without a compiler cache.
test-all: $(TEST_SETUP)
	@scripts/test all

# The suite to run after every change: under a minute, no model, no network.
test-fast: $(TEST_SETUP)
	@scripts/test fast

# Installs other people's clients into build/clients and runs them against the server (docs/clients.md).
test-clients: $(BINARY)
	@tests/clients/run $(BINARY) models/demo

# Prints tables of ratios to this machine's roofline. docs/performance.md has the results.
bench: $(TEST_SETUP)
	@scripts/bench

# Installs other servers into build/peers and compares them with Millrace. Needs a quiet machine.
bench-peers: $(BINARY)
	@python3 bench/peers/run.py --binary $(BINARY)

format: $(TEST_SETUP)
	git ls-files '*.cc' '*.h' | grep -v '^rust/' | xargs clang-format-14 -i
	cargo fmt --manifest-path rust/Cargo.toml

lint: $(TEST_SETUP)
	@scripts/lint

setup: $(TEST_SETUP)
$(SETUP): scripts/setup
	@scripts/setup build
	@mkdir -p build && touch $@
$(TEST_SETUP): scripts/setup tests/e2e/package-lock.json tests/clients/requirements-light.txt \
  tests/clients/constraints-light.txt
	@scripts/setup test
	@mkdir -p build && touch $@ $(SETUP)

clean:
	rm -rf build

FORCE:
