package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// TestTheTableOfWhatWorkersSay: what docs/limits.md says of a worker's words is so at
// the door that they come in by: as much as a row says is taken, and more is cut, left
// out, refused or made to wait, and told.
func TestTheTableOfWhatWorkersSay(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	d := &door{Server: s}
	docs.Hold(t, "../docs/limits.md", "## What a worker says", map[string]func(*testing.T, docs.Row){
		"the status of one pod": d.podStatusBytes,
		"tokens of its pods": func(t *testing.T, r docs.Row) {
			numbers := r.Numbers(t, 2)
			s := newShares()
			of := s.get("w")
			if int64(of.tokens.Limit()) != numbers[0] || int64(of.tokens.Burst()) != numbers[1] {
				t.Errorf("%v tokens a second, %d at once", of.tokens.Limit(), of.tokens.Burst())
			}
			of.tokens.AllowN(time.Now(), int(numbers[1]))
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.waitToken(ended, "w"); !errors.Is(err, rpc.ErrBusy) {
				t.Errorf("one more does not wait: %v", err)
			}
		},
		"a text in a status": func(t *testing.T, r docs.Row) {
			n := int(r.Numbers(t, 1)[0])
			for _, text := range []string{strings.Repeat("x", n), strings.Repeat("x", n+1), "\xff"} {
				said := &corev1.PodStatus{Message: text}
				told := takes(t, said)
				if honest := len(text) == n; (told == "") != honest || honest != (said.Message == text) || len(said.Message) > n {
					t.Errorf("a text of %d bytes became one of %d, and %q is told", len(text), len(said.Message), told)
				}
			}
		},
		"a list in a status; keys of a map": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 2)
			for more := range 2 {
				many := &corev1.PodStatus{PodIPs: make([]corev1.PodIP, int(n[0])+more)}
				if told := takes(t, many); (told == "") != (more == 0) || len(many.PodIPs) != int(n[0]) {
					t.Errorf("a list of %d became one of %d, and %q is told", int(n[0])+more, len(many.PodIPs), told)
				}
				list := corev1.ResourceList{}
				for i := range int(n[1]) + more {
					list[corev1.ResourceName(fmt.Sprintf("r%d", i))] = resource.MustParse("1")
				}
				keys := &corev1.PodStatus{AllocatedResources: list}
				told := takes(t, keys)
				if left := len(keys.AllocatedResources); (told == "") != (more == 0) || (left == 0) != (more == 1) {
					t.Errorf("of %d keys %d are left, and %q is told", int(n[1])+more, left, told)
				}
			}
		},
		"statuses of containers": func(t *testing.T, r docs.Row) {
			least := r.Numbers(t, 1)[0]
			said := &corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", RestartCount: int32(least)}}}
			if told := takes(t, said); told != "" {
				t.Error(told)
			}
			said.ContainerStatuses[0].RestartCount--
			said.ContainerStatuses = append(said.ContainerStatuses, corev1.ContainerStatus{Name: "main"}, corev1.ContainerStatus{Name: "other"})
			told := takes(t, said)
			if len(said.ContainerStatuses) != 1 || int64(said.ContainerStatuses[0].RestartCount) != least || strings.Count(told, "containerStatuses") != 3 {
				t.Errorf("%q: %v", told, said.ContainerStatuses)
			}
		},
		"conditions of a pod": func(t *testing.T, _ docs.Row) {
			said := &corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
			if told := takes(t, said); told != "" {
				t.Error(told)
			}
			said.Conditions = append(said.Conditions, corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionTrue})
			if told := takes(t, said); len(said.Conditions) != 1 || !strings.Contains(told, "example.com/gate") {
				t.Errorf("%q: %v", told, said.Conditions)
			}
		},
		"times": func(t *testing.T, r docs.Row) {
			first := time.Date(int(r.Numbers(t, 1)[0]), 1, 1, 0, 0, 0, 0, time.UTC)
			last := heardAt.Add(time.Hour) // "an hour ahead"
			for _, at := range []time.Time{first, last} {
				stays := metav1.NewTime(at)
				if told := takes(t, &corev1.PodStatus{StartTime: &stays}); told != "" || !stays.Time.Equal(at) {
					t.Errorf("%s became %s, and %q is told", at, stays, told)
				}
			}
			for _, at := range []time.Time{first.Add(-time.Second), last.Add(time.Second)} {
				gone := metav1.NewTime(at)
				if told := takes(t, &corev1.PodStatus{StartTime: &gone}); !strings.Contains(told, "StartTime") || !gone.Time.Equal(heardAt) {
					t.Errorf("%s became %s, and %q is told", at, gone, told)
				}
			}
		},
		"labels, annotations, conditions, resources of its node, with those that it has": d.nodeCounts,
		"taints, and addresses, of its node":                                             d.nodeLists,
		"an annotation or a condition of its node":                                       d.nodeTexts,
		"its node; images of it":                                                         d.nodeBytes,
		"an event":                                                                       d.events,
		"what goes into the log":                                                         bytesOfTheLog,
		"objects that it asks for, refused ones too": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 3)
			s, ask := newShares(), &rpc.FetchRequest{Node: "w"}
			of := s.get("w")
			if int64(of.fetches.Limit()) != n[0] || int64(of.fetches.Burst()) != n[1] {
				t.Errorf("%v questions a second, %d at once", of.fetches.Limit(), of.fetches.Burst())
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			var leave func()
			for range n[2] {
				var err error
				if leave, err = s.waitFetch(t.Context(), ask); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := s.waitFetch(ended, ask); !errors.Is(err, rpc.ErrBusy) {
				t.Errorf("one more at a time does not wait: %v", err)
			}
			leave()
			if _, err := s.waitFetch(t.Context(), ask); err != nil {
				t.Errorf("one that is answered makes no room: %v", err)
			}
			of = s.get("asks much")
			of.fetches.AllowN(time.Now(), int(n[1]))
			if _, err := s.waitFetch(ended, &rpc.FetchRequest{Node: "asks much"}); !errors.Is(err, rpc.ErrBusy) || len(of.fetching) != 0 {
				t.Errorf("one more a second does not wait: %v; %d are being answered", err, len(of.fetching))
			}
			if _, err := s.waitFetch(t.Context(), &rpc.FetchRequest{Node: "w2", Name: strings.Repeat("x", maxAskedBytes+1)}); !errors.Is(err, rpc.ErrInvalid) {
				t.Errorf("a long name: %v", err)
			}
			// Whoever is refused has asked all the same.
			left := d.shares.get("refused").fetches.Tokens()
			for range 100 {
				if _, err := d.WorkerFetch(t.Context(), &rpc.FetchRequest{Node: "refused", Resource: "secrets", Namespace: "default", Name: "x"}); !errors.Is(err, rpc.ErrForbidden) {
					t.Fatal(err)
				}
			}
			if d.shares.get("refused").fetches.Tokens() >= left {
				t.Error("a question that is refused is for nothing")
			}
		},
		"bytes of them": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 2)
			s := newShares()
			of := s.get("w")
			if int64(of.fetched.Limit()) != n[0] || int64(of.fetched.Burst()) != n[1] {
				t.Errorf("%v bytes a second, %d at once", of.fetched.Limit(), of.fetched.Burst())
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.waitFetched(t.Context(), "w", int(n[1])); err != nil {
				t.Errorf("as much as may be at once: %v", err)
			}
			if err := s.waitFetched(ended, "w", int(n[1])); !errors.Is(err, rpc.ErrBusy) {
				t.Errorf("as much again does not wait: %v", err)
			}
		},
		"reports at once": func(t *testing.T, r docs.Row) {
			n := r.Numbers(t, 1)[0]
			for more, refused := range []bool{false, true} {
				if err := newShares().waitBytes(t.Context(), "w", &rpc.StatusBatch{Pods: make([]rpc.PodReport, int(n)+more)}); errors.Is(err, rpc.ErrInvalid) != refused {
					t.Errorf("%d reports: %v", int(n)+more, err)
				}
			}
		},
		"what its node uses": d.samples,
	})
}

