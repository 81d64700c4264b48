package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/codec"
)

// careful looks at what is to be decoded before upstream's serializer does, see codec.CheckForeign. It is comparable, as
// serializers have to be.
type careful struct {
	runtime.Serializer
	scheme    *runtime.Scheme
	mediaType string
}

// carefully has the serializers of a negotiation look first.
func carefully(infos []runtime.SerializerInfo, scheme *runtime.Scheme) []runtime.SerializerInfo {
	out := make([]runtime.SerializerInfo, 0, len(infos))
	for _, info := range infos {
		info.Serializer = careful{info.Serializer, scheme, info.MediaType}
		if info.StrictSerializer != nil {
			info.StrictSerializer = careful{info.StrictSerializer, scheme, info.MediaType}
		}
		out = append(out, info)
	}
	return out
}

// Decode implements runtime.Decoder.
func (c careful) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if err := c.check(data, defaults); err != nil {
		return nil, nil, err
	}
	return c.Serializer.Decode(data, defaults, into)
}

func (c careful) check(data []byte, defaults *schema.GroupVersionKind) error {
	switch c.mediaType {
	case runtime.ContentTypeProtobuf:
		apiVersion, kind, object, ok := codec.Envelope(data)
		if !ok {
			return nil // upstream's serializer says what is wrong with it
		}
		said := schema.FromAPIVersionAndKind(apiVersion, kind)
		t := c.typeOf(&said, defaults)
		if t == nil {
			return nil
		}
		return told(t, codec.CheckForeign(object, t))
	case runtime.ContentTypeYAML:
		var err error
		if data, err = asJSON(data); err != nil {
			return nil //nolint:nilerr // the same
		}
	}
	if !codec.Odd(data) {
		return nil
	}
	said, err := runtimejson.DefaultMetaFactory.Interpret(data)
	if err != nil {
		return nil //nolint:nilerr // the same
	}
	t := c.typeOf(said, defaults)
	if t == nil {
		return nil
	}
	return told(t, codec.CheckForeignJSON(data, t))
}

// typeOf is the type of a kind of which an object says so much, or nil.
func (c careful) typeOf(said, defaults *schema.GroupVersionKind) reflect.Type {
	gvk := *said
	if defaults != nil {
		if gvk.Kind == "" {
			gvk.Kind = defaults.Kind
		}
		if gvk.Version == "" && gvk.Group == "" {
			gvk.Group, gvk.Version = defaults.Group, defaults.Version
		}
		if gvk.Version == "" && gvk.Group == defaults.Group {
			gvk.Version = defaults.Version
		}
	}
	return c.scheme.AllKnownTypes()[gvk]
}

// told is what the client hears of a check's error, which begins with the way to the field.
func told(t reflect.Type, err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s%v", t.Name(), err))
}

// asJSON is YAML as JSON, as far as anything in it may be odd.
func asJSON(data []byte) ([]byte, error) {
	if !codec.Odd(data) && !bytes.ContainsRune(data, '\\') {
		return nil, nil
	}
	return yaml.YAMLToJSON(data)
}

// patches looks at patches that become objects without a serializer: strategic merges and applied configurations.
type patches struct {
	next  http.Handler
	bytes int64 // that a body may have
	kinds map[schema.GroupVersionResource]reflect.Type
}

func newPatches(next http.Handler, bodyBytes int64, scheme *runtime.Scheme) *patches {
	p := &patches{next: next, bytes: bodyBytes, kinds: map[schema.GroupVersionResource]reflect.Type{}}
	for gvk, t := range scheme.AllKnownTypes() {
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		p.kinds[resource] = t
	}
	return p
}

// ServeHTTP implements http.Handler.
func (p *patches) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok || info.Verb != "patch" {
		p.next.ServeHTTP(w, req)
		return
	}
	t := p.kinds[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
	form, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	applied := form == string(types.ApplyYAMLPatchType)
	if err != nil || t == nil || !applied && form != string(types.StrategicMergePatchType) {
		p.next.ServeHTTP(w, req)
		return
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, p.bytes+1))
	if err != nil {
		refuse(apierrors.NewBadRequest(fmt.Sprintf("the patch could not be read: %v", err)), w, req)
		return
	}
	req.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), req.Body), req.Body} // one that is too long is upstream's to refuse
	text := body
	if applied {
		if text, err = asJSON(body); err != nil {
			text = nil // the same
		}
	}
	if err := told(t, codec.CheckForeignJSON(text, t)); err != nil {
		refuse(err, w, req)
		return
	}
	p.next.ServeHTTP(w, req)
}
