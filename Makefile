# All commands of the project. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= v0.1.0-dev
K8S_VERSION := v1.37.1
# One build cache for everything: no cgo (but for holdfast-nvml), no trimpath.
export CGO_ENABLED := 0
# Without debug information, which the linker would drop: it saves a twentieth of the work of compiling Kubernetes.
NO_DWARF := -gcflags=all=-dwarf=false
export GOFLAGS := $(filter-out $(NO_DWARF),$(shell go env GOFLAGS)) $(NO_DWARF)
TOOLS := $(CURDIR)/.cache/tools
STATICCHECK := $(TOOLS)/staticcheck-v0.7.0
GOVULNCHECK := $(TOOLS)/govulncheck-v1.9.0
CONTROLLER_GEN := $(TOOLS)/controller-gen-v0.23.0
PROTOC_GEN_GO := $(TOOLS)/protoc-gen-go
PROTOC_GEN_GO_GRPC := $(TOOLS)/protoc-gen-go-grpc

K8S_LDFLAGS := -X k8s.io/component-base/version.gitVersion=$(K8S_VERSION) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 \
	-X k8s.io/client-go/pkg/version.gitVersion=$(K8S_VERSION)
LDFLAGS := -s -w -X main.version=$(VERSION)

PY := /opt/holdfast-python/venv/bin/python3
# Packages that are built with cgo.
CGO_PACKAGES := ./nodehealth/nvml ./cmd/holdfast-nvml
# Tests that start clusters, and those that kill real agents, are not unit tests. First the two that compute most, then the others; the test
# without a real node runs beside the story.
CLUSTER_TESTS := e2e replace scheduling nodeoutage hostile nodehealth devcluster kinds hang nodecheck doctor elastic
# make test plays two of the kinds of job, and builds the controllers of these; make test-kinds plays all.
SHORT_kinds := -run '^TestKinds$$/^Story$$/^(VolcanoJob-volcano|PyTorchJob-holdfast)$$'
# make test plays three of the silences of jobs, make test-hang plays all.
SHORT_hang := -run '^TestHang$$/./^(slow-save|debugger|deaf)$$'
# make test plays a gang that passes and one with a node that is named, make test-nodecheck plays all faults of node checks.
SHORT_nodecheck := -run '^TestNodeCheck$$/^(healthy|wrong)$$'
# make test plays one loss, one joining pod and the end with a pod missing, make test-elastic-more plays further cases.
SHORT_elastic := -run '^TestElastic$$'
SHORT_PEERS := peer-volcano peer-training-operator
KILL_TESTS := ./test/checkpoint
# Tests that start agents, ranks and standbys, and mostly wait for them, or that look at ranks within the time that a look has.
AGENT_TESTS := ./ckptagent/loop ./ckptagent/proc ./ckptagent/watch ./test/conformance
# Tests of launchers and frameworks from PyPI. The short one runs accelerate and deepspeed with a killed rank and a killed agent, and a
# Trainer with the client's hook.
LAUNCHER_TESTS := ./test/launchers
# Needs another version's binaries.
UPGRADE_TEST := ./test/upgrade
LAUNCHERS_SHORT := ^(TestLaunchers|TestHooks|TestPage)$$/^(accelerate|deepspeed|transformers)$$/^kill$$
# Cores start no goroutine (internal/layers tests that and compares this list with its own), so the race detector would find nothing there,
# and would make their random histories take ten times as long.
CORES := topology nodehealth nodehealth/budget gang gang/rejection gang/observe gang/provision gang/preemption internal/protocol elastic \
	elastic/account elastic/barrier elastic/cause elastic/check elastic/drain elastic/generation elastic/ledger elastic/members elastic/quiet elastic/quorum elastic/replacements elastic/restore elastic/waiting \
	ckptagent ckptagent/format ckptagent/launch
