package model

import "slices"

// Scalar is an amount of one resource other than cpu, memory, ephemeral-storage and pods: an extended resource,
// huge pages, attachable volumes.
type Scalar struct {
	Name  string
	Value int64
}

// Resources is a vector of resource amounts (see MaxAmount) with value semantics. Scalars is sorted by name, holds no zero and is nil
// when empty, so equal vectors are equal field by field; the slice may be shared and is never changed in place.
type Resources struct {
	MilliCPU              int64
	MemoryBytes           int64
	EphemeralStorageBytes int64
	Pods                  int64
	Scalars               []Scalar
}

// Add returns r + b; no sum wraps.
func (r Resources) Add(b Resources) Resources {
	r.MilliCPU = addAmounts(r.MilliCPU, b.MilliCPU)
	r.MemoryBytes = addAmounts(r.MemoryBytes, b.MemoryBytes)
	r.EphemeralStorageBytes = addAmounts(r.EphemeralStorageBytes, b.EphemeralStorageBytes)
	r.Pods = addAmounts(r.Pods, b.Pods)
	if b.Scalars != nil {
		r.Scalars = mergeScalars(r.Scalars, b.Scalars, addAmounts)
	}
	return r
}

// Sub returns r - b. Amounts may become negative; none wraps.
func (r Resources) Sub(b Resources) Resources {
	r.MilliCPU = subAmounts(r.MilliCPU, b.MilliCPU)
	r.MemoryBytes = subAmounts(r.MemoryBytes, b.MemoryBytes)
	r.EphemeralStorageBytes = subAmounts(r.EphemeralStorageBytes, b.EphemeralStorageBytes)
	r.Pods = subAmounts(r.Pods, b.Pods)
	if b.Scalars != nil {
		r.Scalars = mergeScalars(r.Scalars, b.Scalars, subAmounts)
	}
	return r
}

// Get returns the amount of the resource with Kubernetes' name for it, cpu in thousandths.
func (r Resources) Get(name string) int64 {
	switch name {
	case "cpu":
		return r.MilliCPU
	case "memory":
		return r.MemoryBytes
	case "ephemeral-storage":
		return r.EphemeralStorageBytes
	case "pods":
		return r.Pods
	}
	i, found := findScalar(r.Scalars, name)
	if !found {
		return 0
	}
	return r.Scalars[i].Value
}

// IsZero says whether every amount is zero.
func (r Resources) IsZero() bool {
	return r.MilliCPU == 0 && r.MemoryBytes == 0 && r.EphemeralStorageBytes == 0 && r.Pods == 0 && len(r.Scalars) == 0
}

// Equal says whether r and b hold the same amounts.
func (r Resources) Equal(b Resources) bool {
	return r.MilliCPU == b.MilliCPU && r.MemoryBytes == b.MemoryBytes &&
		r.EphemeralStorageBytes == b.EphemeralStorageBytes && r.Pods == b.Pods && slices.Equal(r.Scalars, b.Scalars)
}

func findScalar(s []Scalar, name string) (int, bool) {
	// The lists hold a handful of names at most: a walk is faster than a search.
	for i := range s {
		if s[i].Name >= name {
			return i, s[i].Name == name
		}
	}
	return len(s), false
}

// mergeScalars joins two sorted lists into a new one; a name that one side lacks counts as zero there.
func mergeScalars(a, b []Scalar, join func(x, y int64) int64) []Scalar {
	out := make([]Scalar, 0, len(a)+len(b))
	put := func(name string, v int64) {
		if v != 0 {
			out = append(out, Scalar{Name: name, Value: v})
		}
	}
	i, j := 0, 0
	for i < len(a) && j < len(b) {
		switch {
		case a[i].Name < b[j].Name:
			put(a[i].Name, join(a[i].Value, 0))
			i++
		case a[i].Name > b[j].Name:
			put(b[j].Name, join(0, b[j].Value))
			j++
		default:
			put(a[i].Name, join(a[i].Value, b[j].Value))
			i, j = i+1, j+1
		}
	}
	for ; i < len(a); i++ {
		put(a[i].Name, join(a[i].Value, 0))
	}
	for ; j < len(b); j++ {
		put(b[j].Name, join(0, b[j].Value))
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
