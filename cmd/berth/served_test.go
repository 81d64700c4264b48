package main

import "testing"

func TestSayServed(t *testing.T) {
	const hint = `Berth does not serve it; "berth api-resources" lists what it serves`
	for msg, want := range map[string]string{
		`error: resource mapping not found for name: "web" namespace: "" from "f": no matches for kind "Deployment" in version "apps/v1"` + "\nensure CRDs are installed first": `error: resource mapping not found for name: "web" namespace: "" from "f": no matches for kind "Deployment" in version "apps/v1"` + "\n" + hint,
		`error: the server doesn't have a resource type "crd"`: `error: the server doesn't have a resource type "crd"` + "\n" + hint,
		"error: anything else":                                 "error: anything else",
	} {
		if got := sayServed(msg); got != want {
			t.Errorf("%q: got %q", msg, got)
		}
	}
}