# Packages with tests that compute much in one goroutine, which are built without the race detector only. Their other tests run with it, too.
PARTLY_RACE := ./ckptagent/store ./webhook ./elastic/controller
# Packages whose tests compute much in one goroutine: CEL expressions, compression, the text of the tree.
NO_RACE := %/manifests %/cmd/holdfast-release %/docs %/internal/words %/internal/layers
# Other packages whose tests do not link Kubernetes: their unit tests run once, with the race detector. Compiling Kubernetes with it takes
# as long as everything else; make race does it, also for NO_RACE and test.
RACE_PACKAGES = $(eval RACE_PACKAGES := $(shell go list -test -f '{{.ImportPath}} {{join .Deps " "}}' ./... | \
	awk '$$1 ~ /\.test$$/ && !/ k8s\.io\/kubernetes\// { sub(/\.test$$/, "", $$1); print $$1 }'))$(RACE_PACKAGES)
CORE_PACKAGES := $(CORES:%=holdfast.dev/holdfast/%)
UNIT_RACE = $(filter-out $(CORE_PACKAGES) $(NO_RACE) holdfast.dev/holdfast/test/%,$(filter $(RACE_PACKAGES),$(GO_PACKAGES)))
AGENT_PACKAGES = $(shell go list $(AGENT_TESTS))
AGENT_RACE = $(filter-out holdfast.dev/holdfast/test/%,$(AGENT_PACKAGES))
GO_PACKAGES = $(shell go list ./... | grep -vxF "$$(go list $(CLUSTER_TESTS:%=./test/%) $(KILL_TESTS) $(AGENT_TESTS) $(LAUNCHER_TESTS) $(UPGRADE_TEST))")

.PHONY: help
help: ## list all commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## / \t/' | sort | column -t -s $$'\t'

# Binaries without cgo; only holdfast-nvml, which loads a library of NVIDIA's, needs C.
STATIC := holdfast holdfast-agent holdfast-controller holdfast-scheduler holdfast-node kubectl-holdfast holdfast-dev holdfast-demo
BUILD_FLAGS := -ldflags '$(LDFLAGS)' $(foreach b,holdfast-scheduler holdfast-dev,-ldflags './cmd/$(b)=$(LDFLAGS) $(K8S_LDFLAGS)')

.PHONY: build static holdfast-nvml $(STATIC)
build: static holdfast-nvml ## build all binaries into bin/

# One go build for all, so that two cores stay busy while one of them links.
static:
	@echo "building bin/ (the first time compiles Kubernetes: 12 minutes and more on two cores)"
	@hack/gobuild.sh $(BUILD_FLAGS) -o bin/ $(addprefix ./cmd/,$(STATIC))

$(STATIC): %:
	@hack/gobuild.sh $(BUILD_FLAGS) -o bin/$@ ./cmd/$@

holdfast-nvml:
	@CGO_ENABLED=1 hack/gobuild.sh $(BUILD_FLAGS) -o bin/$@ ./cmd/$@

# What is released is built without the folder's path in it, so that the same source gives the same bytes anywhere; it shares no build cache
# with bin/. holdfast-nvml needs C: each is built by that processor's compiler.
RELEASE := .cache/release
RELEASE_FLAGS := -trimpath -buildvcs=false $(BUILD_FLAGS)
PLATFORMS ?= linux/amd64,linux/arm64
comma := ,
ARCHS = $(subst $(comma), ,$(subst linux/,,$(PLATFORMS)))
HOST_ARCH = $(shell go env GOARCH)
CC_amd64 := x86_64-linux-gnu-gcc
CC_arm64 := aarch64-linux-gnu-gcc
IMAGE_BINARIES := holdfast-controller holdfast-scheduler holdfast-agent holdfast-node
.PHONY: $(addprefix image-binaries-,amd64 arm64)
$(addprefix image-binaries-,amd64 arm64): image-binaries-%:
	@$(if $(filter $*,$(HOST_ARCH)),:,command -v $(CC_$*) >/dev/null || { echo "$(CC_$*) is missing: apt-get install gcc-$(if $(filter arm64,$*),aarch64,x86-64)-linux-gnu, or name one platform, PLATFORMS=linux/$(HOST_ARCH)"; exit 1; })
	@GOARCH=$* CGO_ENABLED=0 hack/gobuild.sh $(RELEASE_FLAGS) -o $(RELEASE)/$*/ $(addprefix ./cmd/,$(IMAGE_BINARIES))
	@GOARCH=$* CGO_ENABLED=1 $(if $(filter $*,$(HOST_ARCH)),,CC=$(CC_$*)) hack/gobuild.sh $(RELEASE_FLAGS) -o $(RELEASE)/$*/ ./cmd/holdfast-nvml

