# SPDX-License-Identifier: Apache-2.0
# The front door. The build itself is CMake's (CMakePresets.json); what is here calls it, so that
# nobody has to remember how. `make help` lists everything.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
BENCH ?= --peers
export FLEET JOBS FUZZ_SECONDS WERROR SLOW

.PHONY: all deps run demo test test-rdma test-fleet asan tsan fuzz bench install format clean help

all: deps ## dependencies, then build/release/baton and build/release/libbaton.so (the default)
	scripts/build.sh release

deps: ## install what is missing to build, test and measure (BATON_SKIP_DEPS=1: leave the system alone)
	@scripts/install-deps.sh

run: all ## the default model behind prefill, decode and router: an answer (ASK="..."), an address to try
	@scripts/run.sh $(if $(ASK),--ask "$(ASK)") $(RUN)

demo: all ## a hand-over between two processes, with progress and a verified result
	build/release/baton demo

test: deps ## everything, in minutes: tests, sanitizers, Python, proof (SLOW=1: slow ones too)
	scripts/test.sh

test-rdma: all ## RDMA in virtual machines, at length: both kernels, loss, rails, two machines
	tests/rdma/run.sh full

test-fleet: deps ## prefill and decode at length: 200 prompts for each fleet, every fault (FLEET=200)
	scripts/test.sh fleet

asan: deps ## every C test with AddressSanitizer and UndefinedBehaviorSanitizer
	EVERY=1 scripts/test.sh asan

tsan: deps ## every C test with ThreadSanitizer
	EVERY=1 scripts/test.sh tsan

fuzz: deps ## a short libFuzzer campaign per target (FUZZ_SECONDS=60)
	scripts/fuzz.sh

bench: all ## bandwidth and latency of each backend beside others' (BENCH="options of baton bench transfer")
	build/release/baton bench transfer $(BENCH)

install: deps ## program, library, header and pkg-config file (PREFIX=/usr/local, DESTDIR=)
	scripts/build.sh release -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	DESTDIR=$(DESTDIR) cmake --install build/release
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

format: ## lay out all C as .clang-format says
	bash tests/house/format.sh . --fix

clean: ## remove everything that was built
	rm -rf build

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
