package platter

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Whatever is written and cut off, a content is what a slice of bytes is.
func TestContentIsASliceOfBytes(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var c content
		var want []byte
		resize := func(size int64) {
			if size < int64(len(want)) {
				want = want[:size:size]
			} else {
				want = append(want, make([]byte, size-int64(len(want)))...)
			}
		}
		for range 40 {
			at, size := r.Int64N(4*chunkBytes), r.Int64N(2*chunkBytes)
			if r.IntN(4) == 0 {
				at, size = at/chunkBytes*chunkBytes, size/chunkBytes*chunkBytes
			}
			switch r.IntN(3) {
			case 0:
				resize(size)
				c.resize(size)
			case 1:
				with := bytes.Repeat([]byte{byte(1 + r.IntN(255))}, int(size))
				if at+size > int64(len(want)) {
					resize(at + size)
				}
				copy(want[at:], with)
				c.overwrite(at, with)
			case 2:
				c = c.clone()
			}
			got := bytes.Repeat([]byte{7}, len(want)+10)
			if n := c.read(got, 0); n != len(want) || !bytes.Equal(got[:n], want) || c.size != int64(len(want)) {
				t.Fatalf("seed %d: %d bytes and size %d, or others, instead of %d", seed, n, c.size, len(want))
			}
			if n := c.read(got, at); n != max(0, min(len(want)+10, len(want)-int(at))) || n > 0 && !bytes.Equal(got[:n], want[at:]) {
				t.Fatalf("seed %d: from %d on it reads otherwise", seed, at)
			}
		}
	}
}