.PHONY: images push
images: $(addprefix image-binaries-,$(ARCHS)) ## OCI archives of the images and their SBOMs in dist/images/ (PLATFORMS=linux/amd64: for one processor)
	@rm -rf dist/images && go run ./cmd/holdfast-release images --version $(VERSION) --archs $(subst linux/,,$(PLATFORMS)) --out dist/images

push: ## push the images of dist/images/ to a registry: make push REGISTRY=registry.example.com/holdfast
	@go run ./cmd/holdfast-release push --version $(VERSION) --registry "$(REGISTRY)"

# What a release has beside the images. kubectl-holdfast is for users' machines.
CHART_VERSION = $(patsubst v%,%,$(VERSION))
# Where the files of a release are downloaded.
RELEASE_URL ?= https://holdfast.dev/releases/$(VERSION)
KUBECTL_PLATFORMS := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64
.PHONY: release $(addprefix kubectl-,$(KUBECTL_PLATFORMS)) wheel test-wheel
$(addprefix kubectl-,$(KUBECTL_PLATFORMS)): kubectl-%:
	@rm -rf $(RELEASE)/kubectl-$*
	@GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) hack/gobuild.sh $(RELEASE_FLAGS) -o $(RELEASE)/kubectl-$*/ ./cmd/kubectl-holdfast
	@cp LICENSE cmd/kubectl-holdfast/kubectl_complete-holdfast $(RELEASE)/kubectl-$*/ && mkdir -p dist && hack/tarball.sh $(RELEASE)/kubectl-$* dist/kubectl-holdfast-$*.tar.gz

# Helm writes the time of the call into the archive, so what it packs is packed again.
.PHONY: chart
chart: helm
	@rm -rf $(RELEASE)/chart && mkdir -p $(RELEASE)/chart/content dist
	@bin/helm package charts/holdfast --version $(CHART_VERSION) --app-version $(VERSION) --destination $(RELEASE)/chart >/dev/null
	@tar -xzf $(RELEASE)/chart/holdfast-$(CHART_VERSION).tgz -C $(RELEASE)/chart/content
	@hack/tarball.sh $(RELEASE)/chart/content dist/holdfast-$(CHART_VERSION).tgz

wheel: ## the Python package with `holdfast run`, in dist/
	@for a in $(ARCHS); do GOARCH=$$a hack/gobuild.sh $(RELEASE_FLAGS) -o $(RELEASE)/$$a/ ./cmd/holdfast ./cmd/holdfast-agent || exit 1; done
	@go run ./cmd/holdfast-release wheels --version $(VERSION) --archs $(subst linux/,,$(PLATFORMS)) --out dist

test-wheel: ## the wheel as a user without root has it: pip install, strict types, holdfast run with a killed rank
	@hack/test-wheel.sh

release: ## everything that is published, in dist/ with checksums: images, SBOMs, chart, manifests, wheels, kubectl-holdfast, krew (VERSION=v0.1.0)
	@rm -rf dist
	@$(MAKE) --no-print-directory images wheel chart $(addprefix kubectl-,$(KUBECTL_PLATFORMS))
	@bin/helm template holdfast charts/holdfast --namespace holdfast-system --set image.tag=$(VERSION) > dist/chart.yaml
	@cat manifests/namespace.yaml dist/chart.yaml > dist/holdfast.yaml && rm dist/chart.yaml
	@hack/krew.sh $(VERSION) dist $(RELEASE_URL) > dist/krew.yaml
	@go run ./cmd/holdfast-release sums dist && cat dist/SHA256SUMS

