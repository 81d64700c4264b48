package apiserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"
)

// What Kubernetes' libraries do with a list or a map often takes time by the square of its entries: they look for duplicates one by one,
// keep sets as sorted slices, and copy what they have for each entry more. So an object has bounds for all that it holds, whatever it is.
const (
	maxEntries = 16384 // of one list or map
	maxNesting = 256   // of lists and maps in each other
	// maxContents bounds all values of a body together: a few bytes may become a large struct each.
	maxContents = 1 << 17
	// maxLargeContents is that of a plan, which holds many objects, and of a definition, whose schemas are compared as a whole.
	maxLargeContents = 1 << 18
	// freeShapeBytes is how long a body is that can have no more entries than it may.
	freeShapeBytes = 2 * maxEntries
)

// managedKey is what managed fields lie below, in each entry of metadata.managedFields. They have an entry for each of what they manage, and one for the whole: a list or map
// may have one entry more there. They are made by the servers, once for each manager, so they count for themselves.
const managedKey = "fieldsV1"

// shape is what a text of JSON has in it.
type shape struct {
	most    int    // values that it may have; 0: maxContents
	deep    string // the way to what lies in too many others, beyond which nothing was read
	values  int    // all of them
	managed int    // those of managed fields
	long    []long // lists and maps of too many entries
}

// long is a list or a map of too many entries.
type long struct {
	way     string
	place   string // the way without the places in lists, which others that come and go change
	entries int
	managed bool
}

// tooManyValues is what is told of a body with too many of them.
func tooManyValues(most int) string { return fmt.Sprintf("the whole has more than %d values", most) }

// nest is one list or map on the way to where a text is read.
type nest struct {
	list    bool
	managed bool // it lies below managedKey
	commas  int
	key     []byte // of a map
}

// shapeOf reads JSON as far as its shape goes. What is no JSON, others refuse.
func shapeOf(text []byte) shape { return shapeIn(text, false) }

// shapeIn is shapeOf for a part. managed: it is of managed fields.
func shapeIn(text []byte, managed bool) shape {
	var s shape
	var way []nest
	var word []byte
	within := func() bool {
		if len(way) == 0 {
			return managed
		}
		if top := &way[len(way)-1]; top.managed || top.list || len(way) != 4 || string(top.key) != managedKey {
			return top.managed
		}
		return way[2].list && string(way[1].key) == "managedFields" && string(way[0].key) == "metadata"
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			word = text[i+1 : min(end, len(text))]
			i = end
		case '{', '[':
			if len(way) == maxNesting {
				s.deep = fmt.Sprintf("%s lies in %d others; there may be %d", wayOf(way[:8])+"…", maxNesting, maxNesting-1)
				return s
			}
			way = append(way, nest{list: c == '[', managed: within()})
			s.count(way)
		case ':':
			if len(way) > 0 {
				way[len(way)-1].key = word
			}
		case ',':
			s.count(way)
			if len(way) > 0 {
				way[len(way)-1].commas++
			}
		case '}', ']':
			if len(way) == 0 {
				continue
			}
			top := way[len(way)-1]
			way = way[:len(way)-1]
			s.ended(way, top.commas+1, top.managed)
		}
	}
	return s
}

// count counts one value more, of the last of lists and maps.
func (s *shape) count(way []nest) {
	if len(way) > 0 && way[len(way)-1].managed {
		s.managed++
	} else {
		s.values++
	}
}

// ended notes a list or map of so many entries, if they are too many.
func (s *shape) ended(way []nest, entries int, managed bool) {
	most := maxEntries
	if managed {
		most++
	}
	if entries > most {
		at := wayOf(way)
		s.long = append(s.long, long{at, placeless(at), entries, managed})
	}
}

// over says what is over a bound, empty if nothing is. What was so in the shape of before may be so as far as it was; nil: there is none.
func (s *shape) over(before *shape) string {
	if before == nil {
		before = &shape{}
	}
	most := cmp.Or(s.most, maxContents)
	was := slices.Clone(before.long)
	for _, l := range s.long {
		at := slices.IndexFunc(was, func(b long) bool { return b.place == l.place && b.entries >= l.entries })
		if at < 0 {
			return fmt.Sprintf("%s has more than %d entries", l.way, maxEntries)
		}
		was = slices.Delete(was, at, at+1)
	}
	switch {
	case s.deep != "" && before.deep == "":
		return s.deep
	case s.values > max(most, before.values), s.managed > max(most, before.managed):
		return tooManyValues(most)
	}
	return ""
}

