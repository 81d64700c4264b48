package controller_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// zoned makes a node in a zone, or in none.
func (w *world) zoned(name, zone string) string {
	n := w.node(args{{Key: name}})
	n.Labels = map[string]string{corev1.LabelHostname: name}
	if zone != "" {
		n.Labels[corev1.LabelTopologyZone] = zone
	}
	return w.apply(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: n}})
}

// spreadSet makes a ReplicaSet whose pods are to be spread: zone:SKEW,
// host:SKEW, each with :soft or :minN.
func (w *world) spreadSet(name string, constraints []string) string {
	labels := map[string]string{"app": name}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1,
			Annotations: map[string]string{controller.ScaleInAnnotation: controller.ScaleInSpread}},
		Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
	}
	rs.Spec.Template.Labels = labels
	for _, text := range constraints {
		parts := strings.Split(text, ":")
		skew, err := strconv.Atoi(parts[1])
		if err != nil {
			w.t.Fatal(err)
		}
		c := corev1.TopologySpreadConstraint{
			MaxSkew: int32(skew), TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
		}
		if parts[0] == "host" {
			c.TopologyKey = corev1.LabelHostname
		}
		for _, more := range parts[2:] {
			if least, ok := strings.CutPrefix(more, "min"); ok {
				n, _ := strconv.Atoi(least)
				domains := int32(n)
				c.MinDomains = &domains
			} else {
				c.WhenUnsatisfiable = corev1.ScheduleAnyway
			}
		}
		rs.Spec.Template.Spec.TopologySpreadConstraints = append(rs.Spec.Template.Spec.TopologySpreadConstraints, c)
	}
	raw, err := rs.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.apply(&fsm.PutObject{Resource: fsm.ReplicaSets, Raw: raw, Create: true})
}

func (w *world) spreadDirective(cmd string, a args) (string, bool) {
	switch cmd {
	case "zoned": // zoned NODE [z=ZONE]
		return w.zoned(a.name(0), a.or("z", "")), true
	case "spread-rs": // spread-rs NAME zone:1 host:1:soft …
		var constraints []string
		for _, c := range a[1:] {
			constraints = append(constraints, c.Key)
		}
		return w.spreadSet(a.name(0), constraints), true
	case "kubernetes": // kubernetes NAME: takes the annotation away
		old, _ := w.state.View().ReplicaSet("default", a.name(0))
		rs := old.DeepCopy()
		rs.Annotations = nil
		raw, err := rs.Marshal()
		if err != nil {
			w.t.Fatal(err)
		}
		return w.apply(&fsm.PutObject{Resource: fsm.ReplicaSets, Raw: raw}), true
	}
	return "", false
}

// layout is a random placement of pods.
type layout struct {
	zones   int
	hosts   []int // the zone of each host
	pods    []int // how many on each host
	skew    map[string]int
	minimum int
}

// holds: the constraints hold with so many pods on each host.
func (l *layout) holds(kept []int) bool {
	byZone, least, most := make([]int, l.zones), -1, 0
	for h, n := range kept {
		byZone[l.hosts[h]] += n
	}
	check := func(counts []int, skew, domains int) bool {
		least, most = -1, 0
		for _, n := range counts {
			if least < 0 || n < least {
				least = n
			}
			most = max(most, n)
		}
		if len(counts) < domains {
			least = 0
		}
		return most-least <= skew
	}
	if skew, ok := l.skew["zone"]; ok && !check(byZone, skew, l.minimum) {
		return false
	}
	if skew, ok := l.skew["host"]; ok && !check(kept, skew, 1) {
		return false
	}
	return true
}

// possible: some selection of so many that stay makes the constraints hold.
func (l *layout) possible(stay int) bool {
	kept := make([]int, len(l.hosts))
	var try func(h, left int) bool
	try = func(h, left int) bool {
		if h == len(l.hosts) {
			return left == 0 && l.holds(kept)
		}
		for n := max(0, left-rest(l.pods[h+1:])); n <= min(l.pods[h], left); n++ {
			kept[h] = n
			if try(h+1, left-n) {
				return true
			}
		}
		return false
	}
	return try(0, stay)
}

