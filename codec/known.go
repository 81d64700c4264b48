package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-dev/berth/store"
)

// Kubernetes' decoders pass over fields that they do not know. Whoever wrote
// one meant something by it, and a server that dropped it would hold another
// state than one that knows it. So an object with such a field is not decoded:
// a proposal with it is refused, and an entry or a snapshot with it stops the
// server.

// Unmarshal decodes an object whose every field is known, or fails with
// store.ErrUnknownCommand.
func Unmarshal(b []byte, o interface {
	Size() int
	Unmarshal([]byte) error
},
) error {
	if err := o.Unmarshal(b); err != nil {
		return err
	}
	if o.Size() == len(b) {
		return nil // nothing was dropped
	}
	if path, unknown := unknownField(b, reflect.TypeOf(o)); unknown {
		return fmt.Errorf("%w: %s has the field %s", store.ErrUnknownCommand, reflect.TypeOf(o).Elem(), path)
	}
	return nil // the same in other bytes
}

// UnmarshalJSON is the same for JSON.
func UnmarshalJSON(b []byte, o any) error {
	if err := json.Unmarshal(b, o); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(reflect.New(reflect.TypeOf(o).Elem()).Interface()); err != nil {
		return fmt.Errorf("%w: %w", store.ErrUnknownCommand, err)
	}
	return nil
}

// unknownField looks for a field in the protobuf bytes of a type that the type
// does not have, and gives the way there.
func unknownField(b []byte, t reflect.Type) (path string, unknown bool) {
	switch t = element(t); {
	case t == timeType, t == microTimeType, t == quantityType:
		return "", false // they read all that they have
	case t.Kind() == reflect.Map:
		return unknownInMap(b, t)
	case t.Kind() != reflect.Struct:
		return "", false
	}
	known := protobufFields(t)
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			return "", false
		}
		f, isKnown := known[number]
		if !isKnown {
			return strconv.Itoa(number), true
		}
		if path, unknown := unknownField(value, f.Type); unknown {
			return f.Name + "." + path, true
		}
		b = rest
	}
	return "", false
}

// unknownInMap is unknownField for one pair of a map.
func unknownInMap(b []byte, t reflect.Type) (path string, unknown bool) {
	for len(b) > 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			return "", false
		}
		switch number {
		case 1:
		case 2:
			if path, unknown := unknownField(value, t.Elem()); unknown {
				return path, true
			}
		default:
			return strconv.Itoa(number), true
		}
		b = rest
	}
	return "", false
}

// fieldsOfTypes remembers what protobufFields has found, by type.
var fieldsOfTypes sync.Map

// protobufFields are a struct's fields by their numbers in protobuf.
func protobufFields(t reflect.Type) map[int]reflect.StructField {
	if known, ok := fieldsOfTypes.Load(t); ok {
		return known.(map[int]reflect.StructField)
	}
	fields := map[int]reflect.StructField{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag := strings.Split(f.Tag.Get("protobuf"), ",")
		if len(tag) < 2 {
			continue
		}
		if number, err := strconv.Atoi(tag[1]); err == nil {
			fields[number] = f
		}
	}
	fieldsOfTypes.Store(t, fields)
	return fields
}