// wayOf tells the way to what lies in the last of lists and maps.
func wayOf(way []nest) string {
	const most = 256
	var b strings.Builder
	for _, n := range way {
		if n.list {
			fmt.Fprintf(&b, "[%d]", n.commas)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.Write(n.key[:min(len(n.key), most)])
		if b.Len() > most {
			return b.String()[:most] + "…"
		}
	}
	if b.Len() == 0 {
		return "the whole"
	}
	return b.String()
}

// placeless is a way without the places in lists.
func placeless(way string) string {
	var b strings.Builder
	for {
		from, rest, found := strings.Cut(way, "[")
		b.WriteString(from)
		if !found {
			return b.String()
		}
		way = strings.TrimLeft(rest, "0123456789")
		b.WriteByte('[')
	}
}

// maxYAMLBytes bounds YAML that is not JSON as well: to read it takes hundreds of bytes of memory for one of its own.
const maxYAMLBytes = 512 << 10

// yamlShape is YAML as JSON, if it may have too many entries: if it is long, or says anything more than once (by aliases).
func yamlShape(body []byte) ([]byte, error) {
	switch {
	case len(body) < freeShapeBytes && !bytes.ContainsRune(body, '*'):
		return nil, nil
	case json.Valid(body):
		return body, nil
	case len(body) > maxYAMLBytes:
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the YAML has more than %d bytes; send what is longer as JSON", maxYAMLBytes))
	}
	return yaml.YAMLToJSON(body)
}

// checkObjectShape refuses an object that has come otherwise and has too much of something in it.
func checkObjectShape(obj runtime.Object) error {
	if over := overIn(reflect.ValueOf(obj), nil); over != "" {
		return apierrors.NewBadRequest(over)
	}
	return nil
}

var (
	managedFieldsType = reflect.TypeFor[metav1.FieldsV1]()
	rawExtensionType  = reflect.TypeFor[runtime.RawExtension]()
)

// overIn says what of a value is over a bound; way leads to it.
func overIn(v reflect.Value, way []nest) string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return ""
		}
		return overIn(v.Elem(), way)
	case reflect.Struct:
		if t := v.Type(); t == managedFieldsType || t == rawExtensionType {
			s := shapeIn(v.FieldByName("Raw").Bytes(), t == managedFieldsType)
			if over := s.over(nil); over != "" {
				return wayOf(way) + ": " + over
			}
			return ""
		}
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() || !mayHold(f.Type) {
				continue
			}
			at := way
			if !f.Anonymous {
				at = append(way[:len(way):len(way)], nest{key: []byte(fieldName(f.Name))})
			}
			if over := overIn(v.Field(i), at); over != "" {
				return over
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return ""
		}
		if v.Len() > maxEntries {
			return fmt.Sprintf("%s has more than %d entries", wayOf(way), maxEntries)
		}
		if !mayHold(v.Type().Elem()) {
			return ""
		}
		for i := range v.Len() {
			if over := overIn(v.Index(i), append(way[:len(way):len(way)], nest{list: true, commas: i})); over != "" {
				return over
			}
		}
	case reflect.Map:
		if v.Len() > maxEntries {
			return fmt.Sprintf("%s has more than %d entries", wayOf(way), maxEntries)
		}
		if !mayHold(v.Type().Elem()) {
			return ""
		}
		for i := v.MapRange(); i.Next(); {
			if over := overIn(i.Value(), append(way[:len(way):len(way)], nest{key: []byte(i.Key().String())})); over != "" {
				return over
			}
		}
	}
	return ""
}

// mayHold says whether a value of a type may have lists or maps in it.
func mayHold(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Struct, reflect.Slice, reflect.Map:
		return true
	}
	return false
}

// freeEntries is how many entries all lists and maps of an object have together that cannot be over a bound: what one entry says otherwise
// is no more than some dozens of values.
const freeEntries = maxEntries / 4

// checkPatched holds what a patch has made of an object to the bounds of a body. What was over them may be so, and may not grow.
func checkPatched(obj, old runtime.Object, kind schema.GroupVersionKind) error {
	if entriesIn(reflect.ValueOf(obj), 0) <= freeEntries {
		return nil
	}
	is := sent(obj, kind)
	if is == nil || is.over(nil) == "" {
		return nil
	}
	var was *shape
	if old != nil {
		was = sent(old, kind)
	}
	over := is.over(was)
	if over == "" {
		return nil
	}
	return apierrors.NewInvalid(kind.GroupKind(), metaOf(obj).GetName(), field.ErrorList{field.Forbidden(field.NewPath("patch"), "what it makes of the object is too much: "+over)})
}

// sent is the shape of an object as it would be sent; nil if it cannot be. Managed fields come from all the rest, so they do not count.
func sent(obj runtime.Object, kind schema.GroupVersionKind) *shape {
	var text []byte
	var err error
	if u, ok := obj.(*unstructured.Unstructured); ok {
		text, err = json.Marshal(u.Object)
	} else {
		text, err = runtime.Encode(legacyscheme.Codecs.LegacyCodec(kind.GroupVersion()), obj)
	}
	if err != nil {
		return nil // others have to send it, and say why it cannot be
	}
	s := shapeOf(text)
	s.managed, s.long = 0, slices.DeleteFunc(s.long, func(l long) bool { return l.managed })
	return &s
}

// entriesIn counts the entries of all lists and maps in a value, as far as it matters.
func entriesIn(v reflect.Value, n int) int {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return entriesIn(v.Elem(), n)
		}
	case reflect.Struct:
		if v.Type() == managedFieldsType {
			return n
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); n <= freeEntries && f.IsExported() && mayHold(f.Type) {
				n = entriesIn(v.Field(i), n)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return n + v.Len()/shortestEntry // it may be JSON itself
		}
		if n += v.Len(); mayHold(v.Type().Elem()) {
			for i := 0; i < v.Len() && n <= freeEntries; i++ {
				n = entriesIn(v.Index(i), n)
			}
		}
	case reflect.Map:
		if n += v.Len(); mayHold(v.Type().Elem()) {
			for i := v.MapRange(); n <= freeEntries && i.Next(); { // order does not matter: they are counted
				n = entriesIn(i.Value(), n)
			}
		}
	}
	return n
}

// shortestEntry is about how many bytes an entry has in JSON.
const shortestEntry = 4
