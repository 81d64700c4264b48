# `make help` lists the targets.

VERSION      ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT       ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
KUBERNETES   := 1.36.3
PKG          := github.com/berth-dev/berth
K8SFLAGS     := -X k8s.io/component-base/version.gitVersion=v$(KUBERNETES) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36
LDFLAGS      := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) $(K8SFLAGS)
# Two packages at a time keep a small machine usable.
JOBS         ?= 2
# Packages whose tests start goroutines that share state.
RACE         := ./fsm ./sched/... ./raftnode ./cluster ./rpc ./worker/... ./apiserver ./server ./agent

.PHONY: help build shim test race lint vet modules check fuzz containers e2e e2e-vm e2e-crio crio-programs kubelet kubelet-program bench-kubelet upgrade conformance bench bench-paired bench-beside damage sim sim-long sim-mines sim-mutants chaos chaos-workloads faults demo sweep worst clean ecosystem sim-coverage gosec

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: shim ## build bin/berth
	go build -ldflags '$(LDFLAGS)' -o bin/berth ./cmd/berth

# A part of bin/berth. What is built without it is larger beside each container, and does the same.
shim:
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o worker/runtime/process/program/berth-shim ./cmd/berth-shim

demo: build ## a cluster, a preemption, and the leader killed in its middle
	bin/berth demo

# lint vets everything with every analyser; to vet again would take minutes. The end-to-end tests take longest, so they begin first.
test: containers shim ## every test, the end-to-end ones and simulated worlds included
	go test -vet=off -p $(JOBS) -timeout 40m ./e2e ./...
	$(MAKE) sim SEEDS=1-2 FRESH=2 SOME=0 MINUTES=1

race: ## the concurrent packages under the race detector
	go test -race -p $(JOBS) -timeout 30m $(RACE)

# Without them the tests of real containers fail where root could install them, and are left out elsewhere;
# BERTH_WITHOUT_CONTAINERS=1 leaves them out anywhere.
CONTAINERS   := containerd runc containernetworking-plugins iptables nftables iproute2 busybox-static dbus-daemon
containers: ## what tests of real containers need (Debian's packages), where root can install it
	@if [ "$$(id -u)" = 0 ] && [ -z "$$BERTH_WITHOUT_CONTAINERS" ] && command -v apt-get >/dev/null && \
	  ! dpkg-query -W $(CONTAINERS) >/dev/null 2>&1; then \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(CONTAINERS); fi

e2e: containers shim ## the end-to-end tests alone: real processes, real faults
	go test -count=1 -timeout 30m ./e2e/...

# A first build of Kubernetes' agent takes several minutes. It is built in the module of the conformance tests, so that nothing of
# it is among the requirements of the product. KUBELET is where it is built; KUBELET_BUILT=yes takes what is there.
KUBELET      ?= $(CURDIR)/bin/kubelet
kubelet: containers ## a node of Kubernetes' own kubelet beside one of Berth's workers; needs root
	@if [ "$$(id -u)" = 0 ] && [ -z "$$BERTH_WITHOUT_CONTAINERS" ] && [ '$(KUBELET_BUILT)' != yes ] && \
	  { [ ! -e /sys/fs/cgroup/cgroup.type ] || grep -qw memory /sys/fs/cgroup/cgroup.subtree_control; }; then $(MAKE) kubelet-program; fi
	go test -count=1 -vet=off -timeout 20m ./e2e -run '^TestKubelet$$' -v -kubelet '$(KUBELET)'

# With cgo, as bin/berth is: four of five of its packages are compiled for that already.
kubelet-program:
	cd $(CONFORMANCE) && go build -p $(JOBS) -ldflags '-s -w $(K8SFLAGS)' -o '$(KUBELET)' k8s.io/kubernetes/cmd/kubelet

PODS         ?= 100
bench-kubelet: containers ## the figures of a node's worker beside those of Kubernetes' own kubelet, PODS pods at a time; needs root
	test '$(KUBELET_BUILT)' = yes || $(MAKE) kubelet-program
	go test -count=1 -timeout 60m ./e2e -run '^TestNodeBesideKubelet$$' -v -kubelet '$(KUBELET)' -beside.pods=$(PODS)