.PHONY: prepare
prepare: ## check the machine, install what is missing
	@hack/prepare.sh

.PHONY: ready
ready: ## prepare and build, in parallel
	@hack/ready.sh

.PHONY: demo
demo: ready ## play the story on a one-machine cluster (KEEP=1 leaves it up, RUN=fewer switches a node off, RUN=default-scheduler shows the half placement)
	@exec bin/holdfast-demo $(if $(KEEP),--keep) $(if $(RUN),--run=$(RUN))

.PHONY: test
test: ## everything that checks the project, end-to-end tests on real kubelets included
	@go build -o bin/runtests ./hack/runtests && exec bin/runtests

.PHONY: check
check: fmt vet lint unit unit-cores unit-kubernetes agents python-unit ## format, vet, lint, unit tests: no cluster, no root

.PHONY: fmt
fmt:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt wants to change:"; echo "$$out"; exit 1; fi

.PHONY: vet
vet:
	@GOGC=400 go vet ./...
	@CGO_ENABLED=1 go vet $(CGO_PACKAGES)

.PHONY: lint
lint: $(STATICCHECK)
	@GOGC=400 $(STATICCHECK) ./...
	@CGO_ENABLED=1 $(STATICCHECK) $(CGO_PACKAGES)

# Not part of make test: the other projects' schedulers need another version of Kubernetes, which would be compiled only for this check.
PEER_MODULES := test/peers test/peers/jobset test/peers/training-operator test/peers/kueue test/karpenter test/alerts test/helm
.PHONY: vet-peers
vet-peers: ## vet and tidiness of the modules of other projects' schedulers and controllers
	@for m in $(PEER_MODULES); do (cd $$m && go mod tidy -diff) || exit 1; done
	@cd test/peers && GOGC=400 go vet ./...

# Not part of make test: it queries a database on the network. VULNDB may name a copy of it, file:///…. The modules of PEER_MODULES but
# test/peers have no code of ours: they pin other projects' controllers as these were released, which run in tests alone.
VULNDB := https://vuln.go.dev
.PHONY: vulncheck
vulncheck: $(GOVULNCHECK) ## known vulnerabilities in linked code
	@$(GOVULNCHECK) -db $(VULNDB) ./...
	@cd test/peers && $(GOVULNCHECK) -db $(VULNDB) ./...

# All test binaries, and what else the checks compile, so that nothing is compiled while a cluster runs.
.PHONY: test-binaries
test-binaries: $(STATICCHECK)
	@echo "building .cache/test-binaries"
	@RACE=1 hack/gotest.sh build $(UNIT_RACE) $(AGENT_RACE)
	@hack/gotest.sh build $(PARTLY_RACE) $(filter-out $(UNIT_RACE) $(AGENT_RACE),$(shell go list ./...))

# Cached test results need no binary; with KEPT=1 the binaries of test-binaries run.
GOTEST = $(if $(KEPT),hack/gotest.sh run -v -timeout 30m --,GOGC=400 go test -vet=off -timeout 30m -ldflags='-s -w')
GOTEST_RACE = $(if $(KEPT),RACE=1 $(GOTEST),CGO_ENABLED=1 $(GOTEST) -race)
.PHONY: unit unit-cores unit-kubernetes agents race
unit: ## unit tests, with the race detector
	@$(GOTEST_RACE) $(UNIT_RACE)

unit-cores: ## unit tests of the cores, which start no goroutine, and large ones that take long with the race detector
	@$(GOTEST) $(CORE_PACKAGES) $(PARTLY_RACE)

unit-kubernetes:
	@$(GOTEST) $(filter-out $(UNIT_RACE) $(CORE_PACKAGES),$(GO_PACKAGES))

