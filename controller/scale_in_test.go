package controller_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// scaleIn COUNT [SET] shows which pods of a ReplicaSet go, in their order, and
// why. The input makes pods, one a line, of the set or of the one that is named:
//
//	NAME [node=N] [Pending|Unknown|Running] [ready=AGE] [cost=N] [restarts=N] [sidecar=N] [age=AGE] [uid=U] [set=NAME]
func (w *world) scaleIn(a args, input string) string {
	count, err := strconv.Atoi(a.name(0))
	if err != nil {
		w.t.Fatal(err)
	}
	set := "web"
	if len(a) > 1 {
		set = a.name(1)
	}
	for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
		if line != "" {
			w.member(set, strings.Fields(line))
		}
	}
	rs, ok := w.state.View().ReplicaSet("default", set)
	if !ok {
		w.t.Fatalf("no ReplicaSet %s", set)
	}
	return describeVictims(controller.ScaleIn(w.state.View(), rs, count, w.now.UnixNano()))
}

func describeVictims(victims []controller.Victim) string {
	var out []string
	for _, v := range victims {
		line := fmt.Sprintf("%s %s: %s", strings.TrimPrefix(v.Key, "default/"), v.Rule, v.Rule.Explanation())
		if v.Detail != "" {
			line += " (" + v.Detail + ")"
		}
		if v.Rule == "" {
			line = strings.TrimPrefix(v.Key, "default/")
		}
		out = append(out, line)
	}
	return orNothing(out)
}

// member makes one pod of a ReplicaSet, as it is described.
func (w *world) member(set string, words []string) {
	w.t.Helper()
	name := words[0]
	get := func(key, otherwise string) string {
		for _, word := range words[1:] {
			if v, ok := strings.CutPrefix(word, key+"="); ok {
				return v
			}
		}
		return otherwise
	}
	ago := func(text string) metav1.Time {
		d, err := time.ParseDuration(text)
		if err != nil {
			w.t.Fatal(err)
		}
		return metav1.NewTime(w.now.Add(-d))
	}
	number := func(key string) int32 {
		n, err := strconv.Atoi(get(key, "0"))
		if err != nil {
			w.t.Fatal(err)
		}
		return int32(n)
	}
	rs, ok := w.state.View().ReplicaSet("default", get("set", set))
	if !ok {
		w.t.Fatalf("no ReplicaSet %s", get("set", set))
	}
	yes, always := true, corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(get("uid", "uid-"+name)), CreationTimestamp: ago(get("age", "1h")),
			Labels:          rs.Spec.Selector.MatchLabels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: rs.Name, UID: rs.UID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{
			NodeName:       get("node", ""),
			Containers:     []corev1.Container{{Name: "main", Image: "none"}},
			InitContainers: []corev1.Container{{Name: "side", Image: "none", RestartPolicy: &always}},
		},
	}
	pod.Spec.TopologySpreadConstraints = rs.Spec.Template.Spec.TopologySpreadConstraints
	if cost := get("cost", ""); cost != "" {
		pod.Annotations = map[string]string{corev1.PodDeletionCost: cost}
	}
	status := &corev1.PodStatus{Phase: corev1.PodRunning,
		ContainerStatuses:     []corev1.ContainerStatus{{Name: "main", RestartCount: number("restarts")}},
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "side", RestartCount: number("sidecar")}},
	}
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodUnknown, corev1.PodFailed} {
		if strings.Contains(" "+strings.Join(words, " ")+" ", " "+string(phase)+" ") {
			status.Phase = phase
		}
	}
	if since := get("ready", ""); since != "" {
		status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(since)}}
		if since == "0s" { // the time is not known
			status.Conditions[0].LastTransitionTime = metav1.Time{}
		}
	}
	if answer := w.apply(&fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}}); answer != "ok" {
		w.t.Fatal(answer)
	}
	// Written, not reported: since when it is ready would be the state's time.
	placed, _ := w.state.View().Pods.Get(fsm.PodKey("default", name))
	placed = placed.DeepCopy()
	status.Conditions = append(status.Conditions, placed.Status.Conditions...)
	placed.Status = *status
	if answer := w.apply(&fsm.UpdatePod{Pod: fsm.PodWire{Object: placed}}); answer != "ok" {
		w.t.Fatal(answer)
	}
}

