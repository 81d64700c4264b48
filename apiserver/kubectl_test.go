package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// kubectl runs kubectl's own commands against a server.
type kubectl struct {
	t          testing.TB
	kubeconfig string
	namespace  string
}

func newKubectl(t testing.TB, s *testServer, namespace string) *kubectl {
	t.Helper()
	return newKubectlAs(t, s, namespace, "root", "system:masters")
}

func newKubectlAs(t testing.TB, s *testServer, namespace, user string, groups ...string) *kubectl {
	t.Helper()
	c := s.config(t, user, groups...)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData, TLSServerName: c.ServerName}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.CertData, ClientKeyData: c.KeyData}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return &kubectl{t, file, namespace}
}

// run gives what a command prints, or its error.
func (k *kubectl) run(input string, args ...string) (text string, err error) {
	k.t.Helper()
	type fatal struct{ message string }
	defer func() {
		if f, ok := recover().(fatal); ok {
			err = errors.New(f.message)
		}
	}()
	cmdutil.BehaviorOnFatal(func(message string, _ int) { panic(fatal{message}) })
	defer cmdutil.DefaultBehaviorOnFatal()
	if input != "" { // kubectl reads the process's own
		file := filepath.Join(filepath.Dir(k.kubeconfig), "manifest.yaml")
		if err := os.WriteFile(file, []byte(input), 0o600); err != nil {
			return "", err
		}
		args = append(slices.Clone(args), "-f", file)
	}
	flags := genericclioptions.NewConfigFlags(true)
	cache := filepath.Join(filepath.Dir(k.kubeconfig), "cache")
	flags.KubeConfig, flags.Namespace, flags.CacheDir = &k.kubeconfig, &k.namespace, &cache
	var out bytes.Buffer
	streams := genericiooptions.IOStreams{Out: &out, ErrOut: &out}
	command := cmd.NewKubectlCommand(cmd.KubectlOptions{Arguments: append([]string{"kubectl"}, args...), ConfigFlags: flags, IOStreams: streams})
	command.SetArgs(append(args, "--kubeconfig", k.kubeconfig, "--namespace", k.namespace, "--cache-dir", cache))
	command.SetOut(&out)
	command.SetErr(&out)
	err = command.Execute()
	return out.String(), err
}

// want runs a command that has to print all of the parts.
func (k *kubectl) want(input string, args []string, parts ...string) {
	k.t.Helper()
	out, err := k.run(input, args...)
	if err != nil {
		k.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) {
			k.t.Errorf("kubectl %s: no %q in\n%s", strings.Join(args, " "), part, out)
		}
	}
}

// refused runs a command that has to fail with the words.
func (k *kubectl) refused(input string, args []string, part string) {
	k.t.Helper()
	out, err := k.run(input, args...)
	if err == nil || !strings.Contains(err.Error(), part) {
		k.t.Errorf("kubectl %s: got %v, want %q\n%s", strings.Join(args, " "), err, part, out)
	}
}

const manifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: c, image: busybox%s}]
`

func TestKubectl(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	node := ns + "-node"
	s.node(t, node)
	k := newKubectl(t, s, ns)
	web, unknown := fmt.Sprintf(manifest, ""), fmt.Sprintf(manifest, ", bogus: 1")

	k.refused(unknown, []string{"apply", "--validate=true"}, `unknown field "spec.containers[0].bogus"`)
	k.want(web, []string{"apply", "--dry-run=server"}, "pod/web created (server dry run)")
	k.refused("", []string{"get", "pod", "web"}, `pods "web" not found`)
	k.want(web, []string{"apply"}, "pod/web created")
	k.want(web, []string{"apply"}, "pod/web unchanged")
	k.want(web, []string{"apply", "--server-side", "--force-conflicts"}, "pod/web serverside-applied")
	k.want("", []string{"get", "pods", "-o", "wide"}, "NAME", "NOMINATED NODE", "web", "Pending")
	k.want("", []string{"get", "queueentries"}, "NAME", "STATE", "POSITION", "web", "Active")
	k.want("", []string{"get", "pods,sa,cm", "--show-labels"}, "pod/web", "serviceaccount/default", "app=web", "configmap/kube-root-ca.crt")
	k.want("", []string{"label", "pod", "web", "tier=front"}, "pod/web labeled")
	k.want("", []string{"annotate", "pod", "web", "note=x"}, "pod/web annotated")
	k.want("", []string{"patch", "pod", "web", "--type=json", "-p", `[{"op":"add","path":"/metadata/labels/j","value":"1"}]`}, "pod/web patched")
	k.want("", []string{"patch", "pod", "web", "-p", `{"spec":{"containers":[{"name":"c","image":"busybox:2"}]}}`}, "pod/web patched")
	k.want("", []string{"get", "pod", "web", "-o", "jsonpath={.spec.containers[0].image} {.metadata.generation}"}, "busybox:2 2")
	k.want("", []string{"describe", "pod", "web"}, "Name:             web", "tier=front")
	k.want("", []string{"explain", "pod.spec.priorityClassName"}, "FIELD: priorityClassName <string>")
	k.want("", []string{"explain", "queueentries.status.position"}, "place among the active pods")
	k.want("", []string{"api-resources"}, "queueentries", "qe", "priorityclasses", "pc")
	k.want("", []string{"create", "priorityclass", ns + "-high", "--value=10"}, "created")
	k.want("", []string{"get", "pc"}, ns+"-high", "PreemptLowerPriority")
	k.refused("", []string{"create", "priorityclass", "much", "--value=1000000001"}, "maximum allowed value of a user defined priority is 1000000000")
	k.want("", []string{"delete", "pc", ns + "-high"}, "deleted")

	bind := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Target: corev1.ObjectReference{Name: node}}
	if err := s.client(t).CoreV1().Pods(ns).Bind(context.Background(), bind, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.want("", []string{"wait", "pod/web", "--for=condition=PodScheduled", "--timeout=10s"}, "condition met")
	k.want("", []string{"logs", "web"}, "log of "+ns+"/web c")
	k.want("", []string{"events"}, "Scheduled", "Successfully assigned")
	k.want("", []string{"get", "events"}, "Scheduled")
	k.want("", []string{"cordon", node}, "cordoned")
	k.want("", []string{"get", "nodes", node}, "SchedulingDisabled")
	k.want("", []string{"uncordon", node}, "uncordoned")
	k.want("", []string{"taint", "node", node, "k=v:NoSchedule"}, "tainted")
	k.want("", []string{"describe", "node", node}, "k=v:NoSchedule", "web")
	k.want("", []string{"delete", "pod", "web", "--grace-period=0", "--force"}, "deleted")
}