# A kernel, systemd and a server of nfs are taken out of their packages into VM, not installed. The machines are emulated, with no help of the processor.
# PART=brief is what fits into every run of the CI: one machine, without systemd, and the tests of what limits do; PART=nfs is volumes of nfs alone; PART=apparmor it alone; PART=kubelet a node of KUBELET, as
# `make kubelet-program` builds it. Like all tests of real containers it is left out where root cannot install anything, or is told not to.
VM           ?= $(CURDIR)/bin/vm
PART         ?= whole
e2e-vm: ## cgroups of version 2: tests of containers and pods with limits in virtual machines, with and without systemd, of volumes of nfs and of AppArmor; PART=brief for a few, PART=nfs or apparmor for those, PART=kubelet for a kubelet; needs root
	$(MAKE) containers CONTAINERS='$(CONTAINERS) qemu-system-x86'
	@if [ "$$(id -u)" = 0 ] && [ -z "$$BERTH_WITHOUT_CONTAINERS" ] && command -v apt-get >/dev/null; then e2e/testdata/vm/parts.sh '$(VM)'; fi
	@if [ '$(PART)' = kubelet ] && [ "$$(id -u)" = 0 ] && [ -z "$$BERTH_WITHOUT_CONTAINERS" ] && [ '$(KUBELET_BUILT)' != yes ]; then $(MAKE) kubelet-program; fi
	go test -count=1 -vet=off -timeout 60m ./e2e -run '^TestVM$$' -v -vm '$(VM)' -vm.part '$(PART)' -kubelet '$(KUBELET)'

# CRI-O is built in a module of its own, so that nothing of it is among the requirements of the product; pinns, which is C, comes with it.
# A first build takes some three minutes. CRIO is where they are built; CRIO_BUILT=yes takes what is there.
CRIO         ?= $(CURDIR)/bin/crio
CRIO_TAGS    := seccomp containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs netgo osusergo
CRIO_TESTS   := TestPodLife/cri|TestRealContainers|TestImageVolumes$$|TestDevicePlugins/cri|TestDevicesGiven/cri|TestStreamsEnd/cri|TestMachineEnds/cri|TestStaticPods/cri|TestTop/cri|TestServices$$|TestFaults$$|TestDevWithContainers$$
e2e-crio: shim ## the tests of real containers, the runtime's own and the end-to-end ones, on CRI-O; needs root
	$(MAKE) containers CONTAINERS='$(CONTAINERS) conmon gcc libc6-dev libseccomp-dev pkg-config'
	test '$(CRIO_BUILT)' = yes || $(MAKE) crio-programs
	go test -count=1 -vet=off -timeout 10m ./worker/runtime/cri -crio '$(CRIO)'
	go test -count=1 -vet=off -timeout 30m ./e2e -run '$(CRIO_TESTS)' -crio '$(CRIO)'

