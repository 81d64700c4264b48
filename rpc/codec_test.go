package rpc

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/wire"
)

func TestCodecRoundTrip(t *testing.T) {
	tail := int64(10)
	for _, in := range []any{
		&ForwardRequest{Hops: 1, Entries: bytes.Repeat([]byte{0xff}, 1<<20), Server: "s1"},
		&DifferenceRequest{Index: 9, EqualAt: 7, Digest: "d", Tables: []string{"pods"}},
		&StreamReport{Server: "s1", Nodes: []string{"a", "b"}},
		&RenewalRequest{Node: "n", UID: "u", ResourceVersion: "7", RenewedUnixMicro: -1}, &RenewalResponse{Taken: true, RenewedUnixMicro: 9},
		&StatusResponse{Server: "s1", Index: math.MaxUint64, Revision: -1, ComparedIndex: 7, Unsettled: "u", Raft: map[string]string{"a": "b"}},
		&WorkerMessage{Hello: &Hello{Name: "n", ResumeRevision: math.MaxInt64}},
		&WorkerMessage{Status: &StatusBatch{ID: 1, Pods: []PodReport{{UID: "u", Status: []byte{1}}, {UID: "v", Removed: true}}}},
		&WorkerMessage{Heartbeat: true},
		&ServerMessage{Assignments: &Assignments{Full: true, Revision: 5, Pods: [][]byte{{1}, {}}, Gone: []string{"x"}}},
		&ServerMessage{Acks: []Ack{{BatchID: 1, Error: "e"}}, Drain: &Drain{}},
		&Frame{Error: &TunnelError{Code: 404, Message: "no"}, Close: true},
		&LogsRequest{Container: "c", TailLines: &tail},
	} {
		raw, err := codec{}.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		out := reflect.New(reflect.TypeOf(in).Elem()).Interface()
		if err := (codec{}).Unmarshal(raw, out); err != nil {
			t.Fatalf("%T: %v", in, err)
		}
		if !reflect.DeepEqual(in, out) {
			t.Errorf("%T: %+v became %+v", in, in, out)
		}
	}
}

// TestUnknownFieldsAreSkipped: a newer peer may say more.
func TestUnknownFieldsAreSkipped(t *testing.T) {
	raw, err := msgpack.Marshal(map[string]any{"heartbeat": true, "later": map[string]any{"a": []int{1, 2}}})
	if err != nil {
		t.Fatal(err)
	}
	var m WorkerMessage
	if err := decode(raw, &m); err != nil || !m.Heartbeat {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestMalformed(t *testing.T) {
	for name, raw := range map[string]string{
		"empty":            "",
		"two values":       "\x01\x01",
		"short map":        "\x81\xa1a",
		"short string":     "\xa5ab",
		"short length":     "\xdb\x00",
		"reserved byte":    "\xc1",
		"huge bin":         "\xc6\xff\xff\xff\xff",
		"huge array":       "\xdd\xff\xff\xff\xff\x01",
		"huge map":         "\xdf\xff\xff\xff\xff\x01",
		"too deep":         strings.Repeat("\x91", 1<<20) + "\x01",
		"too many":         "\xdd\x00\x10\x00\x01" + strings.Repeat("\xc0", 1<<20+1),
		"ext without type": "\xc7\x04\x01ab",
	} {
		var m WorkerMessage
		if err := decode([]byte(raw), &m); !errors.Is(err, wire.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWellFormedAcceptsMsgpack: what an encoder makes within the bounds passes.
func TestWellFormedAcceptsMsgpack(t *testing.T) {
	leaf := rapid.OneOf(
		rapid.Map(rapid.Int64(), func(v int64) any { return v }),
		rapid.Map(rapid.Float64(), func(v float64) any { return v }),
		rapid.Map(rapid.String(), func(v string) any { return v }),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 300), func(v []byte) any { return v }),
		rapid.Map(rapid.Bool(), func(v bool) any { return v }),
		rapid.Just[any](nil),
	)
	tree := leaf
	for range 3 {
		inner := tree
		tree = rapid.OneOf(leaf,
			rapid.Map(rapid.SliceOfN(inner, 0, 20), func(v []any) any { return v }),
			rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 20), func(v map[string]any) any { return v }),
		)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := tree.Draw(t, "value")
		raw, err := msgpack.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.Check(raw, maxElements); err != nil {
			t.Fatalf("%#v: %v", v, err)
		}
		if len(raw) > 1 && wire.Check(raw[:len(raw)-1], maxElements) == nil {
			t.Fatalf("%#v: accepted without its last byte", v)
		}
	})
}

