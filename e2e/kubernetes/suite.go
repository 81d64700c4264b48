package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// suiteVersion is that of the tests, and of the API that Berth serves.
const suiteVersion = "v1.36.3"

const (
	// conformance is in the names of the specs that every Kubernetes has to pass.
	conformance = "[Conformance]"
	// serial is a label of specs that nothing else may run beside; what ginkgo itself calls so is not known before they run.
	serial = "Serial"
	// scheduling are the specs that are about what Berth is for.
	scheduling = `\[sig-scheduling\] Scheduler(Predicates|Preemption|Priorities)|\[sig-apps\] DisruptionController`
	// groups are more of what pods, their nodes, their volumes, controllers, services, the API and kubectl do.
	groups = `\[sig-(node|apps|network|instrumentation|api-machinery|storage|cli|auth)\] (\[(Serial|NodeConformance|FeatureGate:\w+)\] )*(` +
		`Pods|Pods? Extended|Probing (restartable init )?container|(Restartable Init )?Container Lifecycle Hook|Lifecycle [Ss]leep|PreStop|` +
		`Ephemeral Containers|Container Runtime|[Kk]ubelet|Downward API|Security Context|Sysctls|RuntimeClass|PrivilegedPod|` +
		`(PLR )?Pod InPlace Resize|PodOSRejection|PodRejectionStatus|Override hostname of Pod|Events|` +
		`Deployment|ReplicaSet|ReplicationController|StatefulSet|Daemon set|Job|CronJob|TTLAfterFinished|` +
		`EndpointSlice|Services|ServerSideApply|FieldValidation|Servers with support for|ResourceQuota|Garbage collector|` +
		`PersistentVolumes-local|[Kk]ubectl|` +
		`FileKeyRef|NoExecuteTaintManager|NodeLease|Pod Level Resources|Pod garbage|Variable Expansion|Mount propagation|` +
		`ConfigMap|EmptyDir|HostPath(Type)?|PVC? Protection|PersistentVolumes Default|Retroactive|Projected (configMap|downwardAPI|secret)|Secrets|Subpath|Ephemeralstorage|` +
		`DNS should|IngressClass|Networking|NoSNAT|Proxy|Service CIDRs|Topology Hints|Traffic Distribution|EndpointSliceMirroring|Conntrack|KubeProxy|` +
		`API Streaming|API priority|CRDValidationRatcheting|CustomResource\w+|Discovery|Generated clientset|Namespaces|OpenAPIV3|Server request|StorageVersion|` +
		`ValidatingAdmissionPolicy|client-go|health handlers|ServiceAccounts?|SelfSubjectReview|Certificates API|NodeAuthenticator)\b|` +
		`\[sig-auth\] \[Feature:NodeAuthorizer\]`
	// focused are the specs that are counted unless others are asked for.
	focused = `\[Conformance\]|` + scheduling + `|` + groups
	// kubelets are those of them that run on nodes of Kubernetes' own kubelet, too.
	kubelets = `\[sig-node\] (Pods|Kubelet) .*\[Conformance\]`
	// skippedSpecs are of features that are off in Kubernetes itself unless somebody switches them on, or measure a kubelet for hours, or need
	// images of databases, or are known to Kubernetes to fail at times.
	skippedSpecs = `\[(Alpha|Feature:OffByDefault|BetaOffByDefault|Feature:(Regular|Experimental)ResourceUsageTracking|Feature:StatefulSet|Flaky)\]`
)

// spec is one of the tests.
type spec struct {
	Name, Sig, Group string
	// Alone: nothing else may run at the same time.
	Alone bool
	// Kubelet: on nodes of Kubernetes' own kubelet.
	Kubelet bool
}

// onKubelet begins the keys of what ran on a kubelet's nodes.
const onKubelet = "on a kubelet: "

// key is by what its result is known.
func (s *spec) key() string {
	if s.Kubelet {
		return onKubelet + s.Name
	}
	return s.Name
}

