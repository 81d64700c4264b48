package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kjson "sigs.k8s.io/json"
)

// A strategic merge looks for each entry of a list that it brings among all that are stored, and sorts what comes of it by where each was
// found: that takes time by more than the square of the entries. So the lists that are merged, and no others, have bounds of their own, in
// the patch and in what it is merged into.
const (
	maxMergeEntries = 2048
	// maxMergeWork bounds the squares of the entries of what comes of each list, together: a list is merged as often as the patch names what
	// it is in.
	maxMergeWork = 2 * maxMergeEntries * maxMergeEntries
)

// merge is a strategic merge, as it came.
type merge struct {
	resource schema.GroupResource
	version  schema.GroupVersion
	t        reflect.Type // of the object
	lists    mergeLists
}

// mergeLists are lists that are merged, by the names that lead to them.
type mergeLists map[string]*mergeList

// mergeList is one of them, at all places where it is: the names of a container are in each entry of containers.
type mergeList struct {
	way                              string
	times, longest, entries, squares int
}

// add counts one list more.
func (m mergeLists) add(way string, entries int) {
	key := strings.ToLower(way) // as fields are found
	l := m[key]
	if l == nil {
		l = &mergeList{way: way}
		m[key] = l
	}
	l.times++
	l.longest = max(l.longest, entries)
	l.entries += entries
	l.squares += entries * entries
}

// longest is the longest of the lists.
func (m mergeLists) longest() (out mergeList) {
	for _, l := range m { // order does not matter: the longest, and of those the first by its name, is the same
		if l.longest > out.longest || l.longest == out.longest && l.way < out.way {
			out = *l
		}
	}
	return out
}

// work is what it takes to merge the lists with stored ones of at most so many entries.
func (m mergeLists) work(stored func(key string) int) (n int) {
	for key, l := range m { // order does not matter: it is a sum
		o := stored(key)
		n += l.times*o*o + 2*o*l.entries + l.squares
	}
	return n
}

// listsOf are the lists in an object, or in a patch of one, that a strategic merge merges. Which these are upstream says, by the tags of
// the type's fields.
func listsOf(object map[string]any, t reflect.Type) mergeLists {
	w := mergeWalk{lists: mergeLists{}, known: map[mergeField]mergeMeta{}}
	w.object(object, strategicpatch.PatchMetaFromStruct{T: t}, "")
	return w.lists
}

type mergeWalk struct {
	lists mergeLists
	known map[mergeField]mergeMeta
}

type mergeField struct {
	in   reflect.Type
	name string
	list bool
}

// mergeMeta is what upstream says of a field.
type mergeMeta struct {
	of     strategicpatch.PatchMetaFromStruct
	merges bool
	known  bool
}

func (w *mergeWalk) meta(in strategicpatch.PatchMetaFromStruct, name string, list bool) mergeMeta {
	at := mergeField{in.T, name, list}
	if m, ok := w.known[at]; ok {
		return m
	}
	look := in.LookupPatchMetadataForStruct
	if list {
		look = in.LookupPatchMetadataForSlice
	}
	m := mergeMeta{}
	if of, meta, err := look(name); err == nil {
		m.of, m.known = of.(strategicpatch.PatchMetaFromStruct)
		m.merges = slices.Contains(meta.GetPatchStrategies(), "merge")
	}
	w.known[at] = m
	return m
}

// object looks at one object of a type. What upstream knows no field for it does not merge.
func (w *mergeWalk) object(object map[string]any, of strategicpatch.PatchMetaFromStruct, way string) {
	for key, value := range object { // order does not matter: what is found is counted
		name := key
		for _, directive := range []string{"$setElementOrder/", "$deleteFromPrimitiveList/"} {
			name = strings.TrimPrefix(name, directive)
		}
		at := name
		if way != "" {
			at = way + "." + name
		}
		switch v := value.(type) {
		case map[string]any:
			if m := w.meta(of, name, false); m.known {
				w.object(v, m.of, at)
			}
		case []any:
			m := w.meta(of, name, true)
			if !m.known || !m.merges && name == key {
				continue
			}
			w.lists.add(at, len(v))
			for _, one := range v {
				if o, ok := one.(map[string]any); ok {
					w.object(o, m.of, at)
				}
			}
		}
	}
}

