package worker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

// asking makes a candidate that asks for CPU and memory.
func asking(uid string, qos corev1.PodQOSClass, cpu, memory int64, priority int32, started int) candidate {
	return candidate{
		uid: types.UID(uid), qos: qos, priority: priority, start: epoch.Add(time.Duration(started) * time.Second),
		class: &model.Class{Priority: priority, Request: model.Resources{MilliCPU: cpu, MemoryBytes: memory, Pods: 1}},
	}
}

// PR21: whom a critical pod puts out.
func TestChooseVictims(t *testing.T) {
	const be, bu, gu = corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed
	all := []candidate{
		asking("be1", be, 0, 0, 0, 0), asking("be2", be, 0, 0, 0, 5), asking("be3", be, 0, 0, 10, 9),
		asking("bu8", bu, 800, 100, 0, 0), asking("bu7", bu, 700, 300, 0, 0), asking("bu3", bu, 300, 200, 0, 0), asking("bu3b", bu, 300, 200, -1, 0),
		asking("gu5", gu, 500, 500, 0, 0), asking("gu9", gu, 900, 900, 0, 0),
	}
	for _, tt := range []struct {
		name    string
		missing []shortage
		want    string
	}{
		{"nothing", nil, ""},
		{"one pod less: of BestEffort pods the least important, then the youngest", []shortage{{"pods", 1}}, "be2"},
		{"two pods less", []shortage{{"pods", 2}}, "be1 be2"},
		{"more pods than are BestEffort", []shortage{{"pods", 4}}, "be1 be2 be3 bu8"},
		{"one Burstable pod is enough", []shortage{{"cpu", 250}}, "bu8"},
		{"that with the least memory, though it has more CPU", []shortage{{"cpu", 650}}, "bu8"},
		{"two at least: of all that would do those with the least memory", []shortage{{"cpu", 1000}}, "bu3b bu8"},
		{"a distance of nothing is not the fewest", []shortage{{"cpu", 1400}}, "bu7 bu8"},
		{"Guaranteed pods only for what others have not", []shortage{{"cpu", 2200}}, "bu3b bu7 bu8 gu5"},
		{"two resources", []shortage{{"cpu", 700}, {"memory", 250}}, "bu7"},
		{"all of them", []shortage{{"cpu", 3500}}, "bu3 bu3b bu7 bu8 gu5 gu9"},
		{"more than there is", []shortage{{"cpu", 3501}}, "none"},
		{"what nobody has", []shortage{{"cpu", 1}, {"example.com/gpu", 1}}, "none"},
	} {
		got, ok := chooseVictims(tt.missing, all)
		if text := victimsText(got, ok); text != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, text, tt.want)
		}
	}
}

func victimsText(victims []candidate, ok bool) string {
	if !ok {
		return "none"
	}
	var names []string
	for _, v := range victims {
		names = append(names, string(v.uid))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// PR21: nobody could be let off, and nobody else would be a better choice: checked against all choices that there are.
func TestVictimsAreTheLeast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.SampledFrom([]int64{0, 1, 2, 3, 5, 8})
		var pods []candidate
		for i := range rapid.IntRange(0, 9).Draw(t, "pods") {
			qos := rapid.SampledFrom([]corev1.PodQOSClass{corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed}).Draw(t, "qos")
			c := asking(fmt.Sprint(i), qos, 0, 0, rapid.Int32Range(0, 1).Draw(t, "priority"), rapid.IntRange(0, 1).Draw(t, "start"))
			if qos != corev1.PodQOSBestEffort {
				c.class.Request.MilliCPU, c.class.Request.MemoryBytes = amount.Draw(t, "cpu"), amount.Draw(t, "memory")
			}
			if n := amount.Draw(t, "gpu"); n > 0 {
				c.class.Request.Scalars = []model.Scalar{{Name: "gpu", Value: n}}
			}
			pods = append(pods, c)
		}
		var missing []shortage
		for _, r := range []string{"cpu", "memory", "pods", "gpu"} {
			if rapid.Bool().Draw(t, "lacks "+r) {
				missing = append(missing, shortage{r, rapid.Int64Range(1, 14).Draw(t, r)})
			}
		}
		want, possible := allChoices(missing, pods)
		got, ok := chooseVictims(missing, pods)
		if victimsText(got, ok) != victimsText(want, possible) {
			t.Fatalf("got %q, want %q", victimsText(got, ok), victimsText(want, possible))
		}
		if again, ok := chooseVictims(missing, rapid.Permutation(pods).Draw(t, "order")); victimsText(again, ok) != victimsText(want, possible) {
			t.Fatalf("in another order got %q, want %q", victimsText(again, ok), victimsText(want, possible))
		}
	})
}

// allChoices is the dumb way: the best of all sets of pods that have enough.
func allChoices(missing []shortage, pods []candidate) (best []candidate, possible bool) {
	pods = slices.SortedFunc(slices.Values(pods), lessImportant)
	var bestKey []int64
	for set := range 1 << len(pods) {
		var chosen []candidate
		for i := range pods {
			if set>>i&1 == 1 {
				chosen = append(chosen, pods[i])
			}
		}
		if len(remaining(missing, chosen)) > 0 {
			continue
		}
		var key []int64
		for _, qos := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
			var count, memory, cpu, ranks int64
			for i, p := range pods {
				if set>>i&1 == 1 && p.qos == qos {
					count, memory, cpu = count+1, memory+p.class.Request.MemoryBytes, cpu+p.class.Request.MilliCPU
					ranks |= 1 << i
				}
			}
			key = append(key, count, memory, cpu, ranks)
		}
		if !possible || slices.Compare(key, bestKey) < 0 {
			best, bestKey, possible = chosen, key, true
		}
	}
	return best, possible
}

// A full node of pods that all differ is searched within the bound.
func TestVictimsOfAFullNode(t *testing.T) {
	var pods []candidate
	for i := range int64(250) {
		pods = append(pods, asking(fmt.Sprint(i), corev1.PodQOSBurstable, 100+i*7%91, 1000+i*13%101, 0, 0))
	}
	missing := []shortage{{"cpu", 4000}, {"memory", 41_000}, {"pods", 3}}
	victims, ok := chooseVictims(missing, pods)
	if !ok || len(remaining(missing, victims)) > 0 {
		t.Fatalf("%d victims are not enough", len(victims))
	}
	for i := range victims {
		if len(remaining(missing, slices.Delete(slices.Clone(victims), i, i+1))) == 0 {
			t.Errorf("%s need not go", victims[i].uid)
		}
	}
}
