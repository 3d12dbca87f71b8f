# The workshop's commands. Plain `make` lists them.
#
#   CLUSTER=kind|kwok|existing   where to run (unset: the best this machine can do)
#   K8S_VERSION=1.35             which Kubernetes kind runs
#   AUDIT_POLICY=file            the audit policy of a new kind cluster (unset: internal/cluster/kind-audit.yaml)
#   N=1                          which step
#   WORKSHOP_PREFIX=anna         whose namespaces, on a shared cluster

SHELL := bash
.DEFAULT_GOAL := help
WORKSHOP := .workshop/workshop

# What a person has set for other work must not reach this: a go.work in a folder
# above, flags for go, where cd goes, what bash reads. See internal/workspace/environ.go.
export GOWORK := off
export GOFLAGS := -buildvcs=false $(filter -race,$(GOFLAGS))
export CGO_ENABLED := $(if $(filter -race,$(GOFLAGS)),1,0)
unexport GO111MODULE CDPATH BASH_ENV ENV GOOS GOARCH DOCKER_DEFAULT_PLATFORM KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT
# The commands read these themselves: in a recipe, a quote or a space in them would be bash's.
export N TASK FORCE JSON SEED SEEDS FAILOVERS PACK DIR GROUP KIND MODULE PUSH PLACE FOLLOW PROGRAM CONTROLLER CONTRACT LEVEL CASE
ifneq ($(OFFLINE),)
  export GOPROXY := off
endif

# `make test-step 3` means `make test-step N=3`: the second word is no goal then.
ifneq ($(filter step test-step readme bench exercise check watch hint solution reset prove,$(firstword $(MAKECMDGOALS))),)
  ifneq ($(word 2,$(MAKECMDGOALS)),)
    N := $(word 2,$(MAKECMDGOALS))
    .PHONY: $(N)
    $(N): ; @:
  endif
endif

.PHONY: exercise check watch hint solution reset progress prove
.PHONY: pack unpack board trainers go
.PHONY: help tour step test test-proxy test-unit test-e2e test-browser test-race test-step diagrams up down status shell web logs doctor node-image readme generate upgrade lint verify bench chaos judge judge-mutants judge-table clean build image new kubebuilder

help:
	@sed -n 's/^## //p' Makefile

