package model

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// drawVolume draws a volume on a host, in a zone, on some hosts, or everywhere.
func drawVolume(t *rapid.T, i int) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v", i)}}
	size := rapid.SampledFrom([]string{"1", "1500m", "2", "3Gi", "9223372036854775807", "3000001Ki"}).Draw(t, "size")
	v.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	hosts := [][]string{nil, {"a"}, {"b"}, {"a", "b"}}[rapid.IntRange(0, 3).Draw(t, "hosts")]
	if hosts != nil {
		more := rapid.SampledFrom([]string{"", "rack"}).Draw(t, "more")
		s := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: hosts}}}
		if more != "" {
			s.MatchExpressions = append(s.MatchExpressions, corev1.NodeSelectorRequirement{Key: more, Operator: corev1.NodeSelectorOpExists})
		}
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{s}}}
	}
	if zone := rapid.SampledFrom([]string{"", "", "z1", "z2"}).Draw(t, "zone"); zone != "" {
		v.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return v
}

func storageOf(v *corev1.PersistentVolume) resource.Quantity {
	return v.Spec.Capacity[corev1.ResourceStorage]
}

// chooseNaively looks at all volumes for each claim: those of the node's own host first, and of them the smallest.
func chooseNaively(n *corev1.Node, lists [][]*corev1.PersistentVolume, of []int, sizes []resource.Quantity) (out []string, ok bool) {
	for i, asked := range sizes {
		var best *corev1.PersistentVolume
		own := func(v *corev1.PersistentVolume) int {
			if host, is := hostOf(v); is && zonesOf(v) == nil && host == n.Labels[corev1.LabelHostname] {
				return 0
			}
			return 1
		}
		for _, v := range lists[of[i]] {
			at, size := compileReach(v), storageOf(v)
			if size.Cmp(asked) < 0 || slices.Contains(out, v.Name) || !at.reachedFrom(n) || !at.inZone(n) {
				continue
			}
			if best == nil {
				best = v
				continue
			}
			most := storageOf(best)
			if cmp.Or(own(v)-own(best), size.Cmp(most), cmp.Compare(v.Name, best.Name)) < 0 {
				best = v
			}
		}
		if best == nil {
			return nil, false
		}
		out = append(out, best.Name)
	}
	return out, true
}

// TestOffersChooseLikeALookAtAll: lists that claims share give each the volume that a look at all of them gives, whatever else the claims
// before it have taken, and how much a look costs does not depend on who looks.
func TestOffersChooseLikeALookAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lists := make([][]*corev1.PersistentVolume, 2)
		shared := [2][]*FreeVolume{}
		for i := range rapid.IntRange(0, 12).Draw(t, "volumes") {
			v := drawVolume(t, i)
			in := rapid.IntRange(1, 3).Draw(t, "in")
			for l := range lists {
				if in>>l&1 == 1 {
					lists[l] = append(lists[l], v)
					shared[l] = append(shared[l], NewFreeVolume(v, func(string) *FreeVolume { return nil }))
				}
			}
		}
		var offers []*Offer
		for l := range shared {
			slices.SortFunc(shared[l], func(a, b *FreeVolume) int { return cmp.Compare(FreeKey(a.Volume), FreeKey(b.Volume)) })
			offers = append(offers, NewOffer(shared[l]))
		}
		var sizes []resource.Quantity
		for range rapid.IntRange(1, 5).Draw(t, "claims") {
			sizes = append(sizes, resource.MustParse(rapid.SampledFrom([]string{"0", "1", "1500m", "1501m", "2", "3Gi"}).Draw(t, "asked")))
		}
		slices.SortStableFunc(sizes, func(a, b resource.Quantity) int { return a.Cmp(b) })
		var b VolumesBuilder
		b.CountsEach = rapid.Bool().Draw(t, "counts each")
		var of []int
		for _, asked := range sizes {
			of = append(of, rapid.IntRange(0, 1).Draw(t, "of"))
			b.Want(offers[of[len(of)-1]], asked, false, nil)
		}
		v := b.Done()
		for _, host := range []string{"", "a", "b"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{}}}
			if host != "" {
				n.Labels[corev1.LabelHostname] = host
			}
			for _, key := range []string{"rack", corev1.LabelTopologyZone} {
				if rapid.Bool().Draw(t, key) {
					n.Labels[key] = "z1"
				}
			}
			want, fits := chooseNaively(n, lists, of, sizes)
			got, ok := v.choose(n)
			if ok != fits || ok && !slices.Equal(got, want) {
				t.Fatalf("on %q: %v, %t, and a look at all says %v, %t", host, got, ok, want, fits)
			}
		}
	})
}

// TestSizeKeys: they sort as amounts do.
func TestSizeKeys(t *testing.T) {
	var all []resource.Quantity
	for _, s := range []string{"0", "1n", "999999999n", "1", "1000000001n", "1500m", "2", "1Ki", "1025", "3Gi", "9223372036854775806", "9223372036854775807"} {
		all = append(all, resource.MustParse(s))
	}
	for _, a := range all {
		for _, b := range all {
			if got, want := cmp.Compare(sizeKey(a), sizeKey(b)), a.Cmp(b); got != want {
				t.Errorf("%s and %s: %d, want %d", a.String(), b.String(), got, want)
			}
		}
	}
}