// takes makes a status one that a worker may say, and returns what is told of it.
func takes(t *testing.T, s *corev1.PodStatus) string {
	t.Helper()
	h := heard{now: heardAt}
	if err := h.podStatus(heardPod(), s); err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// door is a server that workers talk to.
type door struct {
	*Server
	nodes int
}

func (d *door) podStatusBytes(t *testing.T, r docs.Row) {
	n := int(r.Numbers(t, 1)[0])
	for more, taken := range map[int]bool{0: true, 1: false} {
		said := rpc.PodReport{Namespace: "default", Name: "p", UID: "uid", Status: statusOf(t, n+more)}
		if report, ok := d.reportedPod(nil, "any", &said); ok != taken || taken != (report.Status.Object != nil) {
			t.Errorf("a status of %d bytes: want it taken: %t", n+more, taken)
		}
		// That the pod has left its node for good is heard all the same.
		said.Removed = true
		if report, ok := d.reportedPod(nil, "any", &said); !ok || !report.Removed || taken != (report.Status.Object != nil) {
			t.Errorf("the end of a pod with a status of %d bytes: %t, %+v", n+more, ok, report)
		}
	}
}

// statusOf is a status of so many bytes.
func statusOf(t *testing.T, n int) []byte {
	t.Helper()
	s := &corev1.PodStatus{}
	s.Message = strings.Repeat("x", n-s.Size()-2) // the length of a longer text has two bytes more
	raw, err := s.Marshal()
	if err != nil || len(raw) != n {
		t.Fatalf("%d bytes, want %d: %v", len(raw), n, err)
	}
	return raw
}

// hello registers a node of a new name.
func (d *door) hello(t *testing.T, give func(n *corev1.Node)) (*corev1.Node, error) {
	t.Helper()
	d.nodes++
	n := workerNode(fmt.Sprintf("w%d", d.nodes))
	n.Status.Conditions = nil
	give(n)
	raw, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	err = d.WorkerHello(t.Context(), &rpc.Hello{Name: n.Name, Node: raw})
	registered, _ := d.View().Nodes.Get(n.Name)
	return registered, err
}

func numbered(format string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, i)
	}
	return out
}

