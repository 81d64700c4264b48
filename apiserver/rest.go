package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/dryrun"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/berth-dev/berth/fsm"
)

// served serves one resource with every verb: upstream's registry, with dry
// runs that run.
type served struct {
	*genericregistry.Store
	backend    Backend
	kind       *kind
	shortNames []string
	categories []string
	// erase, where the state machine knows how an object of this kind ends,
	// gives the one command that a deletion is.
	erase func(key string, p fsm.Precondition, options *metav1.DeleteOptions) fsm.Command
}

var (
	_ rest.StandardStorage    = (*served)(nil)
	_ rest.ShortNamesProvider = (*served)(nil)
	_ rest.CategoriesProvider = (*served)(nil)
)

// ShortNames implements rest.ShortNamesProvider.
func (r *served) ShortNames() []string { return r.shortNames }

// Categories implements rest.CategoriesProvider.
func (r *served) Categories() []string { return r.categories }

// Create implements rest.Creater.
func (r *served) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if dryrun.IsDryRun(options.DryRun) {
		var err error
		if ctx, err = withDryRun(ctx, r.backend); err != nil {
			return nil, err
		}
		options = options.DeepCopy()
		options.DryRun = nil
	}
	return r.Store.Create(ctx, obj, validate, options)
}

// List implements rest.Lister.
func (r *served) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return listIn(ctx, r.Store, options)
}

// Update implements rest.Updater.
func (r *served) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return updateIn(ctx, r.Store, r.backend, name, info, create, update, forceAllowCreate, options)
}

// updateIn updates in a store of upstream's, with dry runs that run.
func updateIn(ctx context.Context, store rest.Updater, backend Backend, name string, info rest.UpdatedObjectInfo,
	create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	if dryrun.IsDryRun(options.DryRun) {
		var err error
		if ctx, err = withDryRun(ctx, backend); err != nil {
			return nil, false, err
		}
		options = options.DeepCopy()
		options.DryRun = nil
	}
	return store.Update(ctx, name, info, create, update, forceAllowCreate, options)
}

// Delete implements rest.GracefulDeleter.
func (r *served) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if dryrun.IsDryRun(options.DryRun) {
		var err error
		if ctx, err = withDryRun(ctx, r.backend); err != nil {
			return nil, false, err
		}
		options = options.DeepCopy()
		options.DryRun = nil
	}
	if r.erase == nil {
		return r.Store.Delete(ctx, name, validate, options)
	}
	if validate != nil && asksAnybody(ctx, r.backend.View()) {
		return r.eraseAsked(ctx, name, validate, options)
	}
	return r.eraseOne(ctx, name, options)
}

// eraseOne deletes with one command; what it means for this object is Apply's.
func (r *served) eraseOne(ctx context.Context, name string, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	pre, err := deletePrecondition(options)
	if err != nil {
		return nil, false, err
	}
	key, err := r.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	t := r.tables()
	result, err := propose(ctx, r.backend, r.erase(t.rowKey(key), pre, options))
	if err != nil {
		return nil, false, err
	}
	out := r.NewFunc()
	if err := t.answer(ctx, key, result, out); err != nil {
		return nil, false, err
	}
	if result.Deleted && !r.ReturnDeletedObject {
		return r.gone(metaOf(out)), true, nil
	}
	return out, result.Deleted, nil
}

// gone tells of what was deleted, as upstream's registry does.
func (r *served) gone(m metav1.Object) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
		Name: m.GetName(), Group: r.kind.resource.Group, Kind: r.kind.resource.Resource, UID: m.GetUID(),
	}}
}

func (r *served) tables() *tables { return r.Store.Storage.Storage.(*tables) }

// deletePrecondition checks the options and gives what the command is to
// demand.
func deletePrecondition(options *metav1.DeleteOptions) (fsm.Precondition, error) {
	if errs := metav1validation.ValidateDeleteOptions(options); len(errs) > 0 {
		return fsm.Precondition{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	if options.Preconditions == nil {
		return fsm.Precondition{}, nil
	}
	return precondition(&storage.Preconditions{UID: options.Preconditions.UID, ResourceVersion: options.Preconditions.ResourceVersion})
}

var errPrecondition = errors.New("the preconditions of the deletion do not hold for it; nothing was deleted")

// deleteBatch is how many deletions of a collection go into one proposal.
const deleteBatch = 256

// DeleteCollection implements rest.CollectionDeleter.
func (r *served) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
	listOptions *metainternalversion.ListOptions,
) (runtime.Object, error) {
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	if dryrun.IsDryRun(options.DryRun) {
		var err error
		if ctx, err = withDryRun(ctx, r.backend); err != nil {
			return nil, err
		}
		options = options.DeepCopy()
		options.DryRun = nil
	}
	if r.erase == nil {
		return r.Store.DeleteCollection(ctx, validate, options, listOptions)
	}
	return r.eraseAll(ctx, validate, options, listOptions)
}

// eraseAll deletes what a list selects, many objects to a proposal. Objects
// that are gone or replaced meanwhile are none of its business.
func (r *served) eraseAll(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *metainternalversion.ListOptions) (runtime.Object, error) {
	demanded, err := deletePrecondition(options)
	if err != nil {
		return nil, err
	}
	list, err := r.Store.List(ctx, listOptions)
	if err != nil {
		return nil, err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, err
	}
	// A precondition is about one object: if it holds for one and not for
	// another, nothing is deleted.
	for _, item := range items {
		m := metaOf(item)
		if demanded.UID != "" && demanded.UID != string(m.GetUID()) ||
			demanded.Revision != 0 && strconv.FormatInt(demanded.Revision, 10) != m.GetResourceVersion() {
			return nil, apierrors.NewConflict(r.kind.resource, m.GetName(), errPrecondition)
		}
	}
	asked := validate != nil && asksAnybody(ctx, r.backend.View())
	for len(items) > 0 {
		n := min(len(items), deleteBatch)
		if asked {
			if err := askAboutEach(ctx, items[:n], validate); err != nil {
				return nil, err
			}
		}
		commands := make([]fsm.Command, n)
		for i, item := range items[:n] {
			m := metaOf(item)
			commands[i] = r.erase(keyOf(m), fsm.Precondition{UID: string(m.GetUID()), Revision: demanded.Revision}, options)
		}
		results, err := proposeAll(ctx, r.backend, commands...)
		if err != nil {
			return nil, err
		}
		for _, result := range results {
			if err := result.Err(); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return nil, err
			}
		}
		items = items[n:]
	}
	return list, nil
}