agents:
	@$(GOTEST_RACE) $(AGENT_RACE)
	@$(GOTEST) $(filter-out $(AGENT_RACE),$(AGENT_PACKAGES))

race: ## all tests that need no cluster, under the race detector: compiles Kubernetes once more
	@CGO_ENABLED=1 GOGC=400 go test -race -vet=off -timeout 60m -ldflags='-s -w' $(GO_PACKAGES) $(AGENT_PACKAGES)

.PHONY: python-unit
python-unit:
	@py=$(PY); [ -x $$py ] || py=python3; cd ckptagent/python && PYTHONDONTWRITEBYTECODE=1 $$py -m unittest $(or $(word 2,$(AGAIN)),discover -s tests -t .) $(if $(KEPT),-v,-q)

# Not part of make test, which compares with the installed PyTorch: each pair downloads some 3 GB.
.PHONY: test-conformance
test-conformance: ## ranks under torchrun and under the agent, with the oldest and the newest PyTorch and Python
	@hack/conformance.sh --remove

.PHONY: mutate
mutate: ## mutations of a core's code that its tests do not detect: make mutate PACKAGE=./elastic/barrier
	@CGO_ENABLED=0 go run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash --workers 2 --timeout-coefficient 20 $(or $(PACKAGE),./elastic/barrier)

.PHONY: test-upgrade
test-upgrade: ## upgrade and downgrade under a running job, from the version in hack/upgrade-from, on real kubelets
	@hack/test-upgrade.sh

# Not part of make test: Helm needs another version of Kubernetes' libraries, which would be compiled only for these tests.
.PHONY: helm test-chart test-helm
helm:
	@cd test/helm && ../../hack/gobuild.sh -ldflags '-s -w' -o ../../bin/helm helm.sh/helm/v4/cmd/helm

test-chart: helm ## the chart renders the same objects as the manifests; its values, names and docs
	@bin/helm lint charts/holdfast >/dev/null && cd test/helm && go test -vet=off -count=1 ./...

test-helm: helm build ## install, upgrade, roll back and uninstall with helm under a running job, on real kubelets
	@hack/gotest.sh run -v -count=1 -timeout 30m -run '^TestHelm$$' -- ./test/upgrade

# Not part of make test: Karpenter needs another version of Kubernetes, which would be compiled only for this test.
.PHONY: test-autoscaler
test-autoscaler: ## Karpenter adds nodes for gangs and removes none that they use: a control plane with simulated nodes
	@hack/gobuild.sh $(BUILD_FLAGS) -o bin/ ./cmd/holdfast-dev ./cmd/holdfast-scheduler
	@(cd test/karpenter && ../../hack/gobuild.sh -ldflags '-s -w' -o ../../bin/test-karpenter sigs.k8s.io/karpenter/kwok)
	@hack/gotest.sh run -v -count=1 -timeout 10m -run '^TestAutoscaled$$' -karpenter $(CURDIR)/bin/test-karpenter \
		-karpenter-source "$$(cd test/karpenter && go list -m -f '{{.Dir}}' sigs.k8s.io/karpenter)" -- ./test/scheduling

# Not part of make test: Prometheus links more than all of Holdfast.
.PHONY: test-alerts
test-alerts: ## alerts with promtool's unit tests; alerts, dashboards and monitors against the documented metrics
	@(cd test/alerts && ../../hack/gobuild.sh -tags remove_all_sd,netgo,builtinassets -ldflags '-s -w' -o ../../bin/promtool github.com/prometheus/prometheus/cmd/promtool)
	@cd test/alerts && GOGC=400 go test -vet=off -ldflags='-s -w' -count=1 . -promtool $(CURDIR)/bin/promtool

# Other projects' controllers, from separate modules, each with the version of Kubernetes that it needs.
PEERS := peer-volcano peer-jobset peer-training-operator
.PHONY: peers short-peers peer-kueue $(PEERS)
peers: $(PEERS) ## build Volcano, JobSet and training-operator into bin/peers/ (the first time 10 minutes on two cores)

