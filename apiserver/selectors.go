package apiserver

import (
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
)

const (
	// maxSelectorBytes is how long the selectors of a request may be. Each is read, and every value in it validated, four times: for what
	// the request is about, for the audit trail, for who may do it, and for the answer; the first time before it is known who asks.
	maxSelectorBytes = 16 << 10
	// selectorByteCosts is what that takes for each byte, by experience. What shorter selectors take than freeSelectorBytes is part of what
	// every request costs.
	selectorByteCosts = 1500 * time.Nanosecond
	freeSelectorBytes = 256
	// selectorByteHolds is how many bytes of memory are held for each byte of a selector while its request lasts, which a watch does for long:
	// BenchmarkManyTermsHold, rounded up.
	selectorByteHolds = 64
)

// checkSelectors refuses a request whose selectors are too long, by its query.
func checkSelectors(query string) error {
	if len(query) <= maxSelectorBytes {
		return nil
	}
	values, _ := url.ParseQuery(query) // what can be read of it is read by everybody
	n := 0
	for _, name := range []string{"labelSelector", "fieldSelector"} {
		for _, v := range values[name] {
			n += len(v)
		}
	}
	if n > maxSelectorBytes {
		return apierrors.NewBadRequest(fmt.Sprintf("the request's selectors have %d bytes; there may be %d", n, maxSelectorBytes))
	}
	return nil
}

// selectorCosts is what the selectors of a request cost, if they are long.
func selectorCosts(info *request.RequestInfo) time.Duration {
	n := len(info.LabelSelector) + len(info.FieldSelector)
	if n <= freeSelectorBytes {
		return 0
	}
	return time.Duration(n) * selectorByteCosts
}

// selectorHolds is how many bytes the selectors of a request hold, if they are long.
func selectorHolds(info *request.RequestInfo) int64 {
	n := len(info.LabelSelector) + len(info.FieldSelector)
	if n <= freeSelectorBytes {
		return 0
	}
	return int64(n) * selectorByteHolds
}
