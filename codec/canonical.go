package codec

import (
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A row is in memory what its bytes give when they are read back; otherwise a
// server that was restored from a snapshot would have, and sooner or later do,
// something else than one that was not. So a row is made canonical when it is
// put into its table: what is empty is nil, times have the fractions that their
// bytes have, and lie between the years 1 and 9999, since no client reads
// others; texts that are written as JSON are valid UTF-8.

// Form makes values of one type canonical. before is what was there, or not
// valid: what both share is so already, and is not looked at again. It writes to
// nothing that was canonical, since others may read that. nil stands for types
// of which every value is canonical.
type Form func(v, before reflect.Value) (changed bool)

// Encoding is how a row is written, of which it depends what is read back.
type Encoding string

// The encodings of rows.
const (
	Protobuf Encoding = "protobuf"
	Msgpack  Encoding = "msgpack"
	JSON     Encoding = "json"
)

// Canonical makes the rows of a table canonical (store.Definition.Canonical).
func Canonical[T any](as Encoding) func(row, before T, had bool) {
	f := FormOf(reflect.TypeFor[T](), as)
	return func(row, before T, had bool) {
		var was reflect.Value
		if had {
			was = reflect.ValueOf(before)
		}
		if f != nil {
			f(reflect.ValueOf(row), was)
		}
	}
}

var (
	timeType      = reflect.TypeFor[metav1.Time]()
	microTimeType = reflect.TypeFor[metav1.MicroTime]()
	quantityType  = reflect.TypeFor[apiresource.Quantity]()
	podSpecType   = reflect.TypeFor[corev1.PodSpec]()
)

// FormOf is the form of a type whose values are written so.
func FormOf(t reflect.Type, as Encoding) Form {
	switch t {
	case timeType:
		return func(v, _ reflect.Value) bool {
			return inCalendar(&v.Addr().Interface().(*metav1.Time).Time, time.Second)
		}
	case microTimeType:
		return func(v, _ reflect.Value) bool {
			return inCalendar(&v.Addr().Interface().(*metav1.MicroTime).Time, time.Microsecond)
		}
	case podSpecType:
		return nil // has no times, and comes out of bytes; it is shared by too many to be looked at for each
	}
	switch t.Kind() {
	case reflect.String:
		if as == JSON {
			return textForm
		}
	case reflect.Pointer:
		return pointerForm(FormOf(t.Elem(), as))
	case reflect.Struct:
		return structForm(t, as)
	case reflect.Slice:
		return sliceForm(FormOf(t.Elem(), as))
	case reflect.Map:
		return mapForm(t, FormOf(t.Elem(), as))
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

func textForm(v, _ reflect.Value) (changed bool) {
	if utf8.ValidString(v.String()) {
		return false
	}
	v.SetString(strings.ToValidUTF8(v.String(), "\uFFFD"))
	return true
}

// field is one of a struct with which there is something to do.
type field struct {
	index int
	nil   bool // when it is empty
	value Form
}

func structForm(t reflect.Type, as Encoding) Form {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		field := field{index: i, value: FormOf(f.Type, as)}
		if k := f.Type.Kind(); k == reflect.Slice || k == reflect.Map {
			field.nil = as == Protobuf || strings.Contains(f.Tag.Get(string(as)), ",omitempty")
		}
		if field.nil || field.value != nil {
			fields = append(fields, field)
		}
	}
	if fields == nil {
		return nil
	}
	return func(v, before reflect.Value) (changed bool) {
		for i := range fields {
			f := &fields[i]
			var was reflect.Value
			if before.IsValid() {
				was = before.Field(f.index)
			}
			changed = f.apply(v.Field(f.index), was) || changed
		}
		return changed
	}
}

func (f *field) apply(v, before reflect.Value) (changed bool) {
	if f.nil && v.Len() == 0 {
		if v.IsNil() {
			return false
		}
		v.SetZero()
		return true
	}
	return f.value != nil && f.value(v, before)
}

func pointerForm(elem Form) Form {
	if elem == nil {
		return nil
	}
	return func(v, before reflect.Value) (changed bool) {
		switch {
		case v.IsNil():
			return false
		case !before.IsValid() || before.IsNil():
			return elem(v.Elem(), reflect.Value{})
		}
		return v.Pointer() != before.Pointer() && elem(v.Elem(), before.Elem())
	}
}

func sliceForm(elem Form) Form {
	if elem == nil {
		return nil
	}
	return func(v, before reflect.Value) (changed bool) {
		if before.IsValid() && v.Len() == before.Len() && v.Pointer() == before.Pointer() {
			return false
		}
		for i := range v.Len() {
			changed = elem(v.Index(i), reflect.Value{}) || changed
		}
		return changed
	}
}

func mapForm(t reflect.Type, elem Form) Form {
	if elem == nil {
		return nil
	}
	return func(v, before reflect.Value) (changed bool) {
		if before.IsValid() && v.Pointer() == before.Pointer() {
			return false
		}
		// order does not matter: each value by itself.
		for _, key := range v.MapKeys() {
			value := reflect.New(t.Elem()).Elem()
			value.Set(v.MapIndex(key))
			if elem(value, reflect.Value{}) {
				v.SetMapIndex(key, value)
				changed = true
			}
		}
		return changed
	}
}
