package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The verbs of the history.
const (
	verbGet    = "get"
	verbCreate = "create"
	verbUpdate = "update"
	verbDelete = "delete"
	verbBind   = "bind"
)

// How they end.
const (
	done     = "done"
	absent   = "absent"     // 404
	exists   = "exists"     // 409 on create
	conflict = "conflict"   // 409: another resourceVersion, another UID, or bound already
	unknown  = "unknown"    // maybe
	wrong    = " refused: " // as it must not be; what is between is not known
)

// input is what a client asks of the pod of one key.
type input struct {
	verb, key string
	value     string // of create and update: the label that is written
	version   string // of update: the resourceVersion that it stands on
	uid       string // of delete and bind: the pod that is meant
	node      string // of bind
}

// output is the answer.
type output struct {
	result string
	pod    podState
}

// podState is a pod as clients see it, and the model's state of one key.
type podState struct {
	there                     bool
	uid, version, value, node string
}

// history is what all clients did, by the clock of this process.
type history struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
	count map[string]int
}

func (h *history) record(client int, in input, ask func() output) output {
	call := time.Since(h.began).Nanoseconds()
	out := ask()
	back := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: back})
	h.count[in.verb+" "+out.result]++
	return out
}

// settle lets what nobody knows the end of end after everything: it may have
// happened at any time since, or never.
func (h *history) settle() []porcupine.Operation {
	end := time.Since(h.began).Nanoseconds()
	var out []porcupine.Operation
	for _, op := range h.ops {
		if out := op.Output.(output).result; out == unknown || strings.Contains(out, wrong) {
			op.Output = output{result: unknown}
			if op.Input.(input).verb == verbGet {
				continue // it changed nothing and showed nothing
			}
			op.Return = end
		}
		out = append(out, op)
	}
	return out
}

// epoch moves the keys on, so that no key's history gets long.
func (h *history) epoch() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops) / opsPerEpoch
}

// model is one pod, key by key: what each answer says must be true at one
// moment between question and answer.
var model = porcupine.NondeterministicModel{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range ops {
			k := op.Input.(input).key
			byKey[k] = append(byKey[k], op)
		}
		var out [][]porcupine.Operation
		for _, one := range byKey {
			out = append(out, one)
		}
		return out
	},
	Init: func() []any { return []any{podState{}} },
	Step: func(state, in, out any) []any {
		s, i, o := state.(podState), in.(input), out.(output)
		if o.result == unknown {
			return maybe(s, i)
		}
		if next, ok := known(s, i, o); ok {
			return []any{next}
		}
		return nil
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
}

// anyValue stands for a version or a UID that no answer has told. It is learnt
// from the first answer that shows it.
const anyValue = "?"

// settled is a pod as it stays until a client does something. Of a bound one the
// worker reports the status, which gives it other versions.
func settled(p podState) podState {
	if p.node != "" {
		p.version = anyValue
	}
	return p
}

func same2(a, b string) bool { return a == b || a == anyValue || b == anyValue }

// matches compares a pod that was shown with what the model has.
func matches(s, shown podState) bool {
	return s.there && same2(s.uid, shown.uid) && same2(s.version, shown.version) && s.value == shown.value && s.node == shown.node
}

// known is the state after an answer, if the answer can be true.
func known(s podState, i input, o output) (podState, bool) {
	switch i.verb + " " + o.result {
	case "get done":
		return settled(o.pod), matches(s, o.pod)
	case "create done":
		return o.pod, !s.there && o.pod.value == i.value && o.pod.node == ""
	case "create exists":
		return s, s.there
	case "update done":
		ok := s.there && same2(s.version, i.version) && same2(s.uid, o.pod.uid) && o.pod.value == i.value && o.pod.node == s.node
		return settled(o.pod), ok
	case "update conflict":
		return s, s.there && s.version != i.version
	case "delete done":
		return podState{}, s.there && same2(s.uid, i.uid)
	case "delete conflict":
		return s, s.there && s.uid != i.uid
	case "bind done":
		next := s
		next.node, next.version = i.node, anyValue
		return next, s.there && s.node == "" && same2(s.uid, i.uid)
	case "bind conflict":
		return s, s.there && (s.node != "" || s.uid != i.uid)
	case "get absent", "update absent", "delete absent", "bind absent":
		return s, !s.there
	}
	return s, false
}

// maybe is every state after a request whose end is not known.
func maybe(s podState, i input) []any {
	out := []any{s}
	next := s
	switch i.verb {
	case verbCreate:
		if !s.there {
			out = append(out, podState{there: true, uid: anyValue, version: anyValue, value: i.value})
		}
	case verbUpdate:
		if s.there && same2(s.version, i.version) {
			next.value, next.version = i.value, anyValue
			out = append(out, next)
		}
	case verbDelete:
		if s.there && same2(s.uid, i.uid) {
			out = append(out, podState{})
		}
	case verbBind:
		if s.there && s.node == "" && same2(s.uid, i.uid) {
			next.node, next.version, next.uid = i.node, anyValue, i.uid
			out = append(out, next)
		}
	}
	return out
}

const (
	linearKeys    = 3
	linearClients = 5
	opsPerEpoch   = 150
	leaderChanges = 4
)

