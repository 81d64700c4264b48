package apiserver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What is deleted is what was asked about, whatever a client's precondition leaves open.
func TestOnlyWhatWasAskedAboutIsDeleted(t *testing.T) {
	uid, other, revision := types.UID("u"), types.UID("other"), "7"
	for name, c := range map[string]struct {
		given *metav1.Preconditions
		uid   types.UID
		at    string
		again bool // if it has changed meanwhile
	}{
		"nothing":    {nil, "u", "9", true},
		"empty":      {&metav1.Preconditions{}, "u", "9", true},
		"UID":        {&metav1.Preconditions{UID: &uid}, "u", "9", true},
		"another's":  {&metav1.Preconditions{UID: &other}, "other", "9", false},
		"a revision": {&metav1.Preconditions{ResourceVersion: &revision}, "u", "7", false},
		"both":       {&metav1.Preconditions{UID: &uid, ResourceVersion: &revision}, "u", "7", false},
	} {
		options := &metav1.DeleteOptions{Preconditions: c.given}
		p := onlyThis(options, "u", "9", false).Preconditions
		if p == nil || p.UID == nil || p.ResourceVersion == nil || *p.UID != c.uid || *p.ResourceVersion != c.at || mayBeAnother(options, "u") != c.again {
			t.Errorf("%s: %v, again: %t", name, p, mayBeAnother(options, "u"))
		}
		if options.Preconditions != c.given {
			t.Errorf("%s: the client's own were changed", name)
		}
	}
	if p := onlyThis(&metav1.DeleteOptions{}, "u", "9", true).Preconditions; p != nil {
		t.Errorf("a dry run: %v", p)
	}
}
