package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/fsm"
)

// listing is a list whose items are presented one after another while they are
// written: it holds rows of a view and nothing of its own, however long it is.
// Upstream's list objects hold every item twice while they are encoded, and a
// pretty or a YAML one its whole text several times as well.
type listing struct {
	head runtime.Object // upstream's list object: its metadata, and no items
	kind *kind
	view *fsm.View
	rows []any
	ctx  context.Context // of the request, whose turn it is that a row is looked at in
}

// GetObjectKind implements runtime.Object.
func (l *listing) GetObjectKind() schema.ObjectKind { return l.head.GetObjectKind() }

// DeepCopyObject implements runtime.Object. Rows are immutable.
func (l *listing) DeepCopyObject() runtime.Object {
	c := *l
	c.head = l.head.DeepCopyObject()
	return &c
}

// whole gives upstream's list with all of its items, for those who can do
// nothing else with one.
func (l *listing) whole() (runtime.Object, error) {
	return l.head, fillList(l.ctx, l.head, l.kind, l.view, l.rows)
}

type listingKey struct{}

// listIn lists in a store of upstream's. Where the answer can be written row by
// row, it gives a listing.
func listIn(ctx context.Context, store interface {
	List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error)
}, options *metainternalversion.ListOptions,
) (runtime.Object, error) {
	if a := answerFrom(ctx); a == nil || a.whole {
		return store.List(ctx, options)
	}
	l := &listing{ctx: ctx}
	head, err := store.List(context.WithValue(ctx, listingKey{}, l), options)
	if err != nil || l.view == nil {
		return head, err
	}
	l.head = head
	return l, nil
}