short-peers: $(SHORT_PEERS)

$(PEERS) peer-kueue: peer-%:
	@mkdir -p bin/peers/$* && cd test/peers/$(filter-out volcano,$*) && \
	$(CURDIR)/hack/gobuild.sh -ldflags '-s -w' -o $(CURDIR)/bin/peers/$*/ tool

.PHONY: test-kinds
test-kinds: build peers ## jobs of all kinds, with their real controllers, on real kubelets; keeps the times in test/kinds/testdata
	@hack/gotest.sh run -v -count=1 -timeout 60m -record -- ./test/kinds

.PHONY: test-hang
test-hang: build launchers-venv ## jobs whose ranks make no step, on real kubelets; keeps what they were taken for in test/hang/testdata
	@hack/gotest.sh run -v -count=1 -timeout 60m -run '^TestHang$$' -record -- ./test/hang

.PHONY: test-nodecheck
test-nodecheck: build ## node checks of gangs with faults of nodes and networks, on real kubelets; keeps the results in test/nodecheck/testdata
	@hack/gotest.sh run -v -count=1 -timeout 60m -run '^TestNodeCheck$$' -record -- ./test/nodecheck

.PHONY: test-elastic-more
test-elastic-more: build peer-kueue launchers-venv ## jobs that go on with fewer pods: rank 0 and all but one lost, leaders killed, a node that flaps, own snapshots, Kueue, on real kubelets
	@cd test/peers/training-operator && go mod download github.com/kubeflow/training-operator # has an example that runs unchanged
	@hack/gotest.sh run -v -count=1 -timeout 60m -run '^TestMore$$' -- ./test/elastic

.PHONY: soak-hang
soak-hang: build ## hundreds of healthy silences of jobs, none ended or taken for a fault; plays those that test/hang/testdata lacks
	@hack/gotest.sh run -v -count=1 -timeout 90m -run '^TestMany$$' -- ./test/hang

.PHONY: fuzz
fuzz: ## fuzz the parsers of untrusted input, FUZZTIME (20s) for each target; KEEP=1 keeps more inputs
	@hack/fuzz.sh

.PHONY: kills
kills: ## kill agents and ranks of real trainers, with and without PyTorch: no cluster, no root
	@hack/gotest.sh run -v -count=1 -timeout 30m -crash-kills $(SHORT_CRASHES) -- $(KILL_TESTS)

# Number of kills of trainer or agent within each window of a save: in make kills, here, and here with tensors of 256 MiB.
SHORT_CRASHES := 12
CRASHES := 100
TORCH_CRASHES := 4
.PHONY: test-crash
test-crash: ## kill trainer or agent within each window of a save, CRASHES (100) times each; shows what was restored
	@hack/gotest.sh run -v -count=1 -timeout 90m -run '^TestCrash' -crash-kills $(CRASHES) -crash-torch-kills $(TORCH_CRASHES) -- $(KILL_TESTS)

SOAK := 10000
.PHONY: soak
soak: ## SOAK (10000) saves, with PyTorch where it is installed: nothing grows in trainer and agent
	@hack/gotest.sh run -v -count=1 -timeout 30m -run '^TestSoak$$' -soak-saves $(SOAK) $(if $(wildcard $(PY)),-soak-torch) -- $(KILL_TESTS)

.PHONY: test-launchers launchers launchers-venv
test-launchers: launchers-venv ## every launcher, framework and hook: start, kill, failing script, drain; writes the tables of docs/launchers.md
	@hack/gotest.sh run -v -count=1 -timeout 60m -update -- $(LAUNCHER_TESTS)

launchers: launchers-venv
	@hack/gotest.sh run -v -count=1 -timeout 30m -run '$(LAUNCHERS_SHORT)' -- $(LAUNCHER_TESTS)

