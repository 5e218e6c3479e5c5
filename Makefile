# The commands for developers. They need Go and the usual system packages, and a C
# compiler for the race detector.

GO ?= go

# Packages whose coverage is gated, and the gate in percent of statements.
CORE ?= brokers classify retry visibility dlq consumer
MIN_COVERAGE ?= 90

# Packages whose tests want real brokers, those that take longest first.
LIVE := ./lab/proof ./brokers/sqs/... ./brokers/rabbitmq/... ./brokers/kafka/... ./retry/budget/redisbudget ./operate/service/redisschedule ./integration/... \
	./lab/fakes/... ./examples/rabbitmq ./examples/kafka ./examples/sqs ./examples/ci ./examples/retryservice ./operate/proof ./tracing

# Packages that use an SDK.
ADAPTERS := ./brokers/... ./idempotency/redisstore ./metrics ./retry/budget/redisbudget

# Simulations of hours with hundreds of thousands of messages, planted brokers that
# break the contract, calculations of one goroutine, and tests of the documents. The
# race detector makes them up to ten times as slow, and finds nothing that other tests
# of the same code do not: the suite of the contract has it with every adapter, and
# the limit with the consumer. The nightly has it on them, but for the gallery and the
# documents.
SIMULATED := ./lab/gallery ./brokers/brokertest ./retry/flow ./retry/breaker ./redisguard ./internal/snippets \
	./operate/cmd/... ./operate/cmd/redrive/demo ./operate/storm/... ./operate/job ./operate/collect

# The race detector, but not in SQLite, which is C made Go: it would take three
# times as long, and find nothing of ours. A C compiler links the detector. Without
# one the tests run without the detector, and make test says so in its last lines.
RACE := $(if $(filter 1,$(shell $(GO) env CGO_ENABLED)),-race -gcflags=modernc.org/...=-race=false)

# Tests of that kind, and with megabytes, in packages whose other tests need the
# detector.
SIMULATIONS := ^(TestScenarios|TestOutage|TestBatchesInAnOutage|TestAgeInAnOutage|TestCustomersInTrouble|TestSeedReplays|TestCheckerFindsPlantedBugs|TestAttackRefused.*|TestAttack(Health|LargestMessages|FullSize.*|Swollen.*|Newer.*))$$

# The modules that go.work joins, but for the tools.
MODULES := . lab operate operate/cmd/redrive/demo tracing

# What make test tests: all but what breaks brokers, and what measures peers.
TESTED := ./... ./operate/... ./operate/cmd/redrive/demo ./tracing/... ./lab/bench/internal/... ./lab/fakes/... ./lab/gallery ./lab/proof ./lab/spans

# Packages with tests of attacks.
ATTACKED = $(addprefix ./,$(sort $(dir $(shell grep -rl --include=*_test.go '^func TestAttack' brokers consumer dlq httpretry idempotency operate retry integration lab/fakes lab/proof))))

# Systems that every package and test must compile for besides this one.
CROSS ?= darwin windows

FUZZTIME ?= 10s
BENCH ?= .
COUNT ?= 1
AREA ?= core
BROKER ?= memory
STORE ?= sqlite
SEED ?= 1
MESSAGES ?= 10000
KILLS ?= 20
SCENARIOS ?= 10000
DELAYED ?= 10000
ONLY ?=

# What the figures of an area need.
BROKER_OF_restraint := redis
BROKER_OF_service := redis
BROKER_OF_letters := rabbitmq
BROKER_OF_idle := rabbitmq4,kafka43,elasticmq
BROKER_OF_worker := $(BROKER_OF_idle)
BROKER_OF := $(or $(BROKER_OF_$(AREA)),$(filter kafka rabbitmq sqs,$(AREA)))

# Lint tools are pinned in a module of their own, so that they never enter the go.mod of a user.
TOOL := $(GO) tool

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
		/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## Watch the main job at work on the embedded broker
	$(GO) run ./examples/quickstart

.PHONY: demo
demo: ## Have a worker to watch and 4,000 dead letters to send back, with bin/redrive in another terminal (REDRIVE_RABBITMQ4_URL=url: on that broker)
	$(GO) build -o bin/ ./operate/cmd/redrive ./operate/cmd/redrive/demo
	@bin/demo

