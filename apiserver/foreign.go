package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimejson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
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
	if err := c.check(data, defaults, into); err != nil {
		return nil, nil, err
	}
	obj, kind, err := c.Serializer.Decode(data, defaults, into)
	if err == nil && c.mediaType == runtime.ContentTypeProtobuf && len(data) >= freeShapeBytes {
		err = checkObjectShape(obj) // of other forms the body was looked at
	}
	if a, ok := obj.(*autoscalingv1.HorizontalPodAutoscaler); ok && err == nil {
		err = checkTextsOf(a.Annotations)
	}
	return obj, kind, err
}

func (c careful) check(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) error {
	switch c.mediaType {
	case runtime.ContentTypeProtobuf:
		return c.checkProtobuf(data, defaults, into)
	case runtime.ContentTypeYAML:
		var err error
		if data, err = asJSON(data); err != nil {
			return nil //nolint:nilerr // upstream's serializer says what is wrong with it
		}
	}
	if !codec.Odd(data) {
		return nil
	}
	said, err := runtimejson.DefaultMetaFactory.Interpret(data)
	if err != nil {
		return nil //nolint:nilerr // the same
	}
	t := c.typeOf(*said, defaults, into)
	if t == nil {
		return nil
	}
	return told(t, codec.CheckForeignJSON(data, t))
}

// checkProtobuf refuses what it cannot read to its end, too: upstream's decoder may read more of it.
func (c careful) checkProtobuf(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) error {
	apiVersion, kind, object, ok := codec.Envelope(data)
	if !ok {
		return apierrors.NewBadRequest("the body is not in the form of protobuf")
	}
	t := c.typeOf(schema.FromAPIVersionAndKind(apiVersion, kind), defaults, into)
	if t == nil {
		return nil
	}
	if len(object) >= freeShapeBytes {
		most := contentsOf(t.Name())
		n, err := codec.Values(object, t, most)
		if err != nil {
			return told(t, err)
		}
		if n > most {
			return apierrors.NewBadRequest(tooManyValues(most))
		}
	}
	return told(t, codec.CheckForeign(object, t))
}

// typeOf is the type of what upstream's serializer decodes an object as that says so much of its kind, or nil.
func (c careful) typeOf(said schema.GroupVersionKind, defaults *schema.GroupVersionKind, into runtime.Object) reflect.Type {
	if defaults != nil {
		said = c.filled(said, *defaults)
	}
	if into != nil {
		kinds, _, err := c.scheme.ObjectKinds(into)
		if err != nil {
			return reflect.Indirect(reflect.ValueOf(into)).Type() // it is decoded into that as it is
		}
		said = c.filled(said, kinds[0])
	}
	return c.scheme.AllKnownTypes()[said]
}

// filled is what is said of a kind with what else is known of it, as upstream's serializers of the form have it.
func (c careful) filled(said, known schema.GroupVersionKind) schema.GroupVersionKind {
	if said.Kind == "" {
		said.Kind = known.Kind
	}
	if said.Version == "" && (said.Group == "" || said.Group == known.Group || c.mediaType == runtime.ContentTypeProtobuf && known.Version != "") {
		said.Group, said.Version = known.Group, known.Version
	}
	return said
}

// told is what the client hears of a check's error, which begins with the way to the field.
func told(t reflect.Type, err error) error {
	if err == nil {
		return nil
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s%v", t.Name(), err))
}

// asJSON is YAML as JSON, as far as anything in it may be odd: also what is written with escapes, with a tag (!!binary), or in UTF-16.
func asJSON(data []byte) ([]byte, error) {
	if !codec.Odd(data) && !bytes.ContainsAny(data, "\\!\x00") {
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
	of := schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}
	var t reflect.Type // of the object that a patch becomes by itself
	merged := form == string(types.StrategicMergePatchType)
	if info.Verb == "patch" && (merged || form == string(types.ApplyYAMLPatchType)) {
		t = b.kinds[of]
		if merged && (t == nil || info.Subresource == "scale") {
			t = metadataType // what all kinds have in common
		}
	}
	short := req.ContentLength >= 0 && req.ContentLength < freeShapeBytes
	replaced := info.Verb == "update" && form == runtime.ContentTypeProtobuf
	if !known && !replaced || t == nil && short || b.longRunning(req, info) {
		b.next.ServeHTTP(w, req)
		return
	}
	body, err := readBody(req, b.bytes)
	if err != nil {
		refuse(apierrors.NewBadRequest(fmt.Sprintf("the body of the request could not be read: %v", err)), w, req)
		return
	}
	req.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), req.Body), req.Body} // one that is too long is upstream's to refuse
	if replaced {
		b.replace(w, req, info, body)
		return
	}
	if int64(len(body)) <= b.bytes {
		s, err := checkBody(body, form, t)
		if err == nil {
			err = b.checkShape(s, req, info)
		}
		if err == nil && merged && t != nil {
			var m *merge
			if m, err = newMerge(body, of, t); m != nil {
				req = req.WithContext(withMerge(req.Context(), m))
			}
		}
		if err != nil {
			refuse(err, w, req)
			return
		}
	}
	b.next.ServeHTTP(w, req)
}

