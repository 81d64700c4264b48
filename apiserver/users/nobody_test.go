package users

import (
	"net/http"
	"net/url"
	"testing"
)

// A request that is nothing but a token, as a review asks about, is nobody's.
func TestNobodyAsksWithoutAPath(t *testing.T) {
	nobody := asNobody(nil)
	if who, ok, err := nobody.AuthenticateRequest(&http.Request{Header: http.Header{"Authorization": {"Bearer  x"}}}); ok || err != nil {
		t.Errorf("%v, %v", who, err)
	}
	if _, ok, err := nobody.AuthenticateRequest(&http.Request{URL: &url.URL{Path: "/livez"}}); !ok || err != nil {
		t.Errorf("what is public is not: %v", err)
	}
}
