# The one door for developers. Needs Go, a C compiler for the race detector, and the usual system packages.

GO ?= go

# Packages whose coverage is gated, and the gate in percent of statements.
CORE ?= brokers classify retry visibility dlq consumer
MIN_COVERAGE ?= 90

# Packages whose tests want real brokers.
LIVE ?= ./brokers/rabbitmq/... ./integration/... ./examples/rabbitmq ./internal/proof

# Systems that every package and test must compile for besides this one.
CROSS ?= darwin windows

FUZZTIME ?= 10s
BENCH ?= .
COUNT ?= 1
AREA ?= core
BROKER ?= memory
SEED ?= 1
MESSAGES ?= 10000
KILLS ?= 20
SCENARIOS ?= 2000

# Areas whose figures need real brokers and peers to compare with. The peers are
# in a module of their own, for the same reason as the lint tools.
BENCH_AREAS := rabbitmq

# Lint tools are pinned in a module of their own, so that they never enter the go.mod of a user.
TOOL := $(GO) tool -modfile=tools/go.mod

# Runs a command with real brokers, and stops those that were not up before.
BROKERS := $(GO) run ./integration/brokers

CORE_PKGS := $(addprefix ./,$(CORE))
comma := ,
empty :=
space := $(empty) $(empty)

.DEFAULT_GOAL := help

##@ Use
.PHONY: help
help: ## Show this help
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Watch the main job at work on the embedded broker
	$(GO) run ./examples/quickstart

##@ Develop
.PHONY: test
test: ## Run all tests with the race detector, on real brokers too where they can run
	$(BROKERS) run $(GO) test -race -timeout 20m ./...

.PHONY: check
check: fmt-check vet lint tidy-check cross cover test-rest test-live scenarios ## Everything that must be green: format, vet, lint, tidy, cross-build, tests, coverage

.PHONY: fmt
fmt: ## Format the code
	gofmt -w .

.PHONY: fmt-check
fmt-check: ## List files that are not formatted, and fail if there are any
	@files=$$(gofmt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted, run 'make fmt':"; echo "$$files"; exit 1; fi

.PHONY: vet
vet: ## Run go vet
	$(GO) vet ./...
	$(GO) -C tools vet ./...
	$(GO) -C bench vet ./...

.PHONY: lint
lint: ## Run staticcheck at the version pinned in tools/go.mod
	$(TOOL) staticcheck ./...

.PHONY: tidy-check
tidy-check: ## Fail if go.mod or go.sum is not tidy
	$(GO) mod tidy -diff
	$(GO) -C tools mod tidy -diff
	$(GO) -C bench mod tidy -diff

.PHONY: cross
cross: ## Type-check code and tests for the other systems
	@for os in $(CROSS); do echo "GOOS=$$os $(GO) vet ./..."; GOOS=$$os $(GO) vet ./... || exit 1; done

.PHONY: cover
cover: ## Test the core with the race detector and gate its coverage
	$(GO) test -race -covermode=atomic -coverprofile=coverage.out \
		-coverpkg=$(subst $(space),$(comma),$(CORE_PKGS)) $(CORE_PKGS)
	$(GO) -C tools run ./covergate -min $(MIN_COVERAGE) -profile $(CURDIR)/coverage.out $(CORE)

# What cover does not test: together the two run every test once.
.PHONY: test-rest
test-rest:
	@core=$$($(GO) list $(CORE_PKGS)) && all=$$($(GO) list ./...) || exit 1; \
	live=$$($(GO) list $(LIVE)) || exit 1; \
	rest=$$(echo "$$all" | grep -vxF "$$core" | grep -vxF "$$live"); \
	echo "$(GO) test -race" $$rest; $(GO) test -race $$rest
	$(GO) -C tools test ./...

# One package at a time: the brokers are shared, and their timing counts.
.PHONY: test-live
test-live: ## Run the tests that need real brokers, starting those if need be
	$(BROKERS) run $(GO) test -race -p 1 -timeout 20m $(LIVE)

.PHONY: scenarios
scenarios: ## Check the promises in random scenarios in virtual time (SCENARIOS=20000 SEED=n)
	$(GO) test ./internal/proof -run '^TestScenarios$$' -scenarios $(SCENARIOS) -seed $(SEED) -timeout 30m

##@ Brokers
.PHONY: up
up: ## Start the real brokers and print their addresses
	@$(BROKERS) up

.PHONY: down
down: ## Stop the real brokers and remove what they left
	@$(BROKERS) down

.PHONY: integration
integration: ## Run the tests of the real brokers, and fail where one is missing
	CI=true $(BROKERS) run $(GO) test -race -count=1 -p 1 -timeout 20m $(LIVE)

.PHONY: standins
standins: ## Build images of the brokers' names from packages, for an engine that can pull none
	@$(GO) run ./integration/standins

##@ Measure
.PHONY: bench
bench: ## Run benchmarks (BENCH=regexp COUNT=n), raw output for benchstat
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./...

.PHONY: bench-compare
bench-compare: ## Compare two saved outputs of make bench (OLD=file NEW=file)
	$(TOOL) benchstat $(OLD) $(NEW)

.PHONY: fuzz
fuzz: ## Run every fuzz target in turn, each for FUZZTIME
	@list=$$($(GO) test -list '^Fuzz' ./...) || { echo "$$list"; exit 1; }; \
	echo "$$list" | awk '/^Fuzz/ { name[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print $$2, name[i]; n = 0 }' | \
	while read -r pkg name; do \
		echo "$$pkg $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null || exit 1; \
	done

.PHONY: figures
figures: ## Print the measured figures against their goals (AREA=core or rabbitmq)
ifneq ($(filter $(AREA),$(BENCH_AREAS)),)
	@$(BROKERS) run $(GO) -C bench run ./cmd/figures -area $(AREA)
else
	@$(GO) run ./internal/figures -area $(AREA)
endif

.PHONY: proof
proof: ## Run ledger-checked scenarios (BROKER=memory or rabbitmq SEED=n MESSAGES=n KILLS=n)
	@$(if $(filter-out memory,$(BROKER)),$(BROKERS) run) $(GO) run ./internal/proof -broker $(BROKER) -seed $(SEED) -messages $(MESSAGES) -kills $(KILLS)