func rest(pods []int) int {
	n := 0
	for _, p := range pods {
		n += p
	}
	return n
}

// kept is how many pods stay on each host after a scale-in.
func (l *layout) kept(victims []controller.Victim) []int {
	out := append([]int(nil), l.pods...)
	for _, v := range victims {
		h, err := strconv.Atoi(v.Pod.Spec.NodeName[1:])
		if err != nil {
			panic(err)
		}
		out[h]--
	}
	return out
}

// TestSpreadScaleIn: from 20 pods to 3, or from any number to any other, the
// constraints hold afterwards whenever there is a selection with which they do.
// What Kubernetes' order makes of the same states is counted beside it.
func TestSpreadScaleIn(t *testing.T) {
	possible, kubernetes := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := &layout{zones: rapid.IntRange(1, 3).Draw(t, "zones"), skew: map[string]int{}, minimum: rapid.SampledFrom([]int{1, 1, 1, 4}).Draw(t, "min domains")}
		hosts := rapid.IntRange(l.zones, 5).Draw(t, "hosts")
		w := newWorld(panics{})
		total := rapid.SampledFrom([]int{20, 20, 7, 12}).Draw(t, "pods")
		for h := range hosts {
			zone := h
			if h >= l.zones {
				zone = rapid.IntRange(0, l.zones-1).Draw(t, "zone")
			}
			l.hosts, l.pods = append(l.hosts, zone), append(l.pods, 0)
			w.zoned(fmt.Sprintf("n%d", h), fmt.Sprintf("z%d", zone))
		}
		var constraints []string
		for _, key := range rapid.SampledFrom([][]string{{"zone"}, {"host"}, {"zone", "host"}}).Draw(t, "constraints") {
			l.skew[key] = rapid.IntRange(1, 2).Draw(t, "skew of "+key)
			text := fmt.Sprintf("%s:%d", key, l.skew[key])
			if key == "zone" {
				text += fmt.Sprintf(":min%d", l.minimum)
			}
			constraints = append(constraints, text)
		}
		w.spreadSet("web", constraints)
		for p := range total {
			h := rapid.IntRange(0, hosts-1).Draw(t, "host")
			l.pods[h]++
			w.member("web", strings.Fields(fmt.Sprintf("p%02d node=n%d ready=%dm age=%dm uid=%d", p, h,
				rapid.IntRange(1, 500).Draw(t, "ready"), 600, rapid.IntRange(0, 1<<30).Draw(t, "uid"))))
		}
		stay := min(rapid.SampledFrom([]int{3, 3, 3, 1, 5, 6}).Draw(t, "stay"), total)
		rs, _ := w.state.View().ReplicaSet("default", "web")
		victims := controller.ScaleIn(w.state.View(), rs, total-stay, w.now.UnixNano())
		if len(victims) != total-stay {
			t.Fatalf("%d pods go, not %d", len(victims), total-stay)
		}
		seen := map[string]bool{}
		for _, v := range victims {
			if seen[v.Key] {
				t.Fatalf("%s goes twice", v.Key)
			}
			seen[v.Key] = true
		}
		if !l.possible(stay) {
			return
		}
		possible++
		if kept := l.kept(victims); !l.holds(kept) {
			t.Fatalf("%v on the hosts of zones %v become %v, and the constraints %v do not hold though they could", l.pods, l.hosts, kept, constraints)
		}
		plain := rs.DeepCopy()
		plain.Annotations = nil
		if l.holds(l.kept(controller.ScaleIn(w.state.View(), plain, total-stay, w.now.UnixNano()))) {
			kubernetes++
		}
	})
	t.Logf("of %d states in which the constraints can hold they do in all by spread, and in %d in Kubernetes' order", possible, kubernetes)
}

// panics lets a world fail a property.
type panics struct{ testing.TB }

func (panics) Helper()                      {}
func (panics) Fatal(args ...any)            { panic(fmt.Sprint(args...)) }
func (panics) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