func (s *spec) conformance() bool { return strings.Contains(s.Name, conformance) }

var ofScheduling = regexp.MustCompile(scheduling)

func (s *spec) aboutScheduling() bool { return ofScheduling.MatchString(s.Name) }

// onKubelets are those of the specs that run on kubelets' nodes, too: all, where others than ours were asked for.
func onKubelets(specs []spec, asked string) (out []spec) {
	of := regexp.MustCompile(kubelets)
	for _, s := range specs {
		if asked != focused || of.MatchString(s.Name) {
			s.Kubelet = true
			out = append(out, s)
		}
	}
	return out
}

var (
	sigOf = regexp.MustCompile(`^\[sig-([a-z-]+)\] *`)
	tags  = regexp.MustCompile(` *\[[^\]]*\]`)
)

// listSpecs asks the tests what they are.
func listSpecs(ctx context.Context, o options, dir string) ([]spec, error) {
	path := filepath.Join(dir, "list.json")
	out, err := exec.CommandContext(ctx, o.suite, "--ginkgo.dry-run", "--ginkgo.focus="+o.specs, "--ginkgo.skip="+skippedSpecs,
		"--ginkgo.no-color", "--ginkgo.silence-skips", "--ginkgo.json-report="+path, "--provider=skeleton").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", o.suite, err, out)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseSpecs(raw)
}

func parseSpecs(raw []byte) ([]spec, error) {
	reports, err := parseReport(raw)
	if err != nil {
		return nil, err
	}
	var out []spec
	for i := range reports {
		r := &reports[i]
		if r.LeafNodeType != types.NodeTypeIt || !r.State.Is(types.SpecStatePassed) {
			continue
		}
		s := spec{Name: r.FullText(), Alone: slices.Contains(r.Labels(), serial)}
		if len(r.ContainerHierarchyTexts) > 0 {
			top := r.ContainerHierarchyTexts[0]
			if sig := sigOf.FindStringSubmatch(top); sig != nil {
				s.Sig = sig[1]
			}
			s.Group = strings.TrimSpace(tags.ReplaceAllString(top, ""))
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b spec) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func parseReport(raw []byte) ([]types.SpecReport, error) {
	var reports []types.Report
	if err := json.Unmarshal(raw, &reports); err != nil {
		return nil, fmt.Errorf("the tests' report: %w", err)
	}
	var out []types.SpecReport
	for _, r := range reports {
		out = append(out, r.SpecReports...)
	}
	return out, nil
}

// arguments of the tests. The seed keeps their order the same in every run.
func arguments(o options, c *cluster, specs []spec, report string) []string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = regexp.QuoteMeta(s.Name)
	}
	return []string{
		"--kubeconfig=" + c.Kubeconfig,
		"--kubectl-path=" + filepath.Join(o.tools, "kubectl"),
		"--provider=skeleton",
		"--ginkgo.focus=(" + strings.Join(names, "|") + ")$",
		"--ginkgo.seed=1",
		"--ginkgo.timeout=" + batchTimeout.String(),
		"--ginkgo.no-color",
		"--ginkgo.silence-skips",
		"--ginkgo.json-report=" + report,
		"--minStartupPods=-1",
		"--allowed-not-ready-nodes=0",
		"--dump-logs-on-failure=false",
		"--disable-log-dump",
	}
}

const (
	// batchTimeout is long: single specs take ten minutes.
	batchTimeout = 2 * time.Hour
	// batchStop is how long a batch that is to end may clear up.
	batchStop = time.Minute
)