.PHONY: monitoring
monitoring: ## Watch make demo with Prometheus, and fail if a panel of the dashboards has no data (apt-get install prometheus)
	$(GO) build -o bin/ ./operate/cmd/redrive ./operate/cmd/redrive/demo
	$(GO) -C tools run ./monitoring -live bin

.PHONY: keda
keda: ## Hold the manifests for KEDA against its own types, which bring 500 packages along
	GOWORK=off $(GO) -C tools/keda mod tidy -diff
	GOWORK=off $(GO) -C tools/keda vet ./...
	GOWORK=off $(GO) -C tools/keda test -count=1 ./...

##@ Develop
.PHONY: test
test: ## Run all tests, on the newest real broker of each product too (REDRIVE_NIGHTLY=true: on all versions)
	@$(BROKERS) run $(MAKE) --no-print-directory --keep-going offline live

# What needs no broker is done first, two packages after the other: it keeps the
# processors busy, and what talks to brokers is judged by when they answer.
.PHONY: offline
offline:
	@$(MAKE) --no-print-directory --keep-going -j 2 cover rest

.PHONY: check
check: fmt-check vet lint tidy-check test ## Everything that must be green with each commit: format, vet, lint, tidy, tests, coverage

# Each half takes an hour at most, and a change needs those that it touches. Every
# stage runs, whatever the others say.
.PHONY: nightly
nightly: ## Everything that takes longer, in two halves of an hour at most
	@$(MAKE) --no-print-directory --keep-going nightly-brokers nightly-simulations

NIGHTLY := CI=true REDRIVE_NIGHTLY=true $(BROKERS) run $(MAKE) --no-print-directory --keep-going

.PHONY: nightly-brokers
nightly-brokers: ## One half: check on all versions of the brokers, cut connections, kills, attacks, clusters, dashboards
	$(NIGHTLY) check on-fakes faults custody service attack cluster monitoring keda

.PHONY: nightly-simulations
nightly-simulations: ## The other half: planted bugs, scenarios, fuzzing, the race detector, oldest SDKs, other systems
	$(NIGHTLY) mutants race test-oldest scenarios letters cross fuzz

.PHONY: fmt
fmt: ## Format the code
	gofmt -w .

