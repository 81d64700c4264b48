package apiserver

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/authorization"
)

const (
	// maxSelectorBytes is how long the selectors of a request may be. Each is read, and every value in it validated, four times: for what
	// the request is about, for the audit trail, for who may do it, and for the answer.
	maxSelectorBytes = 16 << 10
	// selectorByteCosts is what that takes for each byte, by experience. What shorter selectors take than freeSelectorBytes is part of what
	// every request costs.
	selectorByteCosts = 1500 * time.Nanosecond
	freeSelectorBytes = 256
	// selectorByteHolds is how many bytes of memory are held for each byte of a selector while its request lasts, which a watch does for long:
	// BenchmarkManyTermsHold, rounded up.
	selectorByteHolds = 64
)

// checkSelectors refuses a request whose selectors are too long, by its query, and says how long they are.
func checkSelectors(query string) (n int, err error) {
	if len(query) <= freeSelectorBytes {
		return 0, nil
	}
	values, _ := url.ParseQuery(query) // what can be read of it is read by everybody
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		for _, v := range values[name] {
			n += len(v)
		}
	}
	if n > maxSelectorBytes {
		return n, apierrors.NewBadRequest(fmt.Sprintf("the request's selectors have %d bytes; there may be %d", n, maxSelectorBytes))
	}
	return n, nil
}

// known says whether whom a request is of is known, where that is to be asked first: upstream reads what a request is about before it asks
// whom it is of, and selectors may take long to be read.
func known(req *http.Request, who authenticator.Request, selectorBytes int) bool {
	if selectorBytes <= freeSelectorBytes {
		return true
	}
	shows, ok := req.Context().Value(shownKey{}).(*shown)
	if !ok {
		return false
	}
	_, ok, err := who.AuthenticateRequest(shows.again(req.Context()))
	shows.stranger = !ok || err != nil
	return !shows.stranger
}

// selectorCosts is what the selectors of a request cost, if they are long.
func selectorCosts(info *request.RequestInfo) time.Duration {
	return selectorBytesCost(len(info.LabelSelector) + len(info.FieldSelector))
}

func selectorBytesCost(n int) time.Duration {
	if n <= freeSelectorBytes {
		return 0
	}
	return time.Duration(n) * selectorByteCosts
}

// What an access review may say besides.
const (
	maxReviewGroups = 4096 // of somebody; each is compared with every subject of a binding
	// requirementBytes is what a requirement counts beside its texts, and a value of one.
	requirementBytes, valueBytes = 16, 4
)

// checkReview bounds an access review, as checkSelectors does a query, before anything of it is read. It says how many bytes its
// selectors count as: those of a request that asks the same.
func checkReview(obj runtime.Object) (selectorBytes int, err error) {
	var attributes *authorization.ResourceAttributes
	var groups []string
	kind := "SubjectAccessReview"
	switch o := obj.(type) {
	case *authorization.SelfSubjectAccessReview:
		attributes, kind = o.Spec.ResourceAttributes, "SelfSubjectAccessReview"
	case *authorization.SubjectAccessReview:
		attributes, groups = o.Spec.ResourceAttributes, o.Spec.Groups
	case *authorization.LocalSubjectAccessReview:
		attributes, groups, kind = o.Spec.ResourceAttributes, o.Spec.Groups, "LocalSubjectAccessReview"
	}
	var l limits
	spec := field.NewPath("spec")
	l.count(spec.Child("groups"), len(groups), maxReviewGroups)
	if attributes != nil {
		var labels, fields int
		if s := attributes.LabelSelector; s != nil {
			labels = len(s.RawSelector)
			for _, r := range s.Requirements {
				labels += requirementCounts(r.Key, string(r.Operator), r.Values)
			}
		}
		if s := attributes.FieldSelector; s != nil {
			fields = len(s.RawSelector)
			for _, r := range s.Requirements {
				fields += requirementCounts(r.Key, string(r.Operator), r.Values)
			}
		}
		at := spec.Child("resourceAttributes", "labelSelector")
		if fields > labels {
			at = spec.Child("resourceAttributes", "fieldSelector")
		}
		if selectorBytes = labels + fields; selectorBytes > maxSelectorBytes {
			l.ErrorList = append(l.ErrorList, field.TooLong(at, "", maxSelectorBytes))
		}
	}
	if len(l.ErrorList) > 0 {
		return 0, apierrors.NewInvalid(authorization.Kind(kind), "", l.ErrorList)
	}
	return selectorBytes, nil
}

func requirementCounts(key, operator string, values []string) int {
	n := requirementBytes + len(key) + len(operator)
	for _, v := range values {
		n += valueBytes + len(v)
	}
	return n
}

// selectorHolds is how many bytes the selectors of a request hold, if they are long.
func selectorHolds(info *request.RequestInfo) int64 {
	n := len(info.LabelSelector) + len(info.FieldSelector)
	if n <= freeSelectorBytes {
		return 0
	}
	return int64(n) * selectorByteHolds
}
