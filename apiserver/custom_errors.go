package apiserver

import (
	"context"
	"maps"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	embedded "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	customvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/berth-dev/berth/fsm"
)

// customErrors is asked about large custom objects when nothing is changed any more. Upstream's strategy of a custom kind, which is made
// out of our sight, looks for all errors of an object, compares each with all others, and puts the text of the answer together as it
// does for any kind (few). So an object that is wrong in more places than are told is refused here. What is wrong in few, or was before,
// upstream says.
type customErrors struct {
	view func() *fsm.View

	mu    sync.Mutex
	kinds map[string]*customChecks // by the name of the definition and the version
	asked uint64                   // how often for checks
}

var _ admission.MutationInterface = (*customErrors)(nil)

const (
	// freeCustomNodes is how many values an object may have that is not looked at.
	freeCustomNodes = 256
	// maxCustomChecks bounds what is kept of definitions.
	maxCustomChecks = 256
	// freeRules is how many rules are asked about an object that is not asked about them here: upstream tells what is wrong by all of
	// them, and asks them once then.
	freeRules = 1024
)

func newCustomErrors(view func() *fsm.View) *customErrors {
	return &customErrors{view: view, kinds: map[string]*customChecks{}}
}

// Handles implements admission.Interface.
func (*customErrors) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface. It changes nothing.
func (e *customErrors) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	obj, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || nodesOf(obj.Object, 0, freeCustomNodes) <= freeCustomNodes {
		return nil
	}
	if err := checkDefaulted(a, obj); err != nil {
		return err
	}
	crd, ok := e.view().Definition(a.GetResource().GroupResource().String())
	if !ok {
		return nil
	}
	checks, err := e.checksOf(crd, a.GetResource().Version)
	if err != nil || checks == nil {
		return nil //nolint:nilerr // upstream says what is wrong with the definition
	}
	old, _ := a.GetOldObject().(*unstructured.Unstructured)
	if a.GetOperation() == admission.Create {
		old = nil
	}
	is, was := checks.written(obj, old, a.GetSubresource() == "status")
	if errs := checks.many(ctx, is, was); len(errs) > 0 {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), obj.GetName(), few(errs))
	}
	return nil
}

// checkDefaulted: what defaults have made of an object is bounded, as what is sent is. What was too much before may stay.
func checkDefaulted(a admission.Attributes, obj *unstructured.Unstructured) error {
	n := contentNodes(obj)
	if n <= maxContents {
		return nil
	}
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && old != nil && contentNodes(old) > maxContents {
		return nil
	}
	return apierrors.NewInvalid(a.GetKind().GroupKind(), obj.GetName(), field.ErrorList{field.Forbidden(field.NewPath("spec"), "with its defaults "+tooManyValues(maxContents))})
}

// contentNodes counts the values of an object but for its metadata, as far as it matters.
func contentNodes(obj *unstructured.Unstructured) (n int) {
	for key, value := range obj.Object { // order does not matter: they are counted
		if key != "metadata" {
			n = nodesOf(value, n, maxContents)
		}
	}
	return n
}

// nodesOf adds the values of one to n, up to one more than most.
func nodesOf(value any, n, most int) int {
	if n++; n > most {
		return n
	}
	switch v := value.(type) {
	case map[string]any:
		for _, one := range v { // order does not matter: they are counted
			if n = nodesOf(one, n, most); n > most {
				return n
			}
		}
	case []any:
		for _, one := range v {
			if n = nodesOf(one, n, most); n > most {
				return n
			}
		}
	}
	return n
}

// customChecks are what upstream asks about the objects of one version of a kind.
type customChecks struct {
	uid        types.UID // of the definition
	generation int64     // of its spec, which its status leaves as it is
	asked      uint64    // when it was asked for last
	schema     *spec.Schema
	structural *structuralschema.Structural
	rules      *cel.Validator
	status     bool // it is written by itself
}