// nodeField gives a node so many of what is bounded.
type nodeField struct {
	name string
	give func(n *corev1.Node, many int)
}

// refusesMore registers nodes with as many as may be, and with one more.
func (d *door) refusesMore(t *testing.T, field nodeField, bound int) {
	t.Helper()
	if _, err := d.hello(t, func(n *corev1.Node) { field.give(n, bound) }); err != nil {
		t.Errorf("%s: %d: %v", field.name, bound, err)
	}
	told := fmt.Sprintf("%s would have %d entries, and may have %d", field.name, bound+1, bound)
	_, err := d.hello(t, func(n *corev1.Node) { field.give(n, bound+1) })
	if !errors.Is(err, rpc.ErrInvalid) || !strings.Contains(err.Error(), told) {
		t.Errorf("%s: %d: %v", field.name, bound+1, err)
	}
}

func (d *door) nodeCounts(t *testing.T, r docs.Row) {
	text := func(n int) map[string]string {
		out := map[string]string{}
		for _, key := range numbered("example.com/k%d", n) {
			out[key] = "v"
		}
		return out
	}
	amounts := func(n int) corev1.ResourceList {
		out := corev1.ResourceList{}
		for _, name := range numbered("example.com/r%d", n) {
			out[corev1.ResourceName(name)] = resource.MustParse("1")
		}
		return out
	}
	bounds := r.Numbers(t, 4)
	for i, f := range []nodeField{
		{"metadata.labels", func(n *corev1.Node, many int) { n.Labels = text(many) }},
		{"metadata.annotations", func(n *corev1.Node, many int) { n.Annotations = text(many) }},
		{"status.conditions", func(n *corev1.Node, many int) { n.Status.Conditions = conditions(many) }},
		{"status.capacity", func(n *corev1.Node, many int) { n.Status.Capacity = amounts(many) }},
		{"status.allocatable", func(n *corev1.Node, many int) { n.Status.Allocatable = amounts(many) }},
	} {
		d.refusesMore(t, f, int(bounds[min(i, 3)]))
	}
}

// conditions are so many, of which one is that the node is ready, which every node has.
func conditions(n int) []corev1.NodeCondition {
	out := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	for _, name := range numbered("C%d", n-1) {
		out = append(out, corev1.NodeCondition{Type: corev1.NodeConditionType(name), Status: corev1.ConditionTrue})
	}
	return out
}

func (d *door) nodeLists(t *testing.T, r docs.Row) {
	bound := int(r.Numbers(t, 1)[0])
	d.refusesMore(t, nodeField{"spec.taints", func(n *corev1.Node, many int) {
		for _, key := range numbered("example.com/t%d", many) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}}, bound)
	d.refusesMore(t, nodeField{"status.addresses", func(n *corev1.Node, many int) {
		n.Status.Addresses = make([]corev1.NodeAddress, many)
	}}, bound)
}