// listSerializer negotiates as upstream's does, writes listings itself, and reads with care.
type listSerializer struct {
	runtime.NegotiatedSerializer
	scheme *runtime.Scheme
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (s listSerializer) SupportedMediaTypes() []runtime.SerializerInfo {
	return carefully(s.NegotiatedSerializer.SupportedMediaTypes(), s.scheme)
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (s listSerializer) EncoderForVersion(serializer runtime.Encoder, gv runtime.GroupVersioner) runtime.Encoder {
	if c, ok := serializer.(careful); ok {
		serializer = c.Serializer
	}
	e := listEncoder{Encoder: s.NegotiatedSerializer.EncoderForVersion(serializer, gv), scheme: s.scheme, version: gv}
	for _, info := range s.NegotiatedSerializer.SupportedMediaTypes() {
		switch {
		case info.MediaType == runtime.ContentTypeJSON && (serializer == info.Serializer || serializer == info.PrettySerializer):
			e.compact = s.NegotiatedSerializer.EncoderForVersion(info.Serializer, gv)
			e.write = e.writeJSON
			if serializer == info.PrettySerializer {
				e.write = e.writePretty
			}
		case info.MediaType == runtime.ContentTypeProtobuf && serializer == info.Serializer:
			e.write = e.writeProtobuf
		}
	}
	return &e
}

// listEncoder writes listings in one version and form.
type listEncoder struct {
	runtime.Encoder
	scheme  *runtime.Scheme
	version runtime.GroupVersioner
	compact runtime.Encoder                     // of JSON
	write   func(l *listing, w io.Writer) error // nil: upstream's encoder does
}

// Encode implements runtime.Encoder.
func (e *listEncoder) Encode(obj runtime.Object, w io.Writer) error {
	return e.EncodeWithAllocator(obj, w, nil)
}

// EncodeWithAllocator implements runtime.EncoderWithAllocator, which watches use.
func (e *listEncoder) EncodeWithAllocator(obj runtime.Object, w io.Writer, memory runtime.MemoryAllocator) error {
	if l, ok := obj.(*listing); ok {
		if e.write != nil {
			return e.write(l, w)
		}
		var err error
		if obj, err = l.whole(); err != nil {
			return err
		}
	}
	if upstream, ok := e.Encoder.(runtime.EncoderWithAllocator); ok && memory != nil {
		return upstream.EncodeWithAllocator(obj, w, memory)
	}
	return e.Encoder.Encode(obj, w)
}

// items calls f for every item in the version that is written. The object is
// the same one each time.
func (e *listEncoder) items(l *listing, f func(obj runtime.Object) error) error {
	present := l.kind.present(l.view)
	into := l.kind.newObject()
	var obj runtime.Object
	answer := answerFrom(l.ctx)
	for _, row := range l.rows {
		if err := answer.inTurn(l.ctx); err != nil {
			return err
		}
		clearObject(into)
		err := present(row, into)
		if err != nil {
			return err
		}
		if obj == nil || obj == into {
			obj, err = e.scheme.UnsafeConvertToVersion(into, e.version)
		} else {
			clearObject(obj)
			err = e.scheme.Convert(into, obj, e.version)
		}
		if err != nil {
			return err
		}
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the list says it for all
		if err := f(obj); err != nil {
			return err
		}
	}
	return nil
}

func clearObject(obj runtime.Object) { reflect.ValueOf(obj).Elem().SetZero() }

// writeBytes are written at a time.
const writeBytes = 32 << 10

// emptyItems is how upstream's encoder ends a list that has none.
var emptyItems = []byte(`"items":[]}` + "\n")

// writeJSON writes what upstream writes: its list without items, and between
// its brackets the items.
func (e *listEncoder) writeJSON(l *listing, w io.Writer) error {
	var head bytes.Buffer
	obj, err := (&listing{head: l.head, kind: l.kind, view: l.view, ctx: l.ctx}).whole()
	if err != nil {
		return err
	}
	if err := e.compact.Encode(obj, &head); err != nil {
		return err
	}
	begin, ok := bytes.CutSuffix(head.Bytes(), emptyItems)
	if !ok {
		return fmt.Errorf("an empty %T is not written as a list: %.100s", obj, head.Bytes())
	}
	begin = append(begin, `"items":[`...)
	// A first write that is short tells upstream's compression that more comes.
	if _, err := w.Write(begin[:1]); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, writeBytes)
	if _, err := out.Write(begin[1:]); err != nil {
		return err
	}
	var item bytes.Buffer
	encoder, first := json.NewEncoder(&item), true
	err = e.items(l, func(obj runtime.Object) error {
		item.Reset()
		if !first {
			item.WriteByte(',')
		}
		first = false
		if err := encoder.Encode(obj); err != nil {
			return err
		}
		_, err := out.Write(bytes.TrimSuffix(item.Bytes(), []byte("\n")))
		return err
	})
	if err != nil {
		return err
	}
	if _, err := out.WriteString("]}\n"); err != nil {
		return err
	}
	return out.Flush()
}

func (e *listEncoder) writePretty(l *listing, w io.Writer) error {
	return e.writeJSON(l, &indenter{w: w})
}

var errNoProtobuf = errors.New("the list has no protobuf encoding")

// protobufObject is what Kubernetes' generated types are.
type protobufObject interface {
	runtime.Object
	Size() int
	MarshalToSizedBuffer(b []byte) (int, error)
}

// protobufPrefix begins everything that Kubernetes writes as protobuf.
var protobufPrefix = []byte("k8s\x00")

// Fields 1 and 2 of every list, both messages: metadata and items.
const metadataTag, itemsTag = 1<<3 | 2, 2<<3 | 2

// writeProtobuf needs the length of everything before the first item, so items
// are presented twice.
func (e *listEncoder) writeProtobuf(l *listing, w io.Writer) error {
	versioned, err := e.scheme.UnsafeConvertToVersion(l.head, e.version)
	if err != nil {
		return err
	}
	about, ok := versioned.(metav1.ListMetaAccessor)
	if !ok {
		return errNoProtobuf
	}
	listMeta, ok := about.GetListMeta().(*metav1.ListMeta)
	if !ok {
		return errNoProtobuf
	}
	head, err := listMeta.Marshal()
	if err != nil {
		return err
	}
	head = append(appendVarint([]byte{metadataTag}, len(head)), head...)
	total, sizes := len(head), make([]int, 0, len(l.rows))
	err = e.items(l, func(obj runtime.Object) error {
		sized, ok := obj.(protobufObject)
		if !ok {
			return errNoProtobuf
		}
		n := sized.Size()
		total += 1 + varintBytes(n) + n
		sizes = append(sizes, n)
		return nil
	})
	if err != nil {
		return err
	}
	kind := versioned.GetObjectKind().GroupVersionKind()
	envelope := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind}}
	if _, err := w.Write(protobufPrefix); err != nil {
		return err
	}
	_, err = envelope.MarshalToWriter(w, total, func(w io.Writer) (int, error) {
		return total, e.writeProtobufItems(l, w, head, sizes)
	})
	return err
}

func (e *listEncoder) writeProtobufItems(l *listing, w io.Writer, head []byte, sizes []int) error {
	out := bufio.NewWriterSize(w, writeBytes)
	if _, err := out.Write(head); err != nil {
		return err
	}
	var b []byte
	err := e.items(l, func(obj runtime.Object) error {
		size := sizes[0]
		sizes = sizes[1:]
		b = appendVarint(append(b[:0], itemsTag), size)
		at := len(b)
		b = append(b, make([]byte, size)...)
		n, err := obj.(protobufObject).MarshalToSizedBuffer(b[at:])
		if err == nil && n != size {
			err = fmt.Errorf("an item of %d bytes was written as %d", size, n)
		}
		if err == nil {
			_, err = out.Write(b)
		}
		return err
	})
	if err != nil {
		return err
	}
	return out.Flush()
}

func appendVarint(b []byte, n int) []byte { return binary.AppendUvarint(b, uint64(n)) }

func varintBytes(n int) int { return len(appendVarint(make([]byte, 0, binary.MaxVarintLen64), n)) }