func (e *customErrors) checksOf(crd *apiextensionsv1.CustomResourceDefinition, version string) (*customChecks, error) {
	key := crd.Name + "/" + version
	if known := e.known(key); known != nil && known.uid == crd.UID && known.generation == crd.Generation {
		return known, nil
	}
	made, err := newCustomChecks(crd, version)
	if err != nil || made == nil {
		return nil, err
	}
	e.keep(key, made)
	return made, nil
}

// known are the checks that are kept of a version, of whichever definition they are.
func (e *customErrors) known(key string) *customChecks {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.kinds[key]
	if c != nil {
		e.asked++
		c.asked = e.asked
	}
	return c
}

// keep keeps checks, and lets go of those that were asked for the longest ago where there are too many.
func (e *customErrors) keep(key string, made *customChecks) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.kinds[key]; !ok && len(e.kinds) >= maxCustomChecks {
		oldest := ""
		for k, c := range e.kinds { // order does not matter: no two were asked for at once
			if oldest == "" || c.asked < e.kinds[oldest].asked {
				oldest = k
			}
		}
		delete(e.kinds, oldest)
	}
	e.asked++
	made.asked = e.asked
	e.kinds[key] = made
}

func newCustomChecks(crd *apiextensionsv1.CustomResourceDefinition, version string) (*customChecks, error) {
	in, err := apihelpers.GetSchemaForVersion(crd, version)
	if err != nil || in == nil {
		return nil, err
	}
	subresources, err := apihelpers.GetSubresourcesForVersion(crd, version)
	if err != nil {
		return nil, err
	}
	internal := new(apiextensions.CustomResourceValidation)
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(in, internal, nil); err != nil {
		return nil, err
	}
	c := &customChecks{uid: crd.UID, generation: crd.Generation, status: subresources != nil && subresources.Status != nil}
	if _, c.schema, err = customvalidation.NewSchemaValidator(internal.OpenAPIV3Schema); err != nil {
		return nil, err
	}
	if c.structural, err = structuralschema.NewStructural(internal.OpenAPIV3Schema); err != nil {
		return nil, err
	}
	c.rules = cel.NewValidator(c.structural, true, celconfig.PerCallLimit)
	return c, nil
}

// written are the content that a request stores, and the one before, which is nil of a new object: a status is written by itself.
func (c *customChecks) written(obj, old *unstructured.Unstructured, status bool) (is, was map[string]any) {
	const field = "status"
	if old != nil {
		was = old.Object
	}
	if !c.status {
		return obj.Object, was
	}
	from, statusOf := obj.Object, was
	if status && was != nil {
		from, statusOf = was, obj.Object
	}
	is = maps.Clone(from)
	delete(is, field)
	if s, ok := statusOf[field]; ok {
		is[field] = s
	}
	return is, was
}

// many are the errors of an object, if there are too many, and the object before had fewer.
func (c *customChecks) many(ctx context.Context, is, was map[string]any) field.ErrorList {
	tooMany := func(errs field.ErrorList) bool { return len(errs) >= maxToldErrors }
	if errs := c.bySchema(is); tooMany(errs) && (was == nil || !tooMany(c.bySchema(was))) {
		return errs
	}
	if errs := embedded.Validate(nil, is, c.structural, false); tooMany(errs) {
		return errs
	}
	if errs := listtype.ValidateListSetsAndMaps(nil, c.structural, is); tooMany(errs) &&
		(was == nil || len(listtype.ValidateListSetsAndMaps(nil, c.structural, was)) == 0) {
		return errs
	}
	if c.rules == nil || rulesAbout(c.structural, is, 0) <= freeRules {
		return nil
	}
	var before any
	var options []cel.Option
	if was != nil {
		before = was
		options = append(options, cel.WithRatcheting(common.NewCorrelatedObject(is, was, &model.Structural{Structural: c.structural})))
	}
	if errs, _ := c.rules.Validate(ctx, nil, c.structural, is, before, celconfig.RuntimeCELCostBudget, options...); tooMany(errs) {
		return errs
	}
	return nil
}

