package apiserver

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/storage"

	"pgregory.net/rapid"
)

// TestSelectorsOfManyTerms: they select what upstream's would.
func TestSelectorsOfManyTerms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		value := rapid.SampledFrom([]string{"", "1", "2", "3", "-7", "x", "99999999999999999999"})
		upstream := labels.NewSelector()
		for range rapid.IntRange(3, 14).Draw(t, "terms") {
			op := rapid.SampledFrom([]operators.Operator{
				operators.In, operators.NotIn, operators.Equals, operators.DoubleEquals, operators.NotEquals, operators.Exists, operators.DoesNotExist,
				operators.GreaterThan, operators.LessThan,
			}).Draw(t, "operator")
			var values []string
			switch op {
			case operators.Exists, operators.DoesNotExist:
			case operators.In, operators.NotIn:
				values = rapid.SliceOfN(value, 1, 9).Draw(t, "values")
			default:
				values = []string{value.Draw(t, "value")}
			}
			r, err := labels.NewRequirement(key.Draw(t, "key"), op, values)
			if err == nil {
				upstream = upstream.Add(*r)
			}
		}
		ours := selectsLabels(upstream)
		for range 20 {
			set := labels.Set(rapid.MapOfN(key, value, 0, 4).Draw(t, "labels"))
			if got, want := ours.Matches(set), upstream.Matches(set); got != want {
				t.Fatalf("%s of %v: %t, want %t", upstream, set, got, want)
			}
		}
		var terms []fields.Selector
		for range rapid.IntRange(1, 14).Draw(t, "fields") {
			one := fields.OneTermNotEqualSelector
			if rapid.IntRange(0, 9).Draw(t, "equal") == 0 {
				one = fields.OneTermEqualSelector
			}
			terms = append(terms, one(key.Draw(t, "field"), value.Draw(t, "value")))
		}
		upstreams := fields.AndSelectors(terms...)
		mine := selectsFields(upstreams)
		for range 20 {
			set := fields.Set(rapid.MapOfN(key, value, 0, 4).Draw(t, "set"))
			if got, want := mine.Matches(set), upstreams.Matches(set); got != want {
				t.Fatalf("%s of %v: %t, want %t", upstreams, set, got, want)
			}
		}
	})
	for _, s := range []labels.Selector{labels.Nothing(), labels.Everything()} {
		if got := selectsLabels(s).Matches(labels.Set{"a": "b"}); got != s.Matches(labels.Set{"a": "b"}) {
			t.Errorf("%q selects: %t", s, got)
		}
	}
	if selectsFields(fields.Nothing()).Matches(fields.Set{}) || !selectsFields(fields.Everything()).Matches(fields.Set{}) {
		t.Error("nothing and everything")
	}
}

// countedFields counts how often they are asked for.
type countedFields struct{ n *int }

func (countedFields) Has(string) bool     { return true }
func (f countedFields) Get(string) string { *f.n++; return "none of them" }

// TestWhatManyTermsCost: to ask a selector about an object costs no more the more terms it has.
func TestWhatManyTermsCost(t *testing.T) {
	p := storage.SelectionPredicate{Label: absences(t), Field: differences(t)}
	m := newMatcher(&kind{}, p, nil)
	if terms, ok := m.labels.(*labelTerms); !ok || len(terms.of) < 1000 || terms.present != 0 {
		t.Errorf("%d bytes are asked about as %T", maxSelectorBytes, m.labels)
	}
	n := 0
	if !m.asked.Matches(countedFields{&n}) || n != 1 {
		t.Errorf("the one field was looked at %d times", n)
	}
}

// absences is the dearest selector of labels that may be: of all others one term says that an object is not selected, or they have fewer terms.
func absences(t testing.TB) labels.Selector {
	var b strings.Builder
	for i := 0; b.Len() < maxSelectorBytes-6; i++ {
		fmt.Fprintf(&b, "!%s,", key(i))
	}
	s, err := labels.Parse(strings.TrimSuffix(b.String(), ","))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// key is the i-th of the shortest names of labels.
func key(i int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	if i < len(letters) {
		return letters[i : i+1]
	}
	return key(i/len(letters)-1) + letters[i%len(letters):][:1]
}

// differences is that of fields.
func differences(t testing.TB) fields.Selector {
	var b strings.Builder
	for i := 0; b.Len() < maxSelectorBytes-30; i++ {
		fmt.Fprintf(&b, "spec.nodeName!=%s,", key(i))
	}
	s, err := fields.ParseSelector(strings.TrimSuffix(b.String(), ","))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// BenchmarkManyTerms asks the longest selectors that may be about 30,000 objects.
func BenchmarkManyTerms(b *testing.B) {
	const objects = 30_000
	values, err := labels.Parse(strings.Replace(longSelector(maxSelectorBytes), "k in ", "K notin ", 1))
	if err != nil {
		b.Fatal(err)
	}
	set := labels.Set{"App": "web", "Pod-template-hash": "5d4f8c7b9", "K": "other"}
	for name, s := range map[string]labels.Selector{"absent": absences(b), "values": values} {
		for by, m := range map[string]labelMatch{"upstream": s, "here": selectsLabels(s)} {
			b.Run(name+"/"+by, func(b *testing.B) {
				for b.Loop() {
					for range objects {
						if !m.Matches(set) {
							b.Fatal("not selected")
						}
					}
				}
			})
		}
	}
	f, of := differences(b), fields.Set{"spec.nodeName": "n-5"}
	for by, m := range map[string]fieldMatch{"upstream": f, "here": selectsFields(f)} {
		b.Run("fields/"+by, func(b *testing.B) {
			for b.Loop() {
				for range objects {
					if !m.Matches(of) {
						b.Fatal("not selected")
					}
				}
			}
		})
	}
}

// BenchmarkManyTermsHold tells how many bytes are held for each byte of the longest selectors: what was read of them, and what objects are asked by.
func BenchmarkManyTermsHold(b *testing.B) {
	values, err := labels.Parse(longSelector(maxSelectorBytes))
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string]string{"absent": absences(b).String(), "values": values.String()} {
		b.Run(name, func(b *testing.B) {
			var held []matcher
			heap := func() float64 {
				var stats runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&stats)
				return float64(stats.HeapAlloc)
			}
			before := heap()
			for b.Loop() {
				s, err := labels.Parse(text)
				if err != nil {
					b.Fatal(err)
				}
				held = append(held, newMatcher(&kind{}, storage.SelectionPredicate{Label: s, Field: fields.Everything()}, nil))
			}
			b.ReportMetric((heap()-before)/float64(len(held))/float64(len(text)), "B/byte")
			runtime.KeepAlive(held)
		})
	}
}
