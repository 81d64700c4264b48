package codec

import (
	"reflect"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A row is in memory what its bytes give when they are read back; otherwise a
// server that was restored from a snapshot would have, and sooner or later do,
// something else than one that was not. So a row is made canonical when it is
// put into its table: what is empty is nil, times have the fractions that their
// bytes have, and lie between the years 1 and 9999, since no client reads
// others; texts that are written as JSON are valid UTF-8.

// form makes a value of one type canonical. before is what was there, or nil:
// what both share is so already, and is not looked at again. It writes to
// nothing that was canonical, since others may read that. A nil form stands for
// types of which every value is canonical.
//
// Every row that is put is looked at, so a form knows where in memory the fields
// of its type are: to ask reflection for each took a tenth of what it takes to
// bind a pod.
type form func(v, before unsafe.Pointer) (changed bool)

// Encoding is how a row is written, of which it depends what is read back.
type Encoding string

// The encodings of rows.
const (
	Protobuf Encoding = "protobuf"
	Msgpack  Encoding = "msgpack"
	JSON     Encoding = "json"
)

// Canonical makes the rows of a table canonical (store.Definition.Canonical). They
// are pointers.
func Canonical[T any](as Encoding) func(row, before T, had bool) {
	f := formOf(reflect.TypeFor[T]().Elem(), as)
	return func(row, before T, had bool) {
		is, was := pointed(unsafe.Pointer(&row)), unsafe.Pointer(nil) // #nosec G103 -- the address is compared, and nothing is read through it
		if had {
			was = pointed(unsafe.Pointer(&before)) // #nosec G103 -- the address is compared, and nothing is read through it
		}
		if f != nil && is != was {
			f(is, was)
		}
	}
}

// CanonicalObject makes objects of the type of one canonical; before is nil where
// there was none of that type.
func CanonicalObject(like Object, as Encoding) func(o, before Object) {
	f := formOf(reflect.TypeOf(like).Elem(), as)
	return func(o, before Object) {
		var was unsafe.Pointer
		if before != nil {
			was = reflect.ValueOf(before).UnsafePointer()
		}
		if f != nil {
			f(reflect.ValueOf(o).UnsafePointer(), was)
		}
	}
}

var (
	timeType      = reflect.TypeFor[metav1.Time]()
	microTimeType = reflect.TypeFor[metav1.MicroTime]()
	quantityType  = reflect.TypeFor[apiresource.Quantity]()
	podSpecType   = reflect.TypeFor[corev1.PodSpec]()
	schemaType    = reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()
)

// formOf is the form of a type whose values are written so.
func formOf(t reflect.Type, as Encoding) form {
	switch t {
	case timeType:
		return func(v, _ unsafe.Pointer) bool { return inCalendar(&(*metav1.Time)(v).Time, time.Second) }
	case microTimeType:
		return func(v, _ unsafe.Pointer) bool { return inCalendar(&(*metav1.MicroTime)(v).Time, time.Microsecond) }
	case podSpecType:
		return nil // has no times, and comes out of bytes; it is shared by too many to be looked at for each
	case schemaType:
		return schemaForm
	}
	switch t.Kind() {
	case reflect.String:
		if as == JSON {
			return textForm
		}
	case reflect.Pointer:
		return pointerForm(formOf(t.Elem(), as))
	case reflect.Struct:
		return structForm(t, as)
	case reflect.Slice:
		return sliceForm(formOf(t.Elem(), as), t.Elem().Size())
	case reflect.Map:
		return mapForm(t, formOf(t.Elem(), as))
	}
	return nil
}

// The first and the last second that clients can read.
var (
	calendarStart = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	calendarEnd   = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// inCalendar makes a time one with whole units, as it is written.
func inCalendar(t *time.Time, unit time.Duration) (changed bool) {
	switch fraction := time.Duration(t.Nanosecond()) % unit; {
	case t.Before(calendarStart):
		*t = calendarStart
	case t.After(calendarEnd):
		*t = calendarEnd
	case fraction != 0:
		*t = t.Add(-fraction)
	default:
		return false
	}
	return true
}

func textForm(v, _ unsafe.Pointer) (changed bool) {
	text := (*string)(v)
	if utf8.ValidString(*text) {
		return false
	}
	*text = strings.ToValidUTF8(*text, "\uFFFD")
	return true
}

// schemaForm reads a schema back from its bytes: schemas contain schemas, and are
// written seldom.
func schemaForm(v, _ unsafe.Pointer) (changed bool) {
	schema := (*apiextensionsv1.JSONSchemaProps)(v)
	b, err := schema.Marshal()
	if err != nil {
		return false // what has no bytes is not stored
	}
	var back apiextensionsv1.JSONSchemaProps
	if back.Unmarshal(b) != nil {
		return false
	}
	*schema = back
	return true
}

// field is one of a struct with which there is something to do.
type field struct {
	offset uintptr
	empty  form // makes it nil when it is empty; nil: that says something
	value  form
}

func structForm(t reflect.Type, as Encoding) form {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		field := field{offset: f.Offset, value: formOf(f.Type, as)}
		if as == Protobuf || strings.Contains(f.Tag.Get(string(as)), ",omitempty") {
			field.empty = emptyForm(f.Type)
		}
		if field.empty != nil || field.value != nil {
			fields = append(fields, field)
		}
	}
	if fields == nil {
		return nil
	}
	return func(v, before unsafe.Pointer) (changed bool) {
		for i := range fields {
			f := &fields[i]
			at, was := unsafe.Add(v, f.offset), before
			if was != nil {
				was = unsafe.Add(was, f.offset)
			}
			if f.empty != nil && f.empty(at, was) || f.value != nil && f.value(at, was) {
				changed = true
			}
		}
		return changed
	}
}

// emptyForm makes slices and maps nil that are empty; nil for other types.
func emptyForm(t reflect.Type) form {
	switch t.Kind() {
	case reflect.Slice:
		return func(v, _ unsafe.Pointer) (changed bool) {
			s := (*[]struct{})(v)
			if *s == nil || len(*s) > 0 {
				return false
			}
			*s = nil
			return true
		}
	case reflect.Map:
		return func(v, before unsafe.Pointer) (changed bool) {
			if pointed(v) == nil || before != nil && pointed(v) == pointed(before) {
				return false
			}
			m := reflect.NewAt(t, v).Elem()
			if m.Len() > 0 {
				return false
			}
			m.SetZero()
			return true
		}
	}
	return nil
}

// pointed is what a pointer, or a map, at v points to.
func pointed(v unsafe.Pointer) unsafe.Pointer { return *(*unsafe.Pointer)(v) }

func pointerForm(elem form) form {
	if elem == nil {
		return nil
	}
	return func(v, before unsafe.Pointer) (changed bool) {
		is := pointed(v)
		if is == nil {
			return false
		}
		var was unsafe.Pointer
		if before != nil {
			was = pointed(before)
		}
		return is != was && elem(is, was)
	}
}

func sliceForm(elem form, size uintptr) form {
	if elem == nil {
		return nil
	}
	return func(v, before unsafe.Pointer) (changed bool) {
		// Whatever it is a slice of: the pointer and the length are asked for alone.
		s := *(*[]struct{})(v)
		first := unsafe.Pointer(unsafe.SliceData(s)) // #nosec G103 -- the address is compared, and nothing is read through it
		if before != nil {
			was := *(*[]struct{})(before)
			if len(s) == len(was) && first == unsafe.Pointer(unsafe.SliceData(was)) { // #nosec G103 -- the address is compared, and nothing is read through it
				return false
			}
		}
		for i := range len(s) {
			changed = elem(unsafe.Add(first, uintptr(i)*size), nil) || changed
		}
		return changed
	}
}

func mapForm(t reflect.Type, elem form) form {
	if elem == nil {
		return nil
	}
	return func(v, before unsafe.Pointer) (changed bool) {
		if pointed(v) == nil || before != nil && pointed(v) == pointed(before) {
			return false
		}
		m := reflect.NewAt(t, v).Elem()
		// order does not matter: each value by itself.
		for _, key := range m.MapKeys() {
			value := reflect.New(t.Elem())
			value.Elem().Set(m.MapIndex(key))
			if elem(value.UnsafePointer(), nil) {
				m.SetMapIndex(key, value.Elem())
				changed = true
			}
		}
		return changed
	}
}
