package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// GetRESTOptions implements generic.RESTOptionsGetter: it is the seam between upstream's
// registry of one version of a custom kind and the table. What upstream puts around the
// codec converts to that version, prunes and fills in defaults.
func (c *customResources) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	d, ok := c.definitions.view().Definition(resource.String())
	if !ok {
		return generic.RESTOptions{}, apierrors.NewNotFound(definitionsResource, resource.String())
	}
	rows := plainRows(d.Name)
	if d.Spec.Scope == apiextensionsv1.ClusterScoped {
		rows = plainRows(d.Name + "/")
	}
	return generic.RESTOptions{
		StorageConfig: &storagebackend.ConfigForResource{
			GroupResource: resource, Config: storagebackend.Config{Codec: customCodec{}},
		},
		EnableGarbageCollection: true,
		DeleteCollectionWorkers: deleteWorkers,
		ResourcePrefix:          d.Name,
		Decorator: func(config *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error),
			newObject, _ func() runtime.Object, attrs storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			ended, end := context.WithCancel(context.Background())
			return &tables{
				kind: c.registry.sealing(customKind(d.Name, resource, rows, config.Codec, newObject), d.Name), prefix: prefix + "/",
				backend: c.registry.backend, pins: c.registry.pins, hub: c.registry.hub, attrs: attrs, ended: ended,
			}, factory.DestroyFunc(end), nil
		},
	}, nil
}

// customKind is one version of a custom kind, as its definition has it now.
func customKind(name string, resource schema.GroupResource, r rows, codec runtime.Codec, newObject func() runtime.Object) *kind {
	put := func(obj runtime.Object, create bool, revision int64) (fsm.Command, error) {
		raw, err := runtime.Encode(codec, obj)
		if err != nil {
			return nil, err
		}
		return &fsm.PutObject{Resource: name, Raw: raw, Create: create, Revision: revision}, nil
	}
	return &kind{
		resource:  resource,
		rows:      r,
		newObject: newObject,
		present: func(*fsm.View) presenter {
			return func(row any, into runtime.Object) error {
				raw, err := row.(*fsm.Object).Value.Marshal()
				if err != nil {
					return err
				}
				obj, _, err := codec.Decode(raw, nil, newObject())
				if err != nil {
					return fmt.Errorf("show an object of %s: %w", name, err)
				}
				set(into, obj)
				return nil
			}
		},
		create: func(obj runtime.Object) (fsm.Command, error) { return put(obj, true, 0) },
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) { return put(obj, false, revision) },
		remove: func(key string, p fsm.Precondition) fsm.Command {
			if r.keyPrefix == name+"/" {
				return removeObject(name, key, p)
			}
			return &fsm.DeleteObject{Resource: name, Name: key, Precondition: p}
		},
		emptied: true,
		current: func(row any, obj runtime.Object) bool { // it may be stored in a version that is not the storage version any more
			is, errIs := row.(*fsm.Object).Value.Marshal()
			would, errWould := runtime.Encode(codec, obj)
			return errIs == nil && errWould == nil && bytes.Equal(is, would)
		},
	}
}

// customCodec is between a custom object and the bytes that are stored of it
// (codec.CustomObject).
type customCodec struct{}

const metadataField = "metadata"

// Identifier implements runtime.Encoder.
func (customCodec) Identifier() runtime.Identifier { return "berth-custom-object" }

// Encode implements runtime.Encoder.
func (customCodec) Encode(obj runtime.Object, w io.Writer) error {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return badObject("custom object", obj)
	}
	var out codec.CustomObject
	meta, _, err := unstructured.NestedMap(u.Object, metadataField)
	if err != nil {
		return err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(meta, &out.ObjectMeta); err != nil {
		return fmt.Errorf("metadata of %s: %w", u.GetKind(), err)
	}
	content := maps.Clone(u.Object)
	delete(content, metadataField)
	if out.Content, err = json.Marshal(content); err != nil {
		return fmt.Errorf("content of %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	raw, err := out.Marshal()
	if err != nil {
		return err
	}
	_, err = w.Write(raw)
	return err
}

// Decode implements runtime.Decoder.
func (customCodec) Decode(raw []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	var stored codec.CustomObject
	if err := stored.Unmarshal(raw); err != nil {
		return nil, nil, err
	}
	content := map[string]any{}
	if err := json.Unmarshal(stored.Content, &content); err != nil {
		return nil, nil, fmt.Errorf("content of %s: %w", stored.Name, err)
	}
	meta, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&stored.ObjectMeta)
	if err != nil {
		return nil, nil, err
	}
	if meta["creationTimestamp"] == nil {
		delete(meta, "creationTimestamp")
	}
	content[metadataField] = meta
	u, ok := into.(*unstructured.Unstructured)
	if !ok {
		u = &unstructured.Unstructured{}
	}
	u.Object = content
	kind := u.GroupVersionKind()
	return u, &kind, nil
}

var (
	_ runtime.Codec             = customCodec{}
	_ generic.RESTOptionsGetter = (*customResources)(nil)
	_ metav1.Object             = (*codec.CustomObject)(nil)
)