crio-programs:
	mkdir -p '$(CRIO)'
	cd e2e/crio && CGO_ENABLED=1 go build -p $(JOBS) -ldflags '-s -w' -tags '$(CRIO_TAGS)' -o '$(CRIO)/crio' github.com/cri-o/cri-o/cmd/crio && \
	  gcc -std=c99 -Os -static -o '$(CRIO)/pinns' "$$(go list -m -f '{{.Dir}}' github.com/cri-o/cri-o)"/pinns/src/*.c

# The commit is named in e2e/testdata/earlier-commit.
upgrade: ## an earlier commit's servers and this one's together, under load, and an upgrade in place
	go test -count=1 -timeout 20m ./e2e -run '^TestUpgrade$$' -v -upgrade.pods 1000

# The tests are a module of their own, so that nothing of theirs is among the
# requirements of the product. A first build of them takes several minutes.
# SUITE is where they are built; SUITE_BUILT=yes takes what is there. What the
# specs came to is kept in RESULTS, and what has passed is run AGAIN=1 only then. ON_KUBELET=1 runs those of nodes on nodes of KUBELET.
SUITE        ?= $(CURDIR)/bin/e2e.test
SUITE_TOOLS  := $(dir $(SUITE))
FOCUS        ?=
SPECS        ?=
RESULTS      ?= $(CURDIR)/bin/conformance.json
CONFORMANCE  := e2e/kubernetes
conformance: build ## Kubernetes' own conformance tests on real containers, into docs/conformance.md; FOCUS= for some, AGAIN=1 for all anew
	$(MAKE) containers CONTAINERS='$(CONTAINERS) curl bind9-dnsutils netcat-openbsd wget'
	test '$(SUITE_BUILT)' = yes || (cd $(CONFORMANCE) && \
	  go test -vet=off -p $(JOBS) -c -ldflags '-s -w $(K8SFLAGS)' -o '$(SUITE)' k8s.io/kubernetes/test/e2e && \
	  go build -p $(JOBS) -ldflags '-s -w $(K8SFLAGS)' -o '$(SUITE_TOOLS)kubectl' k8s.io/kubernetes/cmd/kubectl && \
	  CGO_ENABLED=0 go build -p $(JOBS) -ldflags '-s -w $(K8SFLAGS)' -o '$(SUITE_TOOLS)agnhost' k8s.io/kubernetes/test/images/agnhost && \
	  CGO_ENABLED=0 go build -p $(JOBS) -ldflags '-s -w $(K8SFLAGS)' -o '$(SUITE_TOOLS)sample-apiserver' k8s.io/sample-apiserver && \
	  CGO_ENABLED=0 go build -p $(JOBS) -ldflags '-s -w' -o '$(SUITE_TOOLS)etcd' go.etcd.io/etcd/server/v3 && \
	  CGO_ENABLED=0 go build -p $(JOBS) -ldflags '-s -w' -o '$(SUITE_TOOLS)nnp' k8s.io/kubernetes/test/images/nonewprivs)
	test -z '$(ON_KUBELET)' || test '$(KUBELET_BUILT)' = yes || $(MAKE) kubelet-program
	cd $(CONFORMANCE) && go build -o '$(SUITE_TOOLS)conformance' . && '$(SUITE_TOOLS)conformance' \
	  -berth $(CURDIR)/bin/berth -suite '$(SUITE)' -tools '$(SUITE_TOOLS)' \
	  -results '$(RESULTS)' $(if $(AGAIN),-again) $(if $(ON_KUBELET),-kubelet '$(KUBELET)') -focus '$(FOCUS)' \
	  $(if $(SPECS),-specs '$(SPECS)',-report $(CURDIR)/docs/conformance.md)

# Tools of others are built from their modules, in modules of their own, so that nothing of theirs is among the requirements of the
# product. A first build takes long. TOOLS is where they are built, BUILD names which (else all); TOOLS_BUILT=yes takes what is there. ONLY names
# tests, as go test -run does.
ECOSYSTEM    := e2e/ecosystem
TOOLS        ?= $(CURDIR)/bin/ecosystem
ONLY         ?= .
BUILD        ?=
ecosystem: build containers ## tools and operators of others, unchanged, on Berth: docs/ecosystem.md; ONLY= for some; needs root
	test '$(TOOLS_BUILT)' = yes || (cd $(ECOSYSTEM) && go run ./build -into '$(TOOLS)' -jobs $(JOBS) $(BUILD))
	cd $(ECOSYSTEM) && go test -count=1 -vet=off -timeout 60m . -v -run '$(ONLY)' -berth '$(CURDIR)/bin/berth' -tools '$(TOOLS)'

# To look for modules waits for the network, and the other two for the processor.
check: ## formatting, vet, go.mod, gosec: what must hold before anything is tested
	$(MAKE) -j 3 --output-sync=target vet modules gosec

# What is right as it is says so where it stands (#nosec), with the reason. Left out as a whole are rules that know nothing of what
# they are about:
# G115 (conversions of integers): of lengths, counts and revisions. It sees no bound that was checked before, as decoders do.
# G104 (errors that are ignored): of closing what was only read, or what another error is told of already.
# G204, G702 (commands), G304, G703 (paths), G704 (addresses) that are not constants: an agent runs what pods and its owner name, in
#   folders that its owner names. What pods name is kept within theirs (docs/security.md, paths out of a volume).
# The simulator, and tests with what they need, are no part of the product.
WITHOUT      := G104,G115,G204,G304,G702,G703,G704
gosec: ## gosec's rules over all that is shipped
	cd .ci/gosec && go build -o '$(CURDIR)/bin/gosec' .
	bin/gosec -exclude $(WITHOUT) $$(go list ./... | grep -vE '/(sim|e2e)(/|$$)|test$$')

# What these are made of is needed for no other check, and hundreds of megabytes: of them it is seen only whether what they name fits together.
APART        := e2e/crio e2e/ecosystem/operator $(patsubst %/go.mod,%,$(wildcard e2e/ecosystem/tools/*/go.mod))
lint: vet modules ## formatting, vet, and that every go.mod is as its module needs it