.PHONY: fmt-check
fmt-check: ## List files that are not formatted, and fail if there are any
	@files=$$(gofmt -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted, run 'make fmt':"; echo "$$files"; exit 1; fi

# Vet and lint compile for the race detector, as the tests do: a build with empty
# caches then compiles the dependencies once.
.PHONY: vet
vet: ## Run go vet
	$(GO) -C tools vet ./...
	@for module in $(MODULES); do echo "$(GO) vet $(RACE), in $$module"; $(GO) -C $$module vet $(RACE) ./... || exit 1; done

.PHONY: lint
lint: ## Run staticcheck at the version pinned in tools/go.mod
	@staticcheck=$$($(TOOL) -n staticcheck) && flags="$$($(GO) env GOFLAGS) $(RACE)" || exit 1; \
	for module in $(MODULES); do echo "staticcheck, in $$module"; (cd $$module && GOFLAGS="$$flags" $$staticcheck ./...) || exit 1; done

.PHONY: tidy-check
tidy-check: ## Fail if go.mod or go.sum is not tidy
	@for module in $(MODULES) tools; do GOWORK=off $(GO) -C $$module mod tidy -diff || exit 1; done

.PHONY: cross
cross: ## Type-check code and tests for the other systems
	@list=$$($(GO) list $(TESTED) | grep -v /fakes/sqlstore$$) || exit 1; \
	for os in $(CROSS); do \
		echo "GOOS=$$os $(GO) vet, without the databases that tests of sqlstore compile"; \
		GOOS=$$os $(GO) vet $$list || exit 1; \
	done

# Coverage is counted in a run of its own: with the race detector the counters would
# make the tests three times as slow.
.PHONY: cover
cover: ## Test the core with the race detector, and gate its coverage
	$(GO) test $(RACE) -timeout 30m -skip '$(SIMULATIONS)' $(CORE_PKGS)
	$(GO) test -timeout 30m -skip '$(SIMULATIONS)' -coverprofile=coverage.out \
		-coverpkg=$(subst $(space),$(comma),$(CORE_PKGS)) $(CORE_PKGS)
	$(GO) -C tools run ./covergate -min $(MIN_COVERAGE) -profile $(CURDIR)/coverage.out $(CORE)

# The servers that the tests talk to go first: one that has no time to answer
# within the limit of a call fails tests of which nothing is wrong. What needs
# them waits more than it works.
LIVE_TEST := nice -n 10 $(GO)

.PHONY: live
live:
	$(LIVE_TEST) test $(RACE) -count=1 -p 2 -timeout 30m -skip '$(SIMULATIONS)' $(LIVE)

# With cover and live, every test runs once. The stages scenarios and attack have
# more for a nightly.
.PHONY: rest
rest:
	@others=$$($(GO) list $(CORE_PKGS) $(LIVE) $(SIMULATED)) && all=$$($(GO) list $(TESTED)) || exit 1; \
	$(GO) test $(RACE) -timeout 30m $$(echo "$$all" | grep -vxF "$$others")
	GOGC=800 $(GO) test -timeout 30m $(SIMULATED)
	REDRIVE_NIGHTLY= $(GO) test -timeout 30m -run '$(SIMULATIONS)' ./lab/proof ./operate/proof ./operate/internal/serve ./consumer ./brokers/sqs
	$(GO) -C tools test -count=1 ./... # the cache of results does not see changes of files outside

.PHONY: race
race: ## Test with the race detector what make test runs without it
	$(GO) test $(RACE) -timeout 30m -skip '^TestLetters$$' ./operate/... ./brokers/brokertest ./retry/... ./redisguard

# The workspace lifts the SDKs to the newest versions, which lab and operate
# require. Without it they are the oldest, from go.mod.
.PHONY: test-oldest
test-oldest: ## Compile the library with the oldest SDKs that it allows, and test the adapters on fakes
	GOWORK=off $(GO) vet ./...
	env -u CI $(foreach broker,RABBITMQ RABBITMQ4 KAFKA KAFKA39 SQS REDIS VALKEY,-u REDRIVE_$(broker)_URL) \
		GOWORK=off $(GO) test $(ADAPTERS)

.PHONY: on-fakes
on-fakes: ## Run the tests of the Kafka adapter on a fake of three brokers, too
	$(GO) run ./lab/fakes/kfaketest $(GO) test $(RACE) -count=1 -timeout 10m ./brokers/kafka

.PHONY: faults
faults: ## Cut connections, freeze workers and kill brokers under the proof (DELAYED=0: with most messages)
	$(BROKERS) run $(LIVE_TEST) -C lab/faults test -count=1 -parallel 8 -timeout 50m -v -delayed $(DELAYED) .

.PHONY: scenarios
scenarios: ## Check the promises in random scenarios in virtual time (SCENARIOS=20000 SEED=n)
	$(GO) -C lab/proof test -count=1 -run '^TestScenarios$$' -scenarios $(SCENARIOS) -seed $(SEED) -timeout 30m

.PHONY: letters
letters: SCENARIOS = 100
letters: ## Check what is promised of dead letters (BROKER=memory, in virtual time, or rabbitmq,kafka,sqs STORE=sqlite,postgres KILLS=n)
ifeq ($(BROKER),memory)
	$(GO) -C operate/proof test -count=1 -run '^TestScenarios$$' -scenarios $(SCENARIOS) -seed $(SEED) -timeout 30m
else
	@$(BROKERS) run -only $(BROKER) $(LIVE_TEST) -C operate/proof test -count=1 -v -run '^TestLetters$$' \
		-broker $(BROKER) -store $(STORE) -kills $(KILLS) -timeout 30m
endif

# All of them at once, in some seven minutes.
.PHONY: custody
custody:
	@$(MAKE) --no-print-directory letters BROKER=rabbitmq,kafka,sqs STORE=sqlite,postgres KILLS=34

.PHONY: service
service: KILLS = 100
service: ## Kill the retry service and the servers that it needs, and hold what was called against the promises (KILLS=n on each of two stores)
	@$(BROKERS) run -only redis $(LIVE_TEST) -C operate/service/proof test -count=1 -v -run '^TestKills$$' -kills $(KILLS) -timeout 45m

# Most of it is simulations, and memory is measured (ATTACK=-json is for figures):
# without the race detector, one after the other.
.PHONY: attack
attack: ## Try what a hostile sender or server can do, on all brokers (make figures AREA=attack: what it costs)
	@REDRIVE_NIGHTLY=true $(BROKERS) run $(LIVE_TEST) test -count=1 -parallel 1 $(ATTACK) -timeout 20m -run '^TestAttack' $(ATTACKED)

.PHONY: mutants
mutants: ## Plant bugs in the source that break a promise, which a named test must find (ONLY=regexp)
	$(GO) -C tools run ./mutants -only '$(ONLY)'

##@ Brokers
.PHONY: up
up: ## Start the real brokers and print their addresses (ONLY="kafka sqs redis rabbitmq4")
	@$(BROKERS) up $(ONLY)

.PHONY: down
down: ## Stop the real brokers and remove what they left (ONLY="kafka sqs redis rabbitmq4")
	@$(BROKERS) down $(ONLY)

.PHONY: cluster
cluster: ## Kill nodes of clusters of RabbitMQ and Kafka under the proof (Linux, root; not part of check)
	REDRIVE_ENGINE=local $(GO) -C lab/faults test -count=1 -timeout 10m -v -run 'Cluster$$' -cluster .

.PHONY: fresh
fresh: ## Run make run and make test in a Debian that has Go and nothing else of ours (Linux, root, make down first)
	@integration/fresh.sh

##@ Measure
.PHONY: bench
bench: ## Run benchmarks (BENCH=regexp COUNT=n), raw output for benchstat
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) $(TESTED)