// replace serves an update in protobuf. Its decoder knows nothing of what is stored: what has too much of something, as what is stored has,
// goes on as JSON.
func (b *bodies) replace(w http.ResponseWriter, req *http.Request, info *request.RequestInfo, body []byte) {
	text, err := tooLong(body, legacyscheme.Scheme)
	if err != nil {
		s := shapeOf(text)
		if b.checkShape(s, req, info) != nil {
			refuse(err, w, req)
			return
		}
		req = req.Clone(req.Context())
		req.Header.Set("Content-Type", runtime.ContentTypeJSON)
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	}
	b.next.ServeHTTP(w, req)
}

// tooLong is an object of protobuf as JSON, and an error, if it has too much of something. What is wrong with it otherwise careful says.
func tooLong(body []byte, scheme *runtime.Scheme) ([]byte, error) {
	apiVersion, kind, raw, ok := codec.Envelope(body)
	gvk := schema.FromAPIVersionAndKind(apiVersion, kind)
	t := scheme.AllKnownTypes()[gvk]
	if !ok || t == nil {
		return nil, nil
	}
	n, err := codec.Values(raw, t, maxLargeContents)
	if err != nil || n <= maxEntries || n > maxLargeContents || codec.CheckForeign(raw, t) != nil {
		return nil, nil //nolint:nilerr // careful says it
	}
	obj, ok := reflect.New(t).Interface().(interface {
		codec.Object
		runtime.Object
	})
	if !ok || obj.Unmarshal(raw) != nil {
		return nil, nil
	}
	over := checkObjectShape(obj)
	if over == nil && n > contentsOf(kind) {
		over = apierrors.NewBadRequest(tooManyValues(contentsOf(kind)))
	}
	if over == nil {
		return nil, nil
	}
	obj.GetObjectKind().SetGroupVersionKind(gvk)
	text, err := json.Marshal(obj)
	if err != nil {
		return nil, nil //nolint:nilerr // it is refused as it is
	}
	return text, over
}

// contentsOf is how many values an object of a kind may have.
func contentsOf(kind string) int {
	if kind == "CustomResourceDefinition" {
		return maxLargeContents
	}
	return maxContents
}

// readBody reads a body, and one byte of what is beyond the bound.
func readBody(req *http.Request, most int64) ([]byte, error) {
	var b bytes.Buffer
	if n := req.ContentLength; n >= 0 {
		b.Grow(int(min(n, most+1)) + bytes.MinRead) // and is not made anew again and again
	}
	_, err := b.ReadFrom(io.LimitReader(req.Body, most+1))
	return b.Bytes(), err
}

// checkShape refuses a body that has too much of something in it. Objects are older than bounds: one that takes the place of another may have
// what that has too much of.
func (b *bodies) checkShape(s shape, req *http.Request, info *request.RequestInfo) error {
	if isPlan(info) || info.Resource == fsm.CustomResourceDefinitions {
		s.most = maxLargeContents
	}
	over := s.over(nil)
	if over != "" && info.Verb == "update" && info.Name != "" { // without a name it is about all of them, and refused
		over = s.over(b.stored(req, info))
	}
	if over != "" {
		return apierrors.NewRequestEntityTooLargeError(over)
	}
	return nil
}

// stored is the shape of the object that a request is about, as it is stored; nil if that cannot be told.
func (b *bodies) stored(req *http.Request, info *request.RequestInfo) *shape {
	asked := *info
	asked.Verb = "get"
	who, _ := request.UserFrom(req.Context())
	get := req.Clone(request.WithUser(request.WithRequestInfo(bare{req.Context()}, &asked), who))
	get.Method, get.Body, get.ContentLength = http.MethodGet, http.NoBody, 0
	get.URL = &url.URL{Path: req.URL.Path}
	get.RequestURI = get.URL.RequestURI()
	get.Header = http.Header{"Accept": {runtime.ContentTypeJSON}}
	kept := &keptAnswer{header: http.Header{}}
	b.next.ServeHTTP(kept, get)
	if kept.code != http.StatusOK {
		return nil
	}
	s := shapeOf(kept.Bytes())
	return &s
}

// keptAnswer is an answer that nobody is sent.
type keptAnswer struct {
	bytes.Buffer
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (k *keptAnswer) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *keptAnswer) WriteHeader(code int) {
	if k.code == 0 {
		k.code = code
	}
}

// Write implements http.ResponseWriter.
func (k *keptAnswer) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.Buffer.Write(p)
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

// checkBody looks at one body, and gives its shape if it is long enough to have one. t, if it is not nil, is the type of the object that
// it becomes.
func checkBody(body []byte, form string, t reflect.Type) (s shape, err error) {
	text, odd := body, body
	if form == runtime.ContentTypeYAML || form == string(types.ApplyYAMLPatchType) {
		text, err = yamlShape(body)
		switch {
		case apierrors.IsRequestEntityTooLargeError(err):
			return s, err
		case err != nil:
			return s, nil // upstream says what is wrong with it
		case text != nil:
			odd = text
		case t != nil:
			if odd, err = asJSON(body); err != nil {
				odd = nil // the same
			}
		}
	}
	if len(text) >= freeShapeBytes {
		s = shapeOf(text)
	}
	if t == nil {
		return s, nil
	}
	if t == autoscalerType && len(body) > maxTextValues {
		if err := checkTextsIn(body); err != nil {
			return s, err
		}
	}
	return s, told(t, codec.CheckForeignJSON(odd, t))
}
