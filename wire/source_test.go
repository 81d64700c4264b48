package wire

import (
	"bytes"
	"reflect"
	"testing"
	"unsafe"

	"github.com/vmihailenco/msgpack/v5"
)

type parcel struct {
	Name string `msgpack:"name"`
	Raw  Raw    `msgpack:"raw"`
	Held held   `msgpack:"held"`
	Last int    `msgpack:"last"`
}

// held is decoded by Bytes.
type held struct{ b []byte }

func (h held) EncodeMsgpack(e *msgpack.Encoder) error { return e.EncodeBytes(h.b) }

func (h *held) DecodeMsgpack(d *msgpack.Decoder) (err error) {
	h.b, err = Bytes(d)
	return err
}

func parcels(t *testing.T) (encoded []byte, all []parcel) {
	t.Helper()
	raw, err := msgpack.Marshal(map[string]any{"list": []int{1, 2, 3}, "bytes": []byte("of its own")})
	if err != nil {
		t.Fatal(err)
	}
	all = []parcel{
		{"a", raw, held{[]byte("some bytes")}, 1},
		{"b", Raw{0x2a}, held{[]byte{}}, 2},
		{"c", Raw{0x90}, held{bytes.Repeat([]byte("x"), 1<<17)}, 3},
	}
	if encoded, err = msgpack.Marshal(all); err != nil {
		t.Fatal(err)
	}
	return encoded, all
}

// TestSourceGivesWhatIsThere: the same comes out of a source as out of any reader, and of a source nothing is copied.
func TestSourceGivesWhatIsThere(t *testing.T) {
	encoded, want := parcels(t)
	for name, d := range map[string]*msgpack.Decoder{
		"a source": msgpack.NewDecoder(NewSource(encoded)), "a reader": msgpack.NewDecoder(bytes.NewReader(encoded)),
	} {
		var got []parcel
		if err := d.Decode(&got); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s gives %v", name, got)
		}
		for i := range got {
			shares := within(got[i].Raw, encoded) && (len(got[i].Held.b) == 0 || within(got[i].Held.b, encoded))
			if shares != (name == "a source") {
				t.Errorf("%s: %s shares its memory: %t", name, got[i].Name, shares)
			}
			if name == "a source" && (cap(got[i].Raw) != len(got[i].Raw) || cap(got[i].Held.b) != len(got[i].Held.b)) {
				t.Errorf("what is appended to %s would be written over what follows", got[i].Name)
			}
		}
	}
}

func within(part, whole []byte) bool {
	at, begin := uintptr(unsafe.Pointer(unsafe.SliceData(part))), uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	return at >= begin && at < begin+uintptr(len(whole))
}

// TestSourceThatEnds in the midst of anything is an error, as for every reader.
func TestSourceThatEnds(t *testing.T) {
	encoded, _ := parcels(t)
	for n := range 200 {
		var of, by []parcel
		source, reader := msgpack.NewDecoder(NewSource(encoded[:n])).Decode(&of), msgpack.NewDecoder(bytes.NewReader(encoded[:n])).Decode(&by)
		if (source == nil) != (reader == nil) {
			t.Fatalf("of %d bytes: %v, and by a reader %v", n, source, reader)
		}
	}
	if err := msgpack.NewDecoder(NewSource([]byte{0xc0})).Decode(&parcel{}); err != nil {
		t.Error(err)
	}
	var none held
	if err := msgpack.NewDecoder(NewSource([]byte{0xc0})).Decode(&none); err != nil || none.b != nil {
		t.Errorf("nothing is %v, %v", none.b, err)
	}
}