.PHONY: bench-compare
bench-compare: ## Compare two saved outputs of make bench (OLD=file NEW=file)
	$(TOOL) benchstat $(OLD) $(NEW)

.PHONY: fuzz
fuzz: ## Run every fuzz target in turn, each for FUZZTIME
	@list=$$($(GO) test -list '^Fuzz' $(TESTED)) || { echo "$$list"; exit 1; }; \
	echo "$$list" | awk '/^Fuzz/ { name[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print $$2, name[i]; n = 0 }' | \
	while read -r pkg name; do \
		echo "$$pkg $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null || exit 1; \
	done

.PHONY: figures
figures: ## Print the measured figures against their goals (AREA=core, restraint, letters, service, kafka, rabbitmq, sqs, idle, worker or suite ONLY=regexp)
	@$(if $(BROKER_OF),$(BROKERS) run -only $(BROKER_OF)) $(GO) run ./lab/bench/cmd/figures -area $(AREA) -only '$(ONLY)'

# Virtual time needs a test: the table is printed by one.
.PHONY: gallery
gallery: ## Let incidents happen on the default Config, print what became of the messages, and write it into the docs
	@GOGC=800 $(GO) -C lab/gallery test -count=1 -timeout 20m -run '^TestIncidents$$' -page

# On SQS retries wait in place, or all of them are copies; and there are FIFO queues.
PROOF = $(GO) run ./lab/proof -broker $(BROKER) -seed $(SEED) -messages $(MESSAGES) -kills $(KILLS)

.PHONY: proof
proof: ## Run ledger-checked scenarios (BROKER=memory, in virtual time, rabbitmq, kafka or sqs SEED=n MESSAGES=n KILLS=n)
ifeq ($(BROKER),memory)
	@$(MAKE) --no-print-directory scenarios SCENARIOS=$$((($(MESSAGES) + 199) / 200))
else ifeq ($(BROKER),sqs)
	@$(BROKERS) run -only $(BROKER) sh -c '$(PROOF) && echo "with copies:" && $(PROOF) -copies && echo "with FIFO queues:" && $(PROOF) -fifo'
else
	@$(BROKERS) run -only $(BROKER) $(PROOF)
endif
