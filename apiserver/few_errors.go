package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
)

// What a client is told of an object that is wrong in many places. Upstream puts the text of an answer together error by error, and
// copies for each what it has: of ten thousand that takes ten seconds.
const (
	maxToldErrors = 100
	maxToldBytes  = 1 << 20 // of errors, but for the first
)

// few keeps the first errors. The last one says how many more there are, and where the first of these is.
func few(errs field.ErrorList) field.ErrorList {
	n, bytes := 0, 0
	for _, err := range errs {
		if n == maxToldErrors || n > 0 && bytes > maxToldBytes {
			break
		}
		bytes += len(err.Field) + len(err.Detail) + bytesOf(err.BadValue)
		n++
	}
	if n == len(errs) {
		return errs
	}
	return append(errs[:n:n], &field.Error{
		Type: field.ErrorTypeForbidden, Field: errs[n].Field, Detail: fmt.Sprintf("%d more errors are not told", len(errs)-n),
	})
}

// bytesOf is how much a value adds to a text, if it is one itself: others are short.
func bytesOf(value any) int {
	s, _ := value.(string)
	return len(s)
}

// briefCreation is a strategy that tells few of many errors.
type briefCreation struct{ rest.RESTCreateStrategy }

func brief(s rest.RESTCreateStrategy) rest.RESTCreateStrategy {
	if s == nil {
		return nil
	}
	return briefCreation{s}
}

// Validate implements rest.RESTCreateStrategy.
func (s briefCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return few(s.RESTCreateStrategy.Validate(ctx, obj))
}

// briefChange is the same for an object that is changed.
type briefChange struct{ rest.RESTUpdateStrategy }

func briefChanges(s rest.RESTUpdateStrategy) rest.RESTUpdateStrategy {
	if s == nil {
		return nil
	}
	return briefChange{s}
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s briefChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return few(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old))
}
