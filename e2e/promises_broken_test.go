package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// happenings writes facts in their order, a second apart each.
type happenings struct{ facts []fact }

func (h *happenings) add(kind, name, owner string, f fact) *happenings {
	if f.uid == "" {
		f.uid = types.UID(name)
	}
	f.kind, f.name, f.owner = kind, name, types.UID(owner)
	f.revision = int64(len(h.facts) + 1)
	f.at = time.Unix(f.revision, 0)
	h.facts = append(h.facts, f)
	return h
}

func (h *happenings) set(kind, name, owner string, s setFact) *happenings {
	return h.add(kind, name, owner, fact{set: s})
}

func (h *happenings) pod(name, owner string, p podFact) *happenings {
	return h.add("Pod", name, owner, fact{pod: p})
}

func (h *happenings) gone(name, owner string) *happenings {
	return h.add("Pod", name, owner, fact{gone: true, pod: podFact{ending: true}})
}

// ready makes pods that become ready one after the other.
func (h *happenings) ready(owner string, from, to int) *happenings {
	for i := from; i < to; i++ {
		name := fmt.Sprintf("%s-%d", owner, i)
		h.pod(name, owner, podFact{}).pod(name, owner, podFact{ready: true})
	}
	return h
}

// What breaks a promise is found, and what does not is let be.
func TestPromises(t *testing.T) {
	deployment := func() *happenings {
		h := new(happenings)
		return h.set("Deployment", "web", "", setFact{replicas: 4, unavailable: 1, surge: 1}).set("ReplicaSet", "old", "web", setFact{replicas: 4}).ready("old", 0, 4)
	}
	set := func() *happenings {
		return new(happenings).set("StatefulSet", "db", "", setFact{replicas: 3})
	}
	job := func() *happenings {
		return new(happenings).set("Job", "work", "", setFact{replicas: 2, completions: 2})
	}
	ending, lost := podFact{ending: true, ready: true}, podFact{ending: true, ready: true, disrupted: true}
	piece := func(index string) podFact { return podFact{index: index} }
	done := func(index string) podFact { return podFact{index: index, phase: corev1.PodSucceeded} }
	for _, tt := range []struct {
		name string
		h    *happenings
		want string // "": nothing
	}{
		{"a rollout as it should be", deployment().set("ReplicaSet", "new", "web", setFact{replicas: 1}).set("ReplicaSet", "old", "web", setFact{replicas: 3}).
			pod("old-0", "old", ending).ready("new", 0, 1), ""},
		{"two end of which one may", deployment().pod("old-0", "old", ending).pod("old-1", "old", ending), "web has 2 ready pods of 4"},
		{"one ends and one is lost", deployment().pod("old-0", "old", ending).pod("old-1", "old", lost), ""},
		{"a node is lost, and one ends", deployment().pod("old-0", "old", podFact{}).pod("old-1", "old", ending), ""},
		{"what was lost is made up for, and then two end", deployment().pod("old-0", "old", lost).ready("old", 4, 5).pod("old-1", "old", ending).pod("old-2", "old", ending), "web has 2 ready"},
		{"too large a surge", deployment().set("ReplicaSet", "new", "web", setFact{replicas: 2}), "ask for 6 pods; it asks for 4, and 1 more"},
		{"a surge for more than there are asked for now", deployment().set("Deployment", "web", "", setFact{replicas: 3, unavailable: 1, surge: 1}).
			set("ReplicaSet", "new", "web", setFact{replicas: 1}), ""},
		{"a pod too many", deployment().pod("old-4", "old", podFact{}), "5th active pod of old, which asks for 4"},
		{"one for one that ends", deployment().pod("old-0", "old", ending).pod("old-4", "old", podFact{}), ""},
		{"back from the dead", deployment().gone("old-0", "old").pod("old-0", "old", podFact{}), "it was gone"},

		{"ordinals in order", set().ready("db", 0, 3).pod("db-2", "db", ending).gone("db-2", "db"), ""},
		{"the second before the first is ready", set().pod("db-0", "db", podFact{}).pod("db-1", "db", podFact{}), "it is made, and pod 0 was never ready"},
		{"the second before the first is there", set().pod("db-1", "db", podFact{}), "before there was a pod 0"},
		{"two end at a time", set().ready("db", 0, 3).pod("db-2", "db", ending).gone("db-2", "db").add("Pod", "db-2", "db", fact{uid: "again"}).pod("db-1", "db", ending), "it is told to end, and pod 2 was never ready"},
		{"one ends just when another is lost", set().ready("db", 0, 3).pod("db-0", "db", podFact{}).pod("db-2", "db", ending), ""},
		{"one ends long after another was lost", set().ready("db", 0, 3).pod("db-0", "db", podFact{}).wait(11).pod("db-2", "db", ending), "pod 0 is not ready since"},

		{"a Job as it should be", job().pod("a", "work", piece("0")).pod("b", "work", piece("1")).pod("a", "work", done("0")).pod("b", "work", done("1")).
			set("Job", "work", "", setFact{replicas: 2, completions: 2, succeeded: 2, indexes: "0,1"}).
			set("Job", "work", "", setFact{replicas: 2, completions: 2, succeeded: 2, indexes: "0,1", complete: true}), ""},
		{"a piece twice at a time", job().pod("a", "work", piece("0")).pod("b", "work", piece("0")), "piece 0 has the pod a"},
		{"a piece of which the pod that ends succeeds", job().pod("a", "work", piece("0")).pod("a", "work", podFact{index: "0", ending: true}).
			pod("a", "work", podFact{index: "0", ending: true, phase: corev1.PodSucceeded}).pod("b", "work", piece("0")), ""},
		{"a piece that is done", job().pod("a", "work", done("0")).pod("b", "work", piece("0")), "piece 0 has succeeded already"},
		{"a piece that failed", job().pod("a", "work", podFact{index: "0", phase: corev1.PodFailed}).pod("b", "work", piece("0")), ""},
		{"too many at a time", job().pod("a", "work", piece("0")).pod("b", "work", piece("1")).pod("c", "work", piece("2")), "3th active pod"},
		{"counted and not done", job().set("Job", "work", "", setFact{replicas: 2, completions: 2, succeeded: 1, indexes: "0"}), "pods of 0 succeeded"},
		{"counted twice", job().pod("a", "work", done("0")).set("Job", "work", "", setFact{replicas: 2, completions: 2, succeeded: 2, indexes: "0"}), `and these: "0"`},
		{"taken back", job().pod("a", "work", done("0")).set("Job", "work", "", setFact{replicas: 2, completions: 2, succeeded: 1, indexes: "0"}).
			set("Job", "work", "", setFact{replicas: 2, completions: 2}), "1 pieces were done, and now 0"},
		{"complete too early", job().set("Job", "work", "", setFact{replicas: 2, completions: 2, complete: true}), "complete with 0 pieces of 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := strings.Join(judge(tt.h.facts).broken, "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("broken is %q, and should be %q", got, tt.want)
			}
		})
	}
}

// wait lets seconds pass in which something else happens.
func (h *happenings) wait(seconds int) *happenings {
	for i := range seconds {
		h.pod(fmt.Sprintf("other-%d", i), "nobody", podFact{})
	}
	return h
}
