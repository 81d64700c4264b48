package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// asked is a state to ask about, with a scheduler for it.
type asked struct {
	*testing.T
	state *fsm.State
	sched *sched.Scheduler
}

const askedAtNano = 1_000_000_000_000

func newAsked(t *testing.T) *asked {
	a := &asked{T: t, state: fsm.NewState()}
	a.sched = sched.New(a.state)
	for _, ns := range []string{"default", "secret"} {
		a.must(&fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, UID: types.UID("ns-" + ns)}}}})
	}
	for _, class := range []struct {
		name  string
		value int32
	}{{"low", 1}, {"high", 100}} {
		a.must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: class.name, UID: types.UID(class.name)}, Value: class.value}}})
	}
	for i, cpu := range []string{"2", "1", "1"} {
		a.must(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1), UID: types.UID(fmt.Sprint(i))},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}}}}})
	}
	return a
}

func (a *asked) must(c fsm.Command) {
	a.Helper()
	if r := a.state.Try(askedAtNano, fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c})[0]; r.Refused() {
		a.Fatalf("%T: %s", c, r.Message)
	}
}

func (a *asked) pod(namespace, name, class, cpu string) {
	a.Helper()
	a.must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler", PriorityClassName: class, Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}}},
	}}})
	for p := a.sched.Step(askedAtNano, 100); p != nil; p = a.sched.Step(askedAtNano, 100) {
		a.must(p.Command)
		a.sched.Settle(p)
	}
}

func (a *asked) ask(namespace, pod string, more ...string) (*ledger.Answer, error) {
	a.Helper()
	values := url.Values{ledger.ParamNamespace: {namespace}, ledger.ParamPod: {pod}}
	for i := 0; i < len(more); i += 2 {
		values.Set(more[i], more[i+1])
	}
	q, err := askedAbout(values)
	if err != nil {
		return nil, err
	}
	q.view, q.mayRead = a.state.View(), func(ns string) bool { return ns == "default" }
	return q.answer()
}

func (a *asked) must1(answer *ledger.Answer, err error) *ledger.Answer {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
	return answer
}

func TestWhy(t *testing.T) {
	a := newAsked(t)
	a.pod("default", "web", "low", "2")
	a.pod("secret", "boss", "high", "2")
	a.pod("default", "huge", "low", "4")

	web := a.must1(a.ask("default", "web"))
	if len(web.Decisions) != 1 || web.Decisions[0].Kind != "Bound" || web.Decisions[0].Node != "n1" || web.Decisions[0].Feasible != 1 {
		t.Errorf("the decision about web: %+v", web.Decisions)
	}
	// PR20: who may not read the preemptor's namespace learns its UID.
	if len(web.Against) != 1 || web.Against[0].Status.Preemptor.Name != "" || web.Against[0].Status.Preemptor.UID != "uid-boss" {
		t.Fatalf("who evicted web: %+v", web.Against)
	}
	if p := web.Against[0]; p.Name != "" || p.Namespace != "" || p.Status.Victims[0].Name != "web" {
		t.Errorf("a record that tells the preemptor's name, or not the victim's: %+v", p)
	}

	huge := a.must1(a.ask("default", "huge", ledger.ParamNodes, "true"))
	if huge.Now == nil || huge.Now.Total != 3 || huge.Now.Fit != 0 || len(huge.Now.Each) != 3 {
		t.Fatalf("the nodes say %+v", huge.Now)
	}
	if len(huge.Now.Refusals) != 1 || huge.Now.Refusals[0].Nodes != 3 || huge.Now.Refusals[0].Reasons[0] != "Insufficient cpu (short 3 to 6)" {
		t.Errorf("together they say %+v", huge.Now.Refusals)
	}
	if d := huge.Decisions; len(d) != 1 || d[0].Kind != "Unschedulable" || d[0].Nodes != 3 || !strings.Contains(d[0].Message, "Insufficient cpu") {
		t.Errorf("decisions about huge: %+v", d)
	}

	// By UID, when the pod is gone.
	zero := int64(0)
	a.must(&fsm.DeletePod{Key: "default/web", GraceSeconds: &zero})
	gone := a.must1(a.ask("default", "uid-web"))
	if gone.Name != "web" || gone.UID != "uid-web" || len(gone.Decisions) != 1 || len(gone.Against) != 1 {
		t.Errorf("by its UID: %+v", gone)
	}
	// At a revision: what counted then, and nothing that came later.
	at := fmt.Sprint(web.Decisions[0].Revision)
	then := a.must1(a.ask("default", "web", ledger.ParamAt, at))
	if len(then.Decisions) != 1 || then.Against != nil || then.Now != nil {
		t.Errorf("at revision %s: %+v", at, then)
	}
	if early := a.must1(a.ask("default", "huge", ledger.ParamAt, at)); len(early.Decisions) != 0 {
		t.Errorf("before huge was there: %+v", early)
	}
}

func TestWhyRefuses(t *testing.T) {
	a := newAsked(t)
	a.pod("default", "web", "low", "2")
	for i := range 40 { // the ledger forgets
		c := &fsm.ApplyPlan{Revision: a.state.View().Revision()}
		for range 1000 {
			c.Bindings = append(c.Bindings, fsm.BindDecision{Key: "default/nobody", UID: fmt.Sprint(i), Node: "n1"})
		}
		a.must(c)
	}
	for _, c := range []struct {
		namespace, pod, at string
		code               int
		text               string
	}{
		{"default", "", "", 0, "both namespace and pod must be given"},
		{"default", "web", "soon", 0, `"soon" is not a revision`},
		{"default", "web", "1", http.StatusGone, "the ledger reaches back to revision"},
		{"default", "web", "999999", http.StatusBadRequest, "revision 999999 has not come yet"},
		{"default", "other", "", http.StatusNotFound, "there is no pod other in namespace default"},
		{"secret", "boss", "", http.StatusForbidden, "you may not read the pods of namespace secret"},
	} {
		_, err := a.ask(c.namespace, c.pod, ledger.ParamAt, c.at)
		if err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		var u *unanswered
		if errors.As(err, &u) && u.code != c.code || !errors.As(err, &u) && c.code != 0 {
			t.Errorf("%+v: answered with %v", c, err)
		}
	}
}