## The workshop
##   make tour             execute the READMEs of steps 01 to 07, showing commands and output; N=all goes on beyond
##   make step N=1         execute one step's README and leave the cluster as it leaves it
##   make test             unit tests, and every step's e2e tests; without containers on up to four clusters at once
##   make test-step N=1    one step's e2e tests; also: make test-step 1
## Exercises: N=3 is a step, TASK=2 or TASK=name one of its tasks
##   make exercise N=1     your copies of the step's tasks, in work/; what you have stays as it is
##   make check N=1        is it done? If not: what was expected, what the cluster held, and where
##   make watch N=1        the same at each save
##   make hint N=1         one more hint
##   make solution N=1     the difference to ours, once yours has passed with all of its tasks; also FORCE=1
##   make reset TASK=1 N=1 set your copy aside and begin again
##   make progress         what is done, in all steps; JSON=1 for programs
## Your own
##   make new GROUP=stable.example.org KIND=Widget DIR=/path/to/widgets
##                         a repository of your own, outside of the clone; MODULE= names its Go module
##   make judge CONTROLLER='command' CONTRACT=icecream
##                         a crash test for any controller; plain make judge says more
## The cluster
##   make up, make down    start or repair it; remove it
##   make status           what is up
##   make shell            a shell with kubectl and KUBECONFIG set
##   make web              the workshop in the browser: lessons, terminals and the X-ray; PORT=, HOST=
##   make web DIR=share PLACE=file   the same for a trainer, with the room's board; make web FOLLOW=file is a learner's
##   make logs             the cluster's logs into .workshop/logs
##   make doctor           can this machine run the workshop?
##   make image            the image of step 07 and its SBOM, into the kind cluster; PUSH=registry/name:tag sends it to a registry
##   make image PROGRAM=work/06-controller/icecream   the same of your own program: workshop/icecream:1
## For trainers
##   make pack             all that a machine like this one needs offline, as one file; also PACK=FILE
##   make unpack PACK=FILE install it in another clone; make doctor OFFLINE=1 says what is missing
##   make board DIR=share  the learners' progress files in a folder as one table, until Ctrl-C
##   WORKSHOP_PREFIX=anna  before shell, step or test-step, on a shared cluster: anna's own namespaces, steps 01 to 03
## For authors
##   make test-unit        only the tests that need no cluster
##   make test-e2e         only every step's e2e tests
##   RERUN=1               before a test command: at most 3 tests that fail run once more, alone; those that pass then are named FLAKY
##   ONLY=regexp, SKIP=regexp   before make test, test-e2e or test-step: runs, or leaves out, the tests with such names
##   make test-proxy       every README through the fault proxy, as in a terminal of make web (in any test: READMES=proxy)
##   make test-browser     the page of make web, clicked through in Chromium
##   make test-race        the tests that can race, and the programs that they start, under the race detector
##   make readme N=1       run a README and rewrite the outputs that changed
##   make prove N=1        the exercises' checks against all the mistakes they know; also TASK=, SEED=
##   make bench            the benchmarks, or those of step N=6: each reports its ratio to a baseline of the same run
##   make chaos SEEDS=1    the controllers of step 06 under every fault; SEED=7 repeats one seed
##   make chaos CLUSTER=kind FAILOVERS=20   step 07: the leader ends so often, in three ways
##   make judge-mutants    the judge on controllers with a known fault; MUTANT=pattern; all: rewrite its table
##   make judge-table      the judge on our controllers and on the sample-controller: rewrite its table
##   make generate         deep copies, clients and CRDs from Go types (05, 09, 10); pictures of the lessons' diagrams
##   make upgrade K8S=1.37 move every place that names a version of Kubernetes; says what is left to edit
##   make trainers         rewrite the tables of exercises in TRAINERS.md
##   make lint             gofmt, go vet, staticcheck, shellcheck, actionlint
##   make verify           modules, generated code and documents agree with the tree
##   make clean            make down, then remove .workshop: binaries, and what the page remembers
##   make kubebuilder      build the kubebuilder of step 10, and print its path
##   make node-image       a kind node image without a registry (Linux, root)
## CLUSTER=kind, kwok or existing chooses the cluster (unset: the best this machine can do),
## K8S_VERSION=1.34 to 1.37 the version that kind runs (unset: that of client-go)

tour up down status shell web logs trainers node-image test test-unit test-e2e test-browser test-race lint verify: build
	@exec $(WORKSHOP) $@

step readme bench test-step exercise check watch hint solution reset progress prove chaos judge pack board image new kubebuilder: build
	@exec $(WORKSHOP) $@

judge-table: go
	@scripts/judge-table.sh

# With a pattern, the table would not be whole.
judge-mutants: go
	@go run ./cmd/judge -mutants '$(or $(MUTANT),.)' $(if $(MUTANT),,-table 06-controller/contracts/MUTANTS.md)

# Not after build: where nothing is compiled yet, that takes a minute, and this answers at once.
doctor:
	@OFFLINE='$(OFFLINE)' scripts/doctor.sh

# Before there is any module: its program needs Go's standard library alone.
unpack: go
	@go run ./cmd/unpack "$${PACK/#\~\//$$HOME/}"

# Its program needs nothing of Kubernetes, so it runs also where a move stopped half-way.
upgrade: go
	@go run ./cmd/upgrade "$$K8S"

generate:
	@scripts/update-codegen.sh
	@scripts/update-diagrams.sh

test-proxy: go build
	@READMES=proxy go test -p=1 -count=1 -v -timeout 60m -run 'TestREADME$$' ./0* ./1*

# Whatever CLUSTER is: with .workshop goes what is known of each of them.
clean:
	@$(MAKE) --no-print-directory down CLUSTER=
	@scripts/docker/engine.sh stop
	@rm -rf .workshop

go:
	@command -v go >/dev/null || { echo "error: go is not on PATH: install Go $$(sed -n 's/^go //p' go.mod) or newer, https://go.dev/dl" >&2; exit 1; }

build: go
	@scripts/build.sh || { \
	  [ -z '$(OFFLINE)' ] || echo "error: Go modules are missing: make unpack PACK=FILE installs those that a trainer has packed with make pack" >&2; exit 1; }
