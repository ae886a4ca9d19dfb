# The developer's entry points. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules

CARGO ?= cargo
# On CI the lock file is law.
LOCKED := $(if $(CI),--locked)

.PHONY: help test simulation test-coordination faults-cluster faults-proxy faults-times test-generated test-console console-screenshots test-clients test-brokers measure-brokers test-newer-redis test-upgrade test-deps test-deploy test-balancers mutants fuzz bench measure-waiting measure-locks measure-curves measure-languages soak bench-record demo fmt lint docs

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: test-deps ## install what the tests need, then run all of them: generated clients, the clients' vectors, and samples of the brokers and of the console in a browser included
	@scripts/run-tests
	@# The gateway as the tests have compiled it: a build of the program alone would have other features.
	@ONCEGATE_BIN="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/oncegate" scripts/test-clients vectors
	@ONCEGATE_BIN="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/debug/oncegate" tests/console/run sample

# SIMULATION="promises_hold_from_new_seeds --ignored" searches longer.
simulation: ## simulate gateways, stores and callers under every fault, from fixed seeds
	@CARGO_INCREMENTAL=0 $(CARGO) test --workspace --all-features $(LOCKED) --config .cargo/as-released.toml --test simulation -- $(SIMULATION)

test-generated: test-deps ## lint the OpenAPI documents; generate clients, compile them and use them against a gateway; send it what the documents call valid
	@tests/generated/run

test-console: test-deps ## open the console of two gateways in a real browser: actions, a store that stops, accessibility
	@cargo build --quiet --all-features $(LOCKED) --bin oncegate
	@tests/console/run

console-screenshots: test-deps ## make the pictures of docs/console.md
	@cargo build --quiet --all-features $(LOCKED) --bin oncegate
	@tests/console/run screenshots docs/images

test-clients: test-deps ## check, build, install and run the packages of clients/
	@scripts/test-clients

test-brokers: broker-deps ## kill consumers at Redis Streams, RabbitMQ, NATS and Kafka in the middle, with and without the gateway
	@scripts/test-brokers

measure-brokers: broker-deps ## the same with 20 000 messages for each row; takes an hour, and writes the table of docs/clients/guarantees.md
	@scripts/test-brokers --messages 20000 --kills 200 --modes none,release,unknown --in-turn --record
	@scripts/draw-brokers

test-newer-redis: test-deps ## run the tests of the Redis engine on Redis 8 and Valkey 9
	@scripts/test-newer-redis

# REVISION=v0.1.0 names the earlier build. The default is the newest tag, or the commit before this one.
test-upgrade: test-deps ## replace gateways of an earlier revision by this one and back, on one store, under traffic
	@scripts/test-upgrade

test-deps: ## install the servers and tools the tests start
	@scripts/install-test-deps

.PHONY: broker-deps
broker-deps:
	@scripts/install-test-deps brokers

test-deploy: test-deps ## check deploy/ and the workflows, with kustomize and the Debian package
	@scripts/test-deploy --full

test-balancers: ## call a gateway through nginx and Caddy, as docs/clients/behind-a-proxy.md sets them up
	@scripts/test-balancers

# ROUNDS=3 makes it shorter, ROW=kill-1-of-1 runs one fault alone. It starts the redis-server of PATH.
faults-cluster: test-deps ## run 20 rounds of every fault on clusters and Sentinels under load, and print what was lost
	@$(CARGO) test --quiet --package oncegate-redis --all-features $(LOCKED) --test cluster -- --ignored --nocapture

# ETCD=3.6 makes it that etcd, and runs the tests of its engine and of automatic switches on it before; ZooKeeper is left out.
test-coordination: test-deps ## run 20 rounds of every fault of an etcd cluster and of a ZooKeeper, with two gateways and callers at work
	@scripts/test-coordination $(ETCD)

faults-proxy: test-deps ## let ten thousand clients of the proxy repeat while gateways and their upstream are killed, and print the counts
	@$(CARGO) test --quiet --package oncegate --all-features --test it -- proxy::faults::no_key_of_ten_thousand --ignored --nocapture

# On a machine that does nothing else: make test runs the same without these bounds.
faults-times: test-deps ## measure answers and recovery during every fault of a store, beside noisy callers and beside operators that look, print their ratios to their bounds, and check these
	@ONCEGATE_TIMES=1 $(CARGO) test --quiet --workspace --all-features $(LOCKED) --test it -- --nocapture --test-threads 1 outage:: isolation:: recovery:: redis_outage:: waiting:: flood_of_guesses slow_handshakes console::cost
	@ONCEGATE_TIMES=1 $(CARGO) test --quiet --package oncegate-redis --all-features $(LOCKED) --test cluster -- --nocapture --test-threads 1 acknowledged:: sentinel::dead

