package codec

import (
	"encoding/binary"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CustomObject is an object of a kind that users have defined. Whoever stores it has
// checked it by its definition; here its metadata counts, and the rest is bytes.
//
// Its protobuf is this struct's, so that it is stored as every other object is.
type CustomObject struct {
	metav1.ObjectMeta `protobuf:"bytes,1,opt,name=metadata"`
	// Content is JSON: the object without its metadata.
	Content []byte `protobuf:"bytes,2,opt,name=content"`
}

var (
	_ Object         = (*CustomObject)(nil)
	_ runtime.Object = (*CustomObject)(nil)
)

const customMetadata, customContent = 1, 2

// Size implements Object.
func (o *CustomObject) Size() int {
	meta := o.ObjectMeta.Size()
	n := 1 + varintSize(meta) + meta
	if len(o.Content) > 0 {
		n += 1 + varintSize(len(o.Content)) + len(o.Content)
	}
	return n
}

// Marshal implements Object.
func (o *CustomObject) Marshal() ([]byte, error) {
	meta, err := o.ObjectMeta.Marshal()
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, o.Size())
	b = appendBytes(b, customMetadata, meta)
	if len(o.Content) > 0 {
		b = appendBytes(b, customContent, o.Content)
	}
	return b, nil
}

// Unmarshal implements Object. What is unknown is passed over, as protobuf does.
func (o *CustomObject) Unmarshal(b []byte) error {
	*o = CustomObject{}
	for len(b) > 0 {
		field, value, rest, ok := nextField(b)
		if !ok {
			return fmt.Errorf("a custom object ends in the midst of a field, or begins none: %.20x", b)
		}
		known := field == customMetadata || field == customContent
		switch {
		case known && value == nil:
			return fmt.Errorf("field %d of a custom object has no bytes", field)
		case field == customMetadata:
			if err := o.ObjectMeta.Unmarshal(value); err != nil {
				return err
			}
		case field == customContent && len(value) > 0:
			o.Content = append([]byte(nil), value...)
		}
		b = rest
	}
	return nil
}

// GetObjectKind implements runtime.Object: the content says it.
func (o *CustomObject) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. The content is never written to.
func (o *CustomObject) DeepCopyObject() runtime.Object {
	return &CustomObject{ObjectMeta: *o.ObjectMeta.DeepCopy(), Content: o.Content}
}

func appendBytes(b []byte, field int, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(field)<<3|wireBytes)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

func varintSize(n int) int {
	return len(binary.AppendUvarint(make([]byte, 0, binary.MaxVarintLen64), uint64(n)))
}
