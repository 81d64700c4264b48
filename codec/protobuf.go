package codec

import (
	"encoding/binary"
	"slices"
)

// Wire types of protobuf, and the fields of a pod that are told apart here.
const (
	wireVarint, wireFixed64, wireBytes, wireFixed32 = 0, 1, 2, 5

	specNodeName, specHostname = 10, 16
)

// SplitPod finds metadata, spec and status in a pod's protobuf bytes. It does
// so only for bytes as Kubernetes writes them: each field at most once and in
// order.
func SplitPod(b []byte) (parts [3][]byte, ok bool) {
	for last := 0; len(b) > 0; {
		field, value, rest, ok := nextField(b)
		if !ok || value == nil || field <= last || field > len(parts) {
			return parts, false
		}
		parts[field-1], b, last = value, rest, field
	}
	return parts, true
}

// CutOwn gives the bytes of a pod's spec as if it had no node and no hostname, and those: all else is the same in
// all pods of a template. What is left is as Kubernetes writes it, if the spec was.
func CutOwn(spec []byte) (rest []byte, node, hostname string, ok bool) {
	rest = make([]byte, 0, len(spec))
	var own [2]string
	seen := [2]bool{}
	for b := spec; len(b) > 0; {
		field, value, after, ok := nextField(b)
		if !ok {
			return nil, "", "", false
		}
		if at := slices.Index([]int{specNodeName, specHostname}, field); at >= 0 {
			if value == nil || seen[at] {
				return nil, "", "", false
			}
			own[at], seen[at] = string(value), true
			rest = append(binary.AppendUvarint(rest, uint64(field)<<3|wireBytes), 0)
		} else {
			rest = append(rest, b[:len(b)-len(after)]...)
		}
		b = after
	}
	return rest, own[0], own[1], true
}

// nextField takes one field off protobuf bytes. value is nil unless the field
// is length-delimited.
func nextField(b []byte) (field int, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<28 {
		return 0, nil, nil, false
	}
	b = b[n:]
	size := 0
	switch tag & 7 {
	case wireVarint:
		if _, size = binary.Uvarint(b); size <= 0 {
			return 0, nil, nil, false
		}
	case wireFixed64:
		size = 8
	case wireFixed32:
		size = 4
	case wireBytes:
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return 0, nil, nil, false
		}
		size = n + int(length)
		value = b[n:size:size]
	default:
		return 0, nil, nil, false
	}
	if size > len(b) {
		return 0, nil, nil, false
	}
	return int(tag >> 3), value, b[size:], true
}