// rulesAbout counts the rules that are asked about a value and all that is in it, as far as it matters.
func rulesAbout(s *structuralschema.Structural, value any, n int) int {
	n += len(s.XValidations)
	var every *structuralschema.Structural
	if s.AdditionalProperties != nil {
		every = s.AdditionalProperties.Structural
	}
	switch v := value.(type) {
	case map[string]any:
		for key, one := range v { // order does not matter: they are counted
			if of, ok := s.Properties[key]; ok && n <= freeRules {
				n = rulesAbout(&of, one, n)
			}
			if every != nil && n <= freeRules {
				n = rulesAbout(every, one, n)
			}
		}
	case []any:
		for i := 0; s.Items != nil && i < len(v) && n <= freeRules; i++ {
			n = rulesAbout(s.Items, v[i], n)
		}
	}
	if s.ValueValidation != nil {
		for i := range s.ValueValidation.AllOf {
			n = nestedRulesAbout(&s.ValueValidation.AllOf[i], value, n)
		}
	}
	return n
}

// nestedRulesAbout is rulesAbout for what all of is said of a value.
func nestedRulesAbout(s *structuralschema.NestedValueValidation, value any, n int) int {
	n += len(s.XValidations)
	switch v := value.(type) {
	case map[string]any:
		for key, one := range v { // order does not matter: they are counted
			if of, ok := s.Properties[key]; ok && n <= freeRules {
				n = nestedRulesAbout(&of, one, n)
			}
			if s.AdditionalProperties != nil && n <= freeRules {
				n = nestedRulesAbout(s.AdditionalProperties, one, n)
			}
		}
	case []any:
		for i := 0; s.Items != nil && i < len(v) && n <= freeRules; i++ {
			n = nestedRulesAbout(s.Items, v[i], n)
		}
	}
	for i := range s.AllOf {
		n = nestedRulesAbout(&s.AllOf[i], value, n)
	}
	return n
}

// bySchema are the first errors by the schema.
func (c *customChecks) bySchema(content map[string]any) field.ErrorList {
	return customvalidation.ValidateCustomResource(nil, content, &firstErrors{schema: c.schema})
}

// firstErrors validates by a schema until it has found as many errors as are told: what is left then counts as good. The whole is wrong
// all the same, since no alternative of the schema (anyOf and the like) is looked at in this way.
type firstErrors struct {
	schema *spec.Schema
	found  int
}

// Validate implements customvalidation.SchemaCreateValidator.
func (f *firstErrors) Validate(value any, _ ...customvalidation.ValidationOption) *validate.Result {
	return f.of(f.schema, f.schema, "", strfmt.Default).Validate(value)
}

func (f *firstErrors) of(schema *spec.Schema, root any, path string, formats strfmt.Registry) *validate.SchemaValidator {
	return validate.NewSchemaValidator(schema, root, path, formats, func(o *validate.SchemaValidatorOptions) {
		o.NewValidatorForIndex = func(_ int, s *spec.Schema, root any, path string, formats strfmt.Registry, _ ...validate.Option) validate.ValueValidator {
			return partErrors{f.of(s, root, path, formats), f}
		}
		o.NewValidatorForField = func(_ string, s *spec.Schema, root any, path string, formats strfmt.Registry, _ ...validate.Option) validate.ValueValidator {
			return partErrors{f.of(s, root, path, formats), f}
		}
	})
}

// partErrors validates a part of an object.
type partErrors struct {
	*validate.SchemaValidator
	of *firstErrors
}

// Validate implements validate.ValueValidator.
func (p partErrors) Validate(value any) *validate.Result {
	before := p.of.found
	if before >= maxToldErrors {
		return new(validate.Result)
	}
	r := p.SchemaValidator.Validate(value)
	p.of.found = before + len(r.Errors)
	return r
}