launchers-venv:
	@if [ -e /opt/holdfast-python/.ready ]; then hack/launchers.sh; else echo "launchers: SKIPPED: /opt/holdfast-python is not there: make prepare"; fi

.PHONY: clusters cluster-tests $(CLUSTER_TESTS:%=cluster-%)
clusters: $(CLUSTER_TESTS:%=cluster-%)

cluster-tests:
	@echo $(CLUSTER_TESTS)

# They run the binaries in bin/, which are built first; with KEPT=1 they were built before.
$(CLUSTER_TESTS:%=cluster-%): cluster-%: $(if $(KEPT),,build)
	@hack/gotest.sh run -v -count=1 -timeout 30m $(SHORT_$*) -- ./test/$*

cluster-kinds: $(if $(KEPT),,short-peers)

# Standard output has one JSON object per figure and nothing else: earlier steps write to standard error.
.PHONY: bench-recovery
bench-recovery: ## kill to first new step, next to torchrun, in one run
	@hack/ready.sh >&2
	@go build -o bin/bench-recovery ./test/bench/recovery >&2 && bin/bench-recovery

.PHONY: bench-node-loss
bench-node-loss: ## the cost of losing nodes, next to the limit of the machine, in one run
	@hack/ready.sh >&2
	@go build -o bin/bench-node-loss ./test/bench/nodeloss >&2 && bin/bench-node-loss

.PHONY: bench-kinds
bench-kinds: ## death of a rank and of a node under each kind of job, next to the kind's own restarts, in one run
	@hack/ready.sh >&2
	@$(MAKE) --no-print-directory peers >&2
	@go build -o bin/bench-kinds ./test/bench/kinds >&2 && bin/bench-kinds

# The other launchers are in a virtual environment of their own; one that cannot be installed has a row that says so.
.PHONY: bench-hang
bench-hang: ## a rank that stands still: last step to report, culprit named, new steps, next to other launchers, in one run
	@hack/ready.sh >&2
	@hack/rivals.sh >&2
	@go build -o bin/bench-hang ./test/bench/hang >&2 && bin/bench-hang

.PHONY: bench-check
bench-check: ## the node check of healthy pods and the delay of their start, next to dlrover-run's node check, in one run
	@hack/ready.sh >&2
	@hack/rivals.sh >&2
	@go build -o bin/bench-check ./test/bench/check >&2 && bin/bench-check

.PHONY: bench-elastic
bench-elastic: ## a pod lost and a pod that joins, next to torchrun and dlrover-run, in one run
	@hack/ready.sh >&2
	@hack/rivals.sh >&2
	@go build -o bin/bench-elastic ./test/bench/elastic >&2 && bin/bench-elastic

# No kubelets, no root, no PyTorch: a control plane and the schedulers. The peer is a separate module, with the version of Kubernetes that
# it needs.
PEER := (cd test/peers && ../../hack/gobuild.sh -ldflags '-s -w' -o ../../bin/bench-coscheduling ./coscheduling)
.PHONY: bench-scheduler
bench-scheduler: ## large gangs to their last binding, next to other schedulers, in one run
	@hack/gobuild.sh $(BUILD_FLAGS) -o bin/ ./cmd/holdfast-dev ./cmd/holdfast-scheduler ./cmd/holdfast-controller >&2
	@$(PEER) >&2
	@go build -o bin/bench-scheduler ./test/bench/scheduler >&2 && bin/bench-scheduler

.PHONY: bench-writes
bench-writes: ## what policy holdfast-unknown-kinds costs a write to the API server
	@hack/gobuild.sh $(BUILD_FLAGS) -o bin/ ./cmd/holdfast-dev >&2
	@go build -o bin/bench-scheduler ./test/bench/scheduler >&2 && bin/bench-scheduler --writes

.PHONY: bench-plan
bench-plan: ## planning alone: gangs on 5,000 and 100,000 nodes in three levels
	@go test ./gang ./plugin/planner -run '^$$' -bench '^BenchmarkPlace$$|Eligibility' -benchmem