func (d *door) nodeTexts(t *testing.T, r docs.Row) {
	bound := int(r.Numbers(t, 1)[0])
	for more, told := range []string{"", fmt.Sprintf("has %d bytes, and may have %d", bound+1, bound)} {
		_, annotation := d.hello(t, func(n *corev1.Node) {
			n.Annotations = map[string]string{"example.com/long": strings.Repeat("x", bound+more)}
		})
		_, condition := d.hello(t, func(n *corev1.Node) {
			n.Status.Conditions = conditions(2)
			c := &n.Status.Conditions[1]
			c.Message = strings.Repeat("x", bound-c.Size()-100)
			c.Message += strings.Repeat("x", bound+more-c.Size())
		})
		for name, err := range map[string]error{"metadata.annotations[example.com/long]": annotation, "status.conditions[1]": condition} {
			if (err == nil) != (told == "") || err != nil && !strings.Contains(err.Error(), name+" "+told) {
				t.Errorf("%s of %d bytes: %v", name, bound+more, err)
			}
		}
	}
}

func (d *door) nodeBytes(t *testing.T, r docs.Row) {
	bounds := r.Numbers(t, 3)
	said, inAll, images := int(bounds[0]), int(bounds[1]), int(bounds[2])
	var last *corev1.Node
	for more, taken := range []bool{true, false} {
		n, err := d.hello(t, func(n *corev1.Node) {
			for _, name := range numbered("example.com/image-%d", images) {
				n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}})
			}
			name := &n.Status.Images[0].Names[0]
			*name = strings.Repeat("x", said-n.Size()-100)
			*name += strings.Repeat("x", said+more-n.Size())
		})
		if (err == nil) != taken || !taken && !strings.Contains(err.Error(), fmt.Sprintf("the node has %d bytes, and may have %d", said+1, said)) {
			t.Errorf("a node of %d bytes: %v", said+more, err)
		}
		if taken {
			last = n
		}
	}
	if last == nil || len(last.Status.Images) != images {
		t.Fatalf("of %d images not all are kept", images)
	}
	n, err := d.hello(t, func(n *corev1.Node) { n.Status.Images = make([]corev1.ContainerImage, images+1) })
	if err != nil || len(n.Status.Images) != images {
		t.Errorf("of %d images more are kept: %v", images+1, err)
	}
	// What others wrote counts too: it is the node that is there that must not grow.
	big := last.DeepCopy()
	big.Annotations = map[string]string{"example.com/others": strings.Repeat("x", inAll-big.Size())}
	if r, err := d.proposeOne(t.Context(), &fsm.PutNode{Node: fsm.NodeWire{Object: big}}); err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	again := workerNode(last.Name)
	again.Status.Images = append(last.DeepCopy().Status.Images, corev1.ContainerImage{})[:images]
	again.Annotations = map[string]string{"example.com/mine": "x"}
	raw, err := again.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	err = d.WorkerHello(t.Context(), &rpc.Hello{Name: last.Name, Node: raw})
	if !errors.Is(err, rpc.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(inAll)) {
		t.Errorf("a node of more than %d bytes grows: %v", inAll, err)
	}
}

func (d *door) events(t *testing.T, r docs.Row) {
	numbers := r.Numbers(t, 3)
	n, err := d.hello(t, func(*corev1.Node) {})
	if err != nil {
		t.Fatal(err)
	}
	about := corev1.ObjectReference{Kind: "Node", Name: n.Name}
	sized := func(to int) []byte {
		return eventOf(t, about, func(e *corev1.Event) {
			e.Message = strings.Repeat("x", to-e.Size()-100)
			e.Message += strings.Repeat("x", to-e.Size())
		})
	}
	for more, taken := range map[int]bool{0: true, 1: false} {
		raw := sized(int(numbers[0]) + more)
		if (workerEvent(d.View(), n.Name, raw, time.Now()) != nil) != taken {
			t.Errorf("an event of %d bytes: want it taken: %t", len(raw), taken)
		}
	}
	of := newShares().get("w")
	if int64(of.events.Limit()) != numbers[1] || int64(of.events.Burst()) != numbers[2] {
		t.Errorf("%v events a second, %d at once", of.events.Limit(), of.events.Burst())
	}
}

func bytesOfTheLog(t *testing.T, r docs.Row) {
	numbers := r.Numbers(t, 2)
	s := newShares()
	of := s.get("w")
	if int64(of.bytes.Limit()) != numbers[0] || int64(of.bytes.Burst()) != numbers[1] {
		t.Errorf("%v bytes a second, %d at once", of.bytes.Limit(), of.bytes.Burst())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.waitBytes(t.Context(), "w", &rpc.StatusBatch{NodeStatus: make([]byte, numbers[1])}); err != nil {
		t.Errorf("as much as may be at once: %v", err)
	}
	if err := s.waitBytes(ended, "w", &rpc.StatusBatch{NodeStatus: make([]byte, numbers[1])}); !errors.Is(err, rpc.ErrBusy) {
		t.Errorf("as much again does not wait: %v", err)
	}
}
