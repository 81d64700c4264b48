package raftnode

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// FuzzHello: what a stranger says before he has shown who he is is refused, or understood and said again in the same way; no more of
// it is read than a greeting has.
func FuzzHello(f *testing.F) {
	for _, h := range []hello{{}, {Cluster: "c", Server: "s", To: "t", RPC: "127.0.0.1:1", HTTP: "127.0.0.1:2", Who: true}, {Refusal: "no", Lost: true, Gone: "x"}} {
		var b bytes.Buffer
		if err := writeHello(&b, h); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		in := bytes.NewReader(raw)
		h, err := readHello(in)
		if read := len(raw) - in.Len(); read > len(helloMagic)+2+maxHelloBytes {
			t.Fatalf("%d bytes were read", read)
		}
		if err != nil {
			if !errors.Is(err, errGreeting) {
				t.Fatal(err)
			}
			return
		}
		var b bytes.Buffer
		if err := writeHello(&b, h); err != nil {
			t.Fatal(err)
		}
		if b.Len() > len(helloMagic)+2+maxHelloBytes {
			return // what is said shorter in another way
		}
		again, err := readHello(&b)
		if err != nil || !reflect.DeepEqual(h, again) {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}
