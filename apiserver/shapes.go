package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// What Kubernetes' libraries do with a list or a map often takes time by the square of its entries: they look for duplicates one by one,
// keep sets as sorted slices, and copy what they have for each entry more. So an object has bounds for all that it holds, whatever it is.
const (
	maxEntries = 16384 // of one list or map
	maxNesting = 256   // of lists and maps in each other
	// maxContents bounds all values of a body together: a few bytes may become a large struct each.
	maxContents = 1 << 18
	// Strategic merges compare every entry of a list with every other one, which costs far more.
	maxMergeEntries = 2048
	maxMergeWork    = 2 * maxMergeEntries * maxMergeEntries // squares of the entries of its lists, together
	// freeShapeBytes is how long a body is that can have no more entries than it may.
	freeShapeBytes = 2 * maxEntries
)

// shape is what a text of JSON has in it.
type shape struct {
	over    string // the way to what is over a bound, and how; empty if nothing is
	longest int    // entries of the longest list
	at      string // the way to it, if it is too long for a strategic merge
	work    int    // the squares of the entries of lists, together
}

// tooManyValues is what is told of a body with too many of them.
var tooManyValues = fmt.Sprintf("the whole has more than %d values", maxContents)

// nest is one list or map on the way to where a text is read.
type nest struct {
	list   bool
	commas int
	key    []byte // of a map
}

// shapeOf reads JSON as far as its shape goes. What is no JSON, others refuse.
func shapeOf(text []byte) shape {
	var s shape
	var way []nest
	var word []byte
	values := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == ',' || c == '{' || c == '[' {
			if values++; values > maxContents {
				s.over = tooManyValues
				return s
			}
		}
		switch c {
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
				s.over = fmt.Sprintf("%s lies in %d others; there may be %d", wayOf(way[:8])+"…", maxNesting, maxNesting-1)
				return s
			}
			way = append(way, nest{list: c == '['})
		case ':':
			if len(way) > 0 {
				way[len(way)-1].key = word
			}
		case ',':
			if len(way) == 0 {
				continue
			}
			top := &way[len(way)-1]
			if top.commas++; top.commas >= maxEntries {
				s.over = fmt.Sprintf("%s has more than %d entries", wayOf(way[:len(way)-1]), maxEntries)
				return s
			}
		case '}', ']':
			if len(way) == 0 {
				continue
			}
			top := way[len(way)-1]
			way = way[:len(way)-1]
			if n := top.commas + 1; top.list {
				if s.work += n * n; n > s.longest {
					if s.longest = n; n > maxMergeEntries {
						s.at = wayOf(way)
					}
				}
			}
		}
	}
	return s
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

// checkShape refuses a body that has too much of something in it. merged: it is a strategic merge.
func checkShape(text []byte, merged bool) error {
	if !merged && len(text) < freeShapeBytes {
		return nil
	}
	switch s := shapeOf(text); {
	case s.over != "":
		return apierrors.NewRequestEntityTooLargeError(s.over)
	case merged && s.longest > maxMergeEntries:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"%s has %d entries; a list of a strategic merge may have %d", s.at, s.longest, maxMergeEntries))
	case merged && s.work > maxMergeWork:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"the lists of the strategic merge are too long together: the squares of their lengths come to %d, and may to %d", s.work, maxMergeWork))
	}
	return nil
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

// checkObjectShape is checkShape for an object that has come otherwise.
func checkObjectShape(obj runtime.Object) error {
	if over := overIn(reflect.ValueOf(obj), nil); over != "" {
		return apierrors.NewRequestEntityTooLargeError(over)
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
			if s := shapeOf(v.FieldByName("Raw").Bytes()); s.over != "" {
				return wayOf(way) + ": " + s.over
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
