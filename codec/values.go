package codec

import "reflect"

// Values counts what protobuf bytes of a type become when they are decoded: fields, entries of lists and maps, and those in them, at any
// depth. It stops at one more than most. A few bytes may become a large struct each. An error begins as CheckForeign's do.
func Values(b []byte, t reflect.Type, most int) (int, error) {
	left, err := valuesLeft(b, t, most, 0)
	return most - max(-1, left), err
}

// valuesLeft is how many more values there may be behind those of b.
func valuesLeft(b []byte, t reflect.Type, left, depth int) (int, error) {
	t = element(t)
	isMap := t.Kind() == reflect.Map
	if !isMap && t.Kind() != reflect.Struct || depth > MaxNesting {
		return left, nil
	}
	var known map[int]reflect.StructField
	if !isMap {
		known = protobufFields(t)
	}
	for len(b) > 0 && left >= 0 {
		number, value, rest, ok := nextField(b)
		if !ok || isMap && noEntry(number, value) {
			return left, errForm // a decoder may read on
		}
		left--
		b = rest
		var err error
		switch f, is := known[number]; {
		case isMap && number == 2:
			left, err = valuesLeft(value, t.Elem(), left, depth+1)
		case is:
			left, err = valuesLeft(value, f.Type, left, depth+1)
		}
		if err != nil {
			return left, err
		}
	}
	return left, nil
}
