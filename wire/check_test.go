package wire

import (
	"errors"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   string
		ok   bool
	}{
		{"nothing", "", false},
		{"nil", "\xc0", true},
		{"two values", "\xc0\xc0", false},
		{"a byte that begins nothing", "\xc1", false},
		{"an array that claims two thousand million elements", "\xdd\x71\x9a\x19\x0d\x80", false},
		{"a map that claims as many", "\xdf\x71\x9a\x19\x0d\x80", false},
		{"a string longer than what is there", "\xdb\xff\xff\xff\xff", false},
		{"a length that is cut off", "\xdc\x00", false},
		{"an array that is cut off", "\x92\x01", false},
		{"an array of two", "\x92\x01\x02", true},
		{"a map of one", "\x81\xa1k\x01", true},
		{"an extension", "\xc7\x01\x05x", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Check([]byte(tt.in), 1000)
			if (err == nil) != tt.ok {
				t.Fatalf("Check: %v", err)
			}
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("%v is no ErrMalformed", err)
			}
		})
	}
}

func TestCheckBounds(t *testing.T) {
	many, err := msgpack.Marshal(make([]int, 100))
	if err != nil {
		t.Fatal(err)
	}
	if err := Check(many, 100); err != nil {
		t.Error(err)
	}
	if Check(many, 99) == nil {
		t.Error("100 elements pass where 99 are allowed")
	}
	deep := make([]byte, 2*maxDepth)
	for i := range deep {
		deep[i] = 0x91 // an array of one
	}
	if Check(append(deep, 0xc0), 1000) == nil {
		t.Error("deep nesting passes")
	}
}

// What passes can be decoded, or refused, without harm.
func FuzzCheck(f *testing.F) {
	f.Add([]byte("\x81\xa1k\x92\x01\xc0"))
	f.Add([]byte("\xdd\x71\x9a\x19\x0d\x80"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if Check(b, 1<<16) == nil {
			var v any
			_ = msgpack.Unmarshal(b, &v) // only its memory matters
		}
	})
}
