package verb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/berthv1"
)

func (e *Env) plan() *cobra.Command {
	var files []string
	var scale string
	cmd := &cobra.Command{
		Use:   "plan (-f FILE | --scale rs/NAME=REPLICAS)",
		Short: "Show where pods would go and whom they would evict, and change nothing",
		Long: `Show where the pods of a manifest would go, whom they would evict, what that would leave of disruption budgets, and
whether the pods that take the victims' place would find one. The answer is made on a copy of the cluster's state by the
code that schedules; nothing is changed. The manifest may have Pods, ReplicaSets (their pods are planned), and
PriorityClasses and PodDisruptionBudgets, which count as if they were there.

With --scale it shows what another number of pods would mean for a ReplicaSet: which pods would go, in which order and by
which rule, or where the new ones would go.`,
		Example: `  berth plan -f web.yaml
  cat web.yaml | berth plan -f -
  berth plan --scale rs/web=3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 && scale == "" {
				return usagef("-f or --scale is missing: which manifest, or which workload, is to be planned?")
			}
			return e.runPlan(cmd.Context(), files, scale)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "Manifest; - is the standard input.")
	cmd.Flags().StringVar(&scale, "scale", "", "Workload and the number of pods that it is to have, as in rs/web=3.")
	return e.outputFlag(cmd)
}

func (e *Env) runPlan(ctx context.Context, files []string, scale string) error {
	ns, err := e.scope(false)
	if err != nil {
		return err
	}
	question := &berthv1.Plan{
		TypeMeta: metav1.TypeMeta{APIVersion: berthv1.GroupVersion.String(), Kind: "Plan"},
	}
	for _, f := range files {
		if err := e.readManifest(f, ns, &question.Spec); err != nil {
			return err
		}
	}
	if scale != "" {
		if question.Spec.Scale, err = readScale(scale, ns); err != nil {
			return err
		}
	}
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	answer, err := api.Plan(ctx, question)
	if err != nil {
		return err
	}
	answer.ManagedFields = nil // who has asked is known to him
	answer.SetGroupVersionKind(berthv1.GroupVersion.WithKind("Plan"))
	return e.print(answer, func(w io.Writer) { tellPlan(w, &answer.Status) })
}

// readScale reads rs/NAME=REPLICAS.
func readScale(text, namespace string) (*berthv1.PlanScale, error) {
	workload, count, ok := strings.Cut(text, "=")
	kind, name, named := strings.Cut(workload, "/")
	replicas, err := strconv.ParseInt(count, 10, 32)
	if !ok || !named || name == "" || err != nil || replicas < 0 {
		return nil, usagef("--scale %s: it is to be KIND/NAME=REPLICAS, as in rs/web=3", text)
	}
	switch kind {
	case "rs", "replicaset", "replicasets", "replicaset.apps", "replicasets.apps":
	default:
		return nil, usagef("--scale %s: the scale of a %s can not be planned; that of a ReplicaSet (rs) can", text, kind)
	}
	return &berthv1.PlanScale{Resource: "replicasets", Namespace: namespace, Name: name, Replicas: int32(replicas)}, nil
}

// tellRemovals lists the pods that would go, the first one first.
func tellRemovals(w io.Writer, removals []berthv1.PlanRemoval) {
	row(w, "ORDER", "POD", "NODE", "RULE", "BECAUSE")
	for i, r := range removals {
		node, rule, why := r.Node, r.Rule, r.Reason
		if node == "" {
			node = "<none>"
		}
		if rule == "" {
			rule, why = "-", "all of them go"
		}
		if r.Detail != "" {
			why += " (" + r.Detail + ")"
		}
		name := qualified(r.Pod.Namespace, r.Pod.Name)
		if name == "" {
			name = "-" // not this user's to read
		}
		row(w, i+1, name, node, rule, why)
	}
}

func tellPlan(w io.Writer, s *berthv1.PlanStatus) {
	if len(s.Removals) > 0 {
		tellRemovals(w, s.Removals)
	}
	if len(s.Removals) > 0 && len(s.Placements) > 0 {
		fmt.Fprintln(w)
	}
	if len(s.Removals) == 0 && len(s.Placements) == 0 {
		fmt.Fprintln(w, "No pods would be made or deleted.")
	}
	if len(s.Placements) > 0 {
		row(w, "POD", "PRIORITY", "RESULT")
	}
	for _, p := range s.Placements {
		row(w, qualified(p.Pod.Namespace, p.Pod.Name), priorityOf(&p), placement(p.Node, p.NominatedNode, p.Message, p.Victims))
		for _, r := range p.Reasons {
			row(w, "", "", "  "+reasonLine(r))
		}
	}
	if len(s.Budgets) > 0 {
		fmt.Fprintln(w)
		row(w, "BUDGET", "ALLOWS", "HEALTHY", "DESIRED")
		hidden := 0
		for _, b := range s.Budgets {
			if b.Name == "" {
				hidden++
				continue
			}
			row(w, qualified(b.Namespace, b.Name), fmt.Sprintf("%d, then %d", b.AllowedBefore, b.AllowedAfter), b.HealthyAfter, b.DesiredHealthy)
		}
		if hidden > 0 {
			row(w, fmt.Sprintf("%d of others", hidden), "-", "-", "-")
		}
	}
	if len(s.Replacements) > 0 {
		fmt.Fprintln(w)
		row(w, "IN PLACE OF", "PRIORITY", "ROUND", "RESULT")
		for _, r := range s.Replacements {
			row(w, podNamed(r.Of.Namespace, r.Of.Name, r.Of.UID), r.Of.Priority, r.Round, placement(r.Node, r.NominatedNode, r.Message, r.Victims))
		}
	}
	fmt.Fprintln(w)
	if s.CascadeDepth > 0 {
		fmt.Fprintln(w, cascade(s))
	}
	fmt.Fprintf(w, "at revision %d; nothing was changed\n", s.Revision)
}

// priorityOf is a pod's priority; it has none where it would not even be taken in.
func priorityOf(p *berthv1.PlanPlacement) string {
	if p.Pod.Priority == 0 && p.Node == "" && p.NominatedNode == "" && len(p.Reasons) == 0 {
		return "-"
	}
	return strconv.Itoa(int(p.Pod.Priority))
}

// cascade says how far the evictions would go.
func cascade(s *berthv1.PlanStatus) string {
	lost := 0
	for _, r := range s.Replacements {
		if r.Node == "" && r.NominatedNode == "" {
			lost++
		}
	}
	out := fmt.Sprintf("cascade depth %d", s.CascadeDepth)
	if s.CascadeCut {
		out += " at least"
	}
	switch {
	case len(s.Replacements) == 0:
		return out + ": no controller makes pods in place of the victims"
	case lost == 0:
		return out + fmt.Sprintf(": a place for each of %s", plural(len(s.Replacements), "replacement"))
	}
	return out + fmt.Sprintf(": no place for %d of %s", lost, plural(len(s.Replacements), "replacement"))
}

// placement is one pod's fate in a cell.
func placement(node, nominated, message string, victims []berthv1.Victim) string {
	switch {
	case node != "":
		return "would be bound to " + node
	case nominated != "":
		evicted, awaited := evictions(victims)
		after := plural(evicted, "eviction")
		if awaited > 0 {
			after += " and the end of " + plural(awaited, "other pod")
		}
		return fmt.Sprintf("would be bound to %s after %s: %s", nominated, after, victimNames(victims))
	case message != "":
		return "no place: " + message
	}
	return "no place"
}

// readManifest reads a manifest of one or more documents, strictly.
func (e *Env) readManifest(file, namespace string, into *berthv1.PlanSpec) error {
	in, title := e.In, file
	if file == "-" {
		title = "the standard input"
	}
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return fmt.Errorf("reading %s: %w", title, err)
	}
	docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer docs.Close()
	buf := make([]byte, len(data)+1)
	had := len(into.Pods) + len(into.Objects)
	for n := 1; ; n++ {
		size, err := docs.Read(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
		if err := readDocument(buf[:size], namespace, into); err != nil {
			return fmt.Errorf("%s, document %d: %w", title, n, err)
		}
	}
	if len(into.Pods)+len(into.Objects) == had {
		return fmt.Errorf("%s has nothing to plan", title)
	}
	return nil
}

// plannable are the kinds beside pods that a plan takes, by "apiVersion/kind";
// namespaced ones get the namespace of the command if they name none.
var plannable = map[string]struct {
	namespaced bool
	empty      func() metav1.Object
}{
	"scheduling.k8s.io/v1/PriorityClass": {false, func() metav1.Object { return new(schedulingv1.PriorityClass) }},
	"policy/v1/PodDisruptionBudget":      {true, func() metav1.Object { return new(policyv1.PodDisruptionBudget) }},
	"apps/v1/ReplicaSet":                 {true, func() metav1.Object { return new(appsv1.ReplicaSet) }},
}

func readDocument(doc []byte, namespace string, into *berthv1.PlanSpec) error {
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := sigsyaml.Unmarshal(doc, &head); err != nil {
		return err
	}
	if head.APIVersion == "" && head.Kind == "" {
		return nil // only comments
	}
	if strings.HasSuffix(head.Kind, "List") {
		for _, item := range head.Items {
			if err := readDocument(item, namespace, into); err != nil {
				return err
			}
		}
		return nil
	}
	if head.APIVersion == "v1" && head.Kind == "Pod" {
		var pod corev1.Pod
		if err := strictly(doc, &pod); err != nil {
			return err
		}
		if pod.Namespace == "" {
			pod.Namespace = namespace
		}
		into.Pods = append(into.Pods, pod)
		return nil
	}
	kind, ok := plannable[head.APIVersion+"/"+head.Kind]
	if !ok {
		return fmt.Errorf("a %s of %s cannot be planned; Pods, ReplicaSets, PriorityClasses and PodDisruptionBudgets can", head.Kind, head.APIVersion)
	}
	obj := kind.empty()
	if err := strictly(doc, obj); err != nil {
		return err
	}
	if kind.namespaced && obj.GetNamespace() == "" {
		obj.SetNamespace(namespace)
	}
	raw, err := json.Marshal(obj)
	if err != nil {
		return err
	}
	into.Objects = append(into.Objects, runtime.RawExtension{Raw: raw})
	return nil
}

// strictly reads a document that must have no field which its kind has not.
func strictly(doc []byte, into any) error {
	data, err := sigsyaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	mistakes, err := sigsjson.UnmarshalStrict(data, into)
	return errors.Join(append(mistakes, err)...)
}