vet:
	@out="$$(gofmt -l $$(git ls-files '*.go'))"; if [ -n "$$out" ]; then echo "not formatted:"; echo "$$out"; exit 1; fi
	go vet -p $(JOBS) ./...

modules:
	go mod verify >/dev/null
	@for at in $$(git ls-files go.mod '*/go.mod' | xargs -n 1 dirname); do \
	  case ' $(APART) ' in *" $$at "*) check='go list -mod=readonly -m all' ;; *) check='go mod tidy -diff' ;; esac; \
	  out="$$(cd "$$at" && $$check)" || { echo "$$out"; echo "$$at: go.mod or go.sum is not as the module needs it: run go mod tidy there"; exit 1; }; done

FUZZTIME ?= 30s
fuzz: ## every fuzz target for FUZZTIME each
	@set -e; for pkg in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; go test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; done

WORLDS ?= 20
SCALE  ?= 10
SEED   ?= 1
BY     ?= time
worst: ## the dearest commands and steps in WORLDS big worlds of SCALE percent of 10,000 nodes and 100,000 waiting pods, BY time, memory, kept or log
	go test -timeout 10h ./fsm -run '^TestWorst$$' -v -worst.worlds=$(WORLDS) -worst.scale=$(SCALE) -worst.seed=$(SEED) -worst.by=$(BY)
	go test -timeout 10h ./sched -run '^TestWorst$$' -v -worst.worlds=$(WORLDS) -worst.scale=$(SCALE) -worst.seed=$(SEED)

worst-full: ## the dearest commands and steps in known worlds of 10,000 nodes and 100,000 waiting pods, within 8 GiB
	go test -timeout 10h ./fsm -run '^TestWorst$$' -v -worst.full
	go test -timeout 10h ./sched -run '^TestWorst$$' -v -worst.full -worst.steps=300

CASES ?= 100000
# With the default it takes hours, most of them for the sleepers: their million worlds take one to six hours of one processor, whichever
# they are.
sweep: ## the oracles over CASES random cases each, sleepers looked for in ten times as many worlds, the other properties over a tenth: hours
	go test -timeout 5h ./model -run 'JudgeAgainstTheRules|GroupsStay' -rapid.checks=$(CASES)
	go test -timeout 5h ./sched -run '^TestOracle' -rapid.checks=$(CASES)
	go test -timeout 10h ./sched -run NobodySleepsWho -rapid.checks=$$(( $(CASES) * 10 ))
	go test -timeout 5h ./sched -run 'Property|Pipeline|ReplayDecides|ReplayFrom' -rapid.checks=$$(( $(CASES) / 10 ))
	go test -timeout 5h ./fsm ./controller -run 'Nobody|RandomCommands|ExtremeValues|Overspent|Converge|SpreadScaleIn' -rapid.checks=$$(( $(CASES) / 10 ))
	go test -timeout 1h ./sched -run LeaderLostAtEveryPosition -preemptions=500

DAMAGES ?= 20000
damage: ## DAMAGES data directories of a server damaged at random, and opened
	go test -timeout 2h ./raftnode -run '^TestEveryDamage$$' -damages=$(DAMAGES)

CHAOS   ?= 30
SEED    ?= 0
SEEDS   ?= 1-6
FRESH   ?= 4
MINUTES ?= 3
PACE    ?= dense
KEPT    ?= sim/testdata/seeds
SOME    ?= 2
STORIES ?= bin/stories
sim: ## simulated clusters: SEEDS, SOME of KEPT, and FRESH ones that nobody has chosen, MINUTES of virtual time each, at a PACE
	go run ./sim/build -o bin/sim.test
	mkdir -p $(STORIES)
	bin/sim.test -test.run '^TestSeeds$$' -test.v -test.timeout 1h -sim.jobs=$(JOBS) -sim.seeds=$(SEEDS) -sim.fresh=$(FRESH) \
	  -sim.kept=$(CURDIR)/$(KEPT) -sim.some=$(SOME) -sim.minutes=$(MINUTES) -sim.pace=$(PACE) -sim.stories=$(CURDIR)/$(STORIES)