// Clients of all servers create, update, bind, delete and read a few pods while
// leaders hand over and die. There is one order of everything that explains
// every answer.
func TestLinearizable(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "linear")
	h := &history{began: time.Now(), count: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	for i := range linearClients {
		p := &prober{h: h, id: i, ns: ns, kube: c.balanced(t, i%3, nil), random: rand.New(rand.NewPCG(7, uint64(i))), seen: map[string]podState{}}
		clients.Go(func() {
			for ctx.Err() == nil {
				p.step(t.Context())
			}
		})
	}
	c.changeLeaders(t, h)
	stop()
	clients.Wait()
	ops := h.settle()
	result, info := porcupine.CheckOperationsVerbose(model.ToModel(), ops, 60*time.Second)
	t.Logf("%d operations in %s: %v", len(ops), time.Since(h.began).Round(time.Second), h.count)
	if result != porcupine.Ok {
		file := t.ArtifactDir() + "/linear.html"
		if err := porcupine.VisualizePath(model.ToModel(), info, file); err != nil {
			t.Log(err)
		}
		t.Fatalf("the history is not linearizable (%s); see %s", result, file)
	}
	for what := range h.count {
		if strings.Contains(what, wrong) {
			t.Errorf("no answer that there should be: %s", what)
		}
	}
	for _, want := range []string{"create done", "update done", "bind done", "delete done", "update conflict", "bind conflict"} {
		if h.count[want] == 0 {
			t.Errorf("the history has no %q: it shows little", want)
		}
	}
	c.verify(t, 3)
}

// changeLeaders lets leaders die and hand over, and the clients do something
// under each.
func (c *cluster) changeLeaders(t *testing.T, h *history) {
	for i := range leaderChanges {
		leader := c.waitLeader(t)
		if i%2 == 0 {
			leader.Kill()
			c.waitLeader(t)
			c.restart(t, leader)
		} else {
			has(t, "transfer-leader", c.berth(t, "operator", "transfer-leader"), "leadership went from "+leader.Name)
		}
		from := h.epoch()
		c.eventually(t, "the clients to go on", func(context.Context) error {
			if n := h.epoch(); n < from+2 {
				return fmt.Errorf("%d epochs were done", n-from)
			}
			return nil
		})
	}
}

// prober is one client. It remembers what it saw last of each pod, and stands on
// that, be it stale.
type prober struct {
	h      *history
	id     int
	ns     string
	kube   kubernetes.Interface
	random *rand.Rand
	seen   map[string]podState
	n      int
}

func (p *prober) step(ctx context.Context) {
	k := fmt.Sprintf("p-%d-%d", p.h.epoch(), p.random.IntN(linearKeys))
	p.n++
	last := p.seen[k]
	in := input{key: k, value: fmt.Sprintf("v%d-%d", p.id, p.n)}
	in.verb = []string{verbGet, verbCreate, verbCreate, verbUpdate, verbUpdate, verbBind, verbBind, verbDelete}[p.random.IntN(8)]
	if !last.there && slices.Contains([]string{verbUpdate, verbDelete, verbBind}, in.verb) {
		in.verb = verbGet // it knows of no pod to stand on
	}
	switch in.verb {
	case verbUpdate:
		in.version = last.version
	case verbDelete:
		in.uid = last.uid
	case verbBind:
		in.uid, in.node = last.uid, "pretender"
	}
	if in.verb == verbGet || in.verb == verbDelete || in.verb == verbBind {
		in.value = ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out := p.h.record(p.id, in, func() output { return p.ask(ctx, in) })
	switch {
	case out.pod.there:
		p.seen[k] = out.pod
	case out.result == absent || in.verb == verbDelete && out.result == done:
		p.seen[k] = podState{}
	}
}

func (p *prober) ask(ctx context.Context, in input) output {
	pods := p.kube.CoreV1().Pods(p.ns)
	var got *corev1.Pod
	var err error
	switch in.verb {
	case verbGet:
		got, err = pods.Get(ctx, in.key, metav1.GetOptions{})
	case verbCreate:
		// A scheduler that is not there leaves binding to the clients, and a
		// grace of nothing lets a pod go at once.
		made := pod(p.ns, in.key, "exec sleep 1000", func(p *corev1.Pod) {
			p.Labels, p.Spec.SchedulerName = map[string]string{"value": in.value}, "nobody"
			p.Spec.TerminationGracePeriodSeconds = new(int64)
		})
		got, err = pods.Create(ctx, made, metav1.CreateOptions{})
	case verbUpdate:
		// A label alone; as a patch, since it has the preconditions with it.
		patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{"value":%q}}}`, in.version, in.value)
		got, err = pods.Patch(ctx, in.key, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	case verbDelete:
		now := int64(0)
		err = pods.Delete(ctx, in.key, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(in.uid)})
	case verbBind:
		binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: in.key, Namespace: p.ns, UID: types.UID(in.uid)}, Target: corev1.ObjectReference{Kind: "Node", Name: in.node}}
		err = pods.Bind(ctx, binding, metav1.CreateOptions{})
	}
	out := output{result: outcome(in.verb, err)}
	if err == nil && got != nil && got.Name != "" {
		out.pod = podState{there: true, uid: string(got.UID), version: got.ResourceVersion, value: got.Labels["value"], node: got.Spec.NodeName}
	}
	return out
}

func outcome(verb string, err error) string {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return done
	case !errors.As(err, &status), transient(err):
		return unknown // 503 and 429 say that nothing was done; that is not relied on
	case apierrors.IsNotFound(err):
		return absent
	case apierrors.IsAlreadyExists(err):
		return exists
	case apierrors.IsConflict(err):
		return conflict
	}
	return verb + wrong + err.Error()
}