# A mutant is one change of the code that some test should notice. All of them take a day; MUTANTS="--package oncegate-core"
# takes those of a crate, and MUTANTS="--in-diff changes.patch" those of a change.
mutants: ## change the code one place at a time, and list the changes that no unit test notices
	@$(CARGO) mutants --version >/dev/null 2>&1 || { echo "make mutants needs cargo-mutants: cargo install cargo-mutants --locked" >&2; exit 1; }
	@$(CARGO) mutants --output target $(if $(findstring --package,$(MUTANTS)),,--workspace) $(MUTANTS)

# libFuzzer keeps what it finds in fuzz/artifacts; a file of these becomes a seed. TARGET=form runs one, RUNS=100000000 runs longer.
RUNS ?= 1000000

fuzz: ## look for bytes that have not the properties of the fuzzing modules; needs a nightly compiler and cargo-fuzz
	@$(CARGO) +nightly fuzz --version >/dev/null 2>&1 || { echo "make fuzz needs a nightly compiler and cargo-fuzz: rustup toolchain install nightly; cargo install cargo-fuzz --locked" >&2; exit 1; }
	@for target in $${TARGET:-$$($(CARGO) +nightly fuzz list)}; do \
		mkdir -p "fuzz/corpus/$$target"; \
		$(CARGO) +nightly fuzz run --sanitizer none "$$target" "fuzz/corpus/$$target" "fuzz/seeds/$$target" -- -runs=$(RUNS) -max_len=4096 -print_final_stats=1; \
	done

# The features are the tests', or it would all be compiled once more; and incremental builds count otherwise.
INSTRUCTIONS := CARGO_INCREMENTAL=0 $(CARGO) bench --quiet --workspace --bench instructions $(LOCKED) --profile dev --config .cargo/as-released.toml

bench: test-deps ## count the instructions and system calls of a call's pieces, and fail where they take more than is recorded
	@$(INSTRUCTIONS)

measure-waiting: test-deps ## measure what waiting callers cost; needs a quiet machine
	@$(CARGO) build --quiet --profile dist --workspace --bin oncegate --bin oncegate-load $(LOCKED)
	@"$${CARGO_TARGET_DIR:-target}/dist/oncegate-load" waiting

measure-locks: test-deps ## measure what locks cost, beside redis-py and etcd where they are installed; needs a quiet machine
	@$(CARGO) build --quiet --profile dist --workspace --bin oncegate --bin oncegate-load $(LOCKED)
	@"$${CARGO_TARGET_DIR:-target}/dist/oncegate-load" locks

measure-curves: test-deps ## measure how the cost of a claim grows with live claims, apps, connections, locks, results and batches; needs a quiet machine
	@$(CARGO) build --quiet --profile dist --workspace --bin oncegate --bin oncegate-load $(LOCKED)
	@ulimit -n "$$(ulimit -Hn)"; "$${CARGO_TARGET_DIR:-target}/dist/oncegate-load" curves

measure-languages: test-deps ## measure a bare SET NX from five languages, and our clients; needs the network once, and a quiet machine
	@$(CARGO) build --quiet --profile dist --workspace --bin oncegate --bin oncegate-load $(LOCKED)
	@load/peers/prepare
	@"$${CARGO_TARGET_DIR:-target}/dist/oncegate-load" languages

# SOAK="--rounds 12 --only redis" makes it shorter.
soak: test-deps ## let each engine work for an hour, with faults, and check that nothing that gateway and store use grows
	@$(CARGO) build --quiet --profile dist --workspace --bin oncegate --bin oncegate-load $(LOCKED)
	@"$${CARGO_TARGET_DIR:-target}/dist/oncegate-load" soak $(SOAK)

bench-record: test-deps ## write down what they take now, because the change is meant
	@$(INSTRUCTIONS) -- --record

demo: ## run the flash sale: many buyers, few items, every order once
	@$(CARGO) build --quiet --release
	@$(CARGO) run --quiet --release --example flash_sale

fmt: ## format the code
	@$(CARGO) fmt --all

lint: ## what the continuous check says about style: formatting, clippy, shell scripts, spelling, unused dependencies
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --quiet --workspace --all-targets --all-features $(LOCKED) -- -D warnings
	@scripts/lint

docs: ## build the documentation of the crate, warnings are errors, and the site of docs/ if mdbook is installed
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace --all-features --lib --bins --examples $(LOCKED)
	@echo "docs: $${CARGO_TARGET_DIR:-target}/doc/oncegate/index.html"
	@scripts/build-site