# Seeds that reach what no other does are added to KEPT.
sim-coverage: ## what of the product SEEDS, those of KEPT and FRESH ones reach, MINUTES each
	go run ./sim/build -cover -o bin/sim-cover.test
	bin/sim-cover.test -test.run '^TestCoverage$$' -test.v -test.timeout 5h -sim.seeds=$(SEEDS) -sim.reach=$(FRESH) -sim.minutes=$(MINUTES) \
	  -sim.pace=$(PACE) -sim.kept=$(CURDIR)/$(KEPT)

sim-mines: ## simulated clusters of SEEDS and FRESH ones in which Apply, the scheduler, requests and loops panic at random
	go run ./sim/build -mines -o bin/sim-mines.test
	bin/sim-mines.test -test.run '^TestSeeds$$' -test.v -test.timeout 5h -sim.mines -sim.jobs=$(JOBS) -sim.seeds=$(SEEDS) -sim.fresh=$(FRESH) \
	  -sim.minutes=$(MINUTES) -sim.pace=$(PACE)

sim-mutants: SEEDS = 1-8
sim-mutants: ## whether defects that are put in on purpose are found by the seeds SEEDS
	go run ./sim/build -mutants -o bin/sim-mutants.test
	bin/sim-mutants.test -test.run '^TestMutants$$' -test.v -test.timeout 5h -sim.mutants -sim.jobs=$(JOBS) -sim.seeds=$(SEEDS) -sim.minutes=$(MINUTES)

HOURS ?= 8
sim-long: ## simulated clusters of fresh seeds for HOURS of virtual time
	go run ./sim/build -o bin/sim.test
	mkdir -p $(STORIES)
	bin/sim.test -test.run '^TestSeeds$$' -test.v -test.timeout 0 -sim.jobs=$(JOBS) -sim.seeds= -sim.hours=$(HOURS) -sim.pace=$(PACE) \
	  -sim.stories=$(CURDIR)/$(STORIES)

chaos: ## a cluster of real processes under faults for CHAOS minutes: killed, cut off, without power; needs root
	go test -count=1 -timeout 0 ./e2e -run '^TestChaos$$' -v -chaos.minutes=$(CHAOS) -chaos.seed=$(SEED)

chaos-workloads: ## workloads change while leaders and workers are killed for CHAOS minutes, and every revision is looked at
	go test -count=1 -timeout 0 ./e2e -run '^TestChaosOfWorkloads$$' -v -chaos.workloads=$(CHAOS) -chaos.seed=$(SEED)

ROUNDS ?= 200
faults: containers ## ROUNDS rounds of a node's worker, containerd and shims killed while its pods start and end
	go test -count=1 -timeout 0 ./e2e -run '^TestFaults$$' -v -faults.rounds=$(ROUNDS) -faults.seed=$(SEED)

bench: build ## the figures of docs/benchmarks.md
	bin/berth bench

OLD      ?= HEAD~1
PAIRS    ?= 5
WORKLOAD ?= all
bench-paired: build ## this version's figures over those of commit OLD: WORKLOAD, in PAIRS pairs of runs
	rm -rf bin/old && mkdir -p bin/old && git archive $(OLD) | tar -x -C bin/old
	cd bin/old && go build -ldflags '$(LDFLAGS)' -o ../berth-old ./cmd/berth
	rm -rf bin/old
	bin/berth bench --workload $(WORKLOAD) --against bin/berth-old --pairs $(PAIRS)

# They are built in the module of the conformance tests, for several minutes. BESIDE is where they are; BESIDE_BUILT=yes takes
# what is there.
BESIDE   ?= $(CURDIR)/bin/kubernetes
bench-beside: build ## the figures of Berth beside those of kube-controller-manager, and of Kubernetes' whole control plane
	test '$(BESIDE_BUILT)' = yes || (mkdir -p '$(BESIDE)' && cd $(CONFORMANCE) && \
	  go build -p $(JOBS) -ldflags '-s -w $(K8SFLAGS)' -o '$(BESIDE)/' k8s.io/kubernetes/cmd/kube-apiserver \
	    k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes/cmd/kube-scheduler && \
	  go build -p $(JOBS) -ldflags '-s -w' -o '$(BESIDE)/etcd' go.etcd.io/etcd/server/v3)
	bin/berth bench --workload controllers --controller-manager '$(BESIDE)/kube-controller-manager'; one=$$?; \
	  bin/berth bench --workload control-plane --kubernetes '$(BESIDE)' && exit $$one

clean: ## remove what was built
	rm -rf bin
