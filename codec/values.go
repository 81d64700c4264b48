package codec

import "reflect"

// Values counts what protobuf bytes of a type become when they are decoded: fields, entries of lists and maps, and those in them, at any
// depth. It stops at one more than most. A few bytes may become a large struct each.
func Values(b []byte, t reflect.Type, most int) int {
	return most - max(-1, valuesLeft(b, t, most, 0))
}

// valuesLeft is how many more values there may be behind those of b.
func valuesLeft(b []byte, t reflect.Type, left, depth int) int {
	t = element(t)
	isMap := t.Kind() == reflect.Map
	if !isMap && t.Kind() != reflect.Struct || depth > MaxNesting {
		return left
	}
	var known map[int]reflect.StructField
	if !isMap {
		known = protobufFields(t)
	}
	for len(b) > 0 && left >= 0 {
		number, value, rest, ok := nextField(b)
		if !ok {
			return left // the decoder says what is wrong
		}
		left--
		b = rest
		switch f, is := known[number]; {
		case isMap && number == 2:
			left = valuesLeft(value, t.Elem(), left, depth+1)
		case is:
			left = valuesLeft(value, f.Type, left, depth+1)
		}
	}
	return left
}
