package verb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/berthv1"
)

func (e *Env) plan() *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Show where pods would go and whom they would evict, and change nothing",
		Long:  "Show where the pods of a manifest would go and whom they would evict. The answer is made on a copy of the cluster's state by the code that schedules; nothing is changed.",
		Example: `  berth plan -f web.yaml
  cat web.yaml | berth plan -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usagef("-f is missing: which manifest is to be planned?")
			}
			return e.runPlan(cmd.Context(), files)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "Manifest with pods; - is the standard input.")
	return e.outputFlag(cmd)
}

func (e *Env) runPlan(ctx context.Context, files []string) error {
	ns, err := e.scope(false)
	if err != nil {
		return err
	}
	question := &berthv1.Plan{
		TypeMeta: metav1.TypeMeta{APIVersion: berthv1.GroupVersion.String(), Kind: "Plan"},
	}
	for _, f := range files {
		pods, err := e.readPods(f, ns)
		if err != nil {
			return err
		}
		question.Spec.Pods = append(question.Spec.Pods, pods...)
	}
	api, err := e.Client.API()
	if err != nil {
		return err
	}
	answer, err := api.Plan(ctx, question)
	if err != nil {
		return err
	}
	answer.SetGroupVersionKind(berthv1.GroupVersion.WithKind("Plan"))
	return e.print(answer, func(w io.Writer) {
		row(w, "POD", "PRIORITY", "RESULT")
		for _, p := range answer.Status.Placements {
			row(w, qualified(p.Pod.Namespace, p.Pod.Name), p.Pod.Priority, placement(&p))
			for _, r := range p.Reasons {
				row(w, "", "", "  "+reasonLine(r))
			}
		}
		fmt.Fprintf(w, "\nat revision %d; nothing was changed\n", answer.Status.Revision)
	})
}

// placement is one pod's fate in a cell.
func placement(p *berthv1.PlanPlacement) string {
	switch {
	case p.Node != "":
		return "would be bound to " + p.Node
	case p.NominatedNode != "":
		return fmt.Sprintf("would be bound to %s after %s: %s", p.NominatedNode, plural(len(p.Victims), "eviction"), victimNames(p.Victims))
	case p.Message != "":
		return "no place: " + p.Message
	}
	return "no place"
}

// readPods reads the pods of a manifest of one or more documents, strictly.
func (e *Env) readPods(file, namespace string) ([]corev1.Pod, error) {
	in, title := e.In, file
	if file == "-" {
		title = "the standard input"
	}
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	data, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", title, err)
	}
	docs := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer docs.Close()
	buf := make([]byte, len(data)+1)
	var pods []corev1.Pod
	for n := 1; ; n++ {
		size, err := docs.Read(buf)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", title, err)
		}
		found, err := podsOf(buf[:size], namespace)
		if err != nil {
			return nil, fmt.Errorf("%s, document %d: %w", title, n, err)
		}
		pods = append(pods, found...)
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s has no pods to plan", title)
	}
	return pods, nil
}

func podsOf(doc []byte, namespace string) ([]corev1.Pod, error) {
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, nil
	}
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := sigsyaml.Unmarshal(doc, &head); err != nil {
		return nil, err
	}
	switch {
	case head.APIVersion == "" && head.Kind == "":
		return nil, nil // only comments
	case head.APIVersion == "v1" && (head.Kind == "List" || head.Kind == "PodList"):
		var pods []corev1.Pod
		for _, item := range head.Items {
			found, err := podsOf(item, namespace)
			if err != nil {
				return nil, err
			}
			pods = append(pods, found...)
		}
		return pods, nil
	case head.APIVersion != "v1" || head.Kind != "Pod":
		return nil, fmt.Errorf("a %s of %s cannot be planned; only a Pod of v1 can", head.Kind, head.APIVersion)
	}
	data, err := sigsyaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, err
	}
	var pod corev1.Pod
	mistakes, err := sigsjson.UnmarshalStrict(data, &pod)
	if err = errors.Join(append(mistakes, err)...); err != nil {
		return nil, err
	}
	if pod.Namespace == "" {
		pod.Namespace = namespace
	}
	return []corev1.Pod{pod}, nil
}
