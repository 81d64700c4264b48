package fsm

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
)

// requireReadBack holds for every row at every time: what is in memory is what
// a snapshot of it gives. Otherwise a server that was restored would have, and
// sooner or later do, something else than one that was not.
func requireReadBack(t failer, table anyTable, key string, row any) {
	t.Helper()
	b, err := table.EncodeRow(row)
	if err != nil {
		t.Fatalf("%s %s can not be encoded: %v", table.Name(), key, err)
	}
	back, err := table.DecodeRow(b)
	if err != nil {
		t.Fatalf("%s %s can not be decoded: %v", table.Name(), key, err)
	}
	if d := difference("", reflect.ValueOf(row), reflect.ValueOf(back)); d != "" {
		t.Fatalf("%s %s is not what is read back: %s", table.Name(), key, d)
	}
	again, err := table.EncodeRow(back)
	if err != nil || !bytes.Equal(b, again) {
		t.Fatalf("%s %s: other bytes when it was read back (%v):\n%q\n%q", table.Name(), key, err, b, again)
	}
}

// difference is where two values differ for somebody who can ask what Go code
// can ask: nil and empty are not the same, and neither are a time and its whole
// seconds. "" if they do not. Fields that are not exported are worked out from
// the others, or from other rows, and have their own tests.
func difference(path string, a, b reflect.Value) string {
	if a.IsValid() != b.IsValid() {
		return fmt.Sprintf("%s is there, and is not", path)
	}
	if !a.IsValid() {
		return ""
	}
	if a.Type() != b.Type() {
		return fmt.Sprintf("%s is a %s and a %s", path, a.Type(), b.Type())
	}
	switch x := a.Interface().(type) {
	case time.Time:
		if y := b.Interface().(time.Time); !x.Equal(y) {
			return fmt.Sprintf("%s is %s and %s", path, x.UTC(), y.UTC())
		}
		return ""
	case apiresource.Quantity:
		if y := b.Interface().(apiresource.Quantity); x.Cmp(y) != 0 || x.Format != y.Format || x.String() != y.String() {
			return fmt.Sprintf("%s is %s and %s", path, x.String(), y.String())
		}
		return ""
	}
	switch a.Kind() {
	case reflect.Slice, reflect.Map, reflect.Pointer, reflect.Interface:
		if a.IsNil() != b.IsNil() {
			return fmt.Sprintf("%s is nil: %t and %t", path, a.IsNil(), b.IsNil())
		}
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		return difference(path, a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if f := a.Type().Field(i); f.IsExported() {
				if d := difference(path+"."+f.Name, a.Field(i), b.Field(i)); d != "" {
					return d
				}
			}
		}
	case reflect.Slice, reflect.Array:
		if a.Len() != b.Len() {
			return fmt.Sprintf("%s has %d and %d elements", path, a.Len(), b.Len())
		}
		for i := range a.Len() {
			if d := difference(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i)); d != "" {
				return d
			}
		}
	case reflect.Map:
		if a.Len() != b.Len() {
			return fmt.Sprintf("%s has %d and %d keys", path, a.Len(), b.Len())
		}
		for _, k := range a.MapKeys() {
			if d := difference(fmt.Sprintf("%s[%v]", path, k), a.MapIndex(k), b.MapIndex(k)); d != "" {
				return d
			}
		}
	default:
		if !reflect.DeepEqual(a.Interface(), b.Interface()) {
			return strings.TrimPrefix(fmt.Sprintf("%s is %#v and %#v", path, a.Interface(), b.Interface()), ".")
		}
	}
	return ""
}
