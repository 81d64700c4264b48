package model

import (
	"math/big"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

// quantities that the API admits, as it reads them: near every edge of the formats and of int64.
func anyQuantity(t *rapid.T) resource.Quantity {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{
			"0", "1", "1n", "1m", "999m", "1001m", "0.5", "1.5", "9223372036854775807", "9223372036854775806", "-1", "-1m",
			"9223372036854775807m", "4611686018427387904", "5e18", "10P", "100E", "1E", "8Ei", "7Ei", "1e30", "256Ti", "281474976710656",
			"281474976710657", "281474976710.656", "281474976710.657", "281474976710656.5", "0.0000001", "1e-9",
		}),
		rapid.StringMatching(`[1-9][0-9]{0,18}(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?`),
		rapid.StringMatching(`[0-9]{1,9}\.[0-9]{1,12}(k|Mi|G|Ti|P|Ei)?`),
	).Draw(t, "quantity")
	q, err := resource.ParseQuantity(text)
	if err != nil {
		t.Skipf("no quantity: %s: %v", text, err)
	}
	return q
}

// ceilOf is the quantity times scale, rounded up, and kept between 0 and MaxAmount, reckoned with big integers.
func ceilOf(q resource.Quantity, scale int64) int64 {
	d := q.AsDec()
	v := new(big.Int).Mul(d.UnscaledBig(), big.NewInt(scale))
	ten := big.NewInt(10)
	for s := d.Scale(); s < 0; s++ {
		v.Mul(v, ten)
	}
	for s, rest := d.Scale(), new(big.Int); s > 0; s-- {
		// What is lost at one digit must still round up at the last.
		v.DivMod(v, ten, rest)
		if rest.Sign() > 0 {
			v.Add(v, big.NewInt(1))
		}
	}
	if v.Sign() <= 0 {
		return 0
	}
	if v.Cmp(big.NewInt(MaxAmount)) >= 0 {
		return MaxAmount
	}
	return v.Int64()
}

func TestAmountsSaturate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := anyQuantity(t)
		if got, want := AmountOf(q.DeepCopy()), ceilOf(q.DeepCopy(), 1); got != want {
			t.Fatalf("AmountOf(%s) = %d, want %d", q.String(), got, want)
		}
		if got, want := MilliAmountOf(q.DeepCopy()), ceilOf(q.DeepCopy(), 1000); got != want {
			t.Fatalf("MilliAmountOf(%s) = %d, want %d", q.String(), got, want)
		}
	})
}

// What a pod asks for is what its containers ask for together, however large.
func TestRequestsOfSeveralContainersSaturate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pod := &corev1.Pod{}
		sum, milli := new(big.Int), new(big.Int)
		for range rapid.IntRange(1, 4).Draw(t, "containers") {
			q := anyQuantity(t)
			if q.Sign() < 0 {
				continue // the API refuses it
			}
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": q, "memory": q, "example.com/gpu": q},
			}})
			sum.Add(sum, big.NewInt(ceilOf(q, 1)))
			milli.Add(milli, big.NewInt(ceilOf(q, 1000)))
		}
		got := PodRequest(pod)
		for _, check := range []struct {
			name string
			got  int64
			want *big.Int
		}{{"cpu", got.MilliCPU, milli}, {"memory", got.MemoryBytes, sum}, {"example.com/gpu", got.Get("example.com/gpu"), sum}} {
			// Fractions of several containers round up together, so the sum may be less by one each.
			least := new(big.Int).Sub(check.want, big.NewInt(int64(len(pod.Spec.Containers))))
			most := slices.MinFunc([]*big.Int{check.want, big.NewInt(MaxAmount)}, (*big.Int).Cmp)
			if g := big.NewInt(check.got); g.Cmp(most) > 0 || g.Cmp(least) < 0 && check.got != MaxAmount {
				t.Errorf("%s: %d, want %s at most %d", check.name, check.got, check.want, MaxAmount)
			}
		}
	})
}

// The sums of a node are those of big integers as long as no more than MaxPodsPerNode pods count there, in whatever order
// they come and go, and never wrap if there are more.
func TestSumsOfANodeAreExact(t *testing.T) {
	amount := rapid.OneOf(rapid.Int64Range(0, MaxAmount), rapid.SampledFrom([]int64{0, 1, MaxAmount - 1, MaxAmount}))
	rapid.Check(t, func(t *rapid.T) {
		var r Resources
		want := new(big.Int)
		var there []int64
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			if len(there) > 0 && rapid.Bool().Draw(t, "goes") {
				i := rapid.IntRange(0, len(there)-1).Draw(t, "who")
				r = r.Sub(vector(there[i]))
				want.Sub(want, big.NewInt(there[i]))
				there = slices.Delete(there, i, i+1)
			} else {
				v := amount.Draw(t, "amount")
				times := rapid.Int64Range(1, MaxPodsPerNode/50).Draw(t, "times") // as many pods at once
				r = r.Add(vector(v * times))
				want.Add(want, new(big.Int).Mul(big.NewInt(v), big.NewInt(times)))
				there = append(there, v*times)
			}
			if want.IsInt64() && r.Equal(vector(want.Int64())) {
				continue
			}
			t.Fatalf("%+v, want %s", r, want)
		}
	})
	full := vector(0)
	for range 3 * MaxPodsPerNode {
		full = full.Add(vector(MaxAmount))
	}
	if !full.Equal(vector(maxSum)) || full.Add(full).MilliCPU != maxSum || full.Sub(full.Add(full)).Sub(full).MilliCPU != -maxSum {
		t.Errorf("more than a node counts must stay at %d: %+v", maxSum, full)
	}
}

func vector(v int64) Resources {
	r := Resources{MilliCPU: v, MemoryBytes: v, EphemeralStorageBytes: v, Pods: v}
	if v != 0 {
		r.Scalars = []Scalar{{Name: "example.com/gpu", Value: v}}
	}
	return r
}

// A pod that asks for more than anybody has fits nowhere, and what it asks for on a node that it is on leaves no room.
func TestHugeRequests(t *testing.T) {
	for _, text := range []string{"9223372036854775807", "10P", "100E", "8Ei", "4611686018427387904"} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(text), "memory": resource.MustParse(text)}}},
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(text), "memory": resource.MustParse(text)}}},
		}}}
		node := &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("64"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("110"),
		}}}
		huge, small := ClassOf(pod), ClassOf(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1m")}}},
		}}})
		if Check(huge, node, Allocatable(node), &Usage{}) == nil {
			t.Errorf("%s fits a node of 64 cpus", text)
		}
		there := Usage{}.With(huge).With(huge)
		if Check(small, node, Allocatable(node), &there) == nil {
			t.Errorf("beside two pods of %s there is room", text)
		}
		if back := there.Without(huge).Without(huge); !back.Requested.IsZero() {
			t.Errorf("%s: what two pods asked for stays when they have left: %+v", text, back)
		}
	}
}