func fuzzMessage[T any](f *testing.F, seeds ...*T) {
	for _, s := range seeds {
		raw, err := encode(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := new(T)
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, m); err != nil {
			return
		}
		// What was understood is said again in the same way.
		first, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		again := new(T)
		if err := decode(first, again); err != nil {
			t.Fatal(err)
		}
		second, err := encode(again)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%x became %x", first, second)
		}
	})
}

func FuzzWorkerMessage(f *testing.F) {
	fuzzMessage(f, &WorkerMessage{Hello: &Hello{Name: "n", Node: []byte{1}}},
		&WorkerMessage{Status: &StatusBatch{ID: 1, Pods: []PodReport{{UID: "u"}}}})
}

func FuzzServerMessage(f *testing.F) {
	fuzzMessage(f, &ServerMessage{Assignments: &Assignments{Pods: [][]byte{{1}}, Gone: []string{"u"}}},
		&ServerMessage{Acks: []Ack{{BatchID: 1}}, Tunnels: []TunnelOpen{{ID: "t", Body: []byte{1}}}})
}

func FuzzFrame(f *testing.F) {
	fuzzMessage(f, &Frame{Request: &TunnelRequest{Node: "n"}}, &Frame{Data: []byte{1}, Error: &TunnelError{Code: 1}})
}

func FuzzForwardRequest(f *testing.F) { fuzzMessage(f, &ForwardRequest{Hops: 1, Entries: []byte{1}}) }

func FuzzStreamReport(f *testing.F) { fuzzMessage(f, &StreamReport{Server: "s", Nodes: []string{"n"}}) }

func FuzzRenewalRequest(f *testing.F) { fuzzMessage(f, &RenewalRequest{Node: "n", UID: "u"}) }

func FuzzLogsRequest(f *testing.F) { fuzzMessage(f, &LogsRequest{Pod: "p"}) }

// calls are the messages of single calls, of both directions, and what is inside of others.
var calls = []func() any{
	func() any { return new(ForwardResponse) }, func() any { return new(ReadIndexRequest) }, func() any { return new(ReadIndexResponse) },
	func() any { return new(StreamReportResponse) }, func() any { return new(RenewalResponse) }, func() any { return new(DigestRequest) },
	func() any { return new(DigestResponse) }, func() any { return new(DifferenceRequest) }, func() any { return new(DifferenceResponse) },
	func() any { return new(StatusRequest) }, func() any { return new(StatusResponse) }, func() any { return new(HoldsRequest) },
	func() any { return new(HoldsResponse) }, func() any { return new(SamplesRequest) }, func() any { return new(SamplesResponse) },
	func() any { return new(FetchRequest) }, func() any { return new(FetchResponse) }, func() any { return new(TokenRequest) },
	func() any { return new(TokenResponse) }, func() any { return new(MirrorRequest) }, func() any { return new(MirrorResponse) },
	func() any { return new(StreamRequest) }, func() any { return new(DialRequest) },
}

// FuzzCall: any bytes as the message of any call are refused, or understood and said again in the same way.
func FuzzCall(f *testing.F) {
	for i, call := range calls {
		raw, err := encode(call())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), raw)
	}
	f.Fuzz(func(t *testing.T, i uint8, raw []byte) {
		call := calls[int(i)%len(calls)]
		m, again := call(), call()
		if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, m); err != nil {
			return
		}
		first, err := encode(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := decode(first, again); err != nil {
			t.Fatal(err)
		}
		second, err := encode(again)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, second) {
			t.Errorf("%T: %x became %x", m, first, second)
		}
	})
}
