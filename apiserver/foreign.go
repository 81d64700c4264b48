package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

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
	obj, kind, err := c.Serializer.Decode(data, defaults, into)
	if err == nil && c.mediaType == runtime.ContentTypeProtobuf && len(data) >= freeShapeBytes {
		err = checkObjectShape(obj) // of other forms the body was looked at
	}
	return obj, kind, err
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
		if len(object) >= freeShapeBytes && codec.Values(object, t, maxContents) > maxContents {
			return apierrors.NewBadRequest(tooManyValues)
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

// bodies looks at what is sent before it becomes an object: at the shape of all of it (shapeOf), and at patches that become objects
// without a serializer, strategic merges and applied configurations, as careful does. Protobuf is careful's alone.
type bodies struct {
	next        http.Handler
	bytes       int64 // that a body may have
	longRunning request.LongRunningRequestCheck
	kinds       map[schema.GroupVersionResource]reflect.Type
}

func newBodies(next http.Handler, bodyBytes int64, longRunning request.LongRunningRequestCheck, scheme *runtime.Scheme) *bodies {
	b := &bodies{next: next, bytes: bodyBytes, longRunning: longRunning, kinds: map[schema.GroupVersionResource]reflect.Type{}}
	for gvk, t := range scheme.AllKnownTypes() {
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		b.kinds[resource] = t
	}
	return b
}

// ServeHTTP implements http.Handler.
func (b *bodies) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest || req.Body == nil || req.Body == http.NoBody {
		b.next.ServeHTTP(w, req)
		return
	}
	form, known := formOfBody(req)
	patch := info.Verb == "patch"
	var t reflect.Type // of the object that a patch becomes by itself
	if merged := form == string(types.StrategicMergePatchType); patch && (merged || form == string(types.ApplyYAMLPatchType)) {
		t = b.kinds[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
	}
	short := req.ContentLength >= 0 && req.ContentLength < freeShapeBytes
	if !known || t == nil && short || b.longRunning(req, info) {
		b.next.ServeHTTP(w, req)
		return
	}
	body, err := io.ReadAll(io.LimitReader(req.Body, b.bytes+1))
	if err != nil {
		refuse(apierrors.NewBadRequest(fmt.Sprintf("the body of the request could not be read: %v", err)), w, req)
		return
	}
	req.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), req.Body), req.Body} // one that is too long is upstream's to refuse
	if int64(len(body)) <= b.bytes {
		if err := checkBody(body, form, t); err != nil {
			refuse(err, w, req)
			return
		}
	}
	b.next.ServeHTTP(w, req)
}

// formOfBody is the media type of a body, and whether it is of those that are read here.
func formOfBody(req *http.Request) (form string, known bool) {
	said := req.Header.Get("Content-Type")
	if said == "" {
		return runtime.ContentTypeJSON, true // as upstream has it
	}
	form, _, _ = strings.Cut(said, ";") // as upstream has it of patches, whatever is behind that
	form = strings.ToLower(strings.TrimSpace(form))
	switch form {
	case runtime.ContentTypeJSON, runtime.ContentTypeYAML, string(types.JSONPatchType), string(types.MergePatchType),
		string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType):
		return form, true
	}
	return form, false
}

// checkBody looks at one body. t, if it is not nil, is the type of the object that it becomes.
func checkBody(body []byte, form string, t reflect.Type) error {
	text, odd := body, body
	if form == runtime.ContentTypeYAML || form == string(types.ApplyYAMLPatchType) {
		var err error
		if text, err = yamlShape(body); apierrors.IsRequestEntityTooLargeError(err) {
			return err
		}
		if err != nil {
			text = nil // upstream says what is wrong with it
		}
		if odd, err = asJSON(body); err != nil {
			odd = nil // the same
		}
	}
	if err := checkShape(text, form == string(types.StrategicMergePatchType)); err != nil {
		return err
	}
	if t == nil {
		return nil
	}
	return told(t, codec.CheckForeignJSON(odd, t))
}