// runSpecs runs the specs in batches, each by one process of the tests: in several lanes at a time, and at the end, in one, those that
// have to be alone.
func runSpecs(ctx context.Context, o options, c *cluster, specs []spec, tell func(result) error) error {
	deadline := time.Now().Add(o.timeout)
	var shared, alone []spec
	for _, s := range specs {
		if s.Alone {
			alone = append(alone, s)
		} else {
			shared = append(shared, s)
		}
	}
	number := 0
	for _, part := range []struct {
		specs []spec
		lanes int
	}{{shared, o.lanes}, {alone, 1}} {
		batches := make(chan []spec)
		told := make(chan error, part.lanes)
		var mu sync.Mutex
		for lane := range part.lanes {
			go func() {
				var err error
				for batch := range batches {
					if err != nil || time.Now().After(deadline) || ctx.Err() != nil {
						continue
					}
					mu.Lock()
					number++
					name := fmt.Sprintf("batch-%03d-lane-%d", number, lane+1)
					mu.Unlock()
					var done []result
					done, err = runBatch(ctx, o, c, batch, name)
					mu.Lock()
					for _, r := range done {
						err = errors.Join(err, tell(r))
					}
					mu.Unlock()
				}
				told <- err
			}()
		}
		for batch := range slices.Chunk(part.specs, o.batch) {
			batches <- batch
		}
		close(batches)
		var errs []error
		for range part.lanes {
			errs = append(errs, <-told)
		}
		if err := errors.Join(append(errs, ctx.Err())...); err != nil {
			return err
		}
	}
	return nil
}

// runBatch runs some specs and reads what they came to. That some have failed is no error.
func runBatch(ctx context.Context, o options, c *cluster, specs []spec, name string) ([]result, error) {
	path := filepath.Join(o.logs, name+".json")
	log, err := os.Create(filepath.Join(o.logs, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // it is only for people
	cmd := exec.CommandContext(ctx, o.suite, arguments(o, c, specs, path)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = batchStop
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	raw, readErr := os.ReadFile(path)
	if readErr != nil {
		return nil, fmt.Errorf("%s wrote no report: %w; its log is %s", o.suite, errors.Join(err, readErr), log.Name())
	}
	reports, err := parseReport(raw)
	if err != nil {
		return nil, err
	}
	return collect(reports), os.Remove(path)
}

// collect leaves out what was not run, or was cut short by the end of the whole. A failure outside of any spec counts as one.
func collect(reports []types.SpecReport) []result {
	var out []result
	for i := range reports {
		r := &reports[i]
		one := result{Name: r.FullText(), State: r.State.String(), Seconds: r.RunTime.Seconds(), Why: firstWords(r.Failure.Message)}
		switch {
		case r.LeafNodeType != types.NodeTypeIt:
			if r.State.Is(types.SpecStatePassed) || r.State.Is(types.SpecStateSkipped) {
				continue
			}
			one.Name = outside + r.LeafNodeType.String()
		case r.State.Is(types.SpecStateInterrupted | types.SpecStateAborted | types.SpecStatePending):
			continue
		case r.State.Is(types.SpecStateSkipped) && one.Why == "":
			continue
		}
		out = append(out, one)
	}
	return out
}

// outside begins the names of what failed outside of any spec.
const outside = "outside of the specs: "

// wrapped is the type before an error's text; object is a whole one of the API's, and dump any other, of which failures show every field.
var (
	wrapped = regexp.MustCompile(`<\*\w*errors?\w*\.\w+ \| 0x[0-9a-f]+>: *`)
	object  = regexp.MustCompile(`(?s)\{\n  "metadata".*?\n\}`)
	dump    = regexp.MustCompile(`(?s)<\*[\w.]+ \| 0x[0-9a-f]+>:.*`)
)

// command is how a program was run that is a file of the machine's, and by what it reached the run's own cluster: the next run has others.
var command = regexp.MustCompile(`running /\S*/([\w-]+)(?: --(?:server|kubeconfig)=\S+)*`)

// whyBytes bounds what is told of a failure.
const whyBytes = 300

// firstWords is what a failure says, in one line.
func firstWords(text string) string {
	text = object.ReplaceAllString(wrapped.ReplaceAllString(text, ""), "an object …")
	text = command.ReplaceAllString(dump.ReplaceAllString(text, "an object …"), "running $1")
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > whyBytes {
		text = strings.ToValidUTF8(text[:whyBytes], "") + " …"
	}
	return text
}