# No cluster, no root: real arenas and storage, real clients.
.PHONY: bench-checkpoint
bench-checkpoint: ## saves and restores of a rank's state, next to memcpy, torch.save and DCP, in one run
	@hack/prepare.sh >&2
	@go build -o bin/bench-checkpoint ./test/bench/checkpoint >&2 && bin/bench-checkpoint

# No cluster, no root: `holdfast run` next to torchrun.
.PHONY: bench-watch
bench-watch: ## what the site hook, the agent and its looks cost a rank, with and without the hook in turns, in one run
	@hack/prepare.sh >&2
	@hack/gobuild.sh $(BUILD_FLAGS) -o bin/ ./cmd/holdfast ./cmd/holdfast-agent >&2
	@go build -o bin/bench-watch ./test/bench/watch >&2 && bin/bench-watch

# One after another, so that they do not disturb each other. Their figures are discarded; a failed one does not stop the others.
BENCHES := recovery node-loss kinds hang check elastic scheduler checkpoint watch
.PHONY: bench-quick
bench-quick: ## every benchmark, small: shows that they run
	@hack/ready.sh >&2
	@$(PEER)
	@go build -o bin/bench-recovery ./test/bench/recovery && go build -o bin/bench-node-loss ./test/bench/nodeloss
	@go build -o bin/bench-kinds ./test/bench/kinds && go build -o bin/bench-hang ./test/bench/hang
	@go build -o bin/bench-scheduler ./test/bench/scheduler && go build -o bin/bench-checkpoint ./test/bench/checkpoint
	@go build -o bin/bench-check ./test/bench/check && go build -o bin/bench-elastic ./test/bench/elastic
	@go build -o bin/bench-watch ./test/bench/watch
	@failed=; for name in $(BENCHES); do echo "bench-$$name --quick" >&2; bin/bench-$$name --quick || failed="$$failed bench-$$name"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }
	@go test ./gang ./plugin/planner -run '^$$' -bench '^BenchmarkPlace$$|Eligibility' -benchtime 1x

.PHONY: generate
generate: $(CONTROLLER_GEN) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## regenerate deepcopy, CRD and protobuf code
	@$(CONTROLLER_GEN) object crd paths=./api/v1alpha1 output:crd:dir=manifests/crd
	@protoc -I . --plugin=protoc-gen-go=$(PROTOC_GEN_GO) --plugin=protoc-gen-go-grpc=$(PROTOC_GEN_GO_GRPC) \
		--go_out=. --go_opt=module=holdfast.dev/holdfast --go-grpc_out=. --go-grpc_opt=module=holdfast.dev/holdfast \
		api/coordinator/v1/coordinator.proto

.PHONY: verify
verify: generate ## regenerate and fail on any difference
	@git diff --exit-code -- api manifests/crd || { echo "generated files are stale: commit what make generate changed"; exit 1; }

$(STATICCHECK):
	@mkdir -p $(TOOLS) && GOBIN=$(TOOLS) go install honnef.co/go/tools/cmd/staticcheck@v0.7.0 && mv $(TOOLS)/staticcheck $@
$(GOVULNCHECK):
	@mkdir -p $(TOOLS) && GOBIN=$(TOOLS) go install golang.org/x/vuln/cmd/govulncheck@v1.9.0 && mv $(TOOLS)/govulncheck $@
$(CONTROLLER_GEN):
	@mkdir -p $(TOOLS) && GOBIN=$(TOOLS) go install sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 && mv $(TOOLS)/controller-gen $@
$(PROTOC_GEN_GO):
	@mkdir -p $(TOOLS) && GOBIN=$(TOOLS) go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.10
$(PROTOC_GEN_GO_GRPC):
	@mkdir -p $(TOOLS) && GOBIN=$(TOOLS) go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0

.PHONY: clean
clean: ## remove what was built here
	@rm -rf bin .cache dist
