// Package wire checks bytes from elsewhere before they are decoded: msgpack
// decoders allocate whatever a header claims, and six bytes can claim the whole
// memory. It also lets what is bytes inside of them be taken as it stands
// (Source). It must never decode anything itself.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrMalformed is wrapped by every error of Check.
var ErrMalformed = errors.New("malformed message")

// maxDepth bounds how deeply values may be nested.
const maxDepth = 32

// Check makes sure, without recursion and allocation, that b is exactly one
// msgpack value of at most so many elements, none of which claims to be longer
// than what is there.
func Check(b []byte, maxElements uint64) error {
	size, err := first(b, maxElements)
	if err == nil && size < len(b) {
		return fmt.Errorf("%w: %d bytes after its end", ErrMalformed, len(b)-size)
	}
	return err
}

// first is how many bytes the first value of b takes, checked as Check does.
func first(b []byte, maxElements uint64) (bytes int, err error) {
	rest := b
	var left [maxDepth]uint64 // elements still to come, by depth
	left[0] = 1
	total := uint64(0)
	for depth := 0; depth >= 0; {
		if left[depth] == 0 {
			depth--
			continue
		}
		left[depth]--
		size, elements, err := header(rest)
		if err != nil {
			return 0, err
		}
		if size > uint64(len(rest)) {
			return 0, fmt.Errorf("%w: it ends in the middle of a value", ErrMalformed)
		}
		rest = rest[size:]
		if elements == 0 {
			continue
		}
		if total += elements; total > maxElements || elements > uint64(len(rest)) {
			return 0, fmt.Errorf("%w: too many elements", ErrMalformed)
		}
		if depth++; depth == maxDepth {
			return 0, fmt.Errorf("%w: nested too deeply", ErrMalformed)
		}
		left[depth] = elements
	}
	return len(b) - len(rest), nil
}

// header reads the head of one value: how many bytes it takes without its
// elements, and how many elements follow.
func header(b []byte) (size, elements uint64, err error) {
	if len(b) == 0 {
		return 0, 0, fmt.Errorf("%w: it ends too early", ErrMalformed)
	}
	c := b[0]
	switch {
	case c <= 0x7f || c >= 0xe0: // fixint
		return 1, 0, nil
	case c <= 0x8f: // fixmap
		return 1, 2 * uint64(c&0x0f), nil
	case c <= 0x9f: // fixarray
		return 1, uint64(c & 0x0f), nil
	case c <= 0xbf: // fixstr
		return 1 + uint64(c&0x1f), 0, nil
	}
	switch c {
	case 0xc0, 0xc2, 0xc3: // nil, false, true
		return 1, 0, nil
	case 0xcc, 0xd0: // 8 bit
		return 2, 0, nil
	case 0xcd, 0xd1: // 16 bit
		return 3, 0, nil
	case 0xca, 0xce, 0xd2: // 32 bit
		return 5, 0, nil
	case 0xcb, 0xcf, 0xd3: // 64 bit
		return 9, 0, nil
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8: // fixext: type and 1, 2, 4, 8, 16 bytes
		return 2 + 1<<(c-0xd4), 0, nil
	}
	// What is left carries a length of 1, 2 or 4 bytes.
	var width, extra uint64
	switch c {
	case 0xc4, 0xd9: // bin, str
		width = 1
	case 0xc5, 0xda, 0xdc, 0xde: // bin, str, array, map
		width = 2
	case 0xc6, 0xdb, 0xdd, 0xdf:
		width = 4
	case 0xc7, 0xc8, 0xc9: // ext
		width, extra = 1<<(c-0xc7), 1
	default:
		return 0, 0, fmt.Errorf("%w: byte %#x begins no value", ErrMalformed, c)
	}
	if uint64(len(b)) < 1+width {
		return 0, 0, fmt.Errorf("%w: it ends in a length", ErrMalformed)
	}
	var word [4]byte
	copy(word[4-width:], b[1:1+width])
	n := uint64(binary.BigEndian.Uint32(word[:]))
	switch c {
	case 0xdc, 0xdd:
		return 1 + width, n, nil
	case 0xde, 0xdf:
		return 1 + width, 2 * n, nil
	default:
		return 1 + width + extra + n, 0, nil
	}
}
