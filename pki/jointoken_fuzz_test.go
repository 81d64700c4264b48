package pki

import "testing"

// FuzzJoinToken: what is no token is refused, and a token is written as it was read.
func FuzzJoinToken(f *testing.F) {
	f.Add("q4x2vn.6fmyh1c3w8k0zrtb.0000000000000000000000000000000000000000000000000000000000000000")
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, s string) {
		if token, err := ParseJoinToken(s); err == nil && token.String() != s {
			t.Errorf("%q became %q", s, token)
		}
	})
}
