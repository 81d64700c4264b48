package apiserver

import (
	"bytes"
	"io"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// encodedOnce is an object that several watchers are told of. Each form of it,
// by version and encoding, with its event around it, is made once, by the first
// who needs it.
type encodedOnce struct {
	object runtime.Object            // shares memory with a row
	turn   func(encode func()) error // encodes it when there is time for it; nil: at once

	mu    sync.Mutex
	forms map[runtime.Identifier]*encodedForm
}

type encodedForm struct {
	once  sync.Once
	bytes []byte
	err   error
}

var _ runtime.CacheableObject = (*encodedOnce)(nil)

// CacheEncode implements runtime.CacheableObject.
func (o *encodedOnce) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, w io.Writer) error {
	f := o.form(id)
	f.once.Do(func() {
		var b bytes.Buffer
		now := func() { f.err = encode(o.GetObject(), &b) }
		if o.turn == nil {
			now()
		} else if err := o.turn(now); err != nil {
			f.err = err
		}
		f.bytes = b.Bytes()
	})
	if f.err != nil {
		return f.err
	}
	if splice, ok := w.(runtime.Splice); ok {
		splice.Splice(f.bytes)
		return nil
	}
	_, err := w.Write(f.bytes)
	return err
}

func (o *encodedOnce) form(id runtime.Identifier) *encodedForm {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.forms[id]
	if f == nil {
		if o.forms == nil {
			o.forms = map[runtime.Identifier]*encodedForm{}
		}
		f = &encodedForm{}
		o.forms[id] = f
	}
	return f
}

// GetObject implements runtime.CacheableObject: encoders write the type into
// what they are given, and nothing else.
func (o *encodedOnce) GetObject() runtime.Object { return shallowCopy(o.object) }

// GetObjectMeta implements metav1.ObjectMetaAccessor; what is set there is set
// nowhere else.
func (o *encodedOnce) GetObjectMeta() metav1.Object { return metaOf(shallowCopy(o.object)) }

// GetObjectKind implements runtime.Object.
func (o *encodedOnce) GetObjectKind() schema.ObjectKind { return o.object.GetObjectKind() }

// DeepCopyObject implements runtime.Object.
func (o *encodedOnce) DeepCopyObject() runtime.Object { return o.object.DeepCopyObject() }