// newMerge looks at a strategic merge before anything is merged.
func newMerge(patch []byte, resource schema.GroupVersionResource, t reflect.Type) (*merge, error) {
	object := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(patch, &object); err != nil {
		return nil, nil //nolint:nilerr // upstream says what is wrong with it
	}
	m := &merge{resource.GroupResource(), resource.GroupVersion(), t, listsOf(object, t)}
	if l := m.lists.longest(); l.longest > maxMergeEntries {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"%s has %d entries; a list that a strategic merge merges may have %d: %s", l.way, l.longest, maxMergeEntries, insteadOfMerge))
	}
	if work := m.lists.work(func(string) int { return 0 }); work > maxMergeWork {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the lists that the strategic merge merges are too long together: the squares of their lengths come to %d, and may to %d: %s", work, maxMergeWork, insteadOfMerge))
	}
	return m, nil
}

const insteadOfMerge = "send a merge patch (application/merge-patch+json), apply it (application/apply-patch+yaml), or put the whole object"

// metadataType is what is known of an object of which nothing else is.
var metadataType = reflect.TypeFor[metav1.PartialObjectMetadata]()

type mergeKey struct{}

func withMerge(ctx context.Context, m *merge) context.Context {
	return context.WithValue(ctx, mergeKey{}, m)
}

// checkMerge refuses the request's strategic merge, if it has one, where the stored object's lists are too long for it.
func checkMerge(ctx context.Context, resource schema.GroupResource, stored runtime.Object) error {
	m, _ := ctx.Value(mergeKey{}).(*merge)
	if m == nil || m.resource != resource || len(m.lists) == 0 {
		return nil
	}
	longest := longestList(reflect.ValueOf(stored))
	if longest <= maxMergeEntries && m.lists.work(func(string) int { return longest }) <= maxMergeWork {
		return nil // whichever it is
	}
	versioned, err := legacyscheme.Scheme.ConvertToVersion(stored, m.version)
	if err != nil {
		return nil //nolint:nilerr // upstream says so when it does the same
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(versioned)
	if err != nil {
		return nil //nolint:nilerr // the same
	}
	lists := listsOf(object, m.t)
	for key := range lists { // order does not matter: they are left out one by one
		if m.lists[key] == nil {
			delete(lists, key)
		}
	}
	refused := func(way, why string) error {
		return apierrors.NewInvalid(schema.GroupKind{Group: resource.Group, Kind: m.t.Name()}, metaOf(stored).GetName(),
			field.ErrorList{field.Forbidden(field.NewPath(way), why+": "+insteadOfMerge)})
	}
	l := lists.longest()
	if l.longest > maxMergeEntries {
		return refused(l.way, fmt.Sprintf("it has %d entries as it is stored; a list that a strategic merge merges may have %d", l.longest, maxMergeEntries))
	}
	work := m.lists.work(func(key string) int {
		if l := lists[key]; l != nil {
			return l.longest
		}
		return 0
	})
	if work > maxMergeWork {
		return refused(l.way, fmt.Sprintf("the lists that the strategic merge merges, and those that are stored, are too long together: "+
			"the squares of their lengths come to %d, and may to %d", work, maxMergeWork))
	}
	return nil
}

// longestList is how many entries the longest list in a value has.
func longestList(v reflect.Value) int {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return longestList(v.Elem())
		}
	case reflect.Struct:
		n := 0
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && mayHold(f.Type) {
				n = max(n, longestList(v.Field(i)))
			}
		}
		return n
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		n := v.Len()
		if mayHold(v.Type().Elem()) {
			for i := range v.Len() {
				n = max(n, longestList(v.Index(i)))
			}
		}
		return n
	}
	return 0
}