// ruleWords make two pods that one rule alone tells apart: what the first has,
// and what the second has.
var ruleWords = []struct{ rule, first, second string }{
	{"SI1", "", "node=n1"},
	{"SI2", "Pending", "Running"},
	{"SI2", "Unknown", "Running"},
	{"SI3", "", "ready=1h"},
	{"SI4", "cost=-1", "cost=1"},
	{"SI5", "node=n2", "node=n1"},
	{"SI6", "ready=1m", "ready=10h"},
	{"SI6+SI9", "ready=100s uid=a", "ready=90s uid=b"},
	{"SI7", "restarts=2", "restarts=1"},
	{"SI7", "sidecar=2", "sidecar=1"},
	{"SI8", "age=1m", "age=10h"},
	{"SI8+SI9", "age=100s uid=a", "age=90s uid=b"},
	{"SI9", "uid=a", "uid=b"},
}

// pairs lets every two rules that can speak of the same pair of pods disagree,
// and shows which one decides.
func (w *world) pairs() string {
	var out []string
	for i, strong := range ruleWords {
		for _, weak := range ruleWords[i+1:] {
			first, second, ok := disagree(strong.first, strong.second, weak.first, weak.second)
			if !ok {
				continue
			}
			fresh := newWorld(w.t)
			fresh.run("rs", args{{Key: "web"}, {Key: "replicas", Vals: []string{"1"}}})
			// More of them on n2 than on n1, old, settled and dear.
			for n, node := range []string{"n2", "n2", "n2", "n1"} {
				fresh.member("web", strings.Fields(fmt.Sprintf("z%d node=%s Running ready=1000h age=1000h cost=100", n, node)))
			}
			// Names are the other way round, so that they help nobody.
			fresh.member("web", append([]string{"b"}, first...))
			fresh.member("web", append([]string{"a"}, second...))
			rs, _ := fresh.state.View().ReplicaSet("default", "web")
			rs = rs.DeepCopy()
			v := controller.ScaleIn(fresh.state.View(), rs, 1, fresh.now.UnixNano())[0]
			answer := fmt.Sprintf("%-8s against %-8s %-62s %s goes", strong.rule, weak.rule, strings.Join(first, " ")+" | "+strings.Join(second, " "), map[string]string{"default/b": "left", "default/a": "right"}[v.Key])
			if against := fresh.decides(rs); against != "" {
				answer += " by " + against
			}
			out = append(out, answer)
		}
	}
	return strings.Join(out, "\n")
}

// decides is the rule between the two pods, alone with those that stay.
func (w *world) decides(rs *appsv1.ReplicaSet) string {
	between := controller.Between(w.state.View(), rs, "default/b", "default/a", w.now.UnixNano())
	return string(between)
}

// disagree joins what the strong rule says of two pods with the contrary of
// what the weak one says. A word that both have cannot be had twice.
func disagree(strongFirst, strongSecond, weakFirst, weakSecond string) (first, second []string, ok bool) {
	join := func(a, b string) ([]string, bool) {
		words, seen := strings.Fields(a), map[string]bool{}
		for _, x := range words {
			key, _, _ := strings.Cut(x, "=")
			seen[phaseWord(key)] = true
		}
		for _, x := range strings.Fields(b) {
			key, _, _ := strings.Cut(x, "=")
			if seen[phaseWord(key)] {
				return nil, false
			}
			words = append(words, x)
		}
		return words, true
	}
	first, okFirst := join(strongFirst, weakSecond)
	second, okSecond := join(strongSecond, weakFirst)
	return first, second, okFirst && okSecond
}

func phaseWord(key string) string {
	switch key {
	case "Pending", "Unknown", "Running":
		return "phase"
	}
	return key
}