func keyOf(m metav1.Object) string {
	if m.GetNamespace() == "" {
		return m.GetName()
	}
	return m.GetNamespace() + "/" + m.GetName()
}

// oneByOne serves a resource whose objects are never deleted by the collection.
type oneByOne struct{ withoutCollection }

type withoutCollection interface {
	rest.Storage
	rest.Scoper
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.Getter
	rest.Lister
	rest.CreaterUpdater
	rest.GracefulDeleter
	rest.MayReturnFullObjectDeleter
	rest.Watcher
	rest.ResetFieldsStrategy
	rest.StorageVersionProvider
}

// part serves one subresource of an object that is read and updated: status,
// finalize.
type part struct {
	store   *genericregistry.Store
	backend Backend
}

var _ rest.Patcher = (*part)(nil)

// partOf is a copy of a store that updates by another strategy.
func partOf(r *served, strategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
},
) *part {
	store := *r.Store
	store.UpdateStrategy, store.ResetFieldsStrategy = briefChanges(strategy), strategy
	return &part{&store, r.backend}
}

// New implements rest.Storage.
func (p *part) New() runtime.Object { return p.store.New() }

// Destroy implements rest.Storage.
func (p *part) Destroy() {}

// Get implements rest.Getter.
func (p *part) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return p.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A part is never created without the whole.
func (p *part) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return updateIn(ctx, p.store, p.backend, name, info, create, update, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (p *part) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return p.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (p *part) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return p.store.ConvertToTable(ctx, object, options)
}

// narrowPart serves a subresource by which some fields of an object are written
// and all others stay as they are.
type narrowPart struct {
	patched
	rest.ResetFieldsFilterStrategy
}

type patched interface {
	rest.Storage
	rest.Patcher
	rest.TableConvertor
}

func narrowPartOf(r *served, strategy interface {
	rest.RESTUpdateStrategy
	rest.ResetFieldsStrategy
	rest.ResetFieldsFilterStrategy
},
) narrowPart {
	return narrowPart{partOf(r, strategy), strategy}
}

// readOnly serves a resource that only the state machine writes.
type readOnly struct {
	store      *genericregistry.Store
	shortNames []string
}

var (
	_ rest.Getter               = (*readOnly)(nil)
	_ rest.Lister               = (*readOnly)(nil)
	_ rest.Watcher              = (*readOnly)(nil)
	_ rest.Scoper               = (*readOnly)(nil)
	_ rest.SingularNameProvider = (*readOnly)(nil)
	_ rest.ShortNamesProvider   = (*readOnly)(nil)
)

// New implements rest.Storage.
func (r *readOnly) New() runtime.Object { return r.store.New() }

// Destroy implements rest.Storage.
func (r *readOnly) Destroy() {}

// NewList implements rest.Lister.
func (r *readOnly) NewList() runtime.Object { return r.store.NewList() }

// NamespaceScoped implements rest.Scoper.
func (r *readOnly) NamespaceScoped() bool { return r.store.NamespaceScoped() }

// GetSingularName implements rest.SingularNameProvider.
func (r *readOnly) GetSingularName() string { return r.store.GetSingularName() }

// ShortNames implements rest.ShortNamesProvider.
func (r *readOnly) ShortNames() []string { return r.shortNames }

// Get implements rest.Getter.
func (r *readOnly) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// List implements rest.Lister.
func (r *readOnly) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	return listIn(ctx, r.store, options)
}

// ConvertToTable implements rest.TableConvertor.
func (r *readOnly) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, options)
}

// Watch implements rest.Watcher.
func (r *readOnly) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	return r.store.Watch(ctx, options)
}

func badObject(want string, got runtime.Object) error {
	return apierrors.NewBadRequest(fmt.Sprintf("not a %s: %T", want, got))
}
